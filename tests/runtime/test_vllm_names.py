"""vLLM's names of classes, methods and metrics; what is not here says what to use."""

from __future__ import annotations

import asyncio
import inspect
import time
from dataclasses import replace

import pytest

import ingot
from ingot.errors import RequestError, UsageError
from ingot.runtime.llm import LLM
from ingot.runtime.vllm_methods import REFUSED
from tests.runtime.fake_model import greedy

GREEDY = ingot.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
DELTAS = replace(GREEDY, output_kind=ingot.RequestOutputKind.DELTA)
LONG = ingot.SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CHAT = [{"role": "user", "content": "b"}]


def test_an_engine_is_opened_by_its_arguments_and_used_as_in_vllm(fake_artifact):
    args = ingot.AsyncEngineArgs(model=str(fake_artifact), tensor_parallel_size=1, max_num_seqs=2)
    args.max_model_len = 95
    assert (args.tensor_parallel_size, args.max_num_seqs) == (1, 2)

    async def main():
        engine = ingot.AsyncLLMEngine.from_engine_args(args)
        try:
            assert (engine.max_model_len, engine._engine.config.max_num_seqs) == (95, 2)
            outputs = [output async for output in engine.generate([5], DELTAS, "one")]
            aborted = engine.generate([6], LONG, "two")
            await anext(aborted)
            await engine.abort("two")
            last = [output async for output in aborted]
            return outputs, last
        finally:
            engine.shutdown()

    outputs, last = asyncio.run(main())
    assert outputs[-1].finished and outputs[-1].request_id == "one"
    assert [t for output in outputs for t in output.outputs[0].token_ids] == greedy([5], 8)
    assert outputs[0].metrics.finished_time is None is not outputs[0].metrics.first_token_time
    assert not last or last[-1].outputs[0].finish_reason in ("abort", "length")


def test_both_kinds_of_model_take_engine_args(fake_artifact):
    with ingot.LLM.from_engine_args(ingot.EngineArgs(fake_artifact, seed=3)) as llm:
        assert type(llm) is ingot.LLM and llm._engine.seed == 3
        same = ingot.LLM(**vars(ingot.EngineArgs(fake_artifact)))
        same.close()
    assert ingot.AsyncLLMEngine is ingot.AsyncLLM
    with pytest.raises(UsageError, match="no argument 'max_model_length'"):
        ingot.LLM.from_engine_args(ingot.EngineArgs(fake_artifact, max_model_length=3))
    with pytest.raises(UsageError, match="engine_args is"):
        ingot.LLM.from_engine_args({"model": fake_artifact})


def test_metrics_have_vllms_names_and_seconds_since_1970(llm):
    before = time.time()
    metrics = llm.generate([[5]], GREEDY)[0].metrics
    after = time.time()
    moments = [
        metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time,
        metrics.last_token_time, metrics.finished_time,
    ]  # fmt: skip
    assert moments == sorted(moments) and moments[0] < moments[2] < moments[4]
    assert before - 1 < moments[0] and moments[-1] < after + 1
    assert metrics.first_token_time - metrics.arrival_time == pytest.approx(
        metrics.ttft_seconds, abs=1e-6
    )
    assert (metrics.time_in_queue, metrics.first_token_latency) == (
        metrics.queue_seconds,
        metrics.ttft_seconds,
    )
    assert [metrics.queued_ts, metrics.scheduled_ts, metrics.first_token_ts] == moments[:3]
    assert (metrics.last_token_ts, metrics.num_generation_tokens) == (moments[3], 8)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_method_that_is_not_here_says_what_to_use(llm, name):
    with pytest.raises(UsageError, match=rf"there is no {name}\(\)") as caught:
        getattr(llm, name)(["text"], use_tqdm=False)
    assert caught.value.hint == REFUSED[name] and caught.value.hint.endswith(".")
    assert inspect.getdoc(getattr(LLM, name)).startswith("Not supported. ")


def test_tools_that_the_template_ignores_are_described(llm):
    prompt = llm.chat_prompt(CHAT, tools=TOOLS)["prompt"]
    assert "<tools>" in prompt and '"name": "add"' in prompt
    assert llm.chat(CHAT, GREEDY, tools=[])[0].finished
    for writes in ("{{ tools[0].function.name }}", "{% for t in tools or () %}{{ t }}{% endfor %}"):
        output = llm.chat(CHAT, GREEDY, tools=TOOLS, chat_template="b" + writes)[0]
        assert "add" in output.prompt
    insists = "{% if not tools %}{{ raise_exception('none') }}{% endif %}x"
    assert llm.chat(CHAT, GREEDY, tools=TOOLS, chat_template=insists)[0].prompt == "x"


def test_tools_of_which_a_template_lets_nothing_through_are_refused(llm, fake_artifact):
    with pytest.raises(RequestError, match="template ignores tools") as caught:
        llm.chat(CHAT, GREEDY, tools=TOOLS, chat_template="{{ 1 }}")
    assert "chat_template" in caught.value.hint

    async def main():
        async with ingot.AsyncLLM(fake_artifact) as llm:
            chat = llm.chat(CHAT, GREEDY, tools=TOOLS, chat_template="{{ 1 }}")
            return [output async for output in chat]

    with pytest.raises(RequestError, match="template ignores tools"):
        asyncio.run(main())
