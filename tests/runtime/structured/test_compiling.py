"""Compiling what requests ask for: what is supported, what is refused, and within what bounds."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from ingot.errors import GrammarError, RequestError, UsageError
from ingot.runtime.structured import compiler as module
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.guide import Guide
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime.fake_tokenizer import byte_fallback, byte_level, metaspace, wordpiece
from tests.support.core import core

VOCAB_SIZE, EOS = 330, 319


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level().to_str().encode())


@pytest.fixture
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(lambda: tokenizer, VOCAB_SIZE, [EOS])


def allowed(grammars: GrammarCompiler, generated: Sequence[int] = (), **asked) -> set[int]:
    """The tokens that may come after these."""
    return tokens_of(Guide(grammars.compile(StructuredOutputsParams(**asked))), list(generated))


def tokens_of(guide: Guide, generated: list[int]) -> set[int]:
    found = guide.allowed(generated, 0)
    only = set(range(VOCAB_SIZE)) if found.only is None else set(found.only.tolist())
    return only - set(found.never.tolist())


CHOICES = ["the fox", "the lazy dog", "the", "dog 🙂"]


@pytest.mark.parametrize(
    "text", core("", "the", "dog ", further=["t", "the ", "the lazy d", "dog 🙂"])
)
def test_masks_are_those_of_the_definition(grammars, tokenizer, text):
    """A token may come where the text with it begins a choice; the end, where it is one.

    Where only one text can follow, fewer may come: those that the tokenizer would spell it with.
    """
    spelled = {i: tokenizer.decode([i], False) for i in range(318)}
    done = tokenizer.encode(text, add_special_tokens=False)
    follow = {choice.removeprefix(text) for choice in CHOICES if choice.startswith(text)}
    expected = {
        i for i, more in spelled.items() if more and any(rest.startswith(more) for rest in follow)
    }
    expected |= {EOS} if text in CHOICES else set()
    found = allowed(grammars, done, choice=CHOICES)
    # Parts of a character have no text of their own.
    found = {i for i in found if "\ufffd" not in spelled.get(i, "")}
    forced = len({rest[:1] for rest in follow}) == 1
    assert (found <= expected) if forced else (found == expected)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"grammar": 'root ::= "a'}, "grammar is not valid"),
        ({"grammar": 'word ::= "a"'}, "No 'root' rule"),
        ({"grammar": "start: undefined"}, "undefined"),
        ({"json": {"type": "strin"}}, "Invalid type"),
        ({"json": {"enum": []}}, "Unsatisfiable"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"not": {}}}, "Unimplemented"),
        ({"json": {"$ref": "http://example.com/schema"}}, "does not fetch"),
        ({"json": {"$ref": "#/$defs/none"}}, "none"),
        ({"json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "oneOf"),
        ({"json_object": True, "whitespace_pattern": "("}, "unclosed group"),
    ],
)
def test_what_cannot_be_held_to_is_refused_in_one_line(grammars, asked, found):
    with pytest.raises(GrammarError, match=found) as caught:
        grammars.compile(StructuredOutputsParams(**asked))
    assert "\n" not in caught.value.found
    assert "Traceback" not in str(caught.value)


HOSTILE = {
    "nested groups": {"regex": "(" * 60_000 + "a" + ")" * 60_000},
    "a bomb": {"regex": "(a+)+$"},
    "a long repetition": {"regex": "(a|b){1,1000000000}"},
    "repetitions of repetitions": {"regex": "((a{1,999}b?){1,999}c?){1,999}"},
    "nested rules": {"grammar": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000},
    "left recursion": {"grammar": 'start: start start | "a" | start "b" start'},
    "a rule of itself": {"grammar": "start: start"},
    "nested GBNF": {"grammar": "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000},
    "a chain of GBNF": {"grammar": "".join(f"r{i} ::= r{i + 1}\n" for i in range(2000))},
    "blank lines": {"grammar": "\n" * 200_000 + "root ::= x"},
    "many values": {"json": {"enum": list(range(40_000))}},
    "many properties": {
        "json": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(9000)}}
    },
    "references in a ring": {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
    "references that branch": {
        "json": {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
            | {"d40": {"type": "null"}},
        }
    },
    "nothing": {"regex": ""},
}


@pytest.mark.parametrize("name", core("nested groups", "a chain of GBNF", further=HOSTILE))
def test_hostile_grammars_are_refused_or_served(grammars, monkeypatch, name):
    """A process that dies, or hangs, would take the tests with it."""
    monkeypatch.setattr(module, "SECONDS", 1.0)
    try:
        grammar = grammars.compile(StructuredOutputsParams(**HOSTILE[name]))
    except GrammarError:
        return
    guide, tokens = Guide(grammar), []
    while len(tokens) < 30 and not guide.ends(tokens, 0):
        options = tokens_of(guide, tokens) - {EOS}
        if not options:
            break
        tokens.append(min(options))
    assert guide.error is None or isinstance(guide.error, GrammarError)


def chain_of_rules(count: int) -> dict:
    rules = "".join(f'r{i}: "a" r{i + 1}\n' for i in range(count))
    return {"grammar": f'start: r0\n{rules}r{count}: "x"'}


def chain_of_definitions(count: int) -> dict:
    names = {
        f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(count)
    }
    return {"json": {"$ref": "#/$defs/d0", "$defs": {**names, f"d{count}": {"type": "null"}}}}


def properties(count: int) -> dict:
    names = {f"p{i}": {"type": "integer"} for i in range(count)}
    return {"json": {"type": "object", "properties": names}}


CHAINS = {"rules": chain_of_rules(13_000), "definitions": chain_of_definitions(3500)}


@pytest.mark.parametrize("name", core("definitions", further=CHAINS))
def test_the_longest_chain_of_rules_overflows_no_stack(grammars, monkeypatch, name):
    monkeypatch.setattr(module, "SECONDS", 60)  # it is about the stack, not the time
    guide = Guide(grammars.compile(StructuredOutputsParams(**CHAINS[name])))
    assert tokens_of(guide, [])


OVERFLOW = """
import threading
from ingot.runtime.structured import compiler
from tests.runtime.structured.test_compiling import CHAINS, EOS, VOCAB_SIZE, byte_level
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.tokenizer import Tokenizer
compiler.STACK_BYTES = 8 << 20
tokenizer = Tokenizer(byte_level().to_str().encode())
grammars = compiler.GrammarCompiler(lambda: tokenizer, VOCAB_SIZE, [EOS])
grammars.compile(StructuredOutputsParams(**CHAINS["rules"]))
"""


@pytest.mark.thorough
def test_a_usual_stack_would_overflow():
    assert subprocess.run([sys.executable, "-c", OVERFLOW]).returncode == -signal.SIGSEGV


@pytest.mark.thorough
def test_the_work_of_a_compile_is_bounded(grammars, monkeypatch):
    """Not the wait alone: what nobody waits for would hold a processor."""
    monkeypatch.setattr(module, "SECONDS", 60)
    assert grammars.compile(StructuredOutputsParams(**properties(1000)))
    with pytest.raises(GrammarError, match="too many properties"):
        grammars.compile(StructuredOutputsParams(**properties(4000)))


def test_what_takes_long_is_refused_while_others_are_served(grammars, monkeypatch):
    gate, compiled = threading.Event(), module.compiled

    def slow(vocabulary, text):
        if "slow" in text:
            gate.wait()
        return compiled(vocabulary, text)

    monkeypatch.setattr(module, "compiled", slow)
    monkeypatch.setattr(module, "SECONDS", 0.05)
    try:
        with pytest.raises(GrammarError, match=r"more than 0\.05 s"):
            grammars.compile(StructuredOutputsParams(choice=["slow"]))
        monkeypatch.setattr(module, "SECONDS", 60)
        assert grammars.compile(StructuredOutputsParams(choice=["quick"]))
        monkeypatch.setattr(module, "SECONDS", 0.05)
        with pytest.raises(GrammarError, match="more than"):
            grammars.compile(StructuredOutputsParams(choice=["slower"]))
        with pytest.raises(GrammarError, match="other grammars"):
            grammars.compile(StructuredOutputsParams(choice=["third"]))
    finally:
        gate.set()


EXIT = """
import sys, threading
from ingot.errors import GrammarError
from ingot.runtime.structured import compiler
from tests.runtime.structured.test_compiling import EOS, VOCAB_SIZE, byte_level
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.tokenizer import Tokenizer
begun, gate = threading.Event(), threading.Event()
def slow(vocabulary, text):
    begun.set()
    gate.wait()
    print("ended", flush=True)
