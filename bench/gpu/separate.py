"""What only a process of its own can show: no compiler, the first token, and compute-sanitizer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench.gpu.results import Values, last_lines
from bench.gpu.setting import Setting
from bench.processes import ROOT

ROUNDS = 3
FORBIDDEN = ("torch", "triton", "cuda", "cupy")

# Opens an artifact and draws tokens; prints what it saw. Arguments: artifact, device, tokens.
GENERATE = """
import json, sys, time

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ImportError(f"{name} was imported")

FORBIDDEN = json.loads(sys.argv[4])
sys.meta_path.insert(0, Refuse())
began = time.perf_counter()
import ingot
from ingot.artifact.reader import Artifact
imported = time.perf_counter()
path, device, tokens = sys.argv[1:4]
llm = ingot.LLM(Artifact.open(path, device=device), max_model_len=64)
opened = time.perf_counter()
def draw(count):
    params = ingot.SamplingParams(
        max_tokens=count, temperature=0, ignore_eos=True, detokenize=False)
    return llm.generate([[1, 2, 3]], params, use_tqdm=False)[0].outputs[0].token_ids
draw(1)
first = time.perf_counter()
found = draw(int(tokens))
llm.close()
print(json.dumps({
    "tokens": found, "import": imported - began, "open": opened - imported,
    "first token": first - imported, "target": llm.artifact.target.name,
    "forbidden": [name for name in FORBIDDEN if name in sys.modules],
}))
"""


def without_compilers(setting: Setting, name: str) -> None:
    """Generates where torch, Triton and every program are out of reach, and the driver has an empty
    folder for what it compiles. Raises RuntimeError where something was compiled or imported."""
    with tempfile.TemporaryDirectory() as cache:
        found = generate(setting, name, 16, FORBIDDEN, {"PATH": cache, "CUDA_CACHE_PATH": cache})
        compiled = sum(path.is_file() for path in Path(cache).rglob("*"))
    setting.report.note(tokens=found["tokens"], compiled=compiled, forbidden=found["forbidden"])
    if compiled or found["forbidden"]:
        raise RuntimeError(f"{compiled} kernels were compiled, {found['forbidden']} imported")


def first_token(setting: Setting, name: str) -> None:
    """Seconds from opening an artifact, whose file the system has read before, to a token."""
    rounds = [generate(setting, name, 1) for _ in range(ROUNDS)]
    for each in ("import", "open", "first token"):
        setting.report.note(**{f"{each} in s": round(median(r[each] for r in rounds), 4)})


def generate(
    setting: Setting,
    name: str,
    tokens: int,
    forbidden: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    before: tuple[str, ...] = (),
) -> Values:
    """What GENERATE prints, in a process of its own. Raises RuntimeError with its last words."""
    path = str(setting.path(name))
    arguments = [path, setting.device, str(tokens), json.dumps(forbidden)]
    command = [*before, sys.executable, "-c", GENERATE, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"it ended with {done.returncode}:\n{last_lines(done.stdout)}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: Values = {**json.loads(lines[-1]), "output": done.stdout}
    return found


def sanitizer(setting: Setting, name: str) -> None:
    """Looks for reads and writes outside of memory. Raises RuntimeError where there are some."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        setting.report.note(sanitizer="there is no compute-sanitizer on PATH")
        return
    before = (program, "--tool", "memcheck", "--error-exitcode", "9")
    found = generate(setting, name, 3, before=before)
    errors = errors_of(found["output"])
    setting.report.note(errors=errors)
    if errors != 0:
        raise RuntimeError(last_lines(found["output"]))


def errors_of(text: str) -> int | None:
    """How many errors compute-sanitizer counted; None where it does not say."""
    match = re.search(r"ERROR SUMMARY: (\d+) error", text)
    return int(match[1]) if match else None
