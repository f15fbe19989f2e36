"""Cached result of a compile's front end, as JSON: all that is ordered comes back in order."""

from __future__ import annotations

from typing import Any

import msgspec

from ingot.artifact.decoding import decode_json
from ingot.artifact.formats import Storage
from ingot.artifact.layer_graphs import LayerGraphs
from ingot.artifact.manifest import LedgerEntry
from ingot.artifact.plan import Plan

# [operation, name, what is called or read, arguments, named arguments]
NodeData = tuple[str, str, str, list[Any], dict[str, Any]]


class LoweredEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A program by name: the node that it ends with, its plan, the ledger, and what the passes made
    of some layers."""

    program: str
    result: str
    plan: Plan
    ledger: tuple[LedgerEntry, ...]
    layers: LayerGraphs


class FrontEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The exported graph as plain data, how weights are stored, those that multiply rows of 16
    bits, and every program."""

    nodes: list[NodeData]
    quantization: str
    storage: dict[str, Storage]
    fine: list[str]
    programs: list[LoweredEntry]


def encode_entry(entry: FrontEntry) -> bytes:
    """The entry as bytes. Raises ValueError if it would come back as another."""
    data = msgspec.json.encode(entry)
    again = decode_entry(data)
    # Equal dicts may differ in their order, their texts do not.
    if again != entry or msgspec.json.encode(again) != data:
        raise ValueError("the entry does not survive JSON (a float that is not finite?)")
    return data


def decode_entry(data: bytes) -> FrontEntry:
    """The entry in those bytes. Raises ValueError if they are none."""
    return decode_json(data, FrontEntry)
