"""Chat answers: calls of tools and reasoning in them, and how requests ask for their form."""

from ingot.serve.chat.asked import structured_outputs
from ingot.serve.chat.deltas import AnswerDelta, AnswerMessage, CallDelta, WrittenCall, join
from ingot.serve.chat.reader import AnswerReader
from ingot.serve.chat.style import TOOL_CALL_PARSERS, Style, style_of
from ingot.serve.chat.tools import check_tools

__all__ = [
    "TOOL_CALL_PARSERS",
    "AnswerDelta",
    "AnswerMessage",
    "AnswerReader",
    "CallDelta",
    "Style",
    "WrittenCall",
    "check_tools",
    "join",
    "structured_outputs",
    "style_of",
]
