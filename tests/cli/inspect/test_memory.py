"""The memory that inspect names is what an executor asks for."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact.architectures import ARCHITECTURES
from ingot.artifact.reader import Artifact
from ingot.artifact.spec import Spec, State
from ingot.cli.inspect.memory import CARDS, GIB, HOSTS, MemoryNeed, machines, memory_need
from ingot.cli.inspect.view import ArtifactView, read_artifact
from ingot.runtime.devices.cpu import CpuExecutor
from tests.cli.sample_artifact import F32, write_sample

NEED = MemoryNeed(
    fixed={"weights": 700, "temporaries": 300}, page_bytes=50, slot_bytes=0, page_size=16,
    most_pages=4, max_context=100, max_seats=8,
)  # fmt: skip


@pytest.fixture
def view(tmp_path: Path) -> ArtifactView:
    return read_artifact(write_sample(tmp_path / "sample.ingot"))


def with_state(view: ArtifactView, window: int) -> ArtifactView:
    """Its plan has keys of 2 heads of 4 numbers."""
    (name,) = view.plans
    plan = view.plans[name]
    state = State(name="k_cache_0", format=F32, record=(2, 4), window=window)
    spec = Spec(inputs=plan.spec.inputs, states=(state,), outputs=plan.spec.outputs)
    return replace(view, programs={name: {"step": replace(plan, spec=spec)}})


@pytest.mark.parametrize(
    ("context", "nbytes"), [(1, 50), (16, 50), (17, 100), (64, 200), (65, 200), (100, 200)]
)
def test_a_seat_has_whole_pages_and_no_more_than_its_window(context: int, nbytes: int) -> None:
    assert NEED.seat_bytes(context) == nbytes
    assert NEED.total_bytes(context, 3) == 1000 + 3 * nbytes


@pytest.mark.parametrize(
    ("memory", "seats"),
    [(1000, 0), (1111, 0), (1112, 0), (1167, 1), (1223, 2), (1500, 7), (10_000, 8)],
)
def test_as_many_seats_fit_as_nine_tenths_of_the_memory_hold(memory: int, seats: int) -> None:
    assert NEED.seats_in(memory, 16) == seats
    if 0 < seats < NEED.max_seats:
        assert NEED.total_bytes(16, seats) <= 0.9 * memory < NEED.total_bytes(16, seats + 1)


def test_a_plan_without_states_takes_all_seats_where_it_fits() -> None:
    stateless = replace(NEED, page_bytes=0)
    assert (stateless.seats_in(2000, 16), stateless.seats_in(1000, 16)) == (8, 0)


def test_a_window_bounds_the_pages_of_a_seat(view: ArtifactView) -> None:
    whole = memory_need(with_state(view, window=0), "cpu:portable")
    assert (whole.page_bytes, whole.page_size, whole.most_pages) == (16 * 2 * 4 * 4, 16, 4)
    assert (whole.max_context, whole.usual_context, whole.max_seats) == (64, 64, 4)
    # Of steps of 32 tokens a window of 4 is no bound in 64 tokens; a longer sequence has one.
    assert memory_need(with_state(view, window=4), "cpu:portable").most_pages == 4


def test_the_weights_are_those_of_the_targets_layout(view: ArtifactView) -> None:
    need = memory_need(view, "cpu:portable")
    weights = view.path / "weights" / "cpu-float32.safetensors"
    assert need.fixed == {
        "weights": weights.stat().st_size, "temporaries": 2048, "logits": 4 * 48 * 4
    }  # fmt: skip


@pytest.mark.parametrize("seats", [1, 3])
def test_an_executor_asks_for_as_much(shakespeare_artifact: Path, seats: int) -> None:
    view = read_artifact(shakespeare_artifact)
    need = memory_need(view, view.manifest.targets[0].name)
    artifact = Artifact.open(shakespeare_artifact, device="cpu")
    context = 100
    pool = seats * need.seat_bytes(context)
    with closing(CpuExecutor(artifact, max_model_len=context, kv_cache_bytes=pool)) as executor:
        assert executor.num_pages * need.page_bytes == pool
        regions = (executor.pool.region, *executor.open("step").regions)
        asked = sum(region.nbytes for region in regions)
        assert executor._weights is not None
        found = asked + len(executor._weights.map)
    assert need.total_bytes(context, seats) == pytest.approx(found, abs=3 * 4096)


def test_a_table_goes_up_to_the_most_by_factors_of_4() -> None:
    assert NEED.samples == ((1, 6, 25, 100), (2, 8))
    assert replace(NEED, max_context=131_072, max_seats=64).samples == (
        (2048, 8192, 32_768, 131_072), (1, 4, 16, 64),
    )  # fmt: skip


def test_machines_with_more_than_can_be_used_are_left_out() -> None:
    assert list(machines("cpu:x86-64-v3", NEED)) == ["4 GB", "8 GB", "16 GB", "32 GB"]
    large = replace(NEED, fixed={"weights": 100 * GIB})
    assert list(machines("cpu:x86-64-v3", large))[-2:] == ["64 GB", "128 GB"]
    huge = replace(NEED, fixed={"weights": 1000 * GIB})
    assert machines("cpu:x86-64-v3", huge) == HOSTS
    assert machines("cuda:sm_90", NEED) == CARDS["sm_90"]


def test_every_architecture_has_cards() -> None:
    assert CARDS.keys() == ARCHITECTURES.keys()
    for known in (HOSTS, *CARDS.values()):
        assert list(known.values()) == sorted(known.values())
