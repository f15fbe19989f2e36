"""`ingot.v1.Inference`, by grpcio's own client."""

from __future__ import annotations

import asyncio
import math

import grpc
import pytest

from ingot.errors import EngineDeadError, QueueFullError
from ingot.runtime.metrics import RequestMetrics
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.edge.settings import ClientLimits
from ingot.serve.engine import Piece, Progress
from ingot.serve.grpc.asking import asking
from ingot.serve.grpc.messages import body_of, response_of
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.openai.fields import FieldError
from ingot.serve.requests.context import ServerContext
from tests.conftest import SHAKESPEARE
from tests.serve.grpc.conftest import failure, served
from tests.support.fake_engine import FakeEngine, FakeModels, says
from tests.support.until import until

METRICS = RequestMetrics(
    num_prompt_tokens=3, num_cached_tokens=1, num_generated_tokens=2, num_preemptions=0,
    queue_seconds=0.5, ttft_seconds=None, tpot_seconds=None, total_seconds=2.0, arrival_time=0.0,
    first_scheduled_time=None, first_token_time=None, last_token_time=None, finished_time=None,
)  # fmt: skip
PROMPT = {"token_ids": v1.TokenIds(ids=[1, 2, 3])}


def request(**fields) -> v1.GenerateRequest:
    return v1.GenerateRequest(**{"model": "m", **PROMPT, **fields})


def test_a_stream_says_each_step_and_then_how_it_fared(run):
    async def work():
        engine = FakeEngine(says("Ro", "meo", metrics=METRICS))
        async with served(FakeModels(m=engine)) as client:
            call = client.inference.GenerateStream(request(request_id="mine"))
            return [each async for each in call], engine.jobs

    (first, last), (job,) = run(work())
    assert [(c.index, c.text, [*c.token_ids]) for c in first.completions] == [(0, "Ro", [100])]
    assert (first.completions[0].finish_reason, last.completions[0].finish_reason) == ("", "stop")
    assert {each.request_id for each in (first, last)} == {"mine"} and first.model == "m"
    assert not first.HasField("usage") and last.usage.prompt_tokens == 3
    assert (last.usage.cached_tokens, last.usage.completion_tokens) == (1, 2)
    assert (last.usage.queue_seconds, last.usage.total_seconds) == (0.5, 2.0)
    assert job.token_ids == [1, 2, 3]


def test_one_answer_is_the_whole_stream(run):
    async def work():
        async with served(FakeModels(m=FakeEngine(says("a", "b", "c")))) as client:
            params = v1.SamplingParams(n=2, temperature=0.5)
            return await client.inference.Generate(request(params=params))

    answer = run(work())
    assert [(c.index, c.text, c.finish_reason) for c in answer.completions] == [
        (0, "abc", "stop"),
        (1, "abc", "stop"),
    ]
    assert [[*c.token_ids] for c in answer.completions] == [[100, 101, 102]] * 2


def test_every_parameter_reaches_the_engine(run):
    given = v1.SamplingParams(
        n=2, temperature=0.5, top_p=0.75, top_k=7, min_p=0.125, presence_penalty=0.5,
        frequency_penalty=0.25, repetition_penalty=1.5, seed=2**63 + 1, max_tokens=9, min_tokens=2,
        stop=["x", "y"], include_stop_str_in_output=True, stop_token_ids=[5], ignore_eos=True,
        bad_words=["no"], logit_bias={3: -2.5}, allowed_token_ids=[3, 4], logprobs=1,
        skip_special_tokens=False, spaces_between_special_tokens=False,
    )  # fmt: skip

    async def work():
        engine = FakeEngine(says("a"))
        async with served(FakeModels(m=engine)) as client:
            await client.inference.Generate(request(params=given, priority=3, cache_salt="s"))
        return engine.jobs[0]

    job = run(work())
    for field, value in given.ListFields():
        expected = dict(value) if field.name == "logit_bias" else value
        found = job.params[field.name]
        assert found == ([*expected] if field.is_repeated and field.name != "logit_bias" else
                         expected)  # fmt: skip
    assert job.priority == 3 and job.salt.endswith(":s")


def test_there_is_a_field_for_every_parameter():
    import dataclasses

    from ingot.runtime.params import SamplingParams

    # What no request can say: code, how a Python stream is cut, and what the template's tags are.
    ours = {f.name for f in dataclasses.fields(SamplingParams) if f.init}
    ours -= {"logits_processors", "output_kind", "detokenize", "reasoning"}
    theirs = {field.name for field in v1.SamplingParams.DESCRIPTOR.fields}
    assert ours <= theirs and theirs - ours <= {"structured_outputs", "max_thinking_tokens"}


