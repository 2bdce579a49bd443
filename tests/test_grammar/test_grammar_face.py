"""The face of `drawloom.grammar`: what it names, and what importing and using it loads."""

import subprocess
import sys

import drawloom.grammar

FIXED = {
    "Vocabulary",
    "GrammarCompiler",
    "Regex",
    "JSONSchema",
    "EBNF",
    "Choice",
    "InvalidConstraint",
    "UnsupportedConstraint",
    "UnsatisfiableConstraint",
    "CompileBudgetExceeded",
}


def test_every_name_of_the_face_resolves() -> None:
    assert set(drawloom.grammar.__all__) >= FIXED
    assert dir(drawloom.grammar) == sorted(drawloom.grammar.__all__)
    for name in drawloom.grammar.__all__:
        assert getattr(drawloom.grammar, name) is not None
    assert not hasattr(drawloom.grammar, "Grammar")


PROGRAM = """
import sys
import drawloom.grammar
assert "llguidance" not in sys.modules and "numpy" not in sys.modules, "importing the face loads an engine"
from drawloom.grammar import GrammarCompiler, JSONSchema, Regex, Vocabulary, fill_bitmasks
import numpy as np
compiler = GrammarCompiler(Vocabulary([bytes([value]) for value in range(256)] + [b""], eos_ids=[256]))
for constraint in (JSONSchema({"type": "object", "properties": {"a": {"format": "date"}}}), Regex("a+")):
    matcher = compiler.compile(constraint).matcher()
    bitmask = np.zeros((1, 9), dtype=np.int32)
    assert fill_bitmasks([(matcher, 0)], bitmask) == {} and bitmask.any()
heavy = {"torch", "transformers", "xgrammar", "outlines_core", "pydantic", "tokenizers"} & set(sys.modules)
assert not heavy, heavy
"""


def test_compiling_and_masking_loads_no_torch() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
