"""`ingot embed`: vectors of the texts in files."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ingot.cli.arguments import DEVICE, MODEL, REVISION, Argument, Arguments
from ingot.cli.numbers import human_int
from ingot.cli.progress import progress_display
from ingot.errors import RequestError, UsageError
from ingot.files import write_whole

if TYPE_CHECKING:
    from ingot.runtime.arrays import Float32
    from ingot.runtime.text_model import Embedder

STDIN = "-"
AT_ONCE = 64  # texts between two notes of what is done
FLOAT = 4

ARGUMENTS: Arguments = (
    MODEL,
    REVISION,
    Argument(
        "files FILE",
        "texts, one a line; of a .jsonl file the field --field of each line; - or nothing: stdin",
        nargs="*",
    ),
    Argument(
        "-o --output FILE",
        "OUT.npy: an array [texts, size] of float32; any other name: a line of JSON for each text "
        "(default: those lines on stdout)",
        Path,
    ),
    Argument(
        "--field NAME", "field of JSON lines that has the text (default: text)", default="text"
    ),
    Argument("--prompt-name NAME", "which of the model's prompts stands before each text"),
    Argument("--prompt TEXT", "what stands before each text instead"),
    Argument("--normalize", "make vectors 1 long, which many models do in any case"),
    Argument(
        "--dimensions N", "so many of the first numbers, where the model allows it", human_int
    ),
    Argument(
        "--truncate", "leave out the end of texts that are too long, instead of refusing them"
    ),
    Argument("--threads N", "default: one per processor that this process may use", human_int),
    DEVICE,
    Argument("--force", "replace OUT, and begin anew what was interrupted"),
)


def main(args: argparse.Namespace) -> int:
    """Writes a vector for each text. What was interrupted goes on where it was: the vectors so far
    are kept beside OUT, in OUT.partial, until all are there."""
    from ingot.text_api import Embedder

    if args.output and args.output.exists() and not args.force:
        raise UsageError(f"{args.output} exists", hint="Give --force to replace it.")
    texts = [*_texts(args.files or [STDIN], args.field)]
    if not texts:
        raise UsageError("there is no text", hint="Give files with a text in each line.")
    with Embedder(
        args.model,
        device=args.device,
        revision=args.revision,
        truncate=args.truncate,
        num_threads=args.threads,
    ) as model:
        wanted = {"prompt_name": args.prompt_name, "prompt": args.prompt}
        wanted |= {"normalize_embeddings": args.normalize, "truncate_dim": args.dimensions}
        size = args.dimensions or model.pooler.size
        if args.output is None:
            for begin in range(0, len(texts), AT_ONCE):
                part = texts[begin : begin + AT_ONCE]
                _lines(part, _vectors(model, part, wanted, begin), sys.stdout.buffer)
            return 0
        with _Partial.open(args.output, model, texts, size, wanted, anew=args.force) as partial:
            _fill(partial, model, texts, wanted)
            vectors = partial.vectors()
        write_whole(args.output, _encoded(args.output, texts, vectors))
        partial.path.unlink()
    print(f"{args.output}: {len(texts)} vectors of {size}", file=sys.stderr)
    return 0


def _texts(files: Sequence[str], field: str) -> Iterator[str]:
    """The texts of files, one a line. Raises UsageError for a line that has none."""
    for name in files:
        is_json = name.endswith(".jsonl")
        for number, line in enumerate(_read(name).splitlines(), start=1):
            if not line.strip():
                continue
            yield _of_json(line, field, f"{name} line {number}") if is_json else line


def _read(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        return data.decode()
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is no text in UTF-8: {error}") from error


def _of_json(line: str, field: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}") from error
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise UsageError(f"{where} has no text {field!r}", hint="--field names another field.")
    return text


def _vectors(model: Embedder, texts: Sequence[str], wanted: dict[str, Any], first: int) -> Float32:
    """The vectors of some texts; an error names their place among all."""
    try:
        return model.encode(texts, show_progress_bar=False, **wanted)
    except RequestError as error:
        raise RequestError(
            f"of the texts {first} to {first + len(texts) - 1}: {error.found}", hint=error.hint
        ) from error


@dataclass(slots=True)
class _Partial:
    """The vectors so far: a line that says of what, and then their numbers."""

    path: Path
    file: BinaryIO
    head: bytes
    size: int

    @classmethod
    def open(
        cls,
        output: Path,
        model: Embedder,
        texts: Sequence[str],
        size: int,
        wanted: dict[str, Any],
        *,
        anew: bool,
    ) -> _Partial:
        """Those that were interrupted, where they are of the same texts, model and options."""
        digest = hashlib.sha256(json.dumps([list(texts), wanted]).encode()).hexdigest()
        head = f"{model.artifact.manifest.digest} {digest} {size}\n".encode()
        path = output.with_name(f"{output.name}.partial")
        there = path.read_bytes() if path.exists() and not anew else b""
        if there and not there.startswith(head):
            raise UsageError(
                f"{path} has vectors of other texts, or of another model",
                hint="Give --force to begin anew, or another output.",
            )
        of_one = FLOAT * size
        whole = len(head) + (len(there) - len(head)) // of_one * of_one
        file = path.open("r+b" if there else "w+b")
        if there:
            file.truncate(whole)
        else:
            file.write(head)
        return cls(path, file, head, size)

    @property
    def done(self) -> int:
        """How many vectors there are."""
        return (self.file.seek(0, os.SEEK_END) - len(self.head)) // (FLOAT * self.size)

    def add(self, vectors: Float32) -> None:
        """Appends vectors, which are there whatever happens next."""
        self.file.write(vectors.astype("<f4").tobytes())
        self.file.flush()

    def vectors(self) -> Float32:
        """All of them, [texts, size]."""
        import numpy as np

        self.file.seek(len(self.head))
        return np.frombuffer(self.file.read(), "<f4").reshape(-1, self.size)

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _fill(partial: _Partial, model: Embedder, texts: Sequence[str], wanted: dict[str, Any]) -> None:
    with progress_display() as progress:
        for begin in range(partial.done, len(texts), AT_ONCE):
            part = texts[begin : begin + AT_ONCE]
            partial.add(_vectors(model, part, wanted, begin))
            done = begin + len(part)
            progress("embed", f"{done} of {len(texts)} texts", done / len(texts))


def _encoded(output: Path, texts: Sequence[str], vectors: Float32) -> bytes:
    file = io.BytesIO()
    if output.suffix == ".npy":
        import numpy as np

        np.save(file, vectors)
    else:
        _lines(texts, vectors, file)
    return file.getvalue()


def _lines(texts: Sequence[str], vectors: Float32, file: BinaryIO) -> None:
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        line = json.dumps({"text": text, "embedding": vector}, ensure_ascii=False)
        file.write(line.encode() + b"\n")
