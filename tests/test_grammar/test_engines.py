"""The same promises for every engine, on what their tables let each serve."""

import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from drawloom.errors import CompileBudgetExceeded, InvalidConstraint, UnsatisfiableConstraint
from drawloom.grammar import (
    Choice,
    CompiledGrammar,
    Constraint,
    GrammarCompiler,
    GrammarMatcher,
    JSONSchema,
    Regex,
    Vocabulary,
    fill_bitmasks,
)

Allowed = Callable[[GrammarMatcher], list[int]]
ENGINES = ("llguidance", "xgrammar", "outlines-core")

RECORD = {
    "type": "object",
    "properties": {"ab": {"type": "null"}, "é": {"type": "integer"}, "c": {"enum": ["ab", 12]}},
    "required": ["é"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, Constraint] = {
    "regex": Regex(r"(ab|1,)*(é|\n)?"),
    "any text": Regex(r"(?s).*"),
    "no newline": Regex(r".{0,3}"),
    "one long regex": Regex("[ab]{2,5}c|abcabc"),
    "nothing at all": Regex(""),
    "lazy": Regex("(?:ab|abc)*?c?"),
    "nested repeats": Regex("((a|ab)*c)*é?"),
    "negated": Regex('[^"a\u20ac]{1,4}"'),
    "beyond the plane": Regex("[\U0001f300-\U0001f5ff\u20ac]{1,2}"),
    "a way of counting": Regex("(ab?){2}(c{3,}|12)"),
    "behind a repeat": Regex(".{1,3}.é"),
    "choice": Choice(["ab", "abc", "abcab", "é€"]),
    "empty choice": Choice(["", "ab"]),
    "prefixes": Choice(["a", "ab", "abc", "abcab", "b/", '"\\']),
    "enum": JSONSchema({"enum": ["ab", "東京", None, True, [12, {"ab": []}]]}),
    "record": JSONSchema(RECORD),
    "compact": JSONSchema({"type": "array", "items": {"enum": [True, "ab", [12]]}}, whitespace="compact"),
    "number": JSONSchema({"type": ["number", "null"]}),
    "list": JSONSchema({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}),
    "string": JSONSchema({"type": "string"}),
    "references": JSONSchema({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"const": "ab"}}}),
}


@pytest.fixture(scope="module")
def compilers(vocabulary: Vocabulary) -> dict[str, GrammarCompiler]:
    return {engine: GrammarCompiler(vocabulary, engines=engine) for engine in ENGINES}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def compiler(engine: str, compilers: dict[str, GrammarCompiler]) -> GrammarCompiler:
    return compilers[engine]


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_bit_is_on_exactly_where_accept_is_true(
    name: str, engine: str, compiler: GrammarCompiler, walk_masks: Callable[[CompiledGrammar, str, int], int]
) -> None:
    compiled = compiler.compile(CONSTRAINTS[name])
    assert compiled.engine == engine
    assert walk_masks(compiled, name, 16) or name in ("record", "list")


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_rollback_and_fork_restore_the_state(
    name: str, compiler: GrammarCompiler, check_rollback: Callable[[GrammarMatcher, str], None]
) -> None:
    check_rollback(compiler.compile(CONSTRAINTS[name]).matcher(), name)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_all_engines_speak_one_language(
    name: str, compilers: dict[str, GrammarCompiler], allowed: Allowed, vocabulary: Vocabulary
) -> None:
    """Walks of each, and small changes to them. (llguidance takes neither the escape of a slash nor a plain DEL.)"""
    compiled = {engine: compiler.compile(CONSTRAINTS[name]) for engine, compiler in compilers.items()}
    rng, seen = random.Random(name), set()
    for engine in ENGINES * 4:
        matcher, text = compiled[engine].matcher(), b""
        for _ in range(14):
            choices = [i for i in allowed(matcher) if i not in vocabulary.eos_ids]
            if not choices or (matcher.can_terminate and rng.random() < 0.2):
                break
            token_id = rng.choice(choices)
            assert matcher.accept(token_id)
            text += vocabulary.token_bytes(token_id)
        cut = rng.randint(0, len(text))
        for data in (text, text[:-1], text[:cut] + b"a" + text[cut:], text[:cut] + text[cut + 1 :], text + b'"'):
            spelled = data.decode("utf-8", "replace")
            if "\x7f" in spelled or "\\/" in spelled:
                continue
            answers = {engine: each.accepts(spelled) for engine, each in compiled.items()}
            assert len(set(answers.values())) == 1, (spelled, answers)
            seen |= set(answers.values())
    assert seen == {True, False} or name == "any text"


def random_pattern(rng: random.Random, depth: int) -> str:
    kind = rng.random() if depth else 0.0
    if kind < 0.3:
        return rng.choice(["a", "b", "c", "é", "[ab]", "[^a]", "1", "ab", "[a-c]", r"\n", ".", "日", "[€é]", ""])
    if kind < 0.5:
        return f"(?:{'|'.join(random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3)))})"
    if kind < 0.75:
        return random_pattern(rng, depth - 1) + random_pattern(rng, depth - 1)
    repeat = rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "??"])
    return f"(?:{random_pattern(rng, depth - 1)}){repeat}"


