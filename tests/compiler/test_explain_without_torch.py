"""`explain` in an environment where PyTorch cannot be imported says what it says with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.cli.main import main
from tests.compiler.test_explain import change_config
from tests.support.tiny_models import save_random

ROOT = Path(__file__).resolve().parents[2]
# Nothing that importing PyTorch brings, and none of what is built on it.
WITHOUT = """
import importlib.abc, sys
class Refusing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton", "safetensors", "transformers"):
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Refusing())
sys.path.insert(0, ROOT)
"""
EXPLAIN = """
from ingot.cli.main import main
codes = [main(["explain", folder, "--json", "--memory", "1GiB"]) for folder in sys.argv[1:]]
print(codes)
"""


def without_torch(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.replace("ROOT", repr(str(ROOT))) + code
    return subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, text=True)


def test_torch_is_not_there() -> None:
    """The control."""
    done = without_torch("import torch")
    assert done.returncode == 1 and "torch is not there" in done.stderr


def test_the_answer_is_the_same(
    shakespeare_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [shakespeare_dir, save_random("gpt2", tmp_path / "gpt2", tokenizer=True)]
    folders.append(save_random("gemma2_width_68", tmp_path / "gemma2"))
    llama = save_random("llama_longrope", tmp_path / "llama", tokenizer=True)
    folders.append(change_config(llama, num_hidden_layers=3, odd=None))
    unknown = save_random("mistral", tmp_path / "unknown", tokenizer=True)
    folders.append(change_config(unknown, architectures=["OtherForCausalLM"]))
    argv = [str(folder) for folder in folders]
    capsys.readouterr()
    codes = [main(["explain", folder, "--json", "--memory", "1GiB"]) for folder in argv]
    assert codes == [0, 0, 2, 2, 2]
    done = without_torch(EXPLAIN, *argv)
    assert (done.stdout, done.stderr) == (f"{capsys.readouterr().out}{codes}\n", "")
    assert json.loads(done.stdout.partition("\n}\n")[0] + "}")["ways"]
