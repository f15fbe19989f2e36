"""Uses a server through `langchain-openai`, and prints what it read as JSON.

python use_langchain.py http://127.0.0.1:8000/v1 MODEL
"""

from __future__ import annotations

import json
import sys

from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field


class Forecast(BaseModel):
    """How many days it rains."""

    model_config = ConfigDict(extra="forbid")
    days: int = Field(ge=0, le=9)


def main(url: str, model: str) -> None:
    chat = ChatOpenAI(
        base_url=url, api_key="none", model=model, seed=3, max_tokens=60, stream_usage=True,
        max_retries=0,
    )  # fmt: skip
    whole = chat.invoke("Who is there?")
    chunks = [*chat.stream("Who is there?")]
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    caller = chat.bind_tools([Forecast], tool_choice="Forecast", parallel_tool_calls=False)
    called = caller.invoke("Will it rain?")
    streamed = None
    for chunk in caller.stream("Will it rain?"):
        streamed = chunk if streamed is None else streamed + chunk
    held = chat.with_structured_output(Forecast, method="json_schema").invoke("Will it rain?")
    found = {
        "text": whole.content,
        "streamed": joined.content,
        "num_chunks": len(chunks),
        "usage": [whole.usage_metadata["total_tokens"], joined.usage_metadata["total_tokens"]],
        "calls": [[call["name"], call["args"]] for call in called.tool_calls],
        "streamed_calls": [[call["name"], call["args"]] for call in streamed.tool_calls],
        "held": held.model_dump(),
        "batch": [answer.content for answer in chat.batch(["a", "b", "c"])],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
