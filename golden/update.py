"""Writes what CI compares for the bundled model; run it only when a change is meant.

    python -m golden.update

`golden/shakespeare/` holds the ledger and the plan of the bfloat16 compile as text, and, of the
float32 compile, the greedy tokens of a few prompts with their log-probabilities. Look at the diff
before committing it: a refactoring leaves all of it as it is.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import ingot
from ingot.cli.compile import groups_text, ledger_table
from ingot.cli.inspect import plan_table
from ingot.cli.output import NO_LIMIT

MODEL = Path(__file__).parent / "models" / "shakespeare"
FOLDER = Path(__file__).parent / "shakespeare"
PROMPTS = (
    "ROMEO:\n",
    "First Citizen:\nBefore we proceed any further",
    "O ",
    "KING HENRY VI:\n" * 8,
)
NEW_TOKENS = 32


def structure(artifact: Path) -> dict[str, str]:
    """The ledger and the plan of an artifact, by file name."""
    with ingot.LLM(artifact) as llm:
        manifest, plan = llm.artifact.manifest, llm.artifact.plan
    ledger = f"{ledger_table(manifest.ledger)}\n\n{groups_text(manifest)}\n"
    return {"ledger.txt": ledger, "plan.txt": plan_table(plan) + "\n"}


def outputs(artifact: Path) -> list[dict[str, object]]:
    """Greedy continuations of the prompts, with the log-probability of every token."""
    params = ingot.SamplingParams(temperature=0, max_tokens=NEW_TOKENS, logprobs=1, ignore_eos=True)
    with ingot.LLM(artifact) as llm:
        results = llm.generate(list(PROMPTS), params)
    return [
        {
            "prompt": prompt,
            "text": result.outputs[0].text,
            "token_ids": result.outputs[0].token_ids,
            "logprobs": [
                round(row[token].logprob, 4)
                for token, row in zip(
                    result.outputs[0].token_ids, result.outputs[0].logprobs, strict=True
                )
            ],
        }
        for prompt, result in zip(PROMPTS, results, strict=True)
    ]


def main() -> None:
    os.environ["COLUMNS"] = str(NO_LIMIT)  # whatever terminal this runs in
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        artifacts = {dtype: Path(temporary) / f"{dtype}.ingot" for dtype in ("bfloat16", "float32")}
        for dtype, artifact in artifacts.items():
            ingot.compile(MODEL, artifact, dtype=dtype)
        for name, text in structure(artifacts["bfloat16"]).items():
            (FOLDER / name).write_text(text)
        text = json.dumps(outputs(artifacts["float32"]), indent=1) + "\n"
        (FOLDER / "outputs.json").write_text(text)


if __name__ == "__main__":
    main()
