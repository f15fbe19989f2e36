"""Any body, however odd, gets an answer or a refusal, and disturbs nobody."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingot.serve.http.app import build_app
from ingot.serve.openai.requests import ChatRequest, CompletionRequest
from tests.support.asgi import called
from tests.support.core import core
from tests.support.fake_engine import FakeEngine, FakeModels, says

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20) | st.sampled_from(["bard", "user", "text", "json_object", "required"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["role", "content", "type", "function", "name", "json"])
                      | st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"])},
                          optional={"content": VALUES, "tool_calls": VALUES}),
    max_size=3,
)  # fmt: skip
PATHS = {
    "/v1/completions": (CompletionRequest, {"prompt": st.text(max_size=30) | VALUES}),
    "/v1/chat/completions": (ChatRequest, {"messages": MESSAGES | VALUES}),
}


def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies with the field that is needed, and any of the others."""
    kind, needed = PATHS[path]
    others = {name: VALUES for name in kind.__struct_fields__ if name not in (*needed, "model")}
    return st.fixed_dictionaries(needed, optional=others)


@pytest.mark.cases(thorough=1)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cases", core(30, further=[150], slow=[2000]))
def test_any_body_is_answered_or_refused(path: str, cases: int) -> None:
    loop = asyncio.new_event_loop()
    app = build_app(FakeModels(bard=FakeEngine(says("a", "b"))))

    @settings(max_examples=cases, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(bodies(path))
    def check(body: dict[str, Any]) -> None:
        data = json.dumps(body).encode(errors="surrogatepass")
        call = loop.run_until_complete(called(app, "POST", path, data))
        assert call.status in (200, 400), (body, call.body)
        if call.status == 400:
            assert set(call.json()["error"]) == {"message", "type", "param", "code"}

    try:
        check()
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


TEXTS = st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=60) | TEXTS)
def test_any_bytes_are_refused(data: bytes) -> None:
    app = build_app(FakeModels(bard=FakeEngine(says("a"))))
    call = asyncio.run(called(app, "POST", "/v1/completions", data))
    assert call.status == 400
