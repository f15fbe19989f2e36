"""Sessions on an attention model: their bits, their files, and what is refused."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

import ingot
from ingot.errors import RequestError, ResourceError, SessionError, StateFileError, UsageError
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.sessions.state_file import StateFile
from tests.runtime.fake_model import LIMITS, PAGE_BYTES, write_fake
from tests.runtime.gate import Gate
from tests.runtime.session_checks import (
    DRAWN,
    bits,
    check_bits,
    check_logits,
    check_memory,
    check_rewinding,
)

IDS = np.random.default_rng(1).integers(300, size=43).tolist()
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, detokenize=False)


@pytest.fixture
def open_model(fake_artifact: Path) -> partial[LLM]:
    return partial(LLM, fake_artifact)


@pytest.mark.parametrize("overlap", [False, True])
def test_bits(open_model, tmp_path, overlap):
    check_bits(
        lambda config=None, **options: open_model(
            config=replace(config or ingot.EngineConfig(), overlap=overlap), **options
        ),
        IDS,
        tmp_path,
    )


def test_little_memory(open_model):
    check_memory(open_model, IDS, 25 * PAGE_BYTES)


def test_logits(open_model, tmp_path):
    check_logits(open_model, IDS, tmp_path)


def test_rewinding(open_model):
    check_rewinding(open_model, IDS)


def test_the_bundled_model(shakespeare_artifact, tmp_path):
    open_model = partial(LLM, shakespeare_artifact)
    check_bits(open_model, IDS, tmp_path)
    check_rewinding(open_model, IDS)


def test_text_is_fed_without_a_second_beginning(open_model):
    with open_model() as llm:
        session = llm.open_session("To be")
        first = session.token_ids
        session.feed(", or not")
        tokenizer = llm.get_tokenizer()
        assert first == tokenizer.encode("To be")
        assert session.token_ids == first + tokenizer.encode(", or not", add_special_tokens=False)


def test_a_session_does_one_thing_at_a_time(open_model):
    with open_model() as llm, llm.open_session(IDS) as session:
        gate, params = Gate(), DRAWN.clone()
        params.logits_processors = [gate]
        stream = session.stream(params)
        assert gate.reached.wait(60)
        for work in (session.generate, session.fork, lambda: session.feed([1])):
            with pytest.raises(SessionError, match="does something else"):
                work()
        stream.close()
        gate.open()
        while session._state.turn.locked():
            llm.counters()  # a question that the engine's thread answers behind the end
        assert len(session.token_ids) >= len(IDS)
        session.feed([1])


@pytest.mark.parametrize(
    ("params", "match"),
    [({"n": 2}, "one completion"), ({"prompt_logprobs": 1}, "scores no prompt")],
)
def test_what_a_session_cannot_be_asked_for_leaves_it_as_it_was(open_model, params, match):
    with open_model() as llm, llm.open_session(IDS) as session:
        with pytest.raises(RequestError, match=match):
            session.generate(SamplingParams(**params))
        assert len(session.generate(GREEDY).outputs[0].token_ids) == 5


def test_more_than_the_model_takes_is_refused_and_nothing_is_fed(open_model):
    with open_model(max_model_len=50) as llm, llm.open_session(IDS) as session:
        for feed in (session.feed, session.logits):
            with pytest.raises(RequestError, match="43 tokens, and 8 more are too many"):
                feed([1] * 8)
        assert session.token_ids == IDS
        session.feed([1] * 7)
        with pytest.raises(RequestError, match="50 tokens"):
            session.generate(GREEDY)


def test_closed_and_empty_sessions_are_refused(open_model):
    with open_model() as llm:
        session = llm.open_session()
        with pytest.raises(SessionError, match="no tokens"):
            session.generate(GREEDY)
        with pytest.raises(RequestError, match="no tokens to feed"):
            session.logits([])
        session.close()
        session.close()
        for work in (session.generate, session.fork, lambda: session.save("x")):
            with pytest.raises(SessionError, match="closed"):
                work()
        other = llm.open_session(IDS)
    with pytest.raises(UsageError, match="this model is closed"):
        other.generate(GREEDY)


def test_a_lost_session_gives_back_what_it_held(open_model):
    with open_model() as llm:
        session = llm.open_session(IDS)
        assert llm.counters().num_sessions == 1
        del session
        gc.collect()
        assert llm.counters().num_sessions == 0
        assert llm._engine.pages.num_free == llm._engine.pages.num_pages


def test_an_error_leaves_the_tokens_as_they_were(open_model):
    def fails(_, __):
        raise ValueError("no")

    broken = GREEDY.clone()
    broken.logits_processors = (fails,)
    with open_model() as llm, llm.open_session(IDS, seed=3) as session:
        with pytest.raises(RequestError, match="raised"):
            session.generate(broken)
        assert session.token_ids == IDS
        assert bits(session.generate(DRAWN)) == bits(llm.open_session(IDS, seed=3).generate(DRAWN))


def test_a_step_that_fails_leaves_no_states_that_are_in_doubt(open_model, monkeypatch):
    """Others' steps may have been about to write there: all tokens are computed again."""
    with open_model() as llm:
        session, other = llm.open_session(IDS, seed=3), llm.open_session(IDS[:9], seed=3)
        assert session.pending == IDS[-1:]
        monkeypatch.setattr(llm._engine._executor, "submit", lambda *_, **__: 1 / 0)
        with pytest.raises(ingot.IngotError):
            other.generate(GREEDY)
        monkeypatch.undo()
        assert session.pending == IDS and session.token_ids == IDS
        assert bits(session.generate(DRAWN)) == bits(llm.open_session(IDS, seed=3).generate(DRAWN))
        other.generate(GREEDY)
        llm._engine._residence.check()


