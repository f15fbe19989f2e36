from __future__ import annotations

import asyncio

import pytest

from ingot.errors import PoisonedRequestError
from ingot.serve.isolated import suspects as module
from ingot.serve.isolated.suspects import FORGET_SECONDS, Suspects
from tests.serve.jobs import run


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_job_that_was_there_twice_when_an_engine_died_is_refused():
    async def main():
        suspects = Suspects()
        for _ in range(2):
            async with suspects.admitted(b"a"):
                suspects.blame([b"a"])
        with pytest.raises(PoisonedRequestError, match="twice"):
            async with suspects.admitted(b"a"):
                pass
        async with suspects.admitted(b"b"):
            pass

    run(main)


def test_a_job_that_ends_between_two_deaths_is_free():
    async def main():
        suspects = Suspects()
        suspects.blame([b"a"])
        async with suspects.admitted(b"a"):
            suspects.acquit(b"a")
        suspects.blame([b"a"])
        async with suspects.admitted(b"a"):
            pass

    run(main)


def test_suspects_run_one_after_the_other_and_others_beside_them():
    async def main():
        suspects, running, most = Suspects(), set(), []
        suspects.blame([b"a", b"b", b"c"])

        async def use(name):
            async with suspects.admitted(name):
                running.add(name)
                most.append(len(running & {b"a", b"b", b"c"}))
                await asyncio.sleep(0)
                running.discard(name)

        async with suspects.admitted(b"free"):
            await asyncio.gather(*map(use, (b"a", b"b", b"c", b"d", b"e")))
        return most

    assert max(run(main)) == 1


def test_only_the_guilty_one_of_many_is_refused_and_those_that_wait_are_let_go():
    async def main():
        suspects, ran = Suspects(), []
        names = [b"a", b"killer", b"b"]
        suspects.blame(names)

        async def use(name):
            async with suspects.admitted(name):
                ran.append(name)
                await asyncio.sleep(0)  # the others come meanwhile, and wait
                if name == b"killer":
                    suspects.blame([name])
                else:
                    suspects.acquit(name)

        await asyncio.gather(*map(use, [*names, b"killer"]), return_exceptions=True)
        with pytest.raises(PoisonedRequestError):
            await use(b"killer")
        return ran

    assert sorted(run(main)) == [b"a", b"b", b"killer"]


def test_what_is_not_sent_again_is_forgotten(monkeypatch):
    async def main():
        clock = Clock()
        suspects = Suspects(clock)
        suspects.blame([b"a"])
        suspects.blame([b"a"])
        clock.now += FORGET_SECONDS + 1
        async with suspects.admitted(b"a"):
            pass
        monkeypatch.setattr(module, "MOST", 2)
        suspects.blame([b"x", b"y"])
        suspects.blame([b"x", b"y"])
        suspects.blame([b"z"])  # the oldest goes
        async with suspects.admitted(b"x"):
            pass
        with pytest.raises(PoisonedRequestError):
            async with suspects.admitted(b"y"):
                pass

    run(main)
