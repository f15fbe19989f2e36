"""Streams an answer as it comes, and gives another one up."""

import asyncio
import sys

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.sampling_params import RequestOutputKind


async def stream(engine, request_id, params):
    async for output in engine.generate("The dog", params, request_id=request_id):
        yield output


async def main(model):
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model, enforce_eager=True))
    params = SamplingParams(
        temperature=0, max_tokens=20, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    pieces = [output.outputs[0].text async for output in stream(engine, "one", params)]
    params.output_kind = RequestOutputKind.FINAL_ONLY
    whole = [output async for output in stream(engine, "two", params)]
    print("".join(pieces) == whole[0].outputs[0].text, len(whole), whole[0].request_id)
    metrics = whole[0].metrics
    print(metrics.arrival_time < metrics.first_token_time < metrics.finished_time)

    params.max_tokens, params.output_kind = 80, RequestOutputKind.CUMULATIVE
    async for output in stream(engine, "three", params):
        await engine.abort("three")
        finished = output.finished
    print(finished)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
