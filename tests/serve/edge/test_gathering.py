from __future__ import annotations

import asyncio

from ingot.serve.edge.gathering import MOST_BYTES, Gathering


class Transport:
    def __init__(self) -> None:
        self.did: list[bytes | str] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.did.append(data)

    def close(self) -> None:
        self.closing = True
        self.did.append("close")

    def write_eof(self) -> None:
        self.did.append("eof")

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 7


def test_writes_of_a_turn_go_out_as_one_and_before_an_end():
    async def check() -> None:
        transport = Transport()
        gathering = Gathering(transport, asyncio.get_running_loop())
        gathering.write(b"head")
        gathering.write(b"body")
        assert (transport.did, gathering.get_write_buffer_size()) == ([], 15)
        await asyncio.sleep(0)
        assert (transport.did, gathering.get_write_buffer_size()) == ([b"headbody"], 7)
        gathering.write(b"more")
        gathering.write_eof()
        gathering.write(b"last")
        gathering.close()
        await asyncio.sleep(0)
        assert transport.did == [b"headbody", b"more", "eof", b"last", "close"]

    asyncio.run(check())


def test_much_goes_out_at_once_and_nothing_to_a_connection_that_is_cut():
    async def check() -> None:
        transport = Transport()
        gathering = Gathering(transport, asyncio.get_running_loop())
        gathering.write(large := bytes(MOST_BYTES + 1))
        assert transport.did == [large]
        gathering.write(b"too late")
        transport.closing = True
        await asyncio.sleep(0)
        assert transport.did == [large]

    asyncio.run(check())
