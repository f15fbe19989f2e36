"""`build`: models on the machines of a Ray cluster, for `serve deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from ingot.errors import UsageError

try:
    from ray import serve
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig
    from ray.serve.deployment import Application
except ImportError as error:
    raise UsageError(
        f"replicas need a package that is missing: {error.name}",
        hint="Install it: pip install 'ingot-lm[ray]'",
    ) from error

from ingot.serve.ray.affinity import Balance
from ingot.serve.ray.arguments import ModelArgs, RayArguments, read_args
from ingot.serve.ray.replica import Replica
from ingot.serve.ray.router import PrefixRouter

HEAD = {"node:__internal_head__": 0.001}  # a resource of the machine where the head runs


def build(args: dict[str, Any]) -> Application:
    """The application that the `args` of a Serve config file describe. Raises UsageError."""
    wanted = read_args(args)
    models = [_deployment(model, wanted.balance) for model in wanted.models]
    front = serve.deployment(serve.ingress(_front_builder(wanted))()).options(
        name="front",
        num_replicas=wanted.fronts,
        max_ongoing_requests=10_000,  # the edge bounds them
        ray_actor_options={
            "num_cpus": wanted.front_cpus,
            "resources": HEAD if wanted.fronts_on_head else {},
        },
    )
    return front.bind(*models)


def _deployment(model: ModelArgs, balance: Balance) -> Application:
    num_cpus = model.settings.threads if model.num_cpus is None else model.num_cpus
    return (
        serve.deployment(Replica)
        .options(
            name=deployment_name(model.name),
            ray_actor_options={"num_cpus": num_cpus, "num_gpus": model.num_gpus},
            max_ongoing_requests=model.max_ongoing,
            autoscaling_config=AutoscalingConfig(
                min_replicas=model.min_replicas,
                max_replicas=model.most_replicas,
                target_ongoing_requests=model.target_ongoing,
                upscale_delay_s=model.upscale_delay_s,
                downscale_delay_s=model.downscale_delay_s,
            ),
            request_router_config=RequestRouterConfig(
                request_router_class=PrefixRouter, request_router_kwargs=asdict(balance)
            ),
            health_check_period_s=5,
        )
        .bind(model.path, model.settings)
    )


def deployment_name(model: str) -> str:
    """Name of a model's deployment in Ray."""
    return f"model:{model}"


def _front_builder(args: RayArguments) -> Any:
    """A function that makes the front's ASGI application, in its process."""
    chats = {model.name: model.chats for model in args.models}
    key_file, open_health, origins = args.api_key_file, args.open_health, args.allow_origins

    def front() -> Any:
        from ingot.serve.edge.edge import Edge
        from ingot.serve.edge.settings import EdgeSettings
        from ingot.serve.http.app import build_app
        from ingot.serve.ray.remote import RemoteModels
        from ingot.serve.requests.context import HttpSettings

        handles = {name: serve.get_deployment_handle(deployment_name(name)) for name in chats}
        keys = Path(key_file) if key_file else None
        edge = Edge(EdgeSettings(key_file=keys, open_health=open_health, origins=origins))
        settings = HttpSettings(chats=chats)
        return edge.wrap(build_app(RemoteModels(handles), settings, edge, edge.beating))

    return front
