"""What reaches the application: keys and scopes, sites, bodies, ids, and answers to faults."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re

import httpx
import pytest

from ingot.errors import UsageError
from ingot.runtime.unique import unique_id
from ingot.serve.edge.edge import Edge
from ingot.serve.edge.guard import _is_address
from ingot.serve.edge.keys import make_key
from ingot.serve.edge.logs import FORMATS
from ingot.serve.edge.pages import Pages
from ingot.serve.edge.record import Record
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.http.app import build_app
from tests.serve.edge.edge_server import SmallApp, serving, with_limits
from tests.support.asgi import calling
from tests.support.fake_engine import FakeEngine, FakeModels, says
from tests.support.until import until

LEAKS = re.compile(r"0x[0-9a-f]{6,}|/home|/tmp|/usr|Traceback|File \"|secret", re.IGNORECASE)


def run(scenario, limits=None, **settings) -> None:
    async def main() -> None:
        async with serving(limits, **settings) as served, served.client() as client:
            await scenario(served, client)

    asyncio.run(main())


@pytest.fixture
def keys(tmp_path):
    made = {name: make_key(name, scope) for name, scope in (("bob", "use"), ("root", "admin"))}
    path = tmp_path / "keys.txt"
    path.touch(0o600)
    path.write_text("\n".join(key.line for _, key in made.values()))
    return path, {name: {"Authorization": f"Bearer {text}"} for name, (text, _) in made.items()}


def code_of(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not LEAKS.search(response.text)
    return response.status_code, error["code"]


def test_what_fails_after_its_answer_has_begun_begins_no_second_one():
    async def main() -> None:
        edge = Edge()
        async with calling(edge.wrap(SmallApp()), "GET", "/half") as call:
            pass
        assert (call.status, call.body, call.complete) == (200, b"half", False)
        assert edge.details()["requests"] == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("localhost:80", True), ("LOCALHOST", True), ("[::1]:80", True), ("127.0.0.1", True),
     ("evil-localhost", False), ("localhost.evil", False), ("a", False), ("", False)],
)  # fmt: skip
def test_what_is_an_address_of_this_machine_or_another(host, is_one):
    assert _is_address(host) == is_one


def test_a_socket_does_not_stand_for_a_key_where_there_are_keys(tmp_path):
    uds, key_file = tmp_path / "socket", tmp_path / "keys"
    assert EdgeSettings(uds=uds).admin_without_key
    assert not EdgeSettings(uds=uds, key_file=key_file).admin_without_key
    assert not EdgeSettings(open_admin=True, key_file=key_file).admin_without_key


def test_only_who_is_awaited_is_cut():
    async def main() -> None:
        edge = Edge()
        for awaited in (True, False):
            record = Record(method="GET", path="/", request_id="a", awaited=awaited)
            record.task = asyncio.ensure_future(asyncio.Event().wait())
            edge.opened(record)
            edge._cut()
            assert (record.reason is not None) == awaited
            record.task.cancel()
            edge.closed(record)

    asyncio.run(main())


def test_only_who_leaves_before_the_end_counts_as_gone():
    record = Record(method="GET", path="/", request_id="a", status=200, disconnected=True)
    assert record.logged_status == 499
    record.complete = True
    assert record.logged_status == 200


def challenges(response: httpx.Response) -> list[str]:
    """The ways to give a key that an answer names."""
    return [each.split()[0] for each in response.headers.get_list("www-authenticate")]


def test_with_keys_only_probes_are_open(keys):
    path, headers = keys

    async def scenario(served, client) -> None:
        paths = ["/echo", "/", "/metrics", "/health/details", "/v1/models", "/echo/", "/health/x"]
        for method in ("GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE"):
            for at in [*paths, "/models/load"]:
                for wrong in ({}, {"Authorization": "Bearer wrong"}):
                    response = await client.request(method, at, headers=wrong)
                    assert response.status_code == 401
                    assert challenges(response) == ["Bearer", "Basic"]
                    assert "access-control-allow-origin" not in response.headers
            for at in ("/live", "/live/", "/health", "/v2/health/live", "/v2/health/ready"):
                assert (await client.request(method, at)).status_code == 200
        assert code_of(await client.get("/echo")) == (401, "invalid_api_key")
        assert (await client.post("/echo", headers=headers["bob"])).text == "0"
        assert not served.app.ended.count("/models/load")

    run(scenario, key_file=path)


@pytest.mark.parametrize("open_health", [False, True])
def test_probes_without_a_key_hear_of_no_model(keys, open_health):
    path, headers = keys
    models = FakeModels(bard=FakeEngine(says("a")))

    async def main() -> None:
        around = serving(app=build_app(models), key_file=path, open_health=open_health)
        async with around as served, served.client() as client:
            named = {"status": "ok", "models": {"bard": "loaded"}}
            for key in ({}, {"Authorization": "Bearer wrong"}):
                told = (await client.get("/health", headers=key)).json()
                assert told == (named if open_health else {"status": "ok"})
                one = await client.get("/health?model=bard", headers=key)
                if open_health:
                    assert one.json() == named
                else:
                    assert code_of(one) == (401, "invalid_api_key")
                    assert challenges(one) == ["Bearer", "Basic"]
            assert (await client.get("/health?model=bard", headers=headers["bob"])).json() == named
            assert (await client.get("/v2/health/ready")).json() == {"ready": True}
            models.states["bard"] = "failed"
            for at in ("/v2/health/ready", "/health"):
                assert (await client.get(at)).status_code == 503
            assert (await client.get("/v2/health/live")).json() == {"live": True}

    asyncio.run(main())


def test_models_are_changed_with_an_admin_key_alone(keys):
    path, headers = keys

    async def scenario(served, client) -> None:
        response = await client.post("/models/load", headers=headers["bob"])
        assert code_of(response) == (403, "not_permitted")
        for spelled in ("/%6dodels/load", "/models/load/", "/models/load//", "/models%2fload%2F"):
            response = await client.post(spelled, headers=headers["bob"])
            assert code_of(response) == (403, "not_permitted")
        assert (await client.post("/models/load", headers=headers["root"])).text == "root"
        assert (await client.post("/echo", headers=headers["root"])).status_code == 200

    run(scenario, key_file=path)


def test_without_keys_nobody_changes_models_unless_it_is_allowed():
    async def refused(served, client) -> None:
        assert code_of(await client.post("/models/load")) == (403, "not_permitted")
        assert (await client.post("/echo")).status_code == 200

    async def allowed(served, client) -> None:
        assert (await client.post("/models/load")).status_code == 200

    run(refused)
    run(allowed, open_admin=True)


def test_pages_of_other_sites_are_refused(keys):
    async def scenario(served, client) -> None:
        own = {"Origin": served.edge.address}
        assert (await client.post("/echo", headers=own)).status_code == 200
        alike = served.edge.address.replace("://", "://evil.")
        foreign = ("https://example.com", "null", "http://127.0.0.1", "x" * 1000, "http://[")
        for origin in (*foreign, alike):
            response = await client.post("/echo", headers={"Origin": origin})
            assert code_of(response) == (403, "not_permitted")
        for host in ("example.com", "example.com:8000", "127.0.0.1.example.com", "[::1].x"):
            response = await client.get("/echo", headers={"Host": host})
            assert code_of(response) == (403, "not_permitted")
        for host in ("localhost", "LOCALHOST:1", "[::1]:8000", "127.0.0.1"):
            assert (await client.get("/echo", headers={"Host": host})).status_code == 200

    run(scenario)
    path, headers = keys

    async def named(served, client) -> None:
        host = headers["bob"] | {"Host": "example.com"}
        assert (await client.get("/echo", headers=host)).status_code == 200

    run(named, key_file=path)


PAGE = "http://localhost:3000"
ASKING = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,x-stainless-lang",
}


@pytest.mark.parametrize("allowed", [[PAGE], ["https://other.example", PAGE.upper()], ["*"]])
def test_pages_of_allowed_sites_may_call(keys, allowed):
    path, headers = keys
    shown = "*" if "*" in allowed else PAGE

    async def scenario(served, client) -> None:
        for at in ("/echo", "/v1/chat/completions", "/live", "/nothing"):
            asked = await client.options(at, headers=ASKING)
            assert asked.status_code == 204 and not asked.content
            assert asked.headers["access-control-allow-origin"] == shown
            assert "POST" in asked.headers["access-control-allow-methods"]
            assert (
                asked.headers["access-control-allow-headers"]
                == ASKING["Access-Control-Request-Headers"]
            )
            assert int(asked.headers["access-control-max-age"]) > 0
            assert asked.headers["vary"] == "Origin"
        assert not served.app.ended  # the application is not asked
        origin = {"Origin": PAGE}
        for method, at, status, key in (
            ("POST", "/echo", 200, headers["bob"]),
            ("GET", "/flood", 200, headers["bob"]),
            ("POST", "/fail", 500, headers["bob"]),
            ("POST", "/models/load", 403, headers["bob"]),
            ("POST", "/echo", 401, {}),
            ("OPTIONS", "/echo", 401, {}),  # it asks for no method, so it is no preflight
            ("GET", "/live", 200, {}),
        ):
            answer = await client.request(method, at, headers=origin | key)
            assert answer.status_code == status, at
            assert answer.headers["access-control-allow-origin"] == shown
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
            assert answer.headers["vary"] == "Origin"
        for at in ("/live", "/echo"):  # no page asks
            answer = await client.get(at, headers=headers["bob"])
            assert answer.status_code == 200 and answer.headers["vary"] == "Origin"
            assert "access-control-allow-origin" not in answer.headers

    run(scenario, key_file=path, origins=allowed)


@pytest.mark.parametrize("at_once", [b"", b"content-length: 1000000000\r\n"])
def test_pages_can_read_what_the_protocol_refuses(at_once):
    async def scenario(served, client) -> None:
        head = b"POST /echo HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: " + PAGE.encode() + b"\r\n"
        chunked = b"transfer-encoding: chunked\r\n\r\n65\r\n" + b"x" * 0x65
        answer = await served.raw(head + (at_once + b"\r\n" if at_once else chunked))
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"\r\naccess-control-allow-origin: " + PAGE.encode() + b"\r\n" in answer

    run(scenario, limits=with_limits(body_bytes=100), origins=[PAGE])


@pytest.mark.parametrize("allowed", [[], [PAGE], ["*"]])
def test_a_refused_page_is_told_of_the_option(allowed):
    """Whatever is allowed, a name that points to this machine is not."""

    async def scenario(served, client) -> None:
        for origin in ("http://localhost:3001", "null", "http://localhost", 'x";rm', "http://["):
            refused = await client.options("/echo", headers=ASKING | {"Origin": origin})
            if "*" in allowed:
                assert refused.status_code == 204
                continue
            assert code_of(refused) == (403, "not_permitted")
            assert "access-control-allow-origin" not in refused.headers
            told = refused.json()["error"]["message"]
            assert "--allow-origin" in told and '"' not in told
        rebound = await client.get("/echo", headers={"Host": "example.com"})
        assert code_of(rebound) == (403, "not_permitted")
        asked = await client.options("/echo", headers=ASKING)
        assert asked.status_code == (204 if allowed else 403)

    run(scenario, origins=allowed)


@pytest.mark.parametrize(
    "bad", ["localhost:3000", "http://x/", "http://a,http://b", "", "http://a b"]
)
def test_what_is_no_origin_is_refused_at_the_start(bad):
    with pytest.raises(UsageError, match=r"is no origin\nWrite --allow-origin https://"):
        EdgeSettings(origins=[PAGE, bad]).check()


@pytest.mark.parametrize("odd", ["x\x00y", "a" * 5000, "é"])
def test_headers_that_are_none_are_not_echoed(odd):
    asked = {b"origin": b"null", b"access-control-request-method": b"GET",
             b"access-control-request-headers": odd.encode("latin-1")}  # fmt: skip
    named = dict(Pages(["*"]).preflight("OPTIONS", asked) or ())
    assert named[b"access-control-allow-headers"].startswith(b"authorization, content-type")


@pytest.mark.parametrize("path", ["/metrics", "/health/details"])
def test_what_the_server_answers_itself_takes_one_method(path):
    async def scenario(served, client) -> None:
        for at in (path, f"{path}/"):
            shown, head = await client.get(at), await client.head(at)
            assert shown.status_code == head.status_code == 200
            assert shown.content and not head.content
            refused = await client.post(at)
            assert code_of(refused) == (405, "method_not_allowed")
            assert refused.headers["allow"] == "GET, HEAD"

    run(scenario)


def test_an_id_is_echoed_or_made_and_is_one_word():
    async def scenario(served, client) -> None:
        response = await client.post("/echo", headers={"X-Request-Id": "my-1"})
        assert response.headers["x-request-id"] == "my-1"
        for bad in ("", "a b", "x" * 129, 'a"b'):
            response = await client.post("/echo", headers={"X-Request-Id": bad})
            assert re.fullmatch(r"req-[0-9a-f]{32}", response.headers["x-request-id"])
        assert (await client.get("/missing")).headers["x-request-id"]

    run(scenario)


def test_an_id_of_a_client_is_in_the_log_and_in_refusals_of_all_kinds(keys, capfd):
    path, headers = keys
    given = {"X-Request-Id": "mine-7"}

    async def scenario(served, client) -> None:
        for at, key, status in (("/echo", headers["bob"], 200), ("/echo", {}, 401)):
            answer = await client.post(at, headers=given | key)
            assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine-7")
        head = b"POST /echo HTTP/1.1\r\nhost: 127.0.0.1\r\nx-request-id: mine-7\r\n"
        refused = await served.raw(head + b"content-length: 999999999\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 413") and b"\r\nx-request-id: mine-7\r\n" in refused

    run(scenario, key_file=path)
    lines = [line for line in capfd.readouterr().err.splitlines() if " request " in line]
    assert len(lines) == 2 and all("id=mine-7" in line for line in lines)


def test_ids_made_up_differ_in_forked_processes():
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, unique_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 64).decode() != unique_id()


def test_a_body_is_bounded_whether_its_length_is_told_or_not():
    async def parts(count: int):
        for _ in range(count):
            yield b"x" * 10

    async def scenario(served, client) -> None:
        assert (await client.post("/echo", content=b"x" * 100)).text == "100"
        assert (await client.post("/echo", content=parts(10))).text == "100"
        response = await client.post("/echo", content=b"x" * 101)
        assert code_of(response) == (413, "body_too_large")
        response = await client.post("/echo", content=parts(11))
        assert code_of(response) == (413, "body_too_large")

    run(scenario, limits=with_limits(body_bytes=100))


async def receive_parts():
    return {"type": "http.request", "body": b"x" * 60, "more_body": True}


def test_a_body_is_bounded_under_another_server_too():
    """Where another server speaks HTTP, as Ray's proxy does, the guard alone counts."""
    from ingot.serve.edge.edge import Edge
    from ingot.serve.edge.settings import EdgeSettings
    from tests.serve.edge.edge_server import SmallApp

    async def main(headers: list[tuple[bytes, bytes]]) -> int:
        sent = []

        async def send(message) -> None:
            sent.append(message)

        guard = Edge(EdgeSettings(limits=with_limits(body_bytes=100))).wrap(SmallApp())
        scope = {"type": "http", "method": "POST", "path": "/echo", "headers": headers}
        await guard(scope, receive_parts, send)
        return sent[0]["status"]

    assert asyncio.run(main([])) == 413
    assert asyncio.run(main([(b"content-length", b"101")])) == 413
    assert asyncio.run(main([(b"content-length", b"1e1")])) == 400


