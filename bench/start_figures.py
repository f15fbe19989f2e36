"""How long it takes to import ingot, to open an artifact, and to have the first token."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.processes import installed

ROUNDS = 7

IMPORT = "import time; t = time.perf_counter(); import ingot; print(time.perf_counter() - t)"
OPEN = """
import sys, time, ingot
t = time.perf_counter()
llm = ingot.LLM(sys.argv[1])
print(time.perf_counter() - t)
"""
FIRST_TOKEN = """
import sys, ingot
llm = ingot.LLM(sys.argv[1])
llm.generate([[1, 2, 3]], ingot.SamplingParams(max_tokens=1, temperature=0, detokenize=False))
"""


def main() -> None:
    artifact = sys.argv[1]
    with tempfile.TemporaryDirectory() as byte_code:
        environment = installed(byte_code)
        imports = [float(_output(environment, IMPORT)) for _ in range(ROUNDS)]
        _output(environment, FIRST_TOKEN, artifact)
        opens = [float(_output(environment, OPEN, artifact)) for _ in range(ROUNDS)]
        firsts = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            _output(environment, FIRST_TOKEN, artifact)
            firsts.append(time.perf_counter() - start)
    figures = {
        "import_seconds": statistics.median(imports),
        "open_seconds": statistics.median(opens),
        "first_token_seconds": statistics.median(firsts),
    }
    print(json.dumps(figures))


def _output(environment: dict[str, str], code: str, *args: str) -> str:
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return done.stdout


if __name__ == "__main__":
    main()