def test_log_probabilities_and_reasons_have_their_places(run):
    scores = [[(100, -0.5, 1, "a"), (7, -1.5, 2, None)]]
    prompt = [None, [(2, -0.25, 1, "b")]]

    def script(job):
        yield Progress([Piece(0, "a", [100], scores)], False, 0, prompt)
        yield Progress([Piece(0, "", [7], [scores[0]], "stop", 7)], True)

    async def work():
        async with served(FakeModels(m=FakeEngine(script))) as client:
            params = v1.SamplingParams(logprobs=1, prompt_logprobs=0)
            return await client.inference.Generate(request(params=params))

    answer = run(work())
    (completion,) = answer.completions
    assert [[(s.token_id, s.logprob, s.rank) for s in p.tokens] for p in completion.logprobs] == [
        [(100, -0.5, 1), (7, -1.5, 2)]
    ] * 2
    assert completion.logprobs[0].tokens[0].text == "a"
    assert not completion.logprobs[0].tokens[1].HasField("text")
    assert (completion.finish_reason, completion.stop_token_id) == ("stop", 7)
    assert [len(position.tokens) for position in answer.prompt_logprobs] == [0, 1]


def test_a_text_is_tokenised(run):
    async def work():
        engine = FakeEngine(says("a"))
        async with served(FakeModels(m=engine)) as client:
            asked = v1.GenerateRequest(model="m", text="ROMEO:")
            await client.inference.Generate(asked)
        return engine.jobs[0].token_ids, engine.tokenizer.encode("ROMEO:")

    ids, expected = run(work())
    assert ids == expected and ids


async def _abandoned(leave) -> list[str]:
    """What the engine aborted after the client left in some way."""
    begun = asyncio.Event()

    def script(job):
        begun.set()
        yield Progress([Piece(0, "a", [1])])
        yield asyncio.Event()  # never

    engine = FakeEngine(script)
    models = FakeModels(m=engine)
    async with served(models) as client:
        await leave(client, begun)
        await engine.ended.wait()
    assert models.num_leases == 0
    return [job.id for job in engine.jobs if job.id in engine.aborted]


def test_dropping_a_stream_aborts(run):
    async def leave(client, begun):
        call = client.inference.GenerateStream(request())
        await call.read()
        call.cancel()

    assert len(run(_abandoned(leave))) == 1


def test_dropping_a_call_aborts(run):
    async def leave(client, begun):
        call = client.inference.Generate(request())
        await begun.wait()
        call.cancel()

    assert len(run(_abandoned(leave))) == 1


def test_a_deadline_aborts(run):
    async def read(call):
        async for part in call:
            assert part.completions[0].text == "a"

    async def leave(client, begun):
        seconds = 0.1
        while not begun.is_set():  # on a busy machine the first one may pass before it begins
            call = client.inference.GenerateStream(request(), timeout=seconds)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await read(call)
            assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            seconds *= 2

    assert run(_abandoned(leave))


def test_abort_ends_the_requests_of_an_id_and_no_others(run):
    async def leave(client, begun):
        calls = [client.inference.GenerateStream(request(request_id=name)) for name in "aab"]
        for call in calls:
            await call.read()
        told = await client.inference.Abort(v1.AbortRequest(request_id="a"))
        assert told.num_aborted == 2
        for call in calls[:2]:
            code, text, trailing = await failure(call)
            assert code == grpc.StatusCode.CANCELLED and "aborted" in text
            assert trailing["ingot-code"] == "aborted"
        again = await client.inference.Abort(v1.AbortRequest(request_id="a"))
        assert again.num_aborted == 0
        calls[2].cancel()

    assert len(run(_abandoned(leave))) == 3


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"model": "other"}, "NOT_FOUND", "other"),
        ({"params": v1.SamplingParams(top_p=2)}, "INVALID_ARGUMENT", "top_p"),
        ({"params": v1.SamplingParams(temperature=float("nan"))}, "INVALID_ARGUMENT", "finite"),
        ({"params": v1.SamplingParams(logit_bias={1: float("inf")})}, "INVALID_ARGUMENT", "finite"),
        ({"token_ids": v1.TokenIds(ids=[-1])}, "INVALID_ARGUMENT", "prompt"),
        ({"token_ids": v1.TokenIds(ids=[2048])}, "INVALID_ARGUMENT", "2048"),
        ({"token_ids": v1.TokenIds(ids=[1] * 1024)}, "INVALID_ARGUMENT", "1024"),
        ({"token_ids": None}, "INVALID_ARGUMENT", "prompt"),
        ({"conversation": v1.Conversation()}, "INVALID_ARGUMENT", "messages"),
    ],
)
def test_what_cannot_be_served_has_a_status(run, fields, code, says):
    async def work():
        engine = FakeEngine(lambda job: ())
        async with served(FakeModels(m=engine)) as client:
            found = await failure(client.inference.Generate(request(**fields)))
        assert engine.jobs == []
        return found

    status, text, trailing = run(work())
    assert status.name == code and says in text and "Traceback" not in text
    assert trailing["ingot-code"] and trailing["x-request-id"]