def test_a_fault_is_answered_without_its_text_and_logged_under_the_id(capfd):
    async def scenario(served, client) -> None:
        response = await client.post("/fail", headers={"X-Request-Id": "my-fault"})
        assert code_of(response) == (500, "internal")
        assert "my-fault" in response.text
        assert (await client.post("/echo")).status_code == 200

    run(scenario)
    log = capfd.readouterr().err
    [line] = [line for line in log.splitlines() if "internal error" in line]
    assert "id=my-fault" in line and "secret at" in line and "Traceback" in line


@pytest.mark.thorough
def test_a_fault_in_the_middle_of_an_answer_ends_the_connection(capfd):
    async def scenario(served, client) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/half")
        assert (await client.post("/echo")).status_code == 200

    run(scenario)
    assert "in the middle" in capfd.readouterr().err


def test_the_log_has_a_line_for_each_request_but_those_of_probes(keys, capfd):
    path, headers = keys

    async def scenario(served, client) -> None:
        for at in ("/health", "/metrics", "/live", "/echo"):
            await client.get(at, headers=headers["bob"])

    run(scenario, key_file=path)
    lines = [line for line in capfd.readouterr().err.splitlines() if " request " in line]
    assert len(lines) == 1
    assert "key=bob method=GET path=/echo status=200" in lines[0]


