"""Chat answers: calls of tools and reasoning in them, and how requests ask for their form."""

from ingot.runtime.answers.asked import structured_outputs
from ingot.runtime.answers.deltas import AnswerDelta, AnswerMessage, CallDelta, WrittenCall, join
from ingot.runtime.answers.reader import AnswerReader
from ingot.runtime.answers.style import (
    AUTO,
    TOOL_CALL_PARSERS,
    Style,
    guessing_reader,
    style_of,
    tokenizer_style,
)
from ingot.runtime.answers.tools import check_tools

__all__ = [
    "AUTO",
    "TOOL_CALL_PARSERS",
    "AnswerDelta",
    "AnswerMessage",
    "AnswerReader",
    "CallDelta",
    "Style",
    "WrittenCall",
    "check_tools",
    "guessing_reader",
    "join",
    "structured_outputs",
    "style_of",
    "tokenizer_style",
]