@pytest.mark.parametrize("seed", range(60))
def test_random_regexes_mean_what_python_says(
    seed: int, engine: str, compiler: GrammarCompiler, allowed: Allowed, vocabulary: Vocabulary
) -> None:
    rng = random.Random(seed)
    pattern = random_pattern(rng, 4)
    truth = re.compile(pattern)
    try:
        compiled = compiler.compile(Regex(pattern))
    except CompileBudgetExceeded:
        assert engine != "llguidance"
        return
    for _ in range(2):
        matcher, text = compiled.matcher(), b""
        for _ in range(8):
            on = set(allowed(matcher))
            for token_id in range(vocabulary.size):
                assert matcher.validate_drafts([token_id]) == (token_id in on), (pattern, text, token_id)
            if text.decode("utf-8", "ignore").encode() == text:
                assert matcher.can_terminate == bool(truth.fullmatch(text.decode())), (pattern, text)
            assert on, (pattern, text)
            choices = sorted(on - set(vocabulary.eos_ids))
            if not choices:
                break
            assert matcher.accept(token_id := rng.choice(choices))
            text += vocabulary.token_bytes(token_id)
    for _ in range(8):
        spelled = "".join(rng.choice("abcé1日€\n") for _ in range(rng.randint(0, 6)))
        assert compiled.accepts(spelled) == bool(truth.fullmatch(spelled)), (pattern, spelled)


def test_rows_of_all_engines_are_filled_in_one_step(
    compilers: dict[str, GrammarCompiler], vocabulary: Vocabulary
) -> None:
    matchers = [compilers[engine].compile(each).matcher() for engine in ENGINES for each in CONSTRAINTS.values()]
    random.Random(0).shuffle(matchers)
    together: NDArray[np.int32] = np.full((len(matchers) + 1, (vocabulary.size + 31) // 32), -1, dtype=np.int32)
    alone = together.copy()
    assert fill_bitmasks([(matcher, row) for row, matcher in enumerate(matchers)], together) == {}
    for row, matcher in enumerate(matchers):
        matcher.fill_bitmask(alone, row)
    assert np.array_equal(together, alone) and (together[-1] == -1).all()


def test_threads_share_a_compiled_grammar(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    compiled, failures = compiler.compile(CONSTRAINTS["record"]), list[BaseException]()

    def work() -> None:
        try:
            bitmask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
            for _ in range(20):
                matcher = compiled.matcher()
                for value in '{"ab": null, "é": -12}'.encode():
                    matcher.fill_bitmask(bitmask)
                    assert bitmask[0, value // 32] >> (value % 32) & 1 and matcher.accept(value)
                assert matcher.can_terminate and compiled.accepts('{"é": 0, "c": "ab"}')
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_forced_ids_are_allowed(engine: str) -> None:
    tokens = [bytes([value]) for value in range(256)] + [b"", b"ab"]
    vocabulary = Vocabulary(tokens, eos_ids=[256], encode=lambda text: list(text.encode()))
    matcher = GrammarCompiler(vocabulary, engines=engine).compile(Regex("xyz(?:é|è)?")).matcher()
    forced = matcher.forced_ids(8)
    assert matcher.validate_drafts(forced) == len(forced)
    assert forced in ([], list(b"xyz")), "a table of tokens tells no bytes, the others all"
    assert bool(forced) == (engine != "outlines-core")


def test_a_vocabulary_that_begins_no_text_is_told(engine: str) -> None:
    compiler = GrammarCompiler(Vocabulary([b"a", b"b", b""], eos_ids=[2]), engines=engine)
    assert compiler.compile(Regex("[ab]+")).matcher().accept(1)
    with pytest.raises(UnsatisfiableConstraint):
        compiler.compile(Regex("c"))


@pytest.mark.parametrize("engine", ["xgrammar", "outlines-core"])
@pytest.mark.parametrize(
    "pattern", ["[ab]*a[ab]{20}", "x{5000}", "(?s)(.{1,40}){1,40}", "a{1,1000000}", "(a?){300}a{300}", "((a{9}){9}){9}"]
)
def test_large_automata_are_refused_before_they_are_built(
    engine: str, pattern: str, compilers: dict[str, GrammarCompiler]
) -> None:
    with pytest.raises(CompileBudgetExceeded, match="states are too many"):
        compilers[engine].compile(Regex(pattern))


MISSING = """
import sys
sys.modules["{module}"] = None  # as if it weren't installed
from drawloom.grammar import GrammarCompiler, InvalidConstraint, Regex, Vocabulary
vocabulary = Vocabulary([b"a", b""], eos_ids=[1])
assert GrammarCompiler(vocabulary).compile(Regex("a+")).accepts("aa")
try:
    GrammarCompiler(vocabulary, engines="{engine}")
except InvalidConstraint as error:
    print(error)
"""
LOADED = """
import sys
from drawloom.grammar import GrammarCompiler, Regex, Vocabulary
compiler = GrammarCompiler(Vocabulary([b"a", b""], eos_ids=[1]), engines="{engine}")
assert compiler.compile(Regex("a+")).accepts("aa")
print(*sorted({{"llguidance", "outlines_core", "torch", "xgrammar"}} & set(sys.modules)))
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("engine", "module"), [("xgrammar", "xgrammar"), ("outlines-core", "outlines_core")])
def test_an_engine_that_is_not_installed_says_what_to_install(engine: str, module: str) -> None:
    told = run(MISSING.format(engine=engine, module=module))
    assert told == f"engines: '{engine}' is not installed: pip install drawloom[engines]"


@pytest.mark.parametrize(
    ("engine", "loaded"), [("auto", "llguidance"), ("outlines-core", "outlines_core"), ("xgrammar", "torch xgrammar")]
)
def test_an_engine_loads_its_own_library_alone(engine: str, loaded: str) -> None:
    assert run(LOADED.format(engine=engine)) == loaded


def test_names_of_engines_are_in_the_refusal(vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidConstraint, match=r"'llguidance', 'xgrammar', 'outlines-core'"):
        GrammarCompiler(vocabulary, engines="outlines")
