"""An artifact as a side: any target that this host runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ingot.artifact.manifest import Manifest, TargetEntry
from ingot.artifact.pooler import OF_TOKENS
from ingot.artifact.reader import Artifact
from ingot.artifact.select import ABIS, choose_target
from ingot.artifact.target import kind_of_name
from ingot.compare.forms import Task
from ingot.errors import TokenizerError, UsageError
from ingot.runtime.arrays import Float32
from ingot.runtime.encoder import EncodedText
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.scoring import finished
from ingot.runtime.tokenizer import Tokenizer
from ingot.runtime.tokenizer_files import TokenizerFiles

ROOM = 1024  # tokens that an engine is opened for at first: long contexts take much memory


class ArtifactSide:
    """Runs an artifact by its own runtime; see `ingot.compare.sides.Side`.

    Raises ArtifactError, IncompatibleHostError, and UsageError for a target that it lacks.
    """

    token_cost = 0

    def __init__(self, name: str, opened: Path | Artifact, target: str | None = None) -> None:
        self.name = name
        if not isinstance(opened, Artifact):
            opened = Artifact.open(opened, device=_device(target))
        self._opened = opened
        self.artifact: Artifact = (
            self._opened if target is None else _as_target(self._opened, target)
        )
        self.manifest: Manifest = self.artifact.manifest
        self.what = f"artifact, {self.artifact.target.name}, {numerics(self.manifest)}"
        self.vocab_size = self.manifest.model.vocab_size
        limits, pooler = self.manifest.limits, self.manifest.pooler
        self.max_model_len: int | None = limits.max_model_len
        self.task: Task = "generate"
        if self.manifest.encodes and pooler is not None:
            self.task = pooler.task
            self.max_model_len = min(limits.max_model_len, limits.max_num_batched_tokens)
        self.eos_token_ids = self.manifest.model.eos_token_ids
        self.tokenizer = _tokenizer(self.artifact)
        self._llm: LLM | None = None

    def logits(self, tokens: Sequence[int]) -> Float32:
        llm, pooler = self.llm(len(tokens)), self.manifest.pooler
        if self.task == "generate":
            return llm.logits(tokens)
        assert llm.texts is not None and pooler is not None, "it reads whole texts"
        if self.task in OF_TOKENS:
            return finished(llm.texts.run_tokens([EncodedText(tokens)])[0], pooler)
        return finished(llm.texts.run([EncodedText(tokens)]), pooler)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        if not count:
            return []
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        prompt = {"prompt_token_ids": list(tokens)}
        (output,) = self.llm(len(tokens) + count).generate(prompt, params, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    def llm(self, num_tokens: int) -> LLM:
        """The engine, with room for a sequence of so many tokens."""
        longest = self.manifest.limits.max_model_len
        if self._llm is None or self._llm.max_model_len < min(num_tokens, longest):
            self.close()
            self._llm = LLM(self.artifact, max_model_len=min(max(num_tokens, ROOM), longest))
        return self._llm

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()
            self._llm = None


def numerics(manifest: Manifest) -> str:
    """Names what an artifact computes in, such as "bfloat16, int4-g32"."""
    quantized = manifest.numerics.quantization
    return manifest.numerics.dtype + (f", {quantized}" if quantized != "none" else "")


def _device(target: str | None) -> str:
    """The device to open an artifact for; a target of no known kind is refused later, by name."""
    kind = kind_of_name(target or "")
    return kind if kind in ABIS else "auto"


def _as_target(artifact: Artifact, name: str) -> Artifact:
    """The artifact as a host would open it that has just what the target needs."""
    entry = _entry(artifact, name)
    choose_target(replace(artifact.manifest, targets=(entry,)), artifact.flags, artifact.path)
    return replace(artifact, flags=frozenset(entry.requires))


def _entry(artifact: Artifact, name: str) -> TargetEntry:
    entries = {entry.name: entry for entry in artifact.manifest.targets}
    if name not in entries:
        raise UsageError(
            f"{artifact.path} has no target {name!r}", hint=f"It has: {', '.join(entries)}."
        )
    return entries[name]


def _tokenizer(artifact: Artifact) -> Tokenizer | None:
    try:
        return TokenizerFiles(artifact).tokenizer
    except TokenizerError:
        return None
