"""Ten conversations, and what a sane answer to each has in it; a person has read the answers."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """What a user says, and a pattern that a sane answer matches."""

    text: str
    expects: str


QUESTIONS = (
    Question("What is the capital of France?", r"Paris"),
    Question("What is the largest planet in our solar system?", r"Jupiter"),
    Question("Who wrote the play Romeo and Juliet?", r"Shakespeare"),
    Question("How many days are there in a week?", r"\b(7|seven)\b"),
    Question("What do bees make?", r"honey|wax|nectar"),
    Question("Write one sentence about the sea.", r"\b(sea|ocean|water|wave)s?\b"),
    Question("Name three colours.", r"\b(red|blue|green|yellow|white|black)\b"),
    Question("What is the freezing point of water in degrees Celsius?", r"\b0\b|zero|32"),
    Question("Give me a short recipe for pancakes.", r"flour|egg|milk"),
    Question("Say hello to my friend Anna.", r"Anna|[Hh]ello|Hi\b"),
)
MAX_TOKENS = 96
LOOP = 8  # words that come again right after themselves, and so on


def fault(question: Question, answer: str) -> str:
    """What is not sane about an answer; "" where it is."""
    words = answer.split()
    if not words:
        return "it is empty"
    if not re.search(question.expects, answer, re.IGNORECASE):
        return f"it lacks {question.expects}"
    if _loops(words):
        return "it goes in a circle"
    if re.search(r"<\|?[a-z_]+\|?>|\ufffd", answer):
        return "it has the spelling of a special token, or half a character"
    return ""


def _loops(words: list[str]) -> bool:
    """Whether it ends in a phrase that comes four times in a row."""
    return any(words[-size:] * 4 == words[-4 * size :] for size in range(1, LOOP + 1))
