#!/bin/sh
# Checks and measures ingot on this machine's NVIDIA GPU; see bench/gpu/check.py for its options.
# PYTHON names the interpreter, which needs torch for CUDA, Triton and what ingot needs.
set -u
cd "$(dirname "$0")/.." || exit 2

found=
for each in ${PYTHON:-python3 python .venv/bin/python}; do
  if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    found=$each
    "$each" -c 'import torch' 2>/dev/null && break
  fi
done
if [ -z "$found" ]; then
  echo "error: no Python 3.11 or newer here; PYTHON=/path/to/python3 names one" >&2
  exit 2
fi
exec "$found" -m bench.gpu.check "$@"
