"""What events of the registry become in the metrics."""

from __future__ import annotations

import asyncio

import pytest

from ingot.errors import ArtifactError
from ingot.serve.metrics.telemetry import Telemetry
from ingot.serve.registry.registry import ModelRegistry
from tests.serve.registry.fakes import FakeOpener, settle


def exposed(*sources: str) -> str:
    """The metrics after loads of models `m0`, `m1` and so on."""

    async def main() -> str:
        telemetry = Telemetry()
        async with ModelRegistry(FakeOpener()) as registry:

            async def note() -> None:
                async for event in registry.events():
                    telemetry.note(event)

            noting = asyncio.create_task(note())
            await settle()
            for number, source in enumerate(sources):
                registry.register(f"m{number}", source)
                if source.startswith(("bad", "missing")):
                    with pytest.raises(ArtifactError):
                        await registry.load(f"m{number}")
                else:
                    await registry.load(f"m{number}")
            await settle()
            noting.cancel()
        return telemetry.board.exposition()[0].decode()

    return asyncio.run(main())


def test_loads_of_damaged_artifacts_are_counted():
    text = exposed("fine", "bad", "missing")
    failures = [line for line in text.splitlines() if "verify_failures_total{" in line]
    assert failures == [
        f'ingot_artifact_verify_failures_total{{model_name="{name}"}} 1.0' for name in ("m1", "m2")
    ]


def test_the_time_of_a_compile_is_told_for_what_had_to_be_compiled():
    text = exposed("fine", "folder")
    lines = [line for line in text.splitlines() if line.startswith("ingot_compile_seconds{")]
    assert [line.split()[0] for line in lines] == ['ingot_compile_seconds{model_name="m1"}']
    assert 'ingot_model_load_seconds{model_name="m0"}' in text
