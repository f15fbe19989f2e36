"""An error says the same by gRPC as by HTTP, whatever it is."""

from __future__ import annotations

import json

import pytest

from ingot.errors import IngotError
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.http.app import build_app
from ingot.serve.openai.fields import FieldError
from ingot.serve.refusal import Refusal
from ingot.serve.requests.errors import GRPC_STATUSES, TABLE
from tests.serve.grpc.conftest import failure, served
from tests.serve.http.test_error_table import kinds
from tests.support.asgi import called
from tests.support.fake_engine import FakeEngine, FakeModels

# Of what HTTP alone can get wrong.
OF_HTTP = (405, 408, 431)
ERRORS: dict[str, Exception] = {
    **{row.error.__name__: row.error("it is wrong", hint="Do it right.") for row in TABLE},
    **{
        kind.__name__: kind("it is wrong", hint="Do it right.", param="n", retry_after=1.5)
        for kind in kinds()
        if kind.status not in OF_HTTP
    },
    "FieldError": FieldError("messages[0].é", "it is wrong", code="unsupported_parameter"),
    "of Python": ZeroDivisionError("/secret/path"),
    "of nobody": type("Unlisted", (IngotError,), {})("/secret/path"),
}


def test_every_error_of_ingot_is_tried() -> None:
    assert len([each for each in ERRORS.values() if isinstance(each, Refusal)]) > 10
    assert {row.error for row in TABLE} <= {type(each) for each in ERRORS.values()}


@pytest.mark.parametrize("name", ERRORS)
def test_a_status_of_grpc_says_what_the_answer_of_http_says(run, name):
    error = ERRORS[name]

    async def work():
        models = FakeModels(m=FakeEngine(lambda job: [error]))
        by_http = await called(
            build_app(models), "POST", "/v1/completions", {"prompt": [1]}, request_id="one"
        )
        async with served(models) as client:
            asked = v1.GenerateRequest(token_ids=v1.TokenIds(ids=[1]))
            metadata = [("x-request-id", "one")]
            calls = (client.inference.Generate, client.inference.GenerateStream)
            return by_http, [await failure(call(asked, metadata=metadata)) for call in calls]

    by_http, by_grpc = run(work())
    told = by_http.json()["error"]
    assert "secret" not in by_http.body.decode()
    for status, text, trailing in by_grpc:
        assert status.name == GRPC_STATUSES.get(by_http.status, "INTERNAL")
        assert (text, trailing["ingot-code"]) == (told["message"], told["code"])
        param = trailing.get("ingot-param")
        assert (param and json.loads(f'"{param}"'.replace("\\x", "\\u00"))) == told["param"]
        again = int(trailing.get("grpc-retry-pushback-ms", 0))
        wait = int(by_http.headers.get("retry-after", 0))
        if wait:
            assert 1000 * (wait - 1) < again <= 1000 * wait
        else:
            assert (again == -1) == (by_http.headers.get("x-should-retry") == "false")
