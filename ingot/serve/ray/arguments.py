"""Arguments of an application in a Serve config file."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ingot.errors import UsageError, listed
from ingot.serve.openai.chat_defaults import ChatDefaults
from ingot.serve.ray.affinity import Balance
from ingot.serve.settings import ModelSettings

Some = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]


class ReplicaSettings(ModelSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of a replica's model, with one thread by default.

    Ray keeps and watches replicas, so `keep_alive`, `priority` and `watchdog` say nothing.
    """

    threads: int = 1


class ModelArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of an application.

    path            an artifact, at the same place on every machine
    settings        how a replica opens it
    chats           what its conversations get whose requests say nothing else; a template is the
                    name of one that it has, or Jinja
    num_cpus        processors that Ray sets aside for a replica; None: as many as its `threads`
    num_gpus        GPUs that it sets aside
    min_replicas    copies that always run
    max_replicas    copies at most; None: `min_replicas`, or one
    target_ongoing  requests that a replica is to run, waiting ones included; more or fewer make
                    Ray start or end replicas
    max_ongoing     requests that are sent to a replica at most; others wait in the front
    """

    name: Annotated[str, Meta(min_length=1)]
    path: Annotated[str, Meta(min_length=1)]
    settings: ReplicaSettings = ReplicaSettings()
    chats: ChatDefaults = ChatDefaults()
    num_cpus: Amount | None = None
    num_gpus: Amount = 0.0
    min_replicas: Annotated[int, Meta(ge=0)] = 1
    max_replicas: Some | None = None
    target_ongoing: Annotated[float, Meta(gt=0)] = 16.0
    max_ongoing: Some = 64
    upscale_delay_s: Amount = 5.0
    downscale_delay_s: Amount = 300.0

    @property
    def most_replicas(self) -> int:
        """Copies at most."""
        return max(self.min_replicas, 1) if self.max_replicas is None else self.max_replicas


class RayArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An application.

    fronts          processes that answer HTTP, tokenise and render templates
    front_cpus      processors that Ray sets aside for each
    fronts_on_head  whether they run where the cluster's head runs. A front that dies cuts its
                    streams, and without its head the cluster is lost anyway
    api_key_file    as of `ingot serve`, where the fronts run; `allow_origins` are those of its
                    --allow-origin
    balance         when load counts for more than a cached prefix
    """

    models: Annotated[list[ModelArgs], Meta(min_length=1)]
    fronts: Some = 1
    front_cpus: Amount = 0.5
    fronts_on_head: bool = True
    api_key_file: str | None = None
    open_health: bool = True
    allow_origins: list[str] = []
    balance: Balance = Balance()


def read_args(data: dict[str, Any]) -> RayArguments:
    """Reads `args`. Raises UsageError."""
    try:
        args = msgspec.convert(data, RayArguments)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from error
    except UsageError as error:
        raise _wrong(f"settings of a model: {error.found}", error.hint) from error
    counts = Counter(model.name for model in args.models)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise _wrong(f"several models are called {listed(twice)}")
    for model in args.models:
        if model.most_replicas < model.min_replicas:
            raise _wrong(
                f"{model.name}: max_replicas is {model.max_replicas}, and min_replicas "
                f"{model.min_replicas}"
            )
    return args


def _wrong(found: str, hint: str = "deploy/ray/serve.yaml has an example.") -> UsageError:
    return UsageError(f"args of the application: {found}", hint=hint)
