"""Memory is sized from stated numbers, and a model that does not fit is refused before any of it
is taken."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ingot.artifact.plan import Plan
from ingot.artifact.reader import Artifact
from ingot.errors import ResourceError
from ingot.runtime.devices.cuda.executor import CudaExecutor
from ingot.runtime.devices.cuda.room import KV_SHARE, pages_of_one, pool_bytes, pool_within
from ingot.runtime.pool_size import PoolSize
from tests.support.tiny_models import save_random
from tests.targets.cuda.failing import IdleDriver
from tests.targets.cuda.simulation import FLAGS, compile_sketch

LONGEST, SEQUENCES = 160, 4
FIXED = {"the weights": 1_000_000, "temporaries": 500_000}
REST = sum(FIXED.values())
Kinds = Callable[[str], Artifact]


@pytest.fixture(scope="module", params=["llama", "mistral"])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Of a model that looks at all tokens, and of one with windows."""
    folder = tmp_path_factory.mktemp("cuda")
    model_dir = save_random(request.param, folder / "model", tokenizer=True)
    path = compile_sketch(
        model_dir, folder / "a.ingot", dtype="float32", max_model_len=LONGEST,
        max_num_seqs=SEQUENCES, max_num_batched_tokens=32,
    )  # fmt: skip
    return Artifact.open(path, flags=FLAGS)


@pytest.fixture
def plan(artifact: Artifact) -> Plan:
    return artifact.plan


def pages_within(
    plan: Plan, fixed: dict[str, int], free: int, longest: int, asked: int | None
) -> int:
    size = pool_within(plan, fixed, free, longest, asked)
    assert size.num_slots == 0, "all states of the plan have pages"
    return size.num_pages


def bytes_of(plan: Plan, num_pages: int) -> int:
    return pool_bytes(plan, PoolSize(num_pages, 0))


def hinted(error: ResourceError, name: str) -> int:
    found = re.search(rf"{name} <= (\d+)", error.hint)
    assert found, error.hint
    return int(found[1])


@pytest.mark.cases(core=1)
def test_full_use_fits_or_what_fits_is_taken(plan: Plan) -> None:
    one = pages_of_one(plan, LONGEST)
    full = SEQUENCES * one
    assert pages_within(plan, FIXED, 1 << 40, LONGEST, None) == full
    free = REST + int(bytes_of(plan, full - 1) / KV_SHARE) + 1
    assert pages_within(plan, FIXED, free, LONGEST, None) == full - 1


def test_one_sequence_fits_or_the_model_is_refused(plan: Plan) -> None:
    one = pages_of_one(plan, LONGEST)
    least = REST + -(-bytes_of(plan, one) * 10 // 9)
    assert pages_within(plan, FIXED, least, LONGEST, None) == one
    with pytest.raises(ResourceError, match="on the GPU, which has") as raised:
        pages_within(plan, FIXED, least - 10, LONGEST, None)
    assert "1.0 MB for the weights, 0.5 MB for temporaries" in raised.value.found
    longest = hinted(raised.value, "max_model_len")
    assert pages_within(plan, FIXED, least - 10, longest, None) == pages_of_one(plan, longest)
    with pytest.raises(ResourceError):
        pages_within(plan, FIXED, least - 10, longest + 1, None)


def test_a_cache_that_is_asked_for_fits_or_is_refused(plan: Plan) -> None:
    three = 3 * pages_of_one(plan, LONGEST)
    asked, free = bytes_of(plan, three + 1), REST + bytes_of(plan, three + 1)
    assert pages_within(plan, FIXED, free, LONGEST, asked) == three + 1
    with pytest.raises(ResourceError, match=f"3 sequences of {LONGEST} tokens fit") as raised:
        pages_within(plan, FIXED, free - 1, LONGEST, asked)
    most = hinted(raised.value, "kv_cache_bytes")
    assert pages_within(plan, FIXED, free - 1, LONGEST, most) == three
    # No more is taken than full use can need, however much is asked for.
    assert pages_within(plan, FIXED, 1 << 40, LONGEST, 1 << 50) == three // 3 * SEQUENCES


def test_a_cache_that_holds_no_sequence_says_what_would(plan: Plan) -> None:
    two = bytes_of(plan, 2)
    with pytest.raises(ResourceError) as raised:
        pages_within(plan, FIXED, REST + two, LONGEST, 1 << 30)
    longest, asked = (hinted(raised.value, name) for name in ("max_model_len", "kv_cache_bytes"))
    assert (longest, asked) == (32, two)
    assert pages_within(plan, FIXED, REST + two, longest, asked) == 2


@pytest.mark.parametrize("free", [0, REST - 1, REST, REST + 1])
@pytest.mark.parametrize("asked", [None, 1 << 20])
def test_without_room_for_a_page_nothing_fits(plan: Plan, free: int, asked: int | None) -> None:
    with pytest.raises(ResourceError, match="no sequence fits"):
        pages_within(plan, FIXED, free, LONGEST, asked)


def test_nothing_is_taken_of_a_device_that_is_too_small(artifact: Artifact) -> None:
    """The least that works is what is told."""
    with pytest.raises(ResourceError) as raised:
        CudaExecutor(artifact, max_model_len=16, driver=(small := Watched(1 << 16)))
    assert not small.calls
    needed = re.search(r"needs ([\d.]+) MB", raised.value.found)
    assert needed
    room = int(float(needed[1]) * 1e6 * 1.2)
    enough = Watched(room)
    CudaExecutor(artifact, max_model_len=16, driver=enough).close()
    assert sum(enough.taken) <= room


class Watched(IdleDriver):
    """Counts what is allocated."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.taken: list[int] = []

    def allocate(self, nbytes: int) -> int:
        self.taken.append(nbytes)
        self.calls.append("allocate")
        return super().allocate(nbytes)
