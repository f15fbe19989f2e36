"""What is proven of a real model; each check gives a row of the page, or says what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import ingot
from ingot.artifact.manifest import Manifest
from ingot.artifact.quality import Quality
from ingot.artifact.reader import Artifact
from tools.real.files import RealModel
from tools.real.questions import MAX_TOKENS, QUESTIONS, Question, fault

ROOT = Path(__file__).resolve().parents[2]
JUDGE = ROOT / "build" / "llama" / "bin" / "python"
# Options of a compile, by the name of the format.
FORMATS: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "as it is, fine rows": ("--activations", "auto"),
    "bfloat16": ("--dequantize", "--dtype", "bfloat16"),
    "int8": ("--dequantize", "--quantize", "int8"),
    "int4": ("--dequantize", "--quantize", "int4"),
    "auto": ("--dequantize", "--quantize", "auto"),
}
FLOAT32 = ("--dequantize", "--dtype", "float32", "--no-quality")
# Texts that tokenizers disagree on when one of them is wrong.
TEXTS = (
    "Hello, world!",
    "  two  spaces\n\n\ttab and\r\nlines  ",
    "def f(x):\n    return x**2 # π ≈ 3.14159",
    "Größe, naïve, 東京都, Привет, العربية, हिन्दी, 👩‍👩‍👧 🇩🇪",
    "12345 6.789e-10 0xFF 1,000,000",
    "I'll we've DON'T it's",
    "<|im_start|>user <bos> </s> <start_of_turn>",
    "",
)
CHATS = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"}],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ],
)
ADDRESS = re.compile(r"http://[\d.:]+")
# Both run the same numbers, and round what they multiply to 8 bits in other places.
NOISE_KL = 0.02


@dataclass
class Compiled:
    """A compile as a user runs it."""

    format: str
    artifact: Path
    seconds: float
    peak_bytes: int
    manifest: Manifest

    @property
    def quality(self) -> Quality:
        found = self.manifest.numerics.quality
        assert found is not None, "quality was measured"
        return found

    @property
    def weight_bytes(self) -> int:
        files = self.manifest.files.items()
        return sum(entry.size for name, entry in files if name.startswith("weights/"))


@dataclass
class Findings:
    """What was found of a model; `faults` are empty if all is well."""

    model: RealModel
    compiled: list[Compiled] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    judged: dict[str, float] = field(default_factory=dict)
    answers: list[tuple[str, str]] = field(default_factory=list)


def compile_as_user(
    model: Path, out: Path, format: str, options: Sequence[str] | None = None
) -> Compiled:
    """Raises AssertionError with what the command said, if it fails."""
    options = FORMATS[format] if options is None else options
    command = [sys.executable, "-m", "ingot", "compile", str(model), "-o", str(out), "--force"]
    log = out.with_suffix(".log")
    begun = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen([*command, *options], stdout=file, stderr=file, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{' '.join(command)}\n{log.read_text()}"
    seconds, peak = time.monotonic() - begun, usage.ru_maxrss * 1024
    return Compiled(format, out, seconds, peak, Artifact.open(out).manifest)


def logits_of(artifact: Path, sequences: Sequence[Sequence[int]]) -> list[Any]:
    with ingot.LLM(artifact, max_model_len=1024) as llm:
        return [llm.logits(tokens, first=1) for tokens in sequences]


def mean_kl(base: Sequence[Any], ours: Sequence[Any]) -> float:
    """KL(base || ours) in nats, over all positions of all sequences."""
    found = []
    for one, other in zip(base, ours, strict=True):
        p, q = (_logprobs(rows) for rows in (one, other))
        found.append((np.exp(p) * (p - q)).sum(-1))
    return float(np.concatenate(found).mean())


def _logprobs(rows: Any) -> Any:
    wide = rows.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def judge(model: Path, folder: Path, sequences: Sequence[Sequence[int]]) -> dict[str, Any] | None:
    """What llama.cpp says of a file; None where it is not installed."""
    if not JUDGE.exists():
        return None
    request, out = folder / "request.json", folder / "judged.npz"
    wanted = {"texts": TEXTS, "chats": CHATS, "sequences": [list(map(int, s)) for s in sequences]}
    request.write_text(json.dumps(wanted))
    script = Path(__file__).with_name("judge.py")
    command = [str(JUDGE), str(script), str(model), str(request), str(out)]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    with np.load(out) as found:
        return {name: found[name] for name in found.files}


def check_against_judge(found: Findings, file: Path, folder: Path) -> None:
    """Tokens and templates equal llama.cpp's, and logits of the same numbers agree."""
    with ingot.LLM(found.compiled[0].artifact, max_model_len=1024) as llm:
        tokenizer = llm.get_tokenizer()
        encoded = [tokenizer.encode(text) for text in TEXTS]
        rendered = [
            tokenizer.apply_chat_template(chat, add_generation_prompt=True)
            for chat in (CHATS if tokenizer.has_chat_template else ())
        ]
        texts = _long_texts()
        sequences = [tokenizer.encode(text)[:384] for text in texts]
    theirs = judge(file, folder, sequences)
    if theirs is None:
        return
    for i, (text, tokens) in enumerate(zip(TEXTS, encoded, strict=True)):
        if theirs[f"tokens{i}"].tolist() != tokens and "<|" not in text:
            found.faults.append(f"{text!r} is {tokens}, and {theirs[f'tokens{i}']} to llama.cpp")
    for i, prompt in enumerate(rendered):
        if str(theirs[f"chat{i}"]) != prompt:
            found.faults.append(f"chat {i} is {prompt!r}, and {theirs[f'chat{i}']!s} to llama.cpp")
    exact = compile_as_user(file, folder / "float32.ingot", "float32", FLOAT32)
    base = logits_of(exact.artifact, sequences)
    judged = [theirs[f"logits{i}"][1:] for i in range(len(sequences))]
    found.judged["llama.cpp"] = mean_kl(base, judged)
    for each in found.compiled:
        found.judged[each.format] = mean_kl(base, logits_of(each.artifact, sequences))
    if not found.judged["llama.cpp"] < NOISE_KL:
        found.faults.append(f"llama.cpp says something else: {found.judged['llama.cpp']:.3g} nats")


