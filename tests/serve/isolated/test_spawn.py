from __future__ import annotations

import os
import socket
import subprocess

import pytest

from ingot.errors import ResourceError
from ingot.serve.isolated import spawn
from ingot.serve.isolated.client import IsolatedEngine
from ingot.serve.isolated.spawn import Spares, end_of
from tests.runtime.fake_model import greedy
from tests.serve.isolated.test_isolated_engine import SETTINGS
from tests.serve.jobs import has_ended, job, run, tokens
from tests.support.open_files import open_files


@pytest.mark.thorough
def test_spare_processes_are_used_replaced_when_they_died_and_ended_when_nobody_took_them(
    fake_artifact,
):
    with Spares(3) as spares:
        dead, used, left = (child for child, _ in spares._spares)
        dead.kill()
        dead.wait()

        async def main():
            engine = await IsolatedEngine.open("m", str(fake_artifact), SETTINGS, spawn=spares.take)
            assert (await engine.supervisor.process()).pid == used.pid
            assert await tokens(engine, job([5])) == greedy([5], 10)
            await engine.close()

        run(main)
        assert left.poll() is None
    assert left.returncode is not None and has_ended(used.pid)


def test_a_signal_of_the_terminal_does_not_reach_a_process():
    child, connection = spawn.spawned()
    try:
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    finally:
        connection.close()
        child.kill()
        child.wait()


def test_a_process_imports_nothing_from_where_it_starts(tmp_path):
    (tmp_path / "secrets.py").write_text("raise SystemExit('shadowed')")
    done = subprocess.run(spawn.command("secrets"), cwd=tmp_path, capture_output=True, text=True)
    assert "shadowed" not in done.stderr and "cannot import name 'main'" in done.stderr


def test_a_spare_that_died_is_not_taken(monkeypatch):
    class Child:
        def __init__(self, code):
            self.poll = lambda: code

    made = [(Child(code), socket.socket()) for code in (1, None, -9)]
    coming = iter(made)
    monkeypatch.setattr(spawn, "spawned", lambda: next(coming))
    spares = Spares(2)
    assert spares.take() == made[1] and spares.take() == made[2]
    assert made[0][1].fileno() < 0  # nobody can speak to it any more
    for _, connection in made:
        connection.close()


def test_a_process_that_cannot_be_started_is_an_error_that_leaves_no_socket(monkeypatch):
    def fails(*arguments, **options):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(spawn.subprocess, "Popen", fails)
    before = open_files()
    with pytest.raises(ResourceError, match="Resource temporarily unavailable"):
        spawn.spawned()
    assert open_files() <= before


def test_how_a_process_ended_is_said_in_words():
    assert end_of(3) == "ended with exit code 3"
    assert end_of(-9) == "was killed by SIGKILL" and end_of(-63) == "was killed by signal 63"
