"""Models in the formats of other programs: what they are, by the names of their files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from ingot.errors import CheckpointError, listed
from ingot.models.file_names import INDEX, SINGLE


class ForeignFormat(NamedTuple):
    """A format that ingot does not read, or not as a folder.

    Attributes:
        patterns: how its files are called.
        text: what such files are.
        advice: how to get a model that ingot reads.
    """

    patterns: tuple[str, ...]
    text: str
    advice: str


FORMATS = (
    ForeignFormat(
        ("adapter_config.json", "adapter_model.*"),
        "a LoRA adapter, which is no whole model",
        "Merge it into its base model with peft: "
        "AutoPeftModelForCausalLM.from_pretrained(dir).merge_and_unload().save_pretrained(new_dir)."
        " Then copy the tokenizer of the base model into new_dir.",
    ),
    ForeignFormat(
        ("*.gguf",),
        "a GGUF file of llama.cpp",
        "Give the path of the file itself, with all files of its model beside it.",
    ),
    ForeignFormat(
        ("*.onnx",),
        "a model in ONNX",
        "Give the model that it was made from, as safetensors. `ingot compare` alone takes ONNX, "
        "by the path of the .onnx file.",
    ),
    ForeignFormat(
        ("rwkv*.pth", "RWKV*.pth"),
        "a folder of RWKV models",
        "Give the path of the one that is meant.",
    ),
    ForeignFormat(
        ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.pkl"),
        "a PyTorch checkpoint of Python pickles",
        "Pickles run code when they are read, so they are refused. Convert them where you trust "
        "them, with transformers: AutoModelForCausalLM.from_pretrained(dir)"
        ".save_pretrained(new_dir, safe_serialization=True). Then copy the tokenizer into new_dir.",
    ),
)


def other_format(where: str, names: Iterable[str]) -> CheckpointError | None:
    """The error that says what a model in another format is; None where no file tells.

    Args:
        where: what the message calls the model.
        names: the names of its files.
    """
    names = sorted(names)
    if SINGLE in names or INDEX in names:
        return None
    for form in FORMATS:
        found = [name for name in names if any(fnmatch(name, p) for p in form.patterns)]
        if found:
            return CheckpointError(f"{where} is {form.text}: {listed(found)}", hint=form.advice)
    return None


def refuse_other_format(path: Path) -> None:
    """Raises CheckpointError for a file or a folder in another format; nothing for any other."""
    try:
        names = os.listdir(path) if os.path.isdir(path) else [path.name]
    except (OSError, ValueError):  # not for us to judge
        return
    error = other_format(str(path), names) if os.path.exists(path) else None
    if error:
        raise error
