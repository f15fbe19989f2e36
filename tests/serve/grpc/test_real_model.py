"""Over gRPC a model says what it says through `LLM`."""

from __future__ import annotations

import dataclasses

import pytest

from ingot import LLM
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.grpc.stubs import open_inference_pb2 as oip
from ingot.serve.local import LocalEngine
from tests.serve.grpc.conftest import served
from tests.support.fake_engine import FakeModels

PROMPTS = ["ROMEO:", "First Citizen:\nBefore", "O"]
CASES = [
    {"temperature": 0.0, "max_tokens": 12},
    {"temperature": 1.0, "seed": 7, "max_tokens": 9, "n": 2, "logprobs": 2},
]


@pytest.mark.thorough
@pytest.mark.parametrize("fields", CASES, ids=["greedy", "drawn"])
def test_tokens_text_and_scores_are_those_of_llm(run, shakespeare_artifact, fields):
    with LLM(shakespeare_artifact) as llm:
        params = dataclasses.replace(llm.get_default_sampling_params(), **fields)
        expected = [
            [(o.text, [*o.token_ids], o.finish_reason) for o in request.outputs]
            for request in llm.generate(PROMPTS, params)
        ]

    async def work():
        engine = LocalEngine(LLM(shakespeare_artifact))
        try:
            async with served(FakeModels(m=engine)) as client:
                return [await answers(client, prompt, fields) for prompt in PROMPTS]
        finally:
            await engine.close()

    for wanted, (whole, streamed, tensors) in zip(expected, run(work()), strict=True):
        assert whole == streamed == wanted
        assert tensors == [text.encode() for text, _, _ in wanted]


async def answers(client, prompt: str, fields: dict) -> tuple[list, list, list]:
    asked = v1.GenerateRequest(text=prompt, params=v1.SamplingParams(**fields))
    whole = await client.inference.Generate(asked)
    streamed: dict[int, tuple] = {}
    async for part in client.inference.GenerateStream(asked):
        for each in part.completions:
            text, ids, _ = streamed.get(each.index, ("", [], ""))
            streamed[each.index] = (text + each.text, [*ids, *each.token_ids], each.finish_reason)
            assert len(each.logprobs) == (len(each.token_ids) if "logprobs" in fields else 0)
    request = oip.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(prompt.encode())
    for name, value in fields.items():
        kind = "double_param" if isinstance(value, float) else "int64_param"
        setattr(request.parameters[name], kind, value)
    tensors = await client.oip.ModelInfer(request)
    (texts,) = (o.contents.bytes_contents for o in tensors.outputs if o.name == "text_output")
    return (
        [(c.text, [*c.token_ids], c.finish_reason) for c in whole.completions],
        [streamed[index] for index in sorted(streamed)],
        [*texts],
    )
