"""Ctrl-C and calls from inside a step: whoever waits may leave, the engine goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import ingot.runtime
from ingot.errors import UsageError
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import greedy, logits
from tests.runtime.gate import Gate, is_idle

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
RUNTIME = str(Path(ingot.runtime.__path__[0]))
ROOT = Path(__file__).resolve().parents[2]


class InterruptAt:
    """Raises KeyboardInterrupt before one line that this thread runs in the runtime: any line is
    a place where a signal handler can run."""

    def __init__(self, line: int) -> None:
        self._left = line

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(RUNTIME):
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def __enter__(self):
        sys.settrace(self)

    def __exit__(self, *_):
        sys.settrace(None)


def generate(llm):
    assert llm.generate([[1, 2], [3]], GREEDY)[1].outputs[0].token_ids == greedy([3], 6)


def stream(llm):
    assert [t for d in llm.stream([4], GREEDY) for t in d.token_ids] == greedy([4], 6)


def score(llm):
    assert llm.logits([1, 2]).tobytes() == logits([1, 2]).tobytes()


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("call", [generate, stream, score])
def test_an_interrupt_at_any_line_of_a_call_only_ends_the_call(fake_artifact, call, overlap):
    with LLM(fake_artifact, config=EngineConfig(overlap=overlap)) as llm:
        call(llm)
        for line in range(10_000):
            if not is_interrupted(lambda: call(llm), line):
                break
            assert is_idle(llm), line
            assert llm.generate([[9]], GREEDY)[0].outputs[0].token_ids == greedy([9], 6)
        assert 10 < line < 2000
        generate(llm)


def is_interrupted(call, line):
    try:
        with InterruptAt(line):
            call()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("step", range(1, 5))
def test_a_signal_while_a_call_waits_only_ends_the_call(fake_artifact, step, overlap):
    """The signal is real, and comes while the engine's thread is inside step after step."""
    with LLM(fake_artifact, config=EngineConfig(overlap=overlap)) as llm:
        submit, calls = llm._engine._executor.submit, []

        def interrupts(*arguments, **options):
            calls.append(1)
            if len(calls) == step:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            return submit(*arguments, **options)

        llm._engine._executor.submit = interrupts
        for begin in (lambda: generate(llm), lambda: stream(llm)):
            calls.clear()
            with pytest.raises(KeyboardInterrupt):
                begin()
            assert is_idle(llm)
            generate(llm)


def test_a_second_signal_leaves_a_lost_request_to_the_collector(fake_artifact):
    """Even an interrupt in the very lines that give a claim up."""
    with LLM(fake_artifact) as llm:
        gate = Gate()
        stream = llm.stream([1], replace(GREEDY, logits_processors=[gate]))
        assert is_interrupted(stream.close, 1)
        del stream
        gate.open()
        assert is_idle(llm) and llm.counters().num_aborted == 1


def inside_a_step(llm, call):
    """What a logits processor that makes the call raises or returns."""
    found = []

    def processor(generated, row):
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)
        return row

    params = replace(GREEDY, max_tokens=1, logits_processors=[processor])
    assert llm.generate([[5]], params)[0].outputs[0].token_ids == greedy([5], 1)
    return found[0]


def test_calls_that_wait_for_a_step_are_refused_inside_it(fake_artifact):
    with LLM(fake_artifact) as llm:
        for call in (
            lambda: llm.generate([[1]], GREEDY),
            lambda: llm.stream([1], GREEDY),
            lambda: llm.logits([1]),
        ):
            error = inside_a_step(llm, call)
            assert isinstance(error, UsageError) and "counters() and close()" in error.hint
        assert is_idle(llm)


def test_counters_and_switches_may_be_used_inside_a_step(fake_artifact):
    with LLM(fake_artifact) as llm:
        assert inside_a_step(llm, llm.counters).num_running == 1
        inside_a_step(llm, lambda: setattr(llm, "config", EngineConfig(chunk_tokens=3)))
        generate(llm)
        assert llm.config.chunk_tokens == 3


def test_on_step_may_ask_for_counters_and_close_the_model(fake_artifact):
    seen = []

    def on_step(counters):
        seen.append(llm.counters() == counters)
        if len(seen) == 3:
            llm.close()

    llm = LLM(fake_artifact, on_step=on_step)
    with pytest.raises(UsageError, match="closed"):
        llm.generate([[1]], GREEDY)
    llm.close()
    assert seen == [True] * 3
    with pytest.raises(UsageError, match="closed"):
        llm.generate([[1]], GREEDY)


def test_closing_ends_who_waits_in_another_thread(fake_artifact):
    llm, gate, caught = LLM(fake_artifact), Gate(), []

    def work():
        try:
            llm.generate([[1]], replace(GREEDY, logits_processors=[gate]))
        except UsageError as error:
            caught.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    gate.reached.wait()
    closer = threading.Thread(target=llm.close)
    closer.start()
    while llm._thread.inbox.empty():
        pass
    gate.open()
    closer.join()
    worker.join()
    assert "closed" in str(caught[0])


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "1 / 0", "os.kill(os.getpid(), signal.SIGINT)"])
def test_a_program_ends_whatever_its_model_is_doing(fake_artifact, end):
    """The model is never closed, and a request runs."""
    program = f"""
        import os, signal, sys
        sys.path.insert(0, {str(ROOT)!r})
        from ingot.runtime.config import EngineConfig
        from ingot.runtime.llm import LLM
        from ingot.runtime.params import SamplingParams
        llm = LLM({str(fake_artifact)!r}, config=EngineConfig(overlap=True))
        params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
        next(llm.stream([1], params))
        stream = llm.stream([2], params)
        {end}
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    codes = {"": 0, "sys.exit(3)": 3, "1 / 0": 1}
    assert done.returncode == codes.get(end, -signal.SIGINT)
    assert "Fatal" not in done.stderr and "Exception ignored" not in done.stderr


def test_what_was_finished_when_the_model_closed_is_whole(fake_artifact):
    """With overlap its last token is drawn, but not delivered yet."""
    results = {}

    def on_step(counters):
        if counters.num_finished:
            llm.close()

    def work(name, max_tokens):
        try:
            out = llm.generate([[1]], replace(GREEDY, max_tokens=max_tokens))[0].outputs[0]
            results[name] = out.token_ids
        except UsageError as error:
            results[name] = error

    llm = LLM(fake_artifact, config=EngineConfig(overlap=True), on_step=on_step)
    gate = Gate()
    first = llm.stream([5], replace(GREEDY, max_tokens=90, logits_processors=[gate]))
    gate.reached.wait()
    threads = [threading.Thread(target=work, args=pair) for pair in (("short", 6), ("long", 90))]
    for thread in threads:
        thread.start()
    while llm._thread.inbox.qsize() < 2:
        pass
    gate.open()
    for thread in threads:
        thread.join()
    llm.close()
    assert results["short"] == greedy([1], 6)
    assert "closed" in str(results["long"])
    with pytest.raises(UsageError, match="closed"):
        next(first)
