"""Ten conversations, and what a sane answer to each has in it.

A person has read the answers. A model of 135 M parameters stays on these subjects, and is often
wrong about facts, such as capitals, so that these are not asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """What a user says, and a pattern that a sane answer matches."""

    text: str
    expects: str


QUESTIONS = (
    Question("What's gravity?", r"force|mass|spacetime"),
    Question("Why do people sleep?", r"health|rest|body"),
    Question("What is photosynthesis?", r"plants.*(light|sun)"),
    Question("Explain what a computer is.", r"device|machine"),
    Question("Give me three tips for a job interview.", r"1\..*prepared|research|confident"),
    Question("What is a volcano?", r"magma|lava"),
    Question("How many days are there in a week?", r"\b(7|seven)\b"),
    Question("What do bees make?", r"honey|wax|nectar|pollinat"),
    Question("Write one sentence about the sea.", r"\b(sea|ocean|water|wave)s?\b"),
    Question("Give me a short recipe for pancakes.", r"flour|egg|milk"),
)
MAX_TOKENS = 96
LOOP = 8  # words that come again right after themselves, and so on


def fault(question: Question, answer: str) -> str:
    """What is not sane about an answer; "" where it is."""
    words = answer.split()
    if not words:
        return "it is empty"
    if not re.search(question.expects, answer, re.I | re.S):
        return f"it lacks {question.expects}"
    if _loops(words):
        return "it goes in a circle"
    if re.search(r"<\|?[a-z_]+\|?>|\ufffd", answer):
        return "it has the spelling of a special token, or half a character"
    return ""


def _loops(words: list[str]) -> bool:
    """Whether it ends in a phrase that comes four times in a row."""
    return any(words[-size:] * 4 == words[-4 * size :] for size in range(1, LOOP + 1))
