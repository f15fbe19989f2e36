"""The wheel runs artifacts where there is neither torch nor a compiler."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.wheel_env import ROOT, build_wheel, make_environment, run

GENERATE = """
import sys
import ingot
assert "numpy" not in sys.modules, "import ingot loads nothing heavy"
llm = ingot.LLM(sys.argv[1])
params = ingot.SamplingParams(temperature=0, max_tokens=8)
print(llm.generate(["ROMEO:"], params)[0].outputs[0].token_ids)
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "transformers", "triton"}, loaded
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory, wheel) -> Path:
    """The programs of an environment with the wheel and its core dependencies."""
    return make_environment(tmp_path_factory.mktemp("core") / "venv", wheel)


def test_the_wheel_holds_every_source_and_kernel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    patterns = ("*.py", "*.h", "py.typed")
    sources = [path for pattern in patterns for path in (ROOT / "ingot").rglob(pattern)]
    assert any(path.suffix == ".h" for path in sources)
    assert {path.relative_to(ROOT).as_posix() for path in sources} <= names


def test_the_wheel_claims_one_name(wheel):
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ingot"}


def test_torch_is_not_there(programs):
    done = subprocess.run([programs / "python", "-c", "import torch"], capture_output=True)
    assert b"No module named 'torch'" in done.stderr


def test_it_generates_what_the_compiling_environment_generates(programs, shakespeare_artifact):
    import ingot

    done = run(str(programs / "python"), "-c", GENERATE, str(shakespeare_artifact))
    with ingot.LLM(shakespeare_artifact) as llm:
        params = ingot.SamplingParams(temperature=0, max_tokens=8)
        expected = llm.generate(["ROMEO:"], params)[0].outputs[0].token_ids
    assert json.loads(done.stdout) == expected


def test_the_verbs_that_need_no_compiler_work(programs, shakespeare_artifact):
    ingot, artifact = str(programs / "ingot"), str(shakespeare_artifact)
    result = json.loads(run(ingot, "run", artifact, "ROMEO:", "--max-tokens", "4", "--json").stdout)
    assert len(result["token_ids"]) == 4
    assert "verified" in run(ingot, "verify", artifact).stdout
    assert "Qwen3ForCausalLM" in run(ingot, "inspect", artifact).stdout


@pytest.mark.parametrize("verb", ["compile", "explain"])
def test_the_verbs_that_need_one_say_how_to_get_it(programs, shakespeare_dir, tmp_path, verb):
    command = [programs / "ingot", verb, shakespeare_dir]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'ingot[compile]'" in done.stderr
