"""Prefixes on the disk: found after a restart, never wrong, and no more bytes than are allowed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ingot.errors import UsageError
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import PAGE_SIZE, write_fake

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=1, detokenize=False)
IDS = np.random.default_rng(2).integers(300, size=45).tolist()
OTHER = np.random.default_rng(3).integers(300, size=45).tolist()


@pytest.fixture
def open_model(fake_artifact: Path, tmp_path: Path):
    return partial(opened, fake_artifact, tmp_path / "kept")


def opened(artifact: Path, folder: Path, most: int | None = None, **options: int) -> LLM:
    config = EngineConfig(prompt_cache=folder, prompt_cache_bytes=most)  # type: ignore[arg-type]
    return LLM(artifact, config=config, **options)


def files(folder: Path) -> list[Path]:
    return sorted((folder / "kept").rglob("*.state"))


def answer(llm: LLM, prompt, params=GREEDY):
    (output,) = llm.generate([prompt], params)
    return (output.outputs[0].token_ids, output.outputs[0].logprobs), output.num_cached_tokens


@pytest.fixture
def known(fake_artifact):
    with LLM(fake_artifact) as llm:
        return {tuple(ids): answer(llm, ids)[0] for ids in (IDS, OTHER, [*IDS[:30], *OTHER])}


def test_a_prompt_is_not_computed_again_after_a_restart(open_model, known, tmp_path):
    with open_model() as llm:
        assert answer(llm, IDS) == (known[tuple(IDS)], 0)
    assert len(files(tmp_path)) == 1
    for _ in range(2):
        with open_model() as llm:
            before = llm.counters().num_computed_tokens
            assert answer(llm, IDS) == (known[tuple(IDS)], 44)
            assert llm.counters().num_computed_tokens - before == 1 + 3, "no prefill"
            assert llm.counters().prompt_cache.num_hits == 1
            assert answer(llm, IDS)[1] == 44 and llm.counters().prompt_cache.num_hits == 1
            llm._engine._residence.check()
    assert len(files(tmp_path)) == 1, "what is there is not written again"


def test_a_part_of_a_file_serves_who_begins_with_it(open_model, known):
    with open_model() as llm:
        answer(llm, IDS)
    mixed = [*IDS[:30], *OTHER]
    with open_model() as llm:
        assert answer(llm, mixed) == (known[tuple(mixed)], 30 // PAGE_SIZE * PAGE_SIZE)


def test_prefixes_of_others_are_not_found(open_model):
    with open_model() as llm:
        answer(llm, {"prompt_token_ids": IDS, "cache_salt": "ann"})
    with open_model() as llm:
        assert answer(llm, {"prompt_token_ids": IDS, "cache_salt": "bob"})[1] == 0
        assert answer(llm, IDS)[1] == 0
        assert answer(llm, {"prompt_token_ids": IDS, "cache_salt": "ann"})[1] == 44


def test_what_goes_on_from_a_prefix_takes_its_place(open_model, tmp_path):
    with open_model() as llm:
        answer(llm, IDS[:20])
        answer(llm, IDS)
    with open_model() as llm:
        assert answer(llm, IDS[:20])[1] == 16 and answer(llm, IDS)[1] == 44
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("place", [3, 200, -9])
def test_a_damaged_file_is_deleted_and_its_prompt_computed(open_model, known, tmp_path, place):
    with open_model() as llm:
        answer(llm, IDS)
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with open_model() as llm:
        assert answer(llm, IDS) == (known[tuple(IDS)], 0)
        assert llm.counters().prompt_cache.num_hits == 0
        llm._engine._residence.check()
    (file,) = files(tmp_path)
    assert file.read_bytes()[place] != data[place], "it is a new one"


def test_a_file_that_is_gone_is_no_fault(open_model, known, tmp_path):
    with open_model() as llm:
        answer(llm, IDS)
    with open_model() as llm:
        files(tmp_path)[0].unlink()
        assert answer(llm, IDS) == (known[tuple(IDS)], 0)


def test_no_more_bytes_than_are_allowed(open_model, tmp_path):
    with open_model() as llm:
        answer(llm, IDS)
    most = int(2.5 * files(tmp_path)[0].stat().st_size)
    prompts = [[n, *IDS] for n in range(5)]
    with open_model(most) as llm:
        for prompt in prompts:
            answer(llm, prompt)
        llm.counters()
    assert sum(file.stat().st_size for file in files(tmp_path)) <= most
    with open_model(most) as llm:
        cached = [answer(llm, prompt)[1] for prompt in reversed(prompts)]
        assert cached[0] == 44 and cached[-1] == 0, "the last ones are there"
    with open_model(100) as llm:
        assert not files(tmp_path), "what is too much goes at once"
        answer(llm, IDS)
    assert not files(tmp_path)


def test_little_memory(open_model, known, fake_artifact):
    """Where there is no room for a prefix, it is computed as room comes."""
    with open_model() as llm:
        answer(llm, IDS)
        answer(llm, OTHER)
    with open_model(kv_cache_bytes=26 * 64) as llm:
        found = llm.generate([IDS, OTHER, IDS, OTHER], GREEDY)
        tokens = [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in found]
        assert tokens == [known[tuple(IDS)], known[tuple(OTHER)]] * 2
        llm._engine._residence.check()


def test_other_artifacts_have_folders_of_their_own(open_model, tmp_path, shakespeare_artifact):
    with open_model() as llm:
        answer(llm, IDS)
    with opened(shakespeare_artifact, tmp_path / "kept") as llm:
        assert answer(llm, IDS)[1] == 0
    assert len(files(tmp_path)) == 2 == len(list((tmp_path / "kept").iterdir()))
    with open_model() as llm:
        assert answer(llm, IDS)[1] == 44


def test_folders_and_models_that_cannot_be(open_model, tmp_path):
    (tmp_path / "kept").write_text("")
    with pytest.raises(UsageError, match="cannot hold a prompt cache"):
        open_model()
    windows = write_fake(tmp_path / "w.ingot", windows=(8,))
    with pytest.raises(UsageError, match="window"):
        opened(windows, tmp_path / "other")
    with pytest.raises(UsageError, match="prompt_cache_bytes"):
        open_model(0)


def test_the_folder_can_be_changed_while_requests_run(open_model, tmp_path, fake_artifact):
    with LLM(fake_artifact) as llm:
        answer(llm, OTHER)
        llm.config = EngineConfig(prompt_cache=str(tmp_path / "kept"))
        answer(llm, IDS)
        llm.config = EngineConfig()
        assert len(files(tmp_path)) == 1
    with pytest.raises(UsageError, match="no prompt_cache"):
        EngineConfig(prompt_cache_bytes=5)
    with open_model() as llm:
        assert answer(llm, IDS)[1] == 44 and answer(llm, OTHER)[1] == 0
