"""What holds of sessions on any model; also run by itself on the state of docs/add_a_state.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.output import Logprob, RequestOutput
from ingot.runtime.params import SamplingParams

# All that a draw can depend on: chance, and how often a token was drawn or fed.
DRAWN = SamplingParams(
    temperature=0.9, max_tokens=10, ignore_eos=True, logprobs=2, repetition_penalty=1.2,
    frequency_penalty=0.4, detokenize=False,
)  # fmt: skip
SEED = 3
Bits = tuple[list[int], list[dict[int, Logprob]] | None]
Open = Callable[..., LLM]


def bits(output: RequestOutput) -> Bits:
    return output.outputs[0].token_ids, output.outputs[0].logprobs


def expected(open_model: Open, ids: Sequence[int]) -> tuple[Bits, Bits]:
    """Two answers one after the other, by requests without sessions: the whole of them is one
    completion."""
    with open_model(config=EngineConfig(prefix_cache=False)) as llm:
        session = llm.open_session(ids, seed=SEED)
        twice = DRAWN.clone()
        twice.max_tokens = 20
        tokens, logprobs = bits(session.generate(twice))
        assert logprobs is not None
        assert tokens == bits(llm.generate([[*ids]], seeded(twice))[0])[0]
        return (tokens[:10], logprobs[:10]), (tokens[10:], logprobs[10:])


def seeded(params: SamplingParams) -> SamplingParams:
    """The same parameters for a request that draws as a session of SEED does."""
    params = params.clone()
    params.seed = SEED
    return params


def check_bits(open_model: Open, ids: Sequence[int], folder: Path) -> None:
    """Fed in pieces, alone or in company, saved and loaded, forked: the bits are the same."""
    first, second = expected(open_model, ids)
    file = folder / "a.state"
    with open_model() as llm:
        whole, pieces = llm.open_session(ids, seed=SEED), llm.open_session(seed=SEED)
        others = [llm.stream([*ids[:n]], DRAWN) for n in (5, 17)]
        for begin in range(0, len(ids), 7):
            pieces.feed(ids[begin : begin + 7])
        assert pieces.token_ids == [*ids] and pieces.pending == [ids[-1]]
        fork = pieces.fork()
        pieces.save(file)
        for session in (whole, pieces, fork):
            assert bits(session.generate(DRAWN)) == first
        late = fork.fork()
        for session in (late, whole, pieces, fork):
            assert bits(session.generate(DRAWN)) == second
        for stream in others:
            stream.close()
        llm._engine._residence.check()
    with open_model() as llm:
        loaded = llm.load_session(file)
        assert loaded.token_ids == [*ids] and loaded.pending == [ids[-1]]
        assert bits(loaded.generate(DRAWN)) == first
        loaded.save(file)
    with open_model() as llm:
        loaded = llm.load_session(file)
        assert bits(loaded.generate(DRAWN)) == second
        # The pending tokens alone are computed, and each that was drawn but for the last.
        assert llm.counters().num_computed_tokens == 10


def check_memory(open_model: Open, ids: Sequence[int], few: int) -> None:
    """With little memory sessions give their places to each other, and to requests."""
    first, second = expected(open_model, ids)
    with open_model(kv_cache_bytes=few) as llm:
        sessions = [llm.open_session(ids, seed=SEED) for _ in range(4)]
        assert [bits(each.generate(DRAWN)) for each in sessions] == [first] * 4
        streams = [each.stream(DRAWN) for each in sessions]
        llm.generate([[*ids[:9]]] * 3, DRAWN)
        ended = [(list(stream), stream.output())[1] for stream in streams]
        assert [bits(each) for each in ended] == [second] * 4
        counters = llm.counters()
        assert counters.num_sessions_given_up + counters.num_preemptions > 2
        for each in sessions:
            each.close()
        llm._engine._residence.check()


def check_logits(open_model: Open, ids: Sequence[int], folder: Path) -> None:
    """Logits of what is fed are those of the whole, and the next draw is from the last of them."""
    first, _ = expected(open_model, ids)
    with open_model() as llm:
        known = llm.logits(ids)
        session = llm.open_session(ids[:7], seed=SEED)
        for begin in range(7, len(ids), 11):
            rows = session.logits(ids[begin : begin + 11])
            assert (rows == known[begin : begin + 11]).all()
        assert session.pending == []
        session.save(folder / "b.state")
        loaded, fork = llm.load_session(folder / "b.state"), session.fork()
        assert all(bits(each.generate(DRAWN)) == first for each in (session, fork, loaded))
        with llm.open_streams(5, seed=SEED) as streams:
            for token, row in zip(ids, known, strict=True):
                assert (streams.step([token] * 5) == row).all()
            assert [bits(each) for each in streams.generate(DRAWN)] == [first] * 5


def check_rewinding(open_model: Open, ids: Sequence[int]) -> None:
    """The last token can be dropped, and others are fed in its place."""
    first, _ = expected(open_model, ids)
    kept = first[0][:-1]
    other, _ = expected(open_model, [*ids, *kept, 5])
    stop = DRAWN.clone()
    stop.stop_token_ids = (first[0][-1],)
    with open_model() as llm:
        for params in (DRAWN, stop):
            session = llm.open_session(ids, seed=SEED)
            assert bits(session.generate(params, keep_last=False)) == first
            assert session.token_ids == [*ids, *kept]
            session.feed([5])
            assert bits(session.generate(DRAWN)) == other
        llm._engine._residence.check()
