"""The wheel runs artifacts where there is neither torch nor a compiler."""

from __future__ import annotations

import email
import json
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.wheel_env import make_environment, run
from tools.wheel import ROOT, build_wheel

MADE = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")  # of a .proto file
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
    patterns = ("*.py", "*.h", "*.xz", "py.typed")
    sources = [path for pattern in patterns for path in (ROOT / "ingot").rglob(pattern)]
    assert any(path.suffix == ".h" for path in sources)
    assert {path.relative_to(ROOT).as_posix() for path in sources} <= names


def test_the_wheel_holds_the_modules_of_its_proto_files(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    protos = [*(ROOT / "ingot/serve/grpc/proto").glob("*.proto")]
    assert protos and {path.relative_to(ROOT).as_posix() for path in protos} <= names
    made = {f"ingot/serve/grpc/stubs/{path.stem}{end}" for path in protos for end in MADE}
    assert made == {name for name in names if "grpc/stubs/" in name and "__init__" not in name}


def test_the_wheel_claims_one_name(wheel):
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ingot"}


def test_the_index_shows_a_readme_whose_links_work(wheel):
    (name,) = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".dist-info/METADATA")]
    shown = email.message_from_bytes(zipfile.ZipFile(wheel).read(name))
    assert (shown["Name"], shown["Description-Content-Type"]) == ("ingot-lm", "text/markdown")
    source = dict(line.split(", ") for line in shown.get_all("Project-URL"))["Source"]
    links = re.findall(r"\]\(([^)]*)\)", shown.get_payload(decode=True).decode())
    ours = [link for link in links if link.startswith(f"{source}/blob/main/")]
    assert ours and [link for link in links if not link.startswith("https://")] == []
    assert [link for link in ours if not (ROOT / link.split("/blob/main/")[1]).exists()] == []


def test_no_address_names_another_repository():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source = project["urls"]["Source"]
    assert [url for url in project["urls"].values() if not url.startswith(source)] == []
    pages = [f"{source}/blob/main/", f"{source}/tree/main/"]
    paths = [url.removeprefix(p) for url in project["urls"].values() for p in pages if p in url]
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.thorough
def test_torch_is_not_there(programs):
    done = subprocess.run([programs / "python", "-c", "import torch"], capture_output=True)
    assert b"No module named 'torch'" in done.stderr


@pytest.mark.thorough
def test_it_generates_what_the_compiling_environment_generates(programs, shakespeare_artifact):
    import ingot

    done = run(str(programs / "python"), "-c", GENERATE, str(shakespeare_artifact))
    with ingot.LLM(shakespeare_artifact) as llm:
        params = ingot.SamplingParams(temperature=0, max_tokens=8)
        expected = llm.generate(["ROMEO:"], params)[0].outputs[0].token_ids
    assert json.loads(done.stdout) == expected


@pytest.mark.thorough
def test_the_verbs_that_need_no_compiler_work(programs, shakespeare_artifact):
    ingot, artifact = str(programs / "ingot"), str(shakespeare_artifact)
    result = json.loads(run(ingot, "run", artifact, "ROMEO:", "--max-tokens", "4", "--json").stdout)
    assert len(result["token_ids"]) == 4
    assert "verified" in run(ingot, "verify", artifact).stdout
    assert "Qwen3ForCausalLM" in run(ingot, "inspect", artifact).stdout
    lacks = json.loads(run(ingot, "doctor", "--json").stdout)["missing"]
    assert [each["what"] for each in lacks if each["what"] in ("torch", "numpy")] == ["torch"]


@pytest.mark.thorough
def test_explain_says_what_it_says_with_torch(programs, shakespeare_dir, capsys):
    from ingot.cli.main import main

    argv = ["explain", str(shakespeare_dir), "--json", "--memory", "24GB"]
    assert main(argv) == 0
    assert run(str(programs / "ingot"), *argv).stdout == capsys.readouterr().out


@pytest.mark.thorough
def test_the_verb_that_needs_one_says_how_to_get_it(programs, shakespeare_dir, tmp_path):
    command = [programs / "ingot", "compile", shakespeare_dir]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "pip install 'ingot-lm[compile]'" in done.stderr
