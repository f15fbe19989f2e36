"""Answers about sessions."""

from __future__ import annotations

from msgspec import Struct


class SessionCard(Struct, kw_only=True):
    """A session, as it is told to its owner.

    `pending` tokens are not in its states yet: they enter with the next step. It is closed when
    nobody asks for anything for `idle_seconds`; 0: never.
    """

    id: str
    model: str
    created: int
    tokens: int
    pending: int
    bytes: int
    idle_seconds: float
    object: str = "session"


class DeletedSession(Struct, kw_only=True):
    """A session that is no more."""

    id: str
    deleted: bool = True
    object: str = "session.deleted"
