"""Fields of vLLM's that are not done: refused with what to use instead, and never passed over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.serve.http.app import build_app
from ingot.serve.openai.requests import IGNORED, ChatRequest, CompletionRequest, VllmFields
from ingot.serve.openai.unsupported import UNSUPPORTED
from tests.conftest import ROOT
from tests.support.asgi import Call, called
from tests.support.fake_engine import FakeEngine, FakeModels, says

KINDS: dict[str, Any] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
}
GIVEN: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}
# Of vLLM's SamplingParams, CompletionRequest and ChatCompletionRequest, main of November 2026, and
# of the `guided_` fields before them.
VLLM = """
    add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
    chat_template_kwargs continue_final_message detokenize documents ec_transfer_params echo
    extra_args flat_logprobs frequency_penalty guided_choice guided_decoding_backend guided_grammar
    guided_json guided_regex guided_whitespace_pattern ignore_eos include_reasoning
    include_stop_str_in_output kv_transfer_params length_penalty logit_bias logits_processors
    logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs messages min_p
    min_tokens mm_processor_kwargs model n output_kind parallel_tool_calls presence_penalty priority
    prompt prompt_embeds prompt_logprob_start prompt_logprob_token_ids prompt_logprobs
    reasoning_effort repetition_detection repetition_penalty request_id response_format
    return_mm_kwargs return_prompt_text return_token_ids return_token_offsets
    return_tokens_as_token_ids routed_experts_prompt_start seed session_id skip_reading_prefix_cache
    skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream stream_interval
    stream_options structured_outputs suffix temperature thinking_token_budget tool_choice tools
    top_k top_logprobs top_p trace_decode_token_ids truncate_prompt_tokens truncation_side
    use_beam_search user vllm_xargs watermarking
""".split()
# Values of another type than a field's own are refused as such.
TYPED: dict[str, Any] = {
    "best_of": 3, "suffix": "x", "functions": [{}], "function_call": "auto", "audio": {},
}  # fmt: skip


def answer(path: str, name: str, value: object) -> Call:
    app = build_app(FakeModels(bard=FakeEngine(says("a"))))
    return asyncio.run(called(app, "POST", path, {**GIVEN[path], name: value}))


def refused(call: Call, name: str) -> bool:
    """Whether the answer is that the field is not done."""
    error = call.json().get("error")
    return bool(error) and (error["code"], error["param"]) == ("unsupported_parameter", name)


def test_every_field_of_vllms_is_taken_or_refused_or_changes_nothing() -> None:
    known = {*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__, *IGNORED}
    assert set(VLLM) - known == set()
    beside = {*VllmFields.__struct_fields__} - {*VllmFields.__base__.__struct_fields__}
    assert beside - UNSUPPORTED.keys() == set(), "a field that nothing reads"
    assert UNSUPPORTED.keys() - known == set(), "a row that no request has"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_done_is_refused_with_what_to_use(name: str) -> None:
    row = UNSUPPORTED[name]
    kinds = {p: k for p, k in KINDS.items() if not (row.in_chats and k is ChatRequest)}
    paths = [path for path, kind in kinds.items() if name in kind.__struct_fields__]
    for path in paths:
        call = answer(path, name, TYPED.get(name, [7]))
        assert call.status == 400 and refused(call, name), call.body
        assert call.json()["error"]["message"].endswith(f"\n{row.instead}")
        for nothing in (None, *row.harmless):
            assert answer(path, name, nothing).status == 200, nothing
    assert paths


@pytest.mark.parametrize(
    "name, value, asks",
    [
        ("length_penalty", 1.0, False),
        ("length_penalty", True, True),
        ("use_beam_search", 0, True),
        ("thinking_token_budget", 0, True),
        ("detokenize", False, True),
        ("best_of", 1, False),
        ("vllm_xargs", {"x": 1}, True),
    ],
)
def test_a_value_that_asks_for_nothing_is_taken(name: str, value: object, asks: bool) -> None:
    assert refused(answer("/v1/completions", name, value), name) is asks


def test_the_page_says_what_to_use() -> None:
    page = (ROOT / "docs/serving.md").read_text()
    rows = [f"| `{name}` | {row.instead} |\n" for name, row in UNSUPPORTED.items()]
    assert "".join(rows) in page


def test_what_is_ignored_is_not_refused() -> None:
    for name in sorted(IGNORED):
        assert answer("/v1/completions", name, 3).status == 200
