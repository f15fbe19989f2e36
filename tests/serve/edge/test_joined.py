"""A transport that sends what is written in one turn together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ingot.serve.edge.protocol import JoinedTransport


class Below:
    """The transport below: what is done to it."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def write_eof(self) -> None:
        self.done.append("eof")

    def get_write_buffer_size(self) -> int:
        return 100

    def is_closing(self) -> bool:
        return "close" in self.done


def run(scenario: Callable[[JoinedTransport, Below], Awaitable[None]]) -> None:
    async def main() -> None:
        below = Below()
        await scenario(JoinedTransport(below, asyncio.get_running_loop()), below)

    asyncio.run(main())


def test_what_is_written_in_one_turn_is_sent_as_one_and_in_order() -> None:
    async def scenario(joined, below) -> None:
        joined.write(b"a")
        joined.write(b"b")
        assert below.done == [] and joined.get_write_buffer_size() == 102
        await asyncio.sleep(0)
        assert below.done == [b"ab"] and joined.get_write_buffer_size() == 100
        joined.write(b"c")
        await asyncio.sleep(0)
        assert below.done == [b"ab", b"c"]

    run(scenario)


def test_what_was_written_goes_out_before_the_end() -> None:
    async def scenario(joined, below) -> None:
        joined.write(b"a")
        joined.write_eof()
        joined.write(b"b")
        joined.close()
        assert below.done == [b"a", "eof", b"b", "close"] and joined.is_closing()
        await asyncio.sleep(0)
        assert len(below.done) == 4

    run(scenario)


def test_nothing_is_sent_to_a_connection_that_was_lost_meanwhile() -> None:
    async def scenario(joined, below) -> None:
        joined.write(b"a")
        below.close()
        await asyncio.sleep(0)
        assert below.done == ["close"]

    run(scenario)


def test_an_abort_drops_what_was_not_sent() -> None:
    async def scenario(joined, below) -> None:
        joined.write(b"a")
        joined.abort()
        await asyncio.sleep(0)
        assert below.done == ["abort"]

    run(scenario)
