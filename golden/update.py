"""Writes what CI compares for the bundled model; run it only when a change is meant.

    python -m golden.update

`golden/shakespeare/` holds the ledger and the plan of the bfloat16 compile as text, and the goldens
of the model, `goldens.json`, as `ingot golden record` writes them. Look at the diff before
committing it: a refactoring leaves all of it as it is.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import ingot
from ingot.cli.compile import groups_text, ledger_table
from ingot.cli.inspect.inspect import plan_table
from ingot.cli.main import main as ingot_command
from ingot.cli.output import NO_LIMIT

MODEL = Path(__file__).parent / "models" / "shakespeare"
FOLDER = Path(__file__).parent / "shakespeare"
PROMPTS = FOLDER / "prompts.jsonl"
GOLDENS = FOLDER / "goldens.json"
# What the tests verify artifacts of, each with the options of its compile.
FORMATS = {
    "float32": ("--dtype", "float32"),
    "bfloat16": ("--dtype", "bfloat16"),
    "int8-g128": ("--quantize", "int8", "--group-size", "128"),
    "int4-g32": ("--quantize", "int4", "--group-size", "32"),
}
RECORD = (
    *("golden", "record", str(MODEL), "--output", str(GOLDENS), "--force"),
    *("--prompts", str(PROMPTS), "--samples", "8", "--formats", ",".join(FORMATS)),
)


def structure(artifact: Path) -> dict[str, str]:
    """The ledger and the plan of an artifact, by file name."""
    with ingot.LLM(artifact) as llm:
        manifest, plan = llm.artifact.manifest, llm.artifact.plan
    ledger = f"{ledger_table(manifest.ledger)}\n\n{groups_text(manifest)}\n"
    return {"ledger.txt": ledger, "plan.txt": plan_table(plan) + "\n"}


def main() -> int:
    os.environ["COLUMNS"] = str(NO_LIMIT)  # whatever terminal this runs in
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        artifact = Path(temporary) / "bfloat16.ingot"
        ingot.compile(MODEL, artifact, dtype="bfloat16")
        for name, text in structure(artifact).items():
            (FOLDER / name).write_text(text)
    return ingot_command(list(RECORD))


if __name__ == "__main__":
    sys.exit(main())
