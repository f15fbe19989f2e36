"""Where a server listens, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat

import httpx
import pytest

from ingot.errors import UsageError
from ingot.serve.asked import Asked
from ingot.serve.edge.edge import Edge
from ingot.serve.edge.keys import make_key
from ingot.serve.edge.listening import bind
from ingot.serve.edge.record import Record
from ingot.serve.edge.server import DrainingServer, config_of
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.refusal import Refusal
from tests.serve.edge.edge_server import (
    FACTS,
    SmallApp,
    error_of,
    serving,
    status_of,
    with_limits,
)
from tests.support.until import until

_HALF = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf"


class Streaming(SmallApp):
    """Streams at `/stream` until it is cut, and then says why."""

    edge: Edge

    async def stream(self, scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        end = b"complete"
        try:
            async with self.edge.enter(Asked(model="m")):
                await send({"type": "http.response.body", "body": b"began ", "more_body": True})
                self.began.set()
                await self.release.wait()
        except Refusal as refusal:
            end = refusal.code.encode()
        await send({"type": "http.response.body", "body": end})


def draining(scenario, **limits) -> int:
    """Runs a server with a stream under way, and the scenario. Returns the exit code."""

    async def main() -> int:
        app = Streaming()
        async with serving(with_limits(**limits), app) as served, served.client() as client:
            app.edge = served.edge
            asked = asyncio.create_task(client.get("/stream"))
            await app.began.wait()
            await scenario(served, client, asked)
            app.release.set()
            return await served.task

    return asyncio.run(main())


def test_a_server_that_drains_refuses_what_is_new_and_finishes_what_runs():
    async def scenario(served, client, asked) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: served.edge.draining)
        for path, status in (("/health", 503), ("/echo", 503), ("/live", 200), ("/metrics", 200)):
            response = await client.get(path)
            assert response.status_code == status, path
            if status == 503:
                assert response.json()["error"]["code"] == "draining"
                assert response.headers["retry-after"] and response.headers["x-should-retry"]
        served.app.release.set()
        assert (await asked).text == "began complete"

    assert draining(scenario) == 0


def test_what_takes_too_long_is_cut_and_told_so():
    async def scenario(served, client, asked) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await asked).text == "began draining"

    assert draining(scenario, shutdown_timeout=0.01) == 0


def test_what_has_no_seat_yet_is_cut_and_told_so_too():
    async def scenario(served, client, asked) -> None:
        held = asyncio.create_task(client.get("/hold"))
        await until(lambda: len(served.edge._open) == 2)
        sending = asyncio.create_task(served.raw(_HALF))
        await until(lambda: len(served.edge._open) == 3)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ((await held).status_code, (await held).json()["error"]["code"]) == (503, "draining")
        half = await sending
        assert (status_of(half), error_of(half)["code"]) == (503, "draining")
        assert (await asked).text == "began draining"

    assert draining(scenario, shutdown_timeout=0.01) == 0


def test_no_end_waits_for_a_stream_that_nobody_awaits():
    async def scenario(served, client, asked) -> None:
        idle = Record(method="gRPC", path="x", request_id="a", began=0.0, awaited=False)
        served.edge.opened(idle)
        os.kill(os.getpid(), signal.SIGTERM)
        served.app.release.set()
        assert (await asked).text == "began complete"
        assert await asyncio.wait_for(served.task, 60) == 0

    assert draining(scenario, shutdown_timeout=3600) == 0


def test_a_second_signal_ends_at_once():
    async def scenario(served, client, asked) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: served.edge.draining)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await served.task == 128 + signal.SIGTERM
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
            await asked

    assert draining(scenario) == 128 + signal.SIGTERM


@pytest.mark.thorough
def test_signals_are_whose_they_were_before():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]

    async def main() -> None:
        async with serving():
            assert signal.getsignal(signal.SIGTERM) != before[0]

    asyncio.run(main())
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_keys_are_read_again_at_a_signal(tmp_path, capfd):
    (old, first), (new, second) = make_key("old", "use"), make_key("new", "use")
    path = tmp_path / "keys.txt"
    path.touch(0o600)
    path.write_text(first.line)

    async def main() -> None:
        async with serving(key_file=path) as served, served.client() as client:

            async def status(key: str) -> int:
                headers = {"Authorization": f"Bearer {key}"}
                return (await client.get("/echo", headers=headers)).status_code

            assert (await status(old), await status(new)) == (200, 401)
            path.write_text(second.line)
            os.kill(os.getpid(), signal.SIGHUP)
            while await status(new) != 200:
                pass
            assert await status(old) == 401
            path.write_text("broken")
            os.kill(os.getpid(), signal.SIGHUP)
            assert await status(new) == 200

    asyncio.run(main())
    log = capfd.readouterr().err
    assert "keys read keys=1" in log and "keys not read" in log


def test_a_port_in_use_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is in use"):
            bind(EdgeSettings(port=port))


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "nowhere.invalid", "x" * 300])
def test_an_address_that_is_not_ours_is_named(host):
    with pytest.raises(UsageError, match=r"is no address of this machine|there is no address"):
        bind(EdgeSettings(host=host, port=0, allow_no_key=True))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_an_address_of_the_network_needs_keys_or_a_word(host, tmp_path):
    with pytest.raises(UsageError, match="no key is asked for") as caught:
        Edge(EdgeSettings(host=host))
    assert "--api-key-file" in str(caught.value) and "--allow-no-key" in str(caught.value)
    Edge(EdgeSettings(host=host, allow_no_key=True))
    _, key = make_key("a", "use")
    (tmp_path / "keys").write_text(key.line)
    (tmp_path / "keys").chmod(0o600)
    Edge(EdgeSettings(host=host, key_file=tmp_path / "keys"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_addresses_of_this_machine_alone_need_none(host):
    assert Edge(EdgeSettings(host=host)).keys is None


def test_a_unix_socket_is_its_owners_alone_and_lets_them_change_models(tmp_path):
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))  # nobody listens on it: it is replaced

    async def main() -> None:
        edge = Edge(EdgeSettings(uds=path))
        ready = asyncio.Event()
        task = asyncio.create_task(edge.serve(edge.wrap(SmallApp()), ready.set))
        await ready.wait()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert edge.address == f"unix:{path}"
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
            assert (await client.post("/models/load")).status_code == 200
            with pytest.raises(UsageError, match="it exists"):
                bind(EdgeSettings(uds=path))
        edge.stop()
        assert await task == 0

    asyncio.run(main())
    assert not path.exists()


def test_a_file_is_not_replaced_by_a_socket(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(UsageError, match="it exists"):
        bind(EdgeSettings(uds=path))
    assert path.read_text() == "mine"


@pytest.mark.thorough
def test_only_this_machine_can_reach_a_server_by_default():
    with bind(EdgeSettings(port=0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_full_disk_for_logs_disturbs_nobody(monkeypatch):
    full = os.open("/dev/full", os.O_WRONLY)

    class Stderr:
        def fileno(self) -> int:
            return full

    monkeypatch.setattr("ingot.serve.edge.logs.sys.stderr", Stderr())

    async def main() -> None:
        async with serving() as served, served.client() as client:
            for _ in range(3):
                assert (await client.get("/echo")).status_code == 200
            await until(lambda: served.metric("ingot_log_records_dropped_total"))

    asyncio.run(main())
    os.close(full)


def test_a_second_signal_ends_at_once_and_asking_again_does_not(monkeypatch):
    begun = []

    async def main() -> None:
        nothing = {"ready": lambda: None, "busy": lambda: True, "cut": lambda: None}
        config = config_of(SmallApp(), EdgeSettings())
        server = DrainingServer(config, 9.0, begin=lambda: begun.append("begun"), **nothing)
        server.stop()
        server.stop()
        assert not (server.should_exit or server.force_exit or server.exit_code)
        server.stop(signal.SIGTERM)
        assert server.should_exit and server.force_exit and server.exit_code == 143

    asyncio.run(main())
    assert begun == ["begun"]


@pytest.mark.parametrize("left", [0.0, 1000.0])
def test_what_does_not_end_when_it_is_cut_holds_up_the_end_for_so_long(monkeypatch, left):
    monkeypatch.setattr("ingot.serve.edge.server._CUT_SECONDS", left)
    cuts = []

    async def main() -> list[bool]:
        async def app(scope, receive, send) -> None: ...

        server = DrainingServer(
            config_of(app, EdgeSettings()),
            timeout=0.0,
            ready=lambda: None,
            begin=lambda: None,
            busy=lambda: True,
            cut=lambda: cuts.append("cut"),
        )
        server.stop()
        return [await server.on_tick(1) for _ in range(2)]

    assert asyncio.run(main()) == [not left] * 2 and cuts == ["cut"]


def test_a_queue_that_is_full_is_answered_with_429():
    """From the admission to the wire."""
    asked = Asked(model="m", facts=FACTS)  # it has three seats

    class Holding(SmallApp):
        edge: Edge

        async def ask(self, scope, receive, send) -> None:
            async with self.edge.enter(asked):
                await self.hold(scope, receive, send)

    async def main() -> None:
        app = Holding()
        async with serving(with_limits(max_queue=1), app) as served, served.client() as client:
            app.edge = served.edge
            line = served.edge.admission.line(asked)
            held = [asyncio.create_task(client.get("/ask")) for _ in range(4)]
            await until(lambda: line.num_waiting)
            response = await client.get("/ask")
            assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
            counted = {"reason": "queue_full"}
            assert served.metric("ingot_requests_rejected_total", **counted) == 1
            # It is the model's, and not counted once more as one that got to none.
            assert not served.metric("ingot_requests_rejected_total", model_name="", **counted)
            app.release.set()
            assert [(await task).text for task in held] == ["held"] * 4

    asyncio.run(main())
