"""Seconds and peak memory of a compile, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main() -> None:
    model, artifact, *options = sys.argv[1:]
    command = [sys.executable, "-m", "ingot", "compile", model, "-o", artifact, "--force", *options]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(command)} failed")
    print(json.dumps({"seconds": seconds, "peak_gb": usage.ru_maxrss * 1024 / 1e9}))


if __name__ == "__main__":
    main()
