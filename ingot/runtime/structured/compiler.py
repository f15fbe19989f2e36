"""Compiles what requests ask for, off the engine's thread, and keeps what it has compiled."""

from __future__ import annotations

import atexit
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from ingot.errors import GrammarError, IngotError, RequestError, UsageError, describe
from ingot.runtime.structured.guide import Grammar, Vocabulary
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.structured.places import place_of
from ingot.runtime.structured.sizes import MAX_SYMBOLS
from ingot.runtime.structured.spelling import spelled
from ingot.runtime.tokenizer import Tokenizer
from ingot.version import DISTRIBUTION

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SECONDS = 1.0  # that a compile may take
EXIT_SECONDS = 5.0  # that an exit waits for compiles that still run
MOST_AT_ONCE = 2  # compiles that run, whether somebody still waits for them or not
MAX_KEPT, MAX_KEPT_CHARS = 256, 8 << 20  # grammars, and the characters of their texts together
# Of the library: what bounds the work of a compile and of a mask, and memory. About 1.5 kB a state.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": MAX_SYMBOLS,
}
_PLACED = ", at #"
_OF_SIZE = re.compile(
    " too (?!many digits)"
)  # many, big, large or complex, say errors that name such a limit
# The library calls itself for each rule that a rule leads to, without a bound. The longest chain
# that fits into the largest text takes a fourth of this. Only what is touched becomes memory.
STACK_BYTES = 512 << 20


