"""`ingot golden record` and `ingot verify --golden`: what they write, and what they refuse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ingot import compiling
from ingot.artifact.golden import Golden, decode_golden
from ingot.cli.main import main
from ingot.compiler import golden_record
from tests.runtime.fake_model import golden as fake_golden
from tests.runtime.fake_model import write_fake
from tests.support.tiny_models import save_random

Record = Callable[..., int]
PROMPTS = ["First\n\nSecond prompt\r\n", '{"prompt": "a\\nb"}\n{"prompt": [5, 6, 7]}\n']
SMALL = ("--tokens", "3", "--samples", "2", "--formats", "float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random("llama", tmp_path_factory.mktemp("model") / "tiny", tokenizer=True)


def record(model: Path, out: Path, *options: str) -> int:
    return main(["golden", "record", str(model), "-o", str(out), *options])


def read(path: Path) -> Golden:
    return decode_golden(path.read_bytes(), str(path))


@pytest.fixture(scope="module")
def recorded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Goldens of two prompts, one of them as tokens, and two texts that were drawn."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "prompts.jsonl").write_text(PROMPTS[1])
    assert record(model, folder / "g.json", "--prompts", str(folder / "prompts.jsonl"), *SMALL) == 0
    return folder / "g.json"


def test_what_is_recorded_is_what_the_model_says(model: Path, recorded: Path) -> None:
    """By `transformers`: the likeliest tokens, log-probabilities and margins."""
    judge = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    golden = read(recorded)
    assert [(p.text, p.given, p.sampled) for p in golden.prompts] == [
        ("a\nb", 3, False), (None, 3, False), ("a\nb", 3, True), (None, 3, True)
    ]  # fmt: skip
    assert golden.prompts[1].tokens[:3] == [5, 6, 7]
    for prompt in golden.prompts:
        with torch.inference_mode():
            logits = judge(torch.tensor([prompt.tokens])).logits[0].double()
        logprobs = logits.log_softmax(-1)
        assert prompt.first == 1
        for t, position in enumerate(prompt.scored, prompt.first):
            best = logprobs[t].topk(8)
            assert [token for token, _ in position.top] == best.indices.tolist()
            np.testing.assert_allclose([p for _, p in position.top], best.values, atol=2e-5)
            assert position.margin == pytest.approx(
                float(best.values[0] - best.values[1]), abs=4e-5
            )
            if t + 1 < len(prompt.positions):
                following = prompt.tokens[t + 1]
                assert position.next == pytest.approx(float(logprobs[t, following]), abs=2e-5)
                if t + 1 >= prompt.given and not prompt.sampled:
                    assert following == int(best.indices[0])


def test_a_recording_repeats_to_the_byte_and_another_seed_draws_others(
    model: Path, recorded: Path, tmp_path: Path
) -> None:
    options = ("--prompts", str(recorded.with_name("prompts.jsonl")), *SMALL)
    renamed = tmp_path / "model"
    renamed.symlink_to(model)
    assert record(renamed, tmp_path / "again.json", *options) == 0
    assert (tmp_path / "again.json").read_bytes() == recorded.read_bytes()
    assert record(model, tmp_path / "other.json", *options, "--seed", "7") == 0
    ours, others = (read(path).prompts for path in (recorded, tmp_path / "other.json"))
    drawn = [[p.tokens for p in prompts if p.sampled] for prompts in (ours, others)]
    assert drawn[0] != drawn[1] and ours[:2] == others[:2]


def test_formats_of_one_name_have_the_loosest_tolerance(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formats that were chosen by measurement may have the same coarsest one."""
    monkeypatch.setattr(golden_record, "stored_format", lambda model, front: "int4-g32")
    options = (*SMALL[:-1], "int4-g32,int8-g32")
    kinds = {"both": options[-1], "coarse": "int4-g32", "fine": "int8-g32"}
    for name, formats in kinds.items():
        assert record(model, tmp_path / name, *options[:-1], formats) == 0
    both, coarse, fine = (read(tmp_path / name).tolerances["int4-g32"] for name in kinds)
    assert both == coarse
    assert both.mean > 2 * fine.mean


def test_tokens_are_drawn_as_likely_as_they_are() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, -1.0])
    rng = np.random.default_rng(0)
    drawn = [golden_record.chosen(logits, rng) for _ in range(4000)]
    found = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(found, logits.softmax(-1).numpy(), atol=0.03)
    assert golden_record.chosen(logits, None) == 1


def test_the_summary_and_the_json(model: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "p.txt").write_text(PROMPTS[0])
    options = ("--prompts", str(tmp_path / "p.txt"), *SMALL)
    assert record(model, tmp_path / "g.json", *options) == 0
    out = capsys.readouterr().out
    for part in ("2, and 2 texts", "number format", "float32", "verify ARTIFACT --golden"):
        assert part in out
    assert [p.text for p in read(tmp_path / "g.json").prompts[:2]] == ["First", "Second prompt"]
    assert record(model, tmp_path / "g.json", *options, "--force", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["prompts"], found["sampled"]) == (4, 2)
    assert found["tolerances"]["float32"]["mean"] > found["tolerances"]["float32"]["noise"] > 0


