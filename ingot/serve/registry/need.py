"""The memory that a model takes, known before it is loaded."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ingot.artifact.plan import Plan
from ingot.artifact.reader import Artifact, weights_name
from ingot.artifact.target import kind_of_name
from ingot.runtime.pool_size import PoolSize, pool_size
from ingot.serve.settings import ModelSettings

SHARE = 4  # of a budget, one model's keys and values take at most this part, unless told
LOGIT_BYTES = 4


class Need(Struct, frozen=True):
    """What a model takes, and the settings with which it takes no more."""

    nbytes: int
    settings: ModelSettings


def need_of(path: str, settings: ModelSettings, budget: int | None = None) -> Need:
    """The bytes of the weights, of all keys and values, and of what a step computes in.

    Without `kv_bytes`, keys and values get what all seats can need, and at most half of the memory
    that is free and a quarter of the budget. Raises ArtifactError, IncompatibleHostError, and
    ResourceError where there is too little for one sequence.
    """
    artifact = Artifact.open(path, device=settings.device)
    entry = artifact.target
    plan = artifact.plan_of(entry)
    weights = artifact.manifest.files[weights_name(entry.layout)].size
    pool = _pool(plan, settings, budget).nbytes(plan)
    # The engine is told, so that it takes what is counted here.
    settings = replace(settings, kv_bytes=pool or None)
    return Need(weights + pool + _fixed(artifact, plan), settings)


def _pool(plan: Plan, settings: ModelSettings, budget: int | None) -> PoolSize:
    limits = plan.limits
    context = min(settings.context or limits.max_model_len, limits.max_model_len)
    seats = min(settings.seats or limits.max_num_seqs, limits.max_num_seqs)
    if settings.kv_bytes is not None:
        return pool_size(plan, context, settings.kv_bytes)
    most = pool_size(plan, context, None, spare=1 << 62)
    one = PoolSize(*(count // limits.max_num_seqs for count in most))
    found = _least(PoolSize(*(count * seats for count in one)), pool_size(plan, context, None))
    if budget is None or not one.nbytes(plan):
        return found
    share = max(one.nbytes(plan), budget // SHARE)
    return _least(found, pool_size(plan, context, None, spare=share))


def _least(one: PoolSize, other: PoolSize) -> PoolSize:
    return PoolSize(*map(min, one, other))


def _fixed(artifact: Artifact, plan: Plan) -> int:
    """Bytes of what a step computes in."""
    if kind_of_name(artifact.target.name) != "cpu":
        return plan.memory.arena_bytes
    logits = plan.limits.max_logit_rows * artifact.manifest.model.vocab_size * LOGIT_BYTES
    return plan.memory.arena_bytes + logits
