"""Vectors of a real model of whole texts, beside those of transformers in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ingot
from tools.real.checks import Compiled, compile_as_user
from tools.real.files import RealFolder
from tools.real.questions import QUESTIONS

# By options of a compile: the least cosine of a vector with that of transformers.
FORMATS: dict[str, tuple[tuple[str, ...], float]] = {
    "float32": (("--dtype", "float32"), 1 - 1e-6),
    "bfloat16": (("--dtype", "bfloat16"), 0.9999),
    "int8": (("--dtype", "bfloat16", "--quantize", "int8"), 0.999),
}
EXACT = 1e-6  # of a number in float32
SENTENCES = (
    "That is a happy person",
    "That is a happy dog",
    "That is a very happy person",
    "Today is a sunny day",
)
# Cosines of the first sentence with the others, as the model's page on the hub shows them.
PUBLISHED = (0.695, 0.943, 0.257)


@dataclass
class Vectors:
    """A compile, and how near its vectors are."""

    compiled: Compiled
    least_cosine: float
    largest_error: float


@dataclass
class TextFindings:
    """What was found of a model of whole texts; `faults` are empty if all is well."""

    model: RealFolder
    vectors: list[Vectors] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def prove_vectors(model: RealFolder, folder: Path, place: Path) -> TextFindings:
    """Compiles a model in every format, and looks at its vectors."""
    found = TextFindings(model)
    texts = [*SENTENCES, *(each.text for each in QUESTIONS), " ".join(SENTENCES * 9)]
    wanted = judged(folder, texts)
    for format, (options, least) in FORMATS.items():
        try:
            compiled = compile_as_user(folder, place / f"{format}.ingot", format, options)
        except AssertionError as error:
            found.faults.append(f"{format} does not compile: {error}")
            continue
        with ingot.Embedder(compiled.artifact) as embedder:
            vectors = embedder.encode(texts)
        made = Vectors(compiled, *apart(vectors, wanted))
        found.vectors.append(made)
        found.faults += [f"{format}: {fault}" for fault in faults(made, vectors, least)]
    return found


def judged(folder: Path, texts: Sequence[str]) -> Any:
    """Vectors of length 1 by transformers in float32: means over the tokens of each text."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        rows = [model(**tokenizer(t, return_tensors="pt")).last_hidden_state[0] for t in texts]
    means = torch.stack([each.mean(0) for each in rows])
    return torch.nn.functional.normalize(means, dim=-1).numpy()


def apart(vectors: Any, wanted: Any) -> tuple[float, float]:
    """The least cosine of two vectors of length 1, and the largest difference of two numbers."""
    cosines = (vectors.astype(np.float64) * wanted).sum(-1)
    return float(cosines.min()), float(np.abs(vectors - wanted).max())


def faults(made: Vectors, vectors: Any, least: float) -> list[str]:
    """What is wrong with the vectors of a format."""
    found = []
    if made.least_cosine < least:
        found.append(f"a vector has the cosine {made.least_cosine:.6f}, and {least} is the least")
    if made.compiled.format == "float32" and made.largest_error > EXACT:
        found.append(f"a number is off by {made.largest_error:.1e}, and {EXACT} is the most")
    cosines = vectors[1 : len(SENTENCES)] @ vectors[0]
    if np.abs(cosines - PUBLISHED).max() > 0.005:
        found.append(f"sentences have the cosines {cosines.tolist()}; published are {PUBLISHED}")
    return found
