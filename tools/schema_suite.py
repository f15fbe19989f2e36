"""The official test suite of JSON Schema, fetched, and how grammars of its schemas judge it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from ingot.errors import GrammarError
from ingot.runtime.structured.compiler import GrammarCompiler
from ingot.runtime.structured.guide import Grammar
from ingot.runtime.structured.outputs import StructuredOutputsParams
from ingot.runtime.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "json-schema-suite"
BUNDLED = ROOT / "golden" / "models" / "shakespeare"
# The source package of this version carries the suite, which is under the MIT licence.
PACKAGE = "jsonschema==4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
OLD = "http://json-schema.org/draft-07/schema#"  # what a schema of that draft says it is
DRAFTS = ("draft2020-12", "draft7")
MOST_ORDERS = 6  # properties whose orders are tried


class FetchError(Exception):
    """The suite cannot be had here."""


@dataclass(frozen=True)
class Instance:
    """A value, what the suite says of it, and whether a text of it is `taken`.

    `reason`: why one that is valid is not: `order`, `number`, `format`, `beside`, or unknown.
    """

    value: Any
    valid: bool
    taken: bool
    reason: str = ""


@dataclass(frozen=True)
class Group:
    """A schema of the suite, and its instances; or why it is `refused`.

    `file`: of the draft, without its ending.
    """

    draft: str
    file: str
    name: str
    schema: Any
    instances: tuple[Instance, ...] = ()
    refused: str = ""


def fetch(cache: Path = CACHE) -> Path:
    """The folder with the suite's tests; downloaded unless it is there. Raises FetchError."""
    if (cache / "tests").is_dir():
        return cache / "tests"
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        place = Path(folder)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        done = subprocess.run(
            [*command, "--no-binary", ":all:", PACKAGE], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip() or "pip says nothing").splitlines()[-1]
            raise FetchError(f"the source of {PACKAGE} cannot be had here: {last}")
        (archive,) = place.glob("*.tar.gz")
        if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != SHA256:
            raise FetchError(f"{archive.name} has the SHA-256 {found}, expected {SHA256}")
        with tarfile.open(archive) as opened:
            opened.extractall(place, filter="data")
        (suite,) = place.glob("*/json")
        shutil.rmtree(cache, ignore_errors=True)
        suite.rename(cache)
    return cache / "tests"


def judged(tests: Path, draft: str) -> Iterator[Group]:
    """All schemas of a draft, and what grammars of them say of their instances."""
    judge = Judge()
    for path in sorted((tests / draft).rglob("*.json")):
        file = path.relative_to(tests / draft).with_suffix("").as_posix()
        for group in json.loads(path.read_text()):
            yield judge.group(draft, file, group)


class Judge:
    """Holds values to schemas, with the tokens of the bundled model."""

    def __init__(self) -> None:
        config = json.loads((BUNDLED / "tokenizer_config.json").read_text())
        text = (BUNDLED / "tokenizer.json").read_bytes()
        self._tokenizer = Tokenizer(text, config, vocab_size=2048)
        self._grammars = GrammarCompiler(lambda: self._tokenizer, 2048, [0])

    def group(self, draft: str, file: str, group: dict[str, Any]) -> Group:
        """What comes of a schema and its instances."""
        schema, name = group["schema"], group["description"]
        if draft == "draft7" and isinstance(schema, dict):
            schema = {"$schema": OLD, **schema}
        try:
            grammar = self._grammars.compile(StructuredOutputsParams(json=schema))
        except GrammarError as error:
            return Group(draft, file, name, schema, refused=error.found)
        instances = [
            self._instance(grammar, file, schema, each["data"], each["valid"])
            for each in group["tests"]
        ]
        return Group(draft, file, name, schema, tuple(instances))

    def takes(self, grammar: Grammar, value: Any) -> bool:
        """Whether the text of a value follows the grammar to its end."""
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        matcher = grammar.matcher()
        if matcher.validate_tokens(tokens) != len(tokens):
            return False
        return matcher.consume_tokens(tokens) and matcher.is_accepting()

    def _instance(
        self, grammar: Grammar, file: str, schema: Any, value: Any, valid: bool
    ) -> Instance:
        taken = self.takes(grammar, value)
        reason = self._reason(grammar, file, schema, value) if valid and not taken else ""
        return Instance(value, valid, taken, reason)

    def _reason(self, grammar: Grammar, file: str, schema: Any, value: Any) -> str:
        """Why no text of a valid value is written."""
        if any(self.takes(grammar, each) for each in _orders(value)):
            return "order"
        if self.takes(grammar, _whole(value)):
            return "number"
        if file == "format" or file.startswith("optional/format/"):
            return "format"
        return "beside" if schema.get("$schema") == OLD and '"$ref"' in json.dumps(schema) else ""


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and len(value) <= MOST_ORDERS:
        yield from (dict(order) for order in permutations(value.items()))


def _whole(value: Any) -> Any:
    """The value with its whole numbers as integers."""
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value
