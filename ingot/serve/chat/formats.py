"""The formats in which families of models write calls of tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ingot.serve.chat.calls import CallReader
from ingot.serve.chat.coming import Reading

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
MISTRAL_OPEN, MISTRAL_ARGUMENTS, MISTRAL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def _read_hermes(reader: CallReader) -> Reading[None]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere in the text."""
    while (yield from reader.prose(HERMES_OPEN)):
        yield from reader.attempt(_tagged(reader))


def _tagged(reader: CallReader) -> Reading[None]:
    coming = reader.coming
    yield from coming.skip_space()
    yield from reader.call()
    yield from coming.skip_space()
    yield from coming.starts_with(HERMES_CLOSE)
    yield from coming.skip_space()


def _read_llama3(reader: CallReader) -> Reading[None]:
    """`{"name": ..., "parameters": {...}}`, as the whole answer or after a tag."""
    coming = reader.coming
    if (yield from coming.skip_space()) == "{":
        yield from reader.attempt(_listed(reader))
    else:
        coming.at = 0
    while (yield from reader.prose(PYTHON_TAG)):
        yield from reader.attempt(_listed(reader))


def _listed(reader: CallReader) -> Reading[None]:
    coming = reader.coming
    char = "{"
    while char == "{":
        yield from coming.skip_space()
        yield from reader.call()
        reader.finish_call()
        yield from coming.skip_space()
        yield from coming.starts_with(";")
        char = yield from coming.skip_space()


def _read_mistral(reader: CallReader) -> Reading[None]:
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}`."""
    while (yield from reader.prose(MISTRAL_OPEN)):
        yield from reader.attempt(_array_or_name(reader))


def _array_or_name(reader: CallReader) -> Reading[None]:
    coming = reader.coming
    if (yield from coming.skip_space()) != "[":
        return (yield from _named(reader))
    char = ","
    while char == ",":
        coming.at += 1
        yield from coming.skip_space()
        yield from reader.call()
        reader.finish_call()
        char = yield from coming.skip_space()
    yield from coming.expect("]")
    yield from coming.skip_space()


def _named(reader: CallReader) -> Reading[None]:
    coming = reader.coming
    name = yield from reader.name_until("{", "[")
    if (yield from coming.starts_with(MISTRAL_ID)):
        yield from reader.pass_until("{", "[")
    yield from coming.starts_with(MISTRAL_ARGUMENTS)
    yield from coming.skip_space()
    yield from reader.arguments(name)
    yield from coming.skip_space()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format.

    Attributes:
        marks: a chat template that writes it has one of these, and none of `others`.
        special: its marks are special tokens, which must be left in the text.
        begin, between, end: what stands around calls and between them, when they are asked for.
        arguments: the name that a call's arguments have.
        short_ids: its templates take ids of nine letters and digits alone.
    """

    name: str
    marks: tuple[str, ...]
    read: Callable[[CallReader], Reading[None]]
    arguments: str = "arguments"
    others: tuple[str, ...] = ()
    special: bool = False
    short_ids: bool = False
    begin: str = ""
    between: str = ""
    end: str = ""


FORMATS = (
    ToolFormat(
        name="mistral",
        marks=(MISTRAL_OPEN,),
        read=_read_mistral,
        special=True,
        short_ids=True,
        begin=f"{MISTRAL_OPEN} [",
        between=", ",
        end="]",
    ),
    ToolFormat(
        name="hermes",
        marks=(HERMES_OPEN,),
        others=("<function=", "<arg_key>"),  # XML inside of the same tag
        read=_read_hermes,
        begin=f"{HERMES_OPEN}\n",
        between=f"\n{HERMES_CLOSE}\n{HERMES_OPEN}\n",
        end=f"\n{HERMES_CLOSE}",
    ),
    ToolFormat(
        name="llama3",
        marks=(PYTHON_TAG, '{"name": function name, "parameters":'),
        read=_read_llama3,
        arguments="parameters",
        special=True,
        between="; ",
    ),
)


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template writes calls in; None for one that is not known here."""
    for each in FORMATS:
        if any(mark in template for mark in each.marks):
            return None if any(other in template for other in each.others) else each
    return None
