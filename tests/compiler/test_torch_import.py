import os
import signal
import subprocess
import sys
import threading

import pytest

from ingot.compiler.torch_import import signals_held


class Came(Exception):
    pass


@pytest.fixture
def raising():
    """SIGTERM and SIGHUP raise, SIGINT does as Python has it."""

    def come(number, frame):
        raise Came(number)

    before = {number: signal.signal(number, come) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def held(function):
    with signals_held():
        function()


@pytest.mark.parametrize(
    "number, error", [(signal.SIGTERM, Came), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_acts_when_the_code_is_done(raising, number, error):
    done = []
    with pytest.raises(error):
        held(lambda: done.append(signal.raise_signal(number)))
    assert done == [None]
    with pytest.raises(error):  # handlers are what they were
        signal.raise_signal(number)


def test_the_first_of_many_counts(raising):
    with pytest.raises(Came, match=str(int(signal.SIGHUP))):
        held(lambda: [signal.raise_signal(number) for number in (signal.SIGHUP, signal.SIGTERM)])


def test_an_error_of_the_code_is_not_lost_behind_a_signal(raising):
    with pytest.raises(Came) as caught:
        held(lambda: {}[signal.raise_signal(signal.SIGTERM)])
    assert isinstance(caught.value.__context__, KeyError)


def test_what_is_ignored_stays_ignored_and_other_threads_hold_nothing(raising):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_held():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    entered = []

    def enter():
        with signals_held():
            entered.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [before]


# A module in place of torch that ends the process if an exception passes through its import.
FAKE = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000): pass
except BaseException:
    os.abort()
"""
IMPORTING = """
import signal, sys
from ingot.compiler.torch_import import import_torch
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
{importing}
"""


@pytest.mark.parametrize(
    "importing, code", [("import_torch()", 7), ("import torch", -signal.SIGABRT)]
)
def test_no_signal_comes_amid_the_import_of_torch(tmp_path, importing, code):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(FAKE)
    path = os.pathsep.join((str(tmp_path), *sys.path))
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler=0", "-c", IMPORTING.format(importing=importing)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
    )
    assert done.returncode == code, done.stderr
