"""What requests without parameters get: vLLM's defaults, with those of the model."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

import ingot
from ingot import SamplingParams
from ingot.errors import ArtifactError, UsageError
from ingot.runtime.generation_config import FILE, USUAL, read_generation_config
from ingot.runtime.params import UNLIMITED
from tests.runtime.fake_model import greedy, write_fake

CONFIG = {"do_sample": False, "temperature": 0.0, "max_new_tokens": 5, "eos_token_id": 1}
GREEDY = SamplingParams(temperature=0, max_tokens=5)
PROMPT = [5, 6]


@pytest.fixture
def artifact(tmp_path):
    return write_with(tmp_path, CONFIG)


def write_with(folder, config):
    data = config if isinstance(config, bytes) else json.dumps(config).encode()
    return write_fake(folder / "model.ingot", files={FILE: data})


def test_requests_without_parameters_get_the_models(artifact):
    chat = [{"role": "user", "content": "b"}]
    with ingot.LLM(artifact) as llm:
        assert llm.get_default_sampling_params() == GREEDY
        assert llm.generate([PROMPT])[0].outputs[0].token_ids == greedy(PROMPT, 5)
        assert [t for piece in llm.stream(PROMPT) for t in piece.token_ids] == greedy(PROMPT, 5)
        assert llm.chat(chat)[0].outputs == llm.chat(chat, GREEDY)[0].outputs
        one = SamplingParams(temperature=0, max_tokens=1)
        assert llm.generate([PROMPT], one)[0].outputs[0].token_ids == greedy(PROMPT, 1)


def test_asynchronous_requests_get_them_too(artifact):
    async def tokens():
        async with ingot.AsyncLLM(artifact) as llm:
            return [output async for output in llm.generate(PROMPT)][-1].outputs[0].token_ids

    assert asyncio.run(tokens()) == greedy(PROMPT, 5)


def test_vllm_switches_it_off_and_nothing_is_read(tmp_path):
    with ingot.LLM(write_with(tmp_path, b"{"), generation_config="vllm") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
        assert len(llm.generate([PROMPT])[0].outputs[0].token_ids) == 16


def test_a_model_without_the_file_has_vllms_defaults(llm):
    assert llm.get_default_sampling_params() == SamplingParams()


def test_all_names_of_the_file_that_sample_are_read(tmp_path):
    fields = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.1}
    config = {**fields, "repetition_penalty": 1.1, "max_new_tokens": 9, "num_beams": 1}
    with ingot.LLM(write_with(tmp_path, config)) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(
            **fields, repetition_penalty=1.1, max_tokens=9
        )


def test_what_a_script_assigns_stays_its_own(artifact):
    with ingot.LLM(artifact) as llm:
        params = llm.get_default_sampling_params()
        params.max_tokens = 2
        assert llm.generate([PROMPT], params)[0].outputs[0].token_ids == greedy(PROMPT, 2)
        assert llm.get_default_sampling_params() == GREEDY


def test_a_request_keeps_the_values_that_it_was_given(llm):
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    stream = llm.stream(PROMPT, params)
    params.max_tokens = 1
    assert [t for piece in stream for t in piece.token_ids] == greedy(PROMPT, 5)


@pytest.mark.parametrize("data", [b"{", b"[1]", b"\xff"])
def test_a_file_that_is_no_object_is_refused(tmp_path, data):
    with pytest.raises(ArtifactError, match=r"generation_config\.json"):
        ingot.LLM(write_with(tmp_path, data))


@pytest.mark.parametrize("config", [{"temperature": -1}, {"top_k": "x"}, {"top_p": [1]}])
def test_a_value_out_of_range_stops_only_those_who_need_it(tmp_path, config):
    (name,) = config
    with ingot.LLM(write_with(tmp_path, config)) as llm:
        assert llm.generate([PROMPT], GREEDY)[0].outputs[0].token_ids == greedy(PROMPT, 5)
        with pytest.raises(ArtifactError, match=rf"generation_config\.json: {name} is") as caught:
            llm.generate([PROMPT])
        assert "generation_config='vllm'" in caught.value.hint


def test_another_source_is_refused_here_and_there(fake_artifact):
    for kind in (ingot.LLM, ingot.runtime.llm.LLM):
        with pytest.raises(UsageError, match="generation_config is '/some/folder'"):
            kind(fake_artifact, generation_config="/some/folder")


@pytest.mark.parametrize(
    ("config", "defaults"),
    [
        (None, USUAL),
        ({"eos_token_id": 0}, USUAL),
        ({"do_sample": True, "max_new_tokens": 9}, {"max_tokens": 9, **USUAL}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1, **USUAL}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 0},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        ),
        ({"temperature": 0.6}, {"temperature": 0.6}),
        ({"min_p": 0.1, "repetition_penalty": 1.1}, {"min_p": 0.1, "repetition_penalty": 1.1}),
        (
            {"do_sample": False, "top_k": "all", "repetition_penalty": 1.1},
            {"temperature": 0.0, "repetition_penalty": 1.1},
        ),
    ],
)
def test_defaults_are_the_models_or_else_the_usual_ones(config, defaults):
    """One source for chats, servers and the command line."""
    assert read_generation_config(artifact_of(config)).defaults == defaults


def artifact_of(config):
    files = {} if config is None else {FILE: json.dumps(config).encode()}
    return SimpleNamespace(manifest=SimpleNamespace(files=files), read=files.__getitem__)


def test_the_usual_sampling_is_documented(pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "sampling.md").read_text()
    assert ", ".join(f"`{name}` {value}" for name, value in USUAL.items()) in page


def test_chats_without_parameters_are_sampled_as_usual_to_their_end(fake_artifact):
    chat, usual = [{"role": "user", "content": "b"}], SamplingParams(**USUAL, max_tokens=UNLIMITED)
    found = []
    for params in (None, usual):
        with ingot.LLM(fake_artifact) as llm:  # each opens it anew, for the same draws
            assert llm.get_chat_sampling_params() == usual
            found += llm.chat(chat, params)[0].outputs
    assert found[0] == found[1]
    assert len(found[0].token_ids) > 16, "vLLM's limit cuts no chat"


def test_asynchronous_chats_are_sampled_so_too(artifact):
    async def tokens():
        async with ingot.AsyncLLM(artifact) as llm:
            chat = llm.chat([{"role": "user", "content": "b"}])
            return [output async for output in chat][-1].outputs[0].token_ids

    with ingot.LLM(artifact) as llm:
        expected = llm.chat([{"role": "user", "content": "b"}], GREEDY)[0].outputs[0].token_ids
    assert asyncio.run(tokens()) == expected


def test_vllm_switches_the_usual_sampling_off(fake_artifact):
    with ingot.LLM(fake_artifact, generation_config="vllm") as llm:
        assert llm.get_chat_sampling_params() == SamplingParams()
