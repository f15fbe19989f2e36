"""The fair lock and the helper thread."""

from __future__ import annotations

import threading

import pytest

from ingot.runtime.overlap import Helper
from ingot.runtime.turns import FairLock


def test_the_lock_is_given_in_the_order_of_asking():
    lock, order, threads = FairLock(), [], []

    def work(number):
        with lock:
            order.append(number)

    with lock:
        for number in range(8):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            while len(lock._gates) <= number:
                pass
    # The one that asks again comes after all that wait already.
    with lock:
        order.append("again")
    for thread in threads:
        thread.join()
    assert order == [*range(8), "again"]


def test_only_one_holds_the_lock():
    lock, inside, total = FairLock(), [], []

    def work():
        for _ in range(500):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                inside.pop()
                total.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(total) == 2000 and not lock._held


def test_an_interrupted_wait_leaves_the_line(monkeypatch):
    lock = FairLock()
    lock.acquire()

    class Gate:
        calls = 0

        def acquire(self):
            Gate.calls += 1
            if Gate.calls == 2:
                raise KeyboardInterrupt

        def release(self): ...

    monkeypatch.setattr("ingot.runtime.turns.threading.Lock", Gate)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert not lock._gates
    lock.release()
    assert not lock._held


def test_both_run_and_the_result_is_the_mains():
    helper, seen = Helper(), []
    begun, go_on = threading.Event(), threading.Event()

    def work():
        begun.set()
        go_on.wait()
        seen.append(threading.current_thread().name)

    def main():
        begun.wait()
        go_on.set()
        return 5

    assert helper.beside(work, main) == 5
    assert seen == ["ingot-helper"]
    helper.close()
    helper.close()
    assert helper.beside(lambda: None, lambda: 6) == 6
    helper.close()


def fail(error):
    raise error


def test_errors_of_either_are_raised_after_both_are_over():
    helper, done = Helper(), []
    with pytest.raises(ValueError, match="work"):
        helper.beside(lambda: fail(ValueError("work")), lambda: done.append("main"))
    with pytest.raises(ValueError, match="main"):
        helper.beside(lambda: done.append("work"), lambda: fail(ValueError("main")))
    assert done == ["main", "work"]
    assert helper.beside(lambda: None, lambda: 1) == 1
    helper.close()
