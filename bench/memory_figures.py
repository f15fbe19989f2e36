"""Memory of a process that runs an artifact, beyond the weights and the pages of its cache."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ingot

CONTEXT = 1024  # tokens; the pool is made for just these, and the prompt fills it


def main() -> None:
    path = Path(sys.argv[1])
    manifest = json.loads((path / "manifest.json").read_text())
    pool = CONTEXT * manifest["model"]["kv_bytes_per_token"]
    params = ingot.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    with ingot.LLM(path, max_model_len=CONTEXT, kv_cache_bytes=pool) as llm:
        llm.generate([[(37 * i) % 1000 for i in range(CONTEXT - 24)]], params)
        peak = _peak_bytes()
    weights = sum(
        entry["size"] for name, entry in manifest["files"].items() if name.startswith("weights/")
    )
    print(json.dumps({"extra_mb": (peak - weights - pool) / 1e6, "peak_mb": peak / 1e6}))


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