def test_sessions_of_many_threads(open_model):
    with open_model() as llm:
        alone = [bits(llm.open_session(IDS[:n], seed=n).generate(DRAWN)) for n in range(5, 13)]
        found: dict[int, object] = {}

        def work(n: int) -> None:
            with llm.open_session(seed=n) as session:
                for token in IDS[:n]:
                    session.feed([token])
                found[n] = bits(session.generate(DRAWN))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(5, 13)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[n] for n in range(5, 13)] == alone


# Files.


@pytest.fixture
def saved(open_model, tmp_path):
    file = tmp_path / "a.state"
    with open_model() as llm, llm.open_session(IDS) as session:
        session.logits([7])
        assert session.save(file) == file.stat().st_size
    return file


@pytest.mark.parametrize("size", [0, 4, 20, 200, -1])
def test_a_cut_file_is_refused(open_model, saved, size):
    saved.write_bytes(saved.read_bytes()[:size])
    with open_model() as llm, pytest.raises(StateFileError, match=r"cut|no state file|bytes, not"):
        llm.load_session(saved)


def test_a_longer_file_is_refused(open_model, saved):
    saved.write_bytes(saved.read_bytes() + b"\0")
    with open_model() as llm, pytest.raises(StateFileError, match="bytes, not"):
        llm.load_session(saved)


def test_each_bit_counts(open_model, saved):
    """One bit in every part of the file: magic, version, header, states, logits and checksum."""
    data = saved.read_bytes()
    with open_model() as llm:
        free = llm._engine.pages.num_free
        for place in [*range(0, len(data), 61), 9, 13, 17, len(data) - 1]:
            saved.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
            with pytest.raises(StateFileError):
                llm.load_session(saved)
        assert llm._engine.pages.num_free == free and not llm.counters().num_sessions
        saved.write_bytes(data)
        llm.load_session(saved).generate(GREEDY)


def test_a_bit_counts_also_where_there_is_no_room(open_model, saved):
    data = bytearray(saved.read_bytes())
    data[-1500] ^= 1
    with open_model() as llm:
        llm._engine._residence.place = lambda *_: None
        llm.load_session(saved).generate(GREEDY)
        saved.write_bytes(data)
        with pytest.raises(StateFileError, match="checksum"):
            llm.load_session(saved)


def test_a_file_of_another_artifact_is_refused(open_model, saved, tmp_path, shakespeare_artifact):
    with LLM(shakespeare_artifact) as llm, pytest.raises(StateFileError, match="another artifact"):
        llm.load_session(saved)
    other = write_fake(tmp_path / "other.ingot", limits=replace(LIMITS, max_num_seqs=3))
    with LLM(other) as llm, pytest.raises(StateFileError, match="its plan differ"):
        llm.load_session(saved)


def test_what_differs_is_named(saved, fake_artifact):
    belongs = StateFile(saved).header.belongs
    fields = belongs.__struct_fields__
    for name in fields:
        other = msgspec.structs.replace(belongs, **{name: None})
        with pytest.raises(StateFileError, match=f"its {name} differ"):
            belongs.check(other, saved)


def test_another_salt_is_refused(open_model, tmp_path):
    file = tmp_path / "a"
    with open_model() as llm:
        llm.open_session(IDS, cache_salt="mine").save(file)
        assert b"mine" not in file.read_bytes()
        with pytest.raises(StateFileError, match="cache_salt"):
            llm.load_session(file)
        assert llm.load_session(file, cache_salt="mine").token_ids == IDS


def test_no_file(open_model, tmp_path):
    with open_model() as llm:
        with pytest.raises(StateFileError, match="cannot be read"):
            llm.load_session(tmp_path / "none")
        with pytest.raises(StateFileError, match="cannot be read"):
            llm.load_session(tmp_path)
        with pytest.raises(UsageError, match="cannot be written"):
            llm.open_session(IDS).save(tmp_path / "none" / "a")


def test_an_empty_session_can_be_saved(open_model, tmp_path):
    with open_model() as llm:
        llm.open_session().save(tmp_path / "a")
        session = llm.load_session(tmp_path / "a")
        assert session.token_ids == [] and session.feed(IDS) == len(IDS)


def test_a_failed_write_leaves_the_old_file(open_model, saved, monkeypatch):
    before = saved.read_bytes()
    with open_model() as llm, llm.open_session(IDS) as session:

        def fails(places, take):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(llm._engine._executor, "read_states", fails)
        with pytest.raises(ResourceError, match="No space left"):
            session.save(saved)
    assert saved.read_bytes() == before and [*saved.parent.iterdir()] == [saved]
