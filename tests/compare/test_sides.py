"""Each kind of side against `transformers`, and what no side can be made of."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from ingot.artifact.codec import encode_plan
from ingot.artifact.writer import ArtifactWriter
from ingot.compare import artifact_side
from ingot.compare.pair import Pair
from ingot.compare.side_parts import needed
from ingot.compare.sides import Side, open_side
from ingot.compare.transformers_side import DTYPES
from ingot.errors import (
    IncompatibleHostError,
    IngotError,
    ModelDirError,
    UnsupportedModelError,
    UsageError,
)
from ingot.targets.target import requires, target_named
from tests.cli.sample_artifact import sample_manifest, sample_plan, weights_file
from tests.support.checkpoints import edit
from tests.support.core import core
from tests.support.gguf_files import write_gguf
from tests.support.tiny_models import save_random

TOKENS = [(37 * i) % 2048 for i in range(20)]
LEVELS = ("cpu:portable", "cpu:x86-64-v3")
KINDS = ("artifact", "reference", "hf")
PROJECTION = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def names(shakespeare_dir: Path, shakespeare_artifact: Path) -> dict[str, str]:
    return {
        "artifact": str(shakespeare_artifact),
        "reference": str(shakespeare_dir),
        "hf": f"hf:{shakespeare_dir}",
    }


@pytest.fixture(scope="module")
def judged(shakespeare_dir: Path) -> tuple[np.ndarray, list[int]]:
    """The logits of TOKENS, and three tokens after them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(shakespeare_dir, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
        found = model.generate(torch.tensor([TOKENS]), do_sample=False, max_new_tokens=3)
    return logits, found[0, len(TOKENS) :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_side_gives_the_logits_of_the_model(kind, names, judged):
    logits, greedy = judged
    side = open_side(names[kind])
    try:
        got = side.logits(TOKENS)
        assert got.shape == logits.shape and got.dtype == np.float32
        # The bundled model is in bfloat16, and so is its artifact.
        limit = 3e-2 if kind == "artifact" else 1e-5
        assert np.linalg.norm(got - logits) <= limit * np.linalg.norm(logits)
        assert side.greedy(TOKENS, 3) == greedy and side.greedy(TOKENS, 0) == []
        assert side.tokenizer is not None and side.tokenizer.encode("Who") != []
        assert (side.name, side.vocab_size, side.max_model_len) == (names[kind], 2048, 1024)
        assert side.eos_token_ids == (0,)
    finally:
        side.close()
        side.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_transformers_computes_in_what_is_asked_for(dtype, names, judged):
    side = open_side(names["hf"], dtype=dtype)
    got = side.logits(TOKENS)
    error = np.linalg.norm(got - judged[0]) / np.linalg.norm(judged[0])
    assert got.dtype == np.float32 and side.what == f"transformers, {dtype}"
    assert error < 1e-5 if dtype == "float32" else 1e-4 < error < 3e-2


def test_an_artifact_opens_for_longer_texts_when_they_come(names, monkeypatch):
    monkeypatch.setattr(artifact_side, "ROOM", 8)
    side = open_side(names["artifact"])
    short = side.logits(TOKENS[:5])
    assert side.llm(1).max_model_len == 8
    assert side.logits(TOKENS)[:5].tobytes() == short.tobytes()
    assert side.llm(1).max_model_len == 20
    side.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("llama", tmp_path_factory.mktemp("tiny") / "model", tokenizer=True)


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with two targets, which says that it is of such a model; its kernels are none."""
    sample = sample_manifest()
    (entry,) = sample.targets
    manifest = replace(
        sample,
        model=replace(sample.model, vocab_size=320),
        targets=tuple(
            replace(entry, name=name, requires=tuple(sorted(requires(target_named(name)))))
            for name in LEVELS
        ),
    )
    path = tmp_path_factory.mktemp("levels") / "two.ingot"
    with ArtifactWriter(path) as writer:
        writer.write(entry.main.plan, encode_plan(sample_plan()))
        writer.write(entry.main.kernels, b"no code")
        writer.write("weights/cpu-float32.safetensors", weights_file())
        writer.commit(manifest)
    return path


def test_a_target_is_opened_by_its_name(levels):
    for target in LEVELS:
        assert open_side(str(levels), target=target).what == f"artifact, {target}, float32"


def test_a_target_that_is_not_there_or_that_the_host_lacks_is_refused(levels, monkeypatch):
    for target in ("cpu:x86-64-v4", "no such"):
        with pytest.raises(UsageError, match=f"has no target '{target}'") as caught:
            open_side(str(levels), target=target)
        assert caught.value.hint == "It has: cpu:portable, cpu:x86-64-v3."
    flags = frozenset({"x86_64", "sse2"})
    monkeypatch.setattr("ingot.artifact.reader.flags_and_gpu", lambda *_: (flags, 0))
    assert open_side(str(levels)).what.startswith("artifact, cpu:portable")
    with pytest.raises(IncompatibleHostError, match="lacks avx"):
        open_side(str(levels), target="cpu:x86-64-v3")


def test_what_is_quantized_says_so():
    manifest = sample_manifest()
    assert artifact_side.numerics(manifest) == "float32"
    numerics = replace(manifest.numerics, dtype="bfloat16", quantization="int4-g32")
    assert artifact_side.numerics(replace(manifest, numerics=numerics)) == "bfloat16, int4-g32"


def no_weights(folder: Path) -> str:
    model = save_random("llama", folder / "model")
    (model / "model.safetensors").unlink()
    return f"hf:{model}"


def without_a_tensor(folder: Path) -> str:
    return f"hf:{edit(save_random('llama', folder / 'model'), lambda t: t.pop(PROJECTION))}"


def unknown(folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    return f"hf:{folder}"


# What a user writes, given a folder; the error, and what it says.
REFUSED: dict[str, tuple[Callable[[Path], str], type[IngotError], str]] = {
    "nothing": (lambda folder: "", UsageError, "an empty name does not exist"),
    "no path": (lambda folder: str(folder / "no"), UsageError, "does not exist"),
    "an empty folder": (str, ModelDirError, "has no config.json"),
    "hf without a name": (lambda folder: "hf:", UsageError, "does not exist"),
    "hf of no path": (lambda folder: f"hf:{folder}/no", UsageError, "does not exist"),
    "hf of a folder": (lambda folder: f"hf:{folder}", ModelDirError, "transformers cannot load"),
    "hf of no weights": (no_weights, ModelDirError, "transformers cannot load"),
    "hf of a model that it lacks": (unknown, ModelDirError, "transformers cannot load"),
    "hf of a missing tensor": (without_a_tensor, ModelDirError, f"no weights for {PROJECTION}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_side_is_refused(name, tmp_path):
    make, error, said = REFUSED[name]
    with pytest.raises(error, match=said) as caught:
        open_side(make(tmp_path))
    assert caught.value.exit_code == 2


def test_a_name_on_the_hub_is_its_model_directory(hub, model):
    hub.add("owner/tiny", model)
    sides = [open_side(name, revision="main") for name in ("owner/tiny", "hf:owner/tiny")]
    one, other = (side.logits([1, 2, 3]) for side in sides)
    assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)
    sides[0].close()


BLOCKED = """
import sys
for name in sys.argv.pop(1).split(","): sys.modules[name] = None
from ingot.cli.main import main
sys.exit(main())
"""


def blocked(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where these packages are not installed."""
    command = [sys.executable, "-c", BLOCKED, packages, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_artifacts_are_compared_without_torch(names):
    artifact = names["artifact"]
    done = blocked("torch,transformers,onnxruntime", "compare", artifact, artifact)
    assert (done.returncode, done.stdout.count("identical")) == (0, 1), done.stderr


@pytest.mark.parametrize(
    ("package", "kind", "extra"),
    core(
        ("transformers", "hf", "hf"),
        further=[("torch", "reference", "compile"), ("torch", "hf", "compile")],
    ),
)
def test_a_missing_package_is_named_with_its_extra(package, kind, extra, names):
    done = blocked(package, "compare", names["artifact"], names[kind])
    assert done.returncode == 2
    assert f"error: {package} is not installed" in done.stderr
    assert f"pip install 'ingot-lm[{extra}]'" in done.stderr


def test_a_broken_package_is_named_with_the_reason():
    said = "^x cannot be imported: no such symbol\nhf: needs it: pip install 'ingot-lm.hf.'$"
    with pytest.raises(UsageError, match=said), needed("x", "hf", "hf:"):
        raise ImportError("no such symbol\nin x.so")


def pair(*names: str, **options) -> Pair:
    return Pair(names=names, **options)


def opened(pair: Pair) -> tuple[Side, Side]:
    with pair.opened() as sides:
        return sides


def test_targets_are_for_all_artifacts_or_one_for_each(levels, names):
    whats = [side.what for side in opened(pair(str(levels), str(levels), targets=LEVELS))]
    assert whats == [f"artifact, {target}, float32" for target in LEVELS]
    whats = [side.what for side in opened(pair(str(levels), str(levels), targets=LEVELS[:1]))]
    assert whats == ["artifact, cpu:portable, float32"] * 2
    with pytest.raises(UsageError, match="2 targets for 1 artifacts"):
        pair(str(levels), names["hf"], targets=LEVELS)
    with pytest.raises(UsageError, match="1 targets for 0 artifacts"):
        pair(names["reference"], names["hf"], targets=LEVELS[:1])


def test_the_second_side_is_looked_for_before_the_first_is_opened(names):
    for name in ("no such", "no/such.onnx", "hf:no such"):
        with pytest.raises(UsageError, match=r"no.such.* does not exist"):
            pair(names["reference"], name)


def test_options_without_a_side_to_take_them_are_refused(names):
    with pytest.raises(UsageError, match="no side is hf:"):
        pair(names["reference"], names["artifact"], dtype="bfloat16")
    with pytest.raises(UsageError, match="no side is on the hub"):
        pair(names["reference"], names["hf"], revision="main")


def test_a_reference_is_built_for_the_length_of_the_artifact(levels, model):
    for names in ((str(model), str(levels)), (str(levels), str(model))):
        lengths = {side.name: side.max_model_len for side in opened(pair(*names))}
        assert lengths == {str(model): 64, str(levels): 64}


def test_vocabularies_that_differ_are_refused(levels, names):
    with pytest.raises(UsageError, match=r"of 320 tokens, and .* one of 2048") as caught:
        opened(pair(str(levels), names["artifact"]))
    assert "one vocabulary" in caught.value.hint


def test_a_class_that_no_family_builds_is_left_to_transformers(model, tmp_path):
    unknown = shutil.copytree(model, tmp_path / "unknown")
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(
        json.dumps(config | {"architectures": ["NoSuchForCausalLM"]})
    )
    with pytest.raises(UnsupportedModelError, match="NoSuchForCausalLM") as caught:
        open_side(str(unknown))
    assert f"hf:{unknown} is run by transformers" in caught.value.hint


def test_a_gguf_file_brings_its_tokenizer(tmp_path):
    save_random("llama", tmp_path / "model", tokenizer=True)
    file = write_gguf(tmp_path / "model", tmp_path / "m.gguf")
    side = open_side(str(file), max_model_len=32)
    try:
        assert side.tokenizer is not None and side.tokenizer.encode("a") != []
    finally:
        side.close()


def test_files_that_are_the_same_are_told_from_others(levels, names, tmp_path):
    copied = shutil.copytree(levels, tmp_path / "copy.ingot")
    assert pair(str(levels), str(copied)).same_files()
    assert not pair(str(levels), names["artifact"]).same_files()
    assert not pair(str(levels), names["hf"]).same_files()
    weights = next((copied / "weights").iterdir())
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(IngotError, match="its hash is not the manifest's"):
        pair(str(levels), str(copied)).same_files()
