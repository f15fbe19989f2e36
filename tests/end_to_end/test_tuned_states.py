"""Sessions that begin with a tuned state: the formulas' logits behind it, and the same bits in any
company, after any loss of their place, and from files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import ingot
from ingot import LLM
from ingot.artifact.cells import GRID
from ingot.errors import CheckpointError, RequestError, StateFileError, UsageError
from ingot.runtime.config import EngineConfig
from ingot.runtime.initial_record import LEAD, InitialRecord
from ingot.runtime.params import SamplingParams
from ingot.runtime.pool_size import PoolSize
from tests.end_to_end.support import random_tokens, relative_error
from tests.runtime.session_checks import DRAWN, bits, seeded
from tests.support import rwkv_models
from tests.support.made_once import made_once
from tests.support.rwkv_reference import Reference
from tests.targets.cuda.simulation import compile_sketch, simulated

LAYERS, HEADS, SIZE = 2, 2, 32
IDS = random_tokens(45)


def tuned(seed: int) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(HEADS, SIZE, SIZE, generator=rng) for _ in range(LAYERS)]


def tensors() -> rwkv_models.Tensors:
    return rwkv_models.tensors(layers=LAYERS, head_dim=SIZE, head_rows=300)


def written(folder: Path, seed: int) -> Path:
    states = {f"blocks.{i}.att.time_state": s for i, s in enumerate(tuned(seed))}
    return rwkv_models.save_pth(folder / f"{seed}.state", states)


def expected(tokens: Sequence[int], seed: int) -> np.ndarray:
    model = Reference({name: t.numpy() for name, t in tensors().items()})
    given = [s.double().numpy() for s in tuned(seed)]
    nothing = np.zeros(HEADS * SIZE)
    return model.logits(tokens, [(nothing, matrices, nothing) for matrices in given])


@pytest.fixture(scope="session")
def folder() -> Path:
    def make(place: Path) -> None:
        model = rwkv_models.save_pth(place / "rwkv7.pth", tensors())
        ingot.compile(model, place / "model.ingot", dtype="float32", max_model_len=96)
        for seed in (1, 2):
            written(place, seed)

    return made_once("tuned-states", make)


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder / "model.ingot") as opened:
        yield opened


def test_the_first_token_reads_the_state_however_it_is_fed(llm: LLM, folder: Path) -> None:
    wanted = expected(IDS, 1)
    with llm.open_session(state=folder / "1.state") as session:
        whole = session.logits(IDS)
    assert relative_error(whole, wanted) < 2e-5
    with llm.open_session(state=str(folder / "1.state")) as session:
        rows = [session.logits(part) for part in (IDS[:1], IDS[1:2], IDS[2:20], IDS[20:])]
        assert np.array_equal(np.concatenate(rows), whole)
    # The same sequence from nothing is another one.
    assert relative_error(llm.logits(IDS), wanted) > 1e-2


def test_voices_share_nothing_with_one_another(llm: LLM, folder: Path) -> None:
    params = seeded(DRAWN)
    plain = bits(llm.generate([IDS], params)[0])
    states = [folder / "1.state", folder / "2.state", None, folder / "1.state"]
    with llm.open_streams(4, states=states) as streams:
        streams.feed([IDS] * 4)
        said = [bits(each) for each in streams.generate(params)]
    assert said[0] == said[3] and said[2] == plain
    assert len({tuple(tokens) for tokens, _ in said}) == 3
    # What is cached of a state is found by those who begin with it.
    before = llm.counters().num_computed_tokens
    with llm.open_session(IDS, state=folder / "1.state") as session:
        assert bits(session.generate(params)) == said[0]
    assert llm.counters().num_computed_tokens - before < len(IDS)
    llm._engine._residence.check()


@pytest.mark.parametrize("cached", [True, False])
def test_a_session_that_lost_its_place_begins_with_its_state_again(
    folder: Path, cached: bool
) -> None:
    params, sessions = seeded(DRAWN), []
    with LLM(folder / "model.ingot") as llm:
        one_slot = PoolSize(num_pages=0, num_slots=2).nbytes(llm.artifact.plan)
        for seed in (1, 2, 1):
            with llm.open_session(IDS, state=folder / f"{seed}.state") as session:
                sessions.append([bits(session.generate(params)) for _ in range(2)])
    config = EngineConfig(prefix_cache=cached)
    with LLM(folder / "model.ingot", kv_cache_bytes=one_slot, config=config) as llm:
        with llm.open_streams(3, states=[folder / f"{s}.state" for s in (1, 2, 1)]) as streams:
            streams.feed([IDS] * 3)
            for turn in range(2):
                outputs = streams.generate(params)
                assert [bits(each) for each in outputs] == [s[turn] for s in sessions]
        assert llm.counters().num_sessions_given_up
        llm._engine._residence.check()


def test_what_is_fed_and_cannot_be_drawn_is_no_matter_of_penalties(llm: LLM) -> None:
    """Tokens behind the logits of their row are those of the next."""
    high = [*range(300, 320), 5, 7]
    assert llm.artifact.plan.of_kind("output")[0].columns == 300
    params = seeded(DRAWN)
    params.stop_token_ids, params.min_tokens = [3], 2
    alone = bits(llm.generate([high], params)[0])
    assert [bits(each) for each in llm.generate([high] * 3, params)] == [alone] * 3
    params.repetition_penalty = params.frequency_penalty = 1.0
    assert bits(llm.generate([high], params)[0]) != alone
    scored = SamplingParams(prompt_logprobs=1, detokenize=False)
    with pytest.raises(RequestError, match="token 319, which has no log-probability"):
        llm.generate([high], scored)
    assert llm.generate([[5, 7]], scored)[0].prompt_logprobs


def test_forks_and_files_of_sessions_keep_the_state(llm: LLM, folder: Path, tmp_path: Path) -> None:
    params = seeded(DRAWN)
    with llm.open_session(IDS, state=folder / "1.state") as session:
        fork = session.fork()
        session.save(tmp_path / "a.state")
        said = bits(session.generate(params))
        assert bits(fork.generate(params)) == said
    with LLM(folder / "model.ingot") as other, other.load_session(tmp_path / "a.state") as session:
        assert session.token_ids == IDS
        other._thread.ask(other._engine.scheduler.resting.forget_all)
        assert bits(session.generate(params)) == said
    with pytest.raises(StateFileError, match="another cache_salt"):
        llm.load_session(tmp_path / "a.state", cache_salt="mine")


def test_arrays_are_states_too(llm: LLM, folder: Path) -> None:
    records = llm.read_state(folder / "1.state")
    with llm.open_session(state=records) as session, llm.open_session() as plain:
        assert relative_error(session.logits(IDS), expected(IDS, 1)) < 2e-5
        from_nothing = plain.logits(IDS)
    # Zeros are what a sequence without a state begins with.
    with llm.open_session(state={}) as session:
        assert np.array_equal(session.logits(IDS), from_nothing)


@pytest.mark.thorough
def test_the_kernels_of_gpus_go_on_from_a_state(folder: Path, tmp_path: Path) -> None:
    """Their records hold the rows of a cell behind the matrices, and cells lie on a grid."""
    assert LEAD % GRID == 0 < LEAD
    path = compile_sketch(
        folder / "rwkv7.pth", tmp_path / "cuda.ingot", dtype="float32", max_model_len=64,
        max_num_seqs=2, max_num_batched_tokens=32,
    )  # fmt: skip
    ids = IDS[:21]
    with simulated(path) as llm:
        assert llm.artifact.plan_of(llm.artifact.target).grid == GRID
        records = ingot.LLM.read_state(llm, folder / "1.state")
        with llm.open_session(state=records) as session:
            rows = [session.logits(part) for part in (ids[:1], ids[1:7], ids[7:])]
    assert relative_error(np.concatenate(rows), expected(ids, 1)) < 2e-5


def test_states_of_other_models_are_refused(llm: LLM, folder: Path, tmp_path: Path) -> None:
    wide = {f"blocks.{i}.att.time_state": torch.zeros(1, 64, 64) for i in range(LAYERS)}
    with pytest.raises(CheckpointError, match=r"time_state \[1, 64, 64\]"):
        llm.open_session(state=rwkv_models.save_pth(tmp_path / "wide", wide))
    deep = {f"blocks.{i}.att.time_state": s for i, s in enumerate([*tuned(1), tuned(1)[0]])}
    with pytest.raises(CheckpointError, match=r"blocks\.2\.att"):
        llm.open_streams(2, states=[None, rwkv_models.save_pth(tmp_path / "deep", deep)])
    with pytest.raises(CheckpointError):
        llm.open_session(state=tmp_path / "none.state")
    name = llm.artifact.plan.spec.states[1].name
    for given, match in (
        ({"keys": np.zeros(3, np.float32)}, "keys"),
        ({name: np.zeros((3, 3), np.float32)}, r"float32 \[3, 3\]"),
        ({name: np.full((64, 32), np.nan, np.float32)}, "not finite"),
        (7, "the state is 7"),
    ):
        with pytest.raises(UsageError, match=match):
            llm.open_session(state=given)
    with pytest.raises(UsageError, match="1 states for 2 streams"):
        llm.open_streams(2, states=[None])
    with llm.open_session(state={}) as session, pytest.raises(RequestError, match="no tokens"):
        session.generate(DRAWN)
    assert llm.counters().num_sessions == 0


def test_pages_have_nothing_of_tokens_that_were_not_read() -> None:
    from types import SimpleNamespace as Plain

    paged = Plain(kind="paged", name="keys")
    with pytest.raises(UsageError, match="records alone"):
        InitialRecord.of({}, Plain(spec=Plain(states=(paged,))))
