"""What the `args` of a Serve config file say of an application."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class ModelArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of an application.

    path            an artifact, at the same place on every machine
    settings        fields of `ModelSettings`
    num_cpus        processors that Ray sets aside for a replica; None: as many as its `threads`
    num_gpus        GPUs that it sets aside
    min_replicas    copies that always run
    max_replicas    copies at most
    target_ongoing  requests that a replica is to run, waiting ones included; more or fewer make
                    Ray start or end replicas
    max_ongoing     requests that are sent to a replica at most; others wait in the front
    """

    name: str
    path: str
    settings: dict[str, Any] = field(default_factory=dict)
    num_cpus: float | None = None
    num_gpus: float = 0.0
    min_replicas: int = 1
    max_replicas: int = 1
    target_ongoing: float = 16.0
    max_ongoing: int = 64
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 300.0


class Args(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An application.

    fronts         processes that answer HTTP, tokenise and render templates
    api_key_file   as of `ingot serve`, on every machine
    balance        arguments of `Balance`: when load counts for more than a cached prefix
    """

    models: list[ModelArgs]
    fronts: int = 1
    front_cpus: float = 0.5
    api_key_file: str | None = None
    open_health: bool = True
    balance: dict[str, float] = field(default_factory=dict)