@pytest.mark.cases(core=3)
@pytest.mark.parametrize(
    ("prompts", "options", "part"),
    [
        ("", (), "has no prompt"),
        ("x" * 600, (), "600 tokens, and 3 are to follow"),
        ('{"prompt": [320]}', (), "token 320"),
        ('{"prompt": []}', (), "line 1 of"),
        ('{"prompt": "a"}\nplain', (), "line 2 of"),
        ("\xff".encode("latin1"), (), "UTF-8"),
        (None, (), "cannot be read"),
        ("a", ("--formats", "int3"), "'int3'"),
        ("a", ("--formats", "int4-channel"), "'int4-channel'"),
        ("a", ("--tokens", "-1"), "number from 0 on"),
        ("a", ("--max-model-len", "3"), "3 are to follow"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    model: Path, tmp_path: Path, capsys: Any, prompts: str | bytes | None, options: Any, part: str
) -> None:
    path = tmp_path / "p.txt"
    if prompts is not None:
        path.write_bytes(prompts if isinstance(prompts, bytes) else prompts.encode())
    before = sorted(os.listdir(tmp_path))
    given = ("--prompts", str(path), *SMALL, *options)
    assert record(model, tmp_path / "g.json", *given) == 2
    assert part in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before


def test_a_place_that_cannot_be_written_is_refused_at_once(
    model: Path, recorded: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "folder").mkdir()
    for out, part in (
        (recorded, "exists"),
        (tmp_path / "folder", "is no file"),
        (tmp_path / "none" / "g.json", "No such file"),
        (Path("/proc/g.json"), "cannot be written"),
    ):
        assert record(model, out, *SMALL) == 2
        captured = capsys.readouterr()
        assert part in captured.err and "read " not in captured.err  # nothing was begun
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path, capsys: Any) -> None:
    bare = save_random("llama", tmp_path / "bare")
    assert record(bare, tmp_path / "g.json", *SMALL) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["bare"]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "full"), 5)])
@pytest.mark.parametrize("where", ["record_golden", "replace"])
def test_a_recording_that_ends_early_leaves_the_old_file(
    where: str, error: BaseException, code: int,
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """While the reference runs, and when the new file is about to take the place of the old."""

    def ended(*_: object, **__: object) -> bytes:
        raise error

    out = tmp_path / "g.json"
    out.write_text("old")
    if where == "record_golden":
        monkeypatch.setattr(golden_record, "record_golden", ended)
    else:
        monkeypatch.setattr(golden_record, "record_golden", lambda *_, **__: b"{}")
        monkeypatch.setattr(compiling.os, "replace", ended)
    assert record(model, out, *SMALL, "--force") == code
    assert out.read_text() == "old" and os.listdir(tmp_path) == ["g.json"]


def fake(change: Callable[[Any], object] = lambda value: None) -> bytes:
    """Goldens of the fake model after a change."""
    value = json.loads(fake_golden())
    change(value)
    return json.dumps(value).encode()


def test_an_artifact_is_held_against_a_file(tmp_path: Path, capsys: Any) -> None:
    artifact, file = write_fake(tmp_path / "a.ingot"), tmp_path / "g.json"
    text = {"text": "anything", "given": 1}
    for data, code, part in (
        (fake(lambda g: g["model"].update(name="renamed")), 0, "2 prompts, 19 positions"),
        (fake_golden(shift=0.01), 4, "largest error 0.01"),
        (fake(lambda g: g["prompts"][0].update(text)), 4, "prompt 0: the tokenizer gives other"),
        (fake(lambda g: g["model"].update(num_layers=2)), 2, "of another model"),
        (fake(lambda g: g["tolerances"].pop("float32")), 2, "no tolerance for float32"),
        (fake(lambda g: g.update(format=1)), 2, "format 1"),
        (fake()[:-9], 2, "no file of goldens"),
        (fake(lambda g: g["prompts"].append(_long(g["prompts"][1]))), 2, "prompt 2 of"),
    ):
        file.write_bytes(data)
        assert main(["verify", str(artifact), "--golden", str(file)]) == code
        captured = capsys.readouterr()
        assert part in (captured.err if code else captured.out)
    assert main(["verify", str(artifact), "--golden", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def _long(prompt: dict[str, Any]) -> dict[str, Any]:
    positions = [prompt["positions"][0]] * 300
    return {"given": 300, "positions": positions}


def test_texts_need_a_tokenizer(tmp_path: Path, capsys: Any) -> None:
    artifact = write_fake(tmp_path / "a.ingot", tokenizer=False)
    file = tmp_path / "g.json"
    file.write_bytes(fake())
    assert main(["verify", str(artifact), "--golden", str(file)]) == 0
    file.write_bytes(fake(lambda g: g["prompts"][0].update(text="a", given=1)))
    assert main(["verify", str(artifact), "--golden", str(file)]) == 2
    assert "has no tokenizer, and" in capsys.readouterr().err