def test_a_path_cannot_forge_a_line_of_the_log(capfd):
    async def scenario(served, client) -> None:
        await client.get("/a%0d%0a2026-11-23T00:00:00.000Z ERROR forged%1b[31m%E2%80%AEx")

    run(scenario)
    lines = capfd.readouterr().err.splitlines()
    assert not [line for line in lines if line.startswith("2026-11-23T00:00:00.000Z")]
    [line] = [line for line in lines if "forged" in line]
    assert "\\r\\n2026" in line and "\\x1b[31m\\u202e" in line


@pytest.mark.thorough
def test_a_client_that_leaves_is_counted_as_499():
    async def scenario(served, client) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /echo HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\nab")
        await served.app.began.wait()
        writer.close()
        await until(lambda: not served.edge._open)
        assert served.metric("ingot_http_responses_total", status="499") == 1
        assert served.metric("ingot_http_requests_in_flight") == 0

    run(scenario)


@pytest.mark.thorough
def test_the_limits_are_listed():
    async def scenario(served, client) -> None:
        details = (await client.get("/health/details")).json()
        assert details["limits"]["body_bytes"] == 8_000_000
        assert details["draining"] is False

    run(scenario)


def test_the_record_of_a_log_line_is_formatted_alike_by_both_formats():
    """A negative control: a formatter that does not escape would let a second line through."""
    record = logging.LogRecord("ingot", logging.INFO, "", 0, "a\nb", (), None)
    plain = io.StringIO()
    handler = logging.StreamHandler(plain)
    handler.emit(record)
    assert plain.getvalue().count("\n") == 2
    for formatter in FORMATS.values():
        assert "\n" not in formatter(100).format(record)