@pytest.mark.parametrize(
    ("error", "code", "http"),
    [
        (QueueFullError("full"), "RESOURCE_EXHAUSTED", "queue_full"),
        (EngineDeadError("dead"), "UNAVAILABLE", "engine_dead"),
        (ZeroDivisionError("/secret/path"), "INTERNAL", "internal"),
    ],
)
def test_what_ends_a_request_has_a_status(run, error, code, http):
    def script(job):
        yield Progress([Piece(0, "a", [1])])
        yield error

    async def work():
        async with served(FakeModels(m=FakeEngine(script))) as client:
            call = client.inference.GenerateStream(request())
            await call.read()
            return await failure(call)

    status, text, trailing = run(work())
    assert (status.name, trailing["ingot-code"]) == (code, http) and "secret" not in text
    if http == "queue_full":
        assert int(trailing["grpc-retry-pushback-ms"]) > 0


def test_a_client_that_does_not_read_loses_its_seat(run):
    def script(job):
        while True:
            yield Progress([Piece(0, "x" * 65_536, [1])])

    async def work():
        engine = FakeEngine(script)
        limits = ClientLimits(write_timeout=0.05)
        async with served(FakeModels(m=engine), limits=limits) as client:
            call = client.inference.GenerateStream(v1.GenerateRequest(text="a"))
            await call.initial_metadata()
            await until(lambda: engine.jobs)
            await engine.ended.wait()
            reason = client.edge.telemetry.board.number("http_responses", "499")
            await until(lambda: reason.value)
            assert len(engine.aborted) == 1 and client.edge.admission.lines["m"].num_running == 0
            call.cancel()

    run(work())


def test_a_conversation_may_say_how_its_template_is_filled(run):
    template = "{{ messages[0].content }}{{ '!' if enable_thinking else '?' }}"

    async def work():
        engine = FakeEngine(says("a"))
        data = (SHAKESPEARE / "tokenizer.json").read_bytes()
        named = [
            {"name": "default", "template": "{{ 'no' }}"},
            {"name": "own", "template": template},
        ]
        engine.tokenizer = Tokenizer(data, {"chat_template": named})
        conversation = {"messages": [v1.Message(role="user", content="Hi")], "chat_template": "own"}
        async with served(FakeModels(m=engine)) as client:
            for text in ('{"enable_thinking": true}', ""):
                given = v1.Conversation(**conversation, chat_template_kwargs=text)
                await client.inference.Generate(v1.GenerateRequest(conversation=given))
            wrong = v1.Conversation(**conversation, chat_template_kwargs="[]")
            error = await failure(client.inference.Generate(v1.GenerateRequest(conversation=wrong)))
        return [engine.tokenizer.decode(job.token_ids) for job in engine.jobs], error

    prompts, (status, text, _) = run(work())
    assert prompts == ["Hi!", "Hi?"]
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert "chat_template_kwargs is no object in JSON" in text


@pytest.mark.parametrize(
    ("reason", "kind", "told"),
    [("x", "stop_text", "x"), (7, "stop_token_id", 7), (0, "stop_token_id", 0), (None, None, None)],
)
def test_what_ended_a_completion_is_told_whatever_its_number(reason, kind, told):
    progress = Progress([Piece(0, "", [], None, "stop", reason)])
    (completion,) = response_of(progress, "m", "a").completions
    assert completion.WhichOneof("stop_reason") == kind
    assert kind is None or getattr(completion, kind) == told


@pytest.mark.parametrize("body", [{"top_p": math.nan}, {"logit_bias": {"5": -math.inf}}])
def test_numbers_that_json_cannot_say_are_refused_by_their_field(run, body):
    async def work():
        server = ServerContext(models=FakeModels(m=FakeEngine(says("a"))))
        async with asking(server, {"prompt": "a", **body}, stream=False):
            pytest.fail("it is asked")

    with pytest.raises(FieldError, match="is not a finite number") as raised:
        run(work())
    assert raised.value.param == next(iter(body))


def test_a_conversation_asks_for_log_probabilities_as_chats_do():
    params = v1.SamplingParams(logprobs=2)
    conversation = v1.Conversation(messages=[v1.Message(role="user", content="Hi")])
    body = body_of(v1.GenerateRequest(conversation=conversation, params=params))
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
    assert body_of(v1.GenerateRequest(text="Hi", params=params))["logprobs"] == 2
