"""`bench/gpu_check.sh`: what it says without a GPU, and what becomes of parts that end badly."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from bench.gpu import check, part
from bench.gpu.artifacts import RECIPES, check_room
from bench.gpu.check import ROOT, Run
from bench.gpu.parts import PARTS, Part, parts_of
from bench.gpu.places import report_file
from bench.gpu.results import FAILED, NOT_RUN, OK, Outcome, Report, read_report, results
from bench.gpu.setting import Setting
from bench.gpu.summary import line, table

SCRIPT = ROOT / "bench" / "gpu_check.sh"
# Stand-ins of parts, by name: what their processes do. `report` is the part's.
BEGIN = """
import os, signal, subprocess, sys
from pathlib import Path
from bench.gpu.results import Report
report = Report(Path(sys.argv[1]))
report.note(seen=1)
"""
WAYS_TO_END = {
    "good": "report.save('ok')",
    "fails": "report.save('failed', 'out of luck')",
    "hangs": "signal.pause()",
    "hangs with a child": """
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
report.note(child=child.pid)
signal.pause()
""",
    "crashes": "print('last words', flush=True); os.abort()",
    "crashes at its end": "report.save('ok'); os.abort()",
}


def a_run(tmp_path: Path, *parts: Part, **options) -> Run:
    def command(part: Part) -> list[str]:
        file = str(report_file(tmp_path, part.name))
        return [sys.executable, "-c", BEGIN + WAYS_TO_END[part.name], file]

    return Run(parts, tmp_path, tmp_path, tmp_path / "out.json", command, **options)


def parts(*names: str, seconds: float = 60) -> list[Part]:
    return [Part(name, "", seconds) for name in names]


def written(tmp_path: Path) -> dict[str, dict]:
    found = json.loads((tmp_path / "out.json").read_text())
    return {part["name"]: part for part in found["parts"]}


def test_a_part_that_ends_badly_is_recorded_and_the_next_one_runs(tmp_path, capsys):
    names = ("fails", "crashes", "crashes at its end", "good")
    outcomes = a_run(tmp_path, *parts(*names)).run()
    found = written(tmp_path)
    assert [found[name]["status"] for name in names] == [FAILED, FAILED, FAILED, OK]
    assert found["fails"]["error"] == "out of luck"
    assert "ended with -6" in found["crashes"]["error"]
    assert "last words" in found["crashes"]["error"]
    assert "ended with -6" in found["crashes at its end"]["error"]
    assert found["good"]["error"] == "" and found["good"]["seconds"] > 0
    assert all(part["figures"] == {"seen": 1} for part in found.values())
    assert "    out of luck" in capsys.readouterr().out
    assert table(outcomes).startswith("1 ok, 3 failed, 0 not run")


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Impatient(subprocess.Popen):
    """Gives a part its time, and not a moment more than it needs to have a child."""

    def wait(self, timeout=None):
        file = Path(self.args[-1])
        while timeout == HANGS and "child" not in read_report(file)["figures"]:
            with suppress(subprocess.TimeoutExpired):
                return super().wait(0.01)
        return super().wait(0 if timeout == HANGS else timeout)


HANGS = 99


def test_a_part_that_hangs_is_ended_with_all_that_it_has_started(tmp_path, monkeypatch):
    monkeypatch.setattr(check.subprocess, "Popen", Impatient)
    a_run(tmp_path, *parts("hangs with a child", seconds=HANGS), *parts("good")).run()
    found = written(tmp_path)
    assert found["hangs with a child"]["status"] == FAILED
    assert "was ended after 99 s" in found["hangs with a child"]["error"]
    assert not is_running(found["hangs with a child"]["figures"]["child"])
    assert found["good"]["status"] == OK


def test_after_the_deadline_nothing_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "LEAST_SECONDS", 0.1)
    a_run(tmp_path, *parts("hangs"), *parts("good"), seconds=0.5).run()
    found = written(tmp_path)
    assert found["hangs"]["status"] == FAILED
    assert found["good"]["status"] == NOT_RUN
    assert found["good"]["error"] == "no time was left"


def test_a_run_that_is_killed_leaves_what_it_has(tmp_path, monkeypatch):
    run, original = a_run(tmp_path, *parts("good", "fails", "hangs")), check.run_process

    def killed(command, log, seconds):
        if log.stem == "fails":
            raise KeyboardInterrupt
        return original(command, log, seconds)

    monkeypatch.setattr(check, "run_process", killed)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    states = {name: part["status"] for name, part in written(tmp_path).items()}
    assert states == {"good": OK, "fails": NOT_RUN, "hangs": NOT_RUN}
    assert "the run ended before it" in written(tmp_path)["hangs"]["error"]


def test_a_part_without_its_artifact_is_not_run(tmp_path):
    needs = Part("good", "", 60, names=("a",))
    (outcome,) = a_run(tmp_path, needs).run()
    assert (outcome.status, outcome.error) == (NOT_RUN, "there is no a")
    (tmp_path / "a.ingot").mkdir()
    assert a_run(tmp_path, needs).run()[0].status == OK
    assert line(outcome) == "not run     0.0 s  good: there is no a"


def test_an_error_of_a_part_is_recorded_with_its_traceback(tmp_path, monkeypatch):
    def broken(setting, name):
        setting.report.note(before=name)
        raise ValueError("out of luck")

    monkeypatch.setattr("bench.gpu.load.load", broken)
    setting = Setting(tmp_path, tmp_path, Report(tmp_path / "a.json"))
    assert part.run(Part("x", "load:load", 1, names=("a",)), setting) == 1
    found = read_report(tmp_path / "a.json")
    assert (found["status"], found["figures"]) == (FAILED, {"before": "a"})
    assert found["error"].endswith("in broken\nValueError: out of luck")
    monkeypatch.setattr("bench.gpu.load.load", lambda setting, name: None)
    assert part.run(Part("x", "load:load", 1, names=("a",)), setting) == 0
    assert read_report(tmp_path / "a.json")["status"] == OK


def test_every_part_has_its_function_and_its_artifacts():
    assert len({each.name for each in PARTS}) == len(PARTS)
    for half in (1, 2):
        made: set[str] = set()
        for each in parts_of(half):
            module, function = each.run.split(":")
            run = getattr(import_module(f"bench.gpu.{module}"), function)
            inspect.signature(run).bind(None, *each.names)
            assert set(each.names) <= set(RECIPES)
            made |= set(each.names) if each.makes else set()
            assert set(each.names) <= made, each.name


def test_a_model_needs_its_room():
    needed = check_room("llama-3.1-8b", 64)
    assert 30 < needed < 50
    with pytest.raises(RuntimeError, match="takes 39 GB of disk, and 20 are free"):
        check_room("llama-3.1-8b", 20)


def script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *arguments], env={**os.environ, **environment}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip


def test_the_script_is_a_script():
    for shell in ("sh", "bash"):
        subprocess.run([shell, "-n", str(SCRIPT)], check=True)


@pytest.mark.thorough
def test_without_a_gpu_it_says_so(tmp_path):
    done = script("--out", str(tmp_path / "out.json"), PYTHON=sys.executable)
    assert done.returncode == 2
    assert "sees no NVIDIA GPU" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_without_python_it_says_so():
    done = script(PYTHON="/no/python")
    assert done.returncode == 2
    assert "no Python 3.11 or newer" in done.stderr


def test_without_torch_or_a_package_it_says_so(monkeypatch):
    monkeypatch.setattr(check, "_is_there", lambda name: name != "msgspec")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert "lacks msgspec" in check.obstacle()
    monkeypatch.setattr(check, "_is_there", lambda name: True)
    assert check.obstacle() == ""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "there is no torch here" in check.obstacle()


def test_the_exit_code_says_whether_a_part_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check, "obstacle", lambda: "")
    monkeypatch.setattr(check.signal, "signal", lambda *_: None)
    monkeypatch.setattr(check, "parts_of", lambda half: ())
    out = tmp_path / "out.json"
    arguments = ["--out", str(out), "--work", str(tmp_path / "work"), "--half", "2"]
    assert check.main(arguments) == 0
    assert str(out) in capsys.readouterr().out
    assert json.loads(out.read_text())["half"] == 2
    monkeypatch.setattr(Run, "run", lambda self: [Outcome("a", FAILED)])
    assert check.main(arguments) == 1


def test_the_results_begin_with_card_and_versions():
    known = Outcome("environment", OK, figures={"card": {"name": "H"}, "versions": {"torch": "2"}})
    found = results("2026-01-02", 1, [Outcome("other"), known])
    assert (found["card"], found["versions"]) == ({"name": "H"}, {"torch": "2"})
    assert results("2026-01-02", 1, [])["card"] == {}
