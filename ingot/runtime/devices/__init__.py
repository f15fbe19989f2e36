"""Executors, one for each kind of target."""

from __future__ import annotations

from importlib import import_module

from ingot.artifact.reader import Artifact
from ingot.artifact.target import kind_of_name
from ingot.errors import IncompatibleHostError
from ingot.runtime.executor import Executor

# By kind of target, where its executor is: "module:class".
EXECUTORS = {
    "cpu": "ingot.runtime.devices.cpu:CpuExecutor",
    "cuda": "ingot.runtime.devices.cuda.executor:CudaExecutor",
}


def open_executor(
    artifact: Artifact,
    *,
    max_model_len: int,
    kv_cache_bytes: int | None = None,
    num_threads: int | None = None,
) -> Executor:
    """The executor of the artifact's best target for this host.

    Args:
        max_model_len: the longest sequence that must fit; at most the artifact's limit.
        kv_cache_bytes: memory for keys and values; None takes what full use can need, and at
            most half of the memory that is free.
        num_threads: None takes one per processor that this process may use.

    Raises ArtifactError, IncompatibleHostError, ResourceError or UsageError.
    """
    kind = kind_of_name(artifact.target.name)
    if kind not in EXECUTORS:
        raise IncompatibleHostError(
            f"nothing here runs the target {artifact.target.name}",
            hint=f"Supported kinds of targets: {', '.join(EXECUTORS)}.",
        )
    module, name = EXECUTORS[kind].split(":")
    opens: type[Executor] = getattr(import_module(module), name)
    return opens(
        artifact,
        max_model_len=max_model_len,
        kv_cache_bytes=kv_cache_bytes,
        num_threads=num_threads,
    )