def _long_texts() -> list[str]:
    from ingot.compiler.quality_text import TEXTS as LONG

    return [*LONG.values()]


def check_conversations(found: Findings, artifact: Path) -> None:
    """Ten greedy conversations are sane, and the server gives the same answers."""
    greedy = ingot.SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    with ingot.LLM(artifact, max_model_len=1024) as llm:
        chats = [[{"role": "user", "content": each.text}] for each in QUESTIONS]
        outputs = llm.chat(chats, greedy, use_tqdm=False)
        answers = [output.outputs[0].text for output in outputs]
    with served(artifact) as url:
        asked = [_ask(url, each) for each in QUESTIONS]
    for question, answer, same in zip(QUESTIONS, answers, asked, strict=True):
        found.answers.append((question.text, answer.strip()))
        if wrong := fault(question, answer):
            found.faults.append(f"{question.text} {answer!r}: {wrong}")
        if same != answer:
            found.faults.append(f"{question.text} {answer!r}, and by the server {same!r}")


def _ask(url: str, question: Question) -> str:
    body = {
        "model": "real",
        "messages": [{"role": "user", "content": question.text}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    reply.raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


@contextmanager
def served(artifact: Path) -> Iterator[str]:
    """A server of an artifact, under the name `real`; gives its address."""
    words = ["serve", f"real={artifact}", "--port", "0"]
    command = [sys.executable, "-m", "ingot", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT, text=True) as process:
        try:
            yield _address(process)
        finally:
            process.terminate()
            process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    """Once the model is loaded; what the server says later stays in the pipe, which holds it."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        address = ADDRESS.search(said)
        if address and "state=loaded" in line:
            return address[0]
    raise AssertionError(said)


def as_it_is_answers(artifact: Path) -> str:
    """The first answer of a new user, by the command line."""
    command = [sys.executable, "-m", "ingot", "run", str(artifact), QUESTIONS[0].text, "--seed"]
    done = subprocess.run([*command, "1"], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()