class GrammarCompiler:
    """The grammars of one model. Safe to use from several threads.

    Args:
        tokenizer: gives the model's tokenizer; asked when a grammar is first needed.
        eos_token_ids: tokens that may come where a grammar is complete.
    """

    def __init__(
        self, tokenizer: Callable[[], Tokenizer], vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(MOST_AT_ONCE)
        self._kept: OrderedDict[str, Grammar] = OrderedDict()

    def compile(self, outputs: StructuredOutputsParams) -> Grammar:
        """The grammar, from the cache where it is known.

        Raises GrammarError for one that is not valid, not supported or too large; UsageError
        where the library is not installed; RequestError for a tokenizer that it cannot read.
        """
        with self._lock:  # two threads would build it twice
            vocabulary = self._vocabulary
        text = self._spelled(outputs)
        with self._lock:
            if (known := self._kept.get(text)) is not None:
                self._kept.move_to_end(text)
                return known
        # Without the lock, so that a slow grammar does not keep others from the cache.
        grammar = self._within(SECONDS, lambda: _compiled(vocabulary, text, outputs))
        with self._lock:
            self._kept[text] = grammar
            while len(self._kept) > MAX_KEPT or sum(map(len, self._kept)) > MAX_KEPT_CHARS:
                self._kept.popitem(last=False)
        return grammar

    def forget(self) -> None:
        """Keeps no grammar any longer."""
        with self._lock:
            self._kept.clear()

    def _spelled(self, outputs: StructuredOutputsParams) -> str:
        try:
            return spelled(outputs, self._tokenizer().tags)
        except GrammarError as error:
            raise _placed(error, outputs, _fault_of_spelling) from error

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise UsageError(
                "llguidance is not installed",
                hint=f"Structured outputs need it: pip install '{DISTRIBUTION}[serve]'",
            ) from error
        tokenizer = self._tokenizer().backend.to_str()
        try:
            known = LLTokenizer(
                tokenizer, n_vocab=self._vocab_size, eos_token=self._eos_token_ids or None
            )
        except Exception as error:
            raise RequestError(
                f"the model's tokenizer cannot be held to a grammar: {describe(error)}",
                hint="Structured outputs need a tokenizer whose tokens are bytes of UTF-8.",
            ) from error
        return Vocabulary(known, self._vocab_size)

    def _within(self, seconds: float, work: Callable[[], Grammar]) -> Grammar:
        """Runs the work within a time limit: returns its result or raises its error. Late work is
        abandoned."""
        done: SimpleQueue[Grammar | IngotError] = SimpleQueue()

        def run() -> None:
            try:
                done.put(work())
            except IngotError as error:
                done.put(error)
            except BaseException as error:  # a panic of the library is no Exception
                done.put(GrammarError(f"the grammar cannot be compiled: {describe(error)}"))
            finally:
                self._slots.release()

        if not self._slots.acquire(timeout=seconds):
            raise GrammarError(
                "other grammars are being compiled, and take long", hint="Try again later."
            )
        _start(run)
        try:
            result = done.get(timeout=seconds)
        except Empty:
            raise GrammarError(
                f"the grammar takes more than {seconds:g} s to compile",
                hint="Make it smaller: fewer alternatives, shorter repetitions.",
            ) from None
        if isinstance(result, IngotError):
            raise result
        return result


def _start(work: Callable[[], None]) -> None:
    """Starts a thread with a stack that no grammar fills."""

    def run() -> None:
        try:
            work()
        finally:
            _RUNNING.discard(threading.current_thread())

    thread = threading.Thread(target=run, name="ingot-grammar", daemon=True)
    with _STARTING:
        before = threading.stack_size(STACK_BYTES)
        _RUNNING.add(thread)
        try:
            thread.start()
        except RuntimeError:
            _RUNNING.discard(thread)
            raise
        finally:
            threading.stack_size(before)


_STARTING = threading.Lock()  # the size of stacks is one for the process
_RUNNING: set[threading.Thread] = set()


@atexit.register
def _wait_for_compiles() -> None:
    """Lets compiles that were abandoned end: the library can crash a process that is torn down
    under it. They are daemons, which the interpreter does not wait for, as it would without end."""
    deadline = monotonic() + EXIT_SECONDS
    for thread in list(_RUNNING):
        thread.join(max(0.0, deadline - monotonic()))


def _compiled(vocabulary: Vocabulary, text: str, outputs: StructuredOutputsParams) -> Grammar:
    try:
        return compiled(vocabulary, text)
    except GrammarError as error:
        raise _placed(error, outputs, _fault) from error


def _placed(
    error: GrammarError, outputs: StructuredOutputsParams, fault: Callable[[Any], str | None]
) -> GrammarError:
    """The error with the place in the schema, where one is found."""
    if _OF_SIZE.search(error.found) or _PLACED in error.found:  # of the whole, or known already
        return error
    place = place_of(outputs, fault)
    return error if place is None else GrammarError(f"{error.found}, at {place}", hint=error.hint)


def _fault_of_spelling(schema: Any) -> str | None:
    try:
        spelled(StructuredOutputsParams(json=schema), {})
    except GrammarError as error:
        return error.found.partition(_PLACED)[0]
    return None


def _fault(schema: Any) -> str | None:
    from llguidance import LLMatcher

    try:
        text = spelled(StructuredOutputsParams(json=schema), {})
    except GrammarError as error:
        return error.found.partition(_PLACED)[0]
    said = LLMatcher.validate_grammar(text, limits=_limits())
    return _first_lines(said) if said else None


def compiled(vocabulary: Vocabulary, text: str) -> Grammar:
    """The grammar of a text. Raises GrammarError, with what the library says of it."""
    matcher = new_matcher(vocabulary.tokenizer, text)
    matcher.compute_bitmask()  # the first one is slow, and finds what is too complex
    if matcher.is_error():
        raise GrammarError(
            f"no output can be held to this: {_first_lines(matcher.get_error())}",
            hint="docs/structured_outputs.md lists what is supported.",
        )
    return Grammar(vocabulary, matcher)


def new_matcher(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    from llguidance import LLMatcher

    return LLMatcher(tokenizer, text, log_level=0, limits=_limits())


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(**LIMITS, verbose_errors=False)


def _first_lines(text: str) -> str:
    """First lines of an error, without copies of the grammar and marks below them."""
    first, *rest = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line.removeprefix("error: ") for line in rest if line.startswith("error: ")]
    return ": ".join([first.removesuffix(" regex parse error:"), *said[:1]])[:300]
