"""Requests of clients: OpenAI's fields, and vLLM's beside them.

A field that is null is one that was left out. Fields that are not listed are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from ingot.serve.openai.fields import (
    MAX_PROMPTS,
    Allowed,
    BadWords,
    Biases,
    Choices,
    Factor,
    Kept,
    Least,
    Messages,
    Name,
    NumLogprobs,
    NumTokens,
    Penalty,
    Priority,
    Seed,
    Share,
    Stops,
    StopText,
    StopTokens,
    Temperature,
    TokenId,
    TokenIds,
    Tools,
    TopK,
)

# Fields of OpenAI's and vLLM's that change no text here, such as how to bill a request or how to
# read pictures. They are accepted without a word, unlike those that nobody knows.
IGNORED = frozenset(
    "guided_decoding_backend media_io_kwargs metadata mm_processor_kwargs modalities prediction "
    "prompt_cache_key prompt_cache_retention return_mm_kwargs return_token_offsets "
    "routed_experts_prompt_start safety_identifier service_tier store stream_interval "
    "user verbosity".split()
)


class StreamOptions(Struct):
    """Options of a stream besides its text. Obfuscation is accepted, and no chunk has it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(Struct, kw_only=True):
    """The fields that become those of `SamplingParams`."""

    n: Choices | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Least | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Factor | None = None
    seed: Seed | None = None
    max_tokens: NumTokens | None = None
    min_tokens: NumTokens | None = None
    stop: StopText | Stops | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: StopTokens | None = None
    ignore_eos: bool | None = None
    bad_words: BadWords | None = None
    logit_bias: Biases | None = None
    allowed_token_ids: Allowed | None = None
    prompt_logprobs: NumLogprobs | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None


class VllmFields(Sampling, kw_only=True):
    """Fields that are refused where they ask for anything: see `unsupported`."""

    use_beam_search: Any = None
    length_penalty: Any = None
    logprob_token_ids: Any = None
    flat_logprobs: Any = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: Any = None
    repetition_detection: Any = None
    watermarking: Any = None
    truncation_side: Any = None
    skip_reading_prefix_cache: Any = None
    detokenize: Any = None
    output_kind: Any = None
    return_prompt_text: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: Any = None
    guided_whitespace_pattern: Any = None
    structural_tag: Any = None
    logits_processors: Any = None
    trace_decode_token_ids: Any = None
    extra_args: Any = None
    vllm_xargs: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None


class GenerateRequest(VllmFields, kw_only=True):
    """Fields of both kinds of generation."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Kept | None = None
    priority: Priority | None = None
    cache_salt: Name | None = None
    request_id: Name | None = None
    session_id: Name | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class CompletionRequest(GenerateRequest, kw_only=True):
    """`POST /v1/completions`: continues a prompt, or each of several."""

    prompt: (
        str
        | Annotated[
            list[str | TokenId | TokenIds],
            Meta(min_length=1, description=f"texts or token lists, at most {MAX_PROMPTS}; tokens"),
        ]
    )
    logprobs: NumLogprobs | None = None
    best_of: Choices | None = None
    suffix: str | None = None
    max_thinking_tokens: Any = None
    thinking_token_budget: Any = None
    prompt_embeds: Any = None


class ChatRequest(GenerateRequest, kw_only=True):
    """`POST /v1/chat/completions`: answers a conversation."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    max_completion_tokens: NumTokens | None = None
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    max_thinking_tokens: NumTokens | None = None
    thinking_token_budget: Kept | None = None


class SessionRequest(Struct, kw_only=True):
    """`POST /v1/sessions`: a session, which is fed a prompt if there is one."""

    model: Name | None = None
    prompt: str | TokenIds | None = None
    add_special_tokens: bool | None = None
    cache_salt: Name | None = None


class TokenizeRequest(Struct, kw_only=True):
    """`POST /tokenize`: the tokens of a text, or of a conversation."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """`POST /detokenize`: the text of tokens."""

    tokens: TokenIds
    model: Name | None = None
    skip_special_tokens: bool | None = None
