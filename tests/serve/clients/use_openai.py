"""Uses a server through whatever `openai` is installed, and prints what it read as JSON.

python use_openai.py http://127.0.0.1:8000/v1 MODEL
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai

MESSAGES: list[Any] = [{"role": "user", "content": "Who is there?"}]
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}
ANSWER = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


def completions(client: Any, model: str) -> dict[str, Any]:
    fields = {"model": model, "prompt": "ROMEO:", "seed": 7, "max_tokens": 12}
    whole = client.completions.create(**fields)
    parts = [chunk.choices[0].text for chunk in client.completions.create(**fields, stream=True)]
    scored = client.completions.create(
        model=model, prompt=[[5, 6, 7], [8, 9]], echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    return {
        "text": whole.choices[0].text,
        "streamed": "".join(parts),
        "usage": whole.usage.completion_tokens,
        "scores": [choice.logprobs.token_logprobs[1:-1] for choice in scored.choices],
    }


def chats(client: Any, model: str) -> dict[str, Any]:
    fields = {"model": model, "messages": MESSAGES, "seed": 3, "max_tokens": 12}
    whole = client.chat.completions.create(**fields)
    options = {"include_usage": True}
    chunks = [*client.chat.completions.create(**fields, stream=True, stream_options=options)]
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    held = client.chat.completions.create(**{**fields, "max_tokens": 60}, response_format=ANSWER)
    return {
        "text": whole.choices[0].message.content,
        "streamed": "".join(parts),
        "usage": [whole.usage.total_tokens, chunks[-1].usage.total_tokens],
        "held": held.choices[0].message.content,
    }


def calls(client: Any, model: str) -> dict[str, Any]:
    fields = {
        "model": model, "messages": MESSAGES, "seed": 3, "max_tokens": 200, "tools": TOOLS,
        "tool_choice": "required", "parallel_tool_calls": False,
    }  # fmt: skip
    (call,) = client.chat.completions.create(**fields).choices[0].message.tool_calls
    streamed, finish = {"name": "", "arguments": ""}, None
    for chunk in client.chat.completions.create(**fields, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            streamed["name"] += part.function.name or ""
            streamed["arguments"] += part.function.arguments or ""
        finish = chunk.choices[0].finish_reason
    return {
        "call": {"name": call.function.name, "arguments": call.function.arguments},
        "streamed": streamed,
        "finish": finish,
    }


def errors(client: Any, model: str) -> list[Any]:
    found = []
    for kind, fields in (
        (openai.BadRequestError, {"model": model, "prompt": "x", "max_tokens": -1}),
        (openai.BadRequestError, {"model": model, "prompt": [5] * 2000}),
        (openai.NotFoundError, {"model": "nobody", "prompt": "x"}),
    ):
        try:
            client.completions.create(**fields)
        except kind as error:
            found.append([error.status_code, error.code, error.param])
    return found


async def at_once(url: str, model: str) -> list[str]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:

        async def ask(seed: int) -> str:
            answer = await client.completions.create(
                model=model, prompt="ROMEO:", seed=seed, max_tokens=6
            )
            return answer.choices[0].text

        return await asyncio.gather(*(ask(seed) for seed in range(6)))


def main(url: str, model: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        found = {
            "version": openai.__version__,
            "models": [card.id for card in client.models.list().data],
            "completions": completions(client, model),
            "chats": chats(client, model),
            "calls": calls(client, model),
            "errors": errors(client, model),
            "at_once": asyncio.run(at_once(url, model)),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
