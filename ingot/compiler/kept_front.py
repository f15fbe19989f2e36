"""Cache of the front end's results: models of one shape and options have one plan.

Exporting a model and applying the passes takes seconds, and depends on no weight. An entry lies
beside the kernels that were built before. Its key covers all that the front end reads, so that what
it checked when the entry was made (counts of matches, invariants, the graph of layers) still holds.
A compile that is to look at the passes runs them.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from ingot.artifact.front_entry import FrontEntry, LoweredEntry, decode_entry, encode_entry
from ingot.artifact.programs import PROGRAMS
from ingot.cache.builds import Builds
from ingot.cache.store import content_of, key_of
from ingot.compiler.front import Front, LoweredProgram
from ingot.compiler.graph_data import graph_data, graph_of
from ingot.compiler.layers import all_tensors
from ingot.compiler.model import OpenModel
from ingot.compiler.options import Clock, is_measured
from ingot.compiler.surroundings import surroundings
from ingot.errors import UsageError
from ingot.version import __version__

SUFFIX = ".front"
SOURCES = Path(__file__).parents[1]
# Of them, what the front end may import (tests/import_rules.py); the files beside them count, too.
ROOMS = ("artifact", "cache", "compiler", "models", "ops", "passes", "targets")


def front_of(model: OpenModel, clock: Clock, exported: GraphModule | None = None) -> Front:
    """Runs the front end like `lower_model`, unless its result is cached. Raises as that does."""
    looks = model.options.verify_passes or model.options.dump_dir is not None
    if looks or is_measured(model.options):  # which depends on weights
        return _made(model, clock, exported)
    try:
        builds = Builds.opened()
        key = front_key(model)
    except (OSError, UsageError):  # a compile needs no cache
        return _made(model, clock, exported)
    data = builds.take(key, SUFFIX)
    front = None if data is None else decode_front(data, model)
    if front is not None:
        with clock.stage("plan", f"as before, {model.resolved.dtype_reason}"):
            return front
    front = _made(model, clock, exported)
    # A full disk is told by what needs the room; a graph that has no text is made every time.
    with suppress(OSError, ValueError):
        if sources_hash(SOURCES) == LOADED:  # all modules that made it are those of the key
            builds.keep(key, encode_front(front), SUFFIX)
    return front


def _made(model: OpenModel, clock: Clock, exported: GraphModule | None) -> Front:
    # Imported here: what exports and matches is not needed where the front is kept.
    from ingot.compiler.lower_model import lower_model

    return lower_model(model, clock, exported if exported and _has_values(exported) else None)


def _has_values(exported: GraphModule) -> bool:
    """Returns whether passes can read the shapes of a graph; what was kept no longer says them."""
    return all("val" in node.meta for node in exported.graph.find_nodes(op="placeholder"))


# Options that the front end does not read.
NOT_READ: dict[str, Any] = {
    "quality": True,
    "quality_text": None,
    "quality_positions": 1,
    "max_kl": None,
}


def front_key(model: OpenModel) -> str:
    """Changes with everything that the front depends on. Raises OSError."""
    # Of the text that a model is calibrated with, the front asks only whether there is one.
    options = replace(model.options, calibrate=None, **NOT_READ)
    parts: dict[str, Any] = {
        "family": model.config.family.name,
        "config": repr(model.config),
        "resolved": repr(model.resolved),
        "options": repr(options),
        "calibrated": bool(model.calibration),
        "orders": model.orders,
        "tensors": [(n, *t.shape, str(t.dtype)) for n, t in all_tensors(model.module).items()],
        "python": sys.version,
        "build": [torch.version.__version__, str(torch.version.git_version)],
        "defaults": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "ingot": [__version__, LOADED],
        **surroundings(),
    }
    return key_of(parts)


def sources_hash(folder: Path) -> str:
    """A hash of the Python files there and in its ROOMS, by path and content. Raises OSError."""
    inner = (path for room in ROOMS for path in (folder / room).rglob("*.py"))
    files = (*folder.glob("*.py"), *inner)
    return key_of({str(path.relative_to(folder)): content_of(path) for path in files})


LOADED = sources_hash(SOURCES)  # as this process imports them; an edit counts for the next one


def encode_front(front: Front) -> bytes:
    """The front as bytes.

    Raises ValueError where its graph or its plan holds what would not come back the same.
    """
    entry = FrontEntry(
        nodes=graph_data(front.reference.graph),
        quantization=front.quantization,
        storage=front.storage,
        fine=sorted(front.fine),
        programs=[
            LoweredEntry(each.program.name, each.result, each.plan, each.ledger, each.layers)
            for each in front.programs
        ],
    )
    if graph_data(graph_of(entry.nodes)) != entry.nodes:
        raise ValueError("the graph is another when it is read back")
    return encode_entry(entry)


def decode_front(data: bytes, model: OpenModel) -> Front | None:
    """The front of a model in those bytes; None if they are not one."""
    try:
        entry = decode_entry(data)
        graph = graph_of(entry.nodes)
        return Front(
            reference=GraphModule(model.module, graph),
            storage=entry.storage,
            fine=frozenset(entry.fine),
            quantization=entry.quantization,
            programs=tuple(
                LoweredProgram(
                    PROGRAMS[each.program], each.result, each.plan, each.ledger, each.layers
                )
                for each in entry.programs
            ),
        )
    except Exception:  # of whatever sort: it is made anew
        return None
