"""What `make` installs, and what waits for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ci import targets_in_ci
from tools import setup_env

ROOT = Path(__file__).resolve().parents[1]
RULES = dict(re.findall(r"^([a-z-]+):(?! *=)([^#\n]*)", (ROOT / "Makefile").read_text(), re.M))
RAY = setup_env.pinned("ray")
TRITON = setup_env.pinned("triton", setup_env.CUDA_CONSTRAINTS)


def test_the_demo_waits_neither_for_tools_nor_for_triton(monkeypatch, tmp_path):
    asked = []
    assert RULES["demo"].split() == ["$(STAMP)"]
    monkeypatch.setattr(setup_env.Venv, "must", lambda env, *words: asked.append(words[-1]))
    monkeypatch.setattr(setup_env.Venv, "create", lambda env: None)
    monkeypatch.setattr(setup_env.Venv, "write_byte_code", lambda env: asked.append("byte code"))
    monkeypatch.setattr(setup_env, "install_torch", lambda env, version: asked.append("torch"))
    setup_env.setup(tmp_path)
    assert asked == ["torch", ".[compile]"]
    setup_env.add_tools(tmp_path)
    assert asked[2:] == [".[dev]", "byte code"]


@pytest.mark.parametrize("rule", ["golden", "docs", "size", "wheel"])
def test_what_writes_pages_waits_for_tools(rule):
    assert RULES[rule].split() == ["$(TOOLS)"]
    assert "\n$(CUDA): $(TOOLS) " in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("rule", ["setup", "test", "test-all", "lint", "tour", "bench"])
def test_what_builds_for_cuda_waits_for_triton(rule):
    assert RULES[rule].split() == ["$(CUDA)"]


def test_the_slow_tests_alone_wait_for_ray():
    assert [name for name, needs in RULES.items() if "$(RAY)" in needs] == ["test-slow"]
    assert "\n$(RAY): $(CUDA)\n" in (ROOT / "Makefile").read_text()


def test_what_ci_runs_waits_for_triton():
    run = targets_in_ci()
    assert {"lint", "test"} < {*run} and all(RULES[rule].split() == ["$(CUDA)"] for rule in run)


def test_triton_is_pinned_to_a_version_that_is_supported():
    from ingot.targets.cuda.triton_package import NEWEST, OLDEST

    version = tuple(int(part) for part in TRITON.split(".")[:2])
    assert OLDEST <= version <= NEWEST


@pytest.fixture
def asked(monkeypatch) -> Callable[..., list[str]]:
    """What pip is asked for where a version of Triton is there, and what is said."""

    def add(installed: str, platform: str = "linux") -> list[str]:
        done: list[str] = []
        monkeypatch.setattr(setup_env.sys, "platform", platform)
        monkeypatch.setattr(setup_env.Venv, "version", lambda env, package: installed)
        monkeypatch.setattr(setup_env.Venv, "must", lambda env, *words: done.append(words[-1]))
        monkeypatch.setattr(setup_env.Venv, "write_byte_code", lambda env: done.append("byte code"))
        setup_env.add_triton(Path("nowhere"))
        return done

    return add


def test_triton_is_installed_unless_it_is_there(asked, capsys):
    assert asked("") == asked("3.7.1") == [f"triton=={TRITON}", "byte code"]
    assert f"setup: installing triton {TRITON}" in capsys.readouterr().out
    assert asked(TRITON) == [] and capsys.readouterr().out == ""


@pytest.mark.parametrize("installed, num_times", [("", 1), ("2.50.0", 1), (RAY, 0)])
def test_ray_is_installed_unless_it_is_there(installed, num_times, monkeypatch):
    asked = []
    monkeypatch.setattr(setup_env.Venv, "version", lambda env, package: installed)
    monkeypatch.setattr(setup_env.Venv, "must", lambda env, *words: asked.append(words[-1]))
    monkeypatch.setattr(setup_env.Venv, "write_byte_code", lambda env: asked.append("byte code"))
    setup_env.add_ray(Path("nowhere"))
    assert asked == [".[ray]", "byte code"] * num_times


def test_where_triton_has_no_wheel_that_is_said(asked, capsys):
    assert asked("", "darwin") == []
    said = capsys.readouterr().out
    assert "Triton has no wheel for darwin" in said and "tests\nof CUDA targets fail" in said


def test_byte_code_is_written_where_processes_may_not(monkeypatch, tmp_path):
    """Of a file that is no Python, none, and that is no error."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    made = setup_env.Venv(tmp_path)
    made.python = Path(sys.executable)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "good.py").write_text("x = 1\n")
    (tmp_path / "lib" / "template.py").write_text("x = {{ x }\n")
    made.write_byte_code()
    assert [path.name.split(".")[0] for path in (tmp_path / "lib").rglob("*.pyc")] == ["good"]
    assert "template.py" in made.log.read_text()


def test_what_pip_cannot_install_stops_the_setup(tmp_path, monkeypatch):
    (tmp_path / "setup.log").write_text("ERROR: No matching distribution")
    monkeypatch.setattr(setup_env.sys, "platform", "linux")
    monkeypatch.setattr(setup_env.Venv, "version", lambda env, package: "")
    monkeypatch.setattr(setup_env.Venv, "pip", lambda env, *words: 1)
    with pytest.raises(setup_env.SetupError, match="No matching distribution"):
        setup_env.add_triton(tmp_path)