compiler.compiled, compiler.SECONDS, compiler.EXIT_SECONDS = slow, 0.01, float(sys.argv[1])
tokenizer = Tokenizer(byte_level().to_str().encode())
grammars = compiler.GrammarCompiler(lambda: tokenizer, VOCAB_SIZE, [EOS])
try:
    grammars.compile(StructuredOutputsParams(choice=["a"]))
except GrammarError as error:
    print("abandoned", flush=True)
begun.wait()
if sys.argv[2]:
    import atexit
    atexit.register(gate.set)  # which runs before what was registered earlier
"""


@pytest.mark.parametrize(
    ("seconds", "ends", "printed"),
    core(("60", "yes", ["abandoned", "ended"]), further=[("0.01", "", ["abandoned"])]),
)
def test_an_exit_waits_for_what_was_abandoned_but_not_for_ever(seconds, ends, printed):
    arguments = [sys.executable, "-c", EXIT, seconds, ends]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, printed), done.stderr


def test_equal_requests_share_a_grammar_and_few_are_kept(grammars, monkeypatch):
    asked = [StructuredOutputsParams(choice=[text]) for text in "abc"]
    first = grammars.compile(asked[0])
    assert grammars.compile(StructuredOutputsParams(choice=["a"])) is first
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    second = grammars.compile(asked[1])
    assert grammars.compile(asked[0]) is first  # which makes the second the oldest
    grammars.compile(asked[2])
    assert grammars.compile(asked[0]) is first
    assert grammars.compile(asked[1]) is not second


@pytest.mark.parametrize(("make", "eos"), [(byte_level, EOS), (byte_fallback, 2)])
def test_random_walks_match(make, eos):
    """With tokens that are bytes in either spelling, and only parts of some characters."""
    tokenizer, regex = Tokenizer(make().to_str().encode()), "[a-z]{2,5} (é|🙂|你){2}"
    grammars = GrammarCompiler(lambda: tokenizer, VOCAB_SIZE, [eos])
    grammar, rng = grammars.compile(StructuredOutputsParams(regex=regex)), random.Random(5)
    for _ in range(20):
        guide, tokens = Guide(grammar), []
        while not guide.ends(tokens, 0):
            tokens.append(rng.choice(sorted(tokens_of(guide, tokens) - {eos})))
        assert guide.error is None
        assert re.fullmatch(regex, tokenizer.decode(tokens))


@pytest.mark.parametrize("make", [metaspace, wordpiece])
def test_a_tokenizer_that_cannot_be_read_is_named(make):
    tokenizer = Tokenizer(make().to_str().encode())
    with pytest.raises(RequestError, match="tokenizer cannot be held to a grammar"):
        GrammarCompiler(lambda: tokenizer, 12, [1]).compile(StructuredOutputsParams(choice=["a"]))


def test_without_the_library_the_error_names_the_extra(grammars, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"ingot-lm\[serve\]"):
        grammars.compile(StructuredOutputsParams(choice=["a"]))


@pytest.mark.thorough
def test_nothing_imports_the_library_before_it_is_needed():
    code = "import sys, ingot.runtime.llm; assert 'llguidance' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_two_ways_to_write_a_grammar(grammars):
    gbnf = 'root ::= "a" digit+\ndigit ::= [0-9]'
    lark = 'start: "a" /[0-9]/+'
    assert allowed(grammars, grammar=gbnf) == allowed(grammars, grammar=lark) != set()
