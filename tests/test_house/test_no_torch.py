"""`grammar` compiles and masks without torch, the CPU engine starts without triton; processes of their own show it."""

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
import numpy
import drawloom, drawloom.grammar
from drawloom.grammar import Choice, EBNF, GrammarCompiler, JSONSchema, Regex, Vocabulary
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

for module in pkgutil.walk_packages(drawloom.grammar.__path__, "drawloom.grammar."):
    importlib.import_module(module.name)

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<eos>"])
eos = tokenizer.token_to_id("<eos>")
vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_ids=[eos])
compiler = GrammarCompiler(vocabulary)
digit = tokenizer.token_to_id("7")
digits = EBNF("start: /[0-9]+/", dialect="lark")
for constraint in (JSONSchema({"type": "integer"}), Regex("[0-9]+"), Choice(["7", "8"]), digits):
    matcher = compiler.compile(constraint).matcher()
    bitmask = numpy.zeros((1, (len(alphabet) + 1 + 31) // 32), dtype=numpy.int32)
    matcher.fill_bitmask(bitmask, 0)
    assert bitmask[0, digit // 32] >> (digit % 32) & 1, constraint
    assert not bitmask[0, eos // 32] >> (eos % 32) & 1, constraint
    assert matcher.accept(digit)

heavy = {"torch", "triton", "transformers", "xgrammar", "outlines_core"} & sys.modules.keys()
assert not heavy, heavy
print("masked without torch")
"""


def test_compiling_and_masking_leave_torch_unimported() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "masked without torch"


def test_the_engine_loads_no_triton() -> None:
    program = "import drawloom.kernels.dispatch, drawloom.runtime.engine, sys; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
