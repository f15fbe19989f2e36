"""Fields of OpenAI's and vLLM's requests that are not done here, and what to use instead.

They would change the answer. So they are refused, unlike fields that nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.requests import ChatRequest, GenerateRequest


class Unsupported(NamedTuple):
    """Advice for a field without support; a field that is null or `harmless` asks for nothing.
    `in_chats`: they support it."""

    instead: str
    harmless: tuple[Any, ...] = ()
    in_chats: bool = False

    def asks(self, value: object) -> bool:
        """Returns whether a value asks for what is not supported."""
        # A bool equals 0 or 1, and is another thing.
        return value is not None and not any(
            isinstance(value, bool) is isinstance(one, bool) and value == one
            for one in self.harmless
        )


_SCORES = "Use `prompt_logprobs`."
_ONE_MACHINE = "Leave it out: a model runs in one process."
_BY_NAME = "Give the fields that are listed above, by their names."

UNSUPPORTED: Mapping[str, Unsupported] = {
    "use_beam_search": Unsupported("Use `n`, or `LLM.beam_search` in Python.", (False,)),
    "length_penalty": Unsupported("Leave it out: it is for beam search.", (0, 1)),
    "logprob_token_ids": Unsupported("Use `logprobs`, or `allowed_token_ids` to draw among some."),
    "flat_logprobs": Unsupported("Use `logprobs`.", (False,)),
    "prompt_logprob_token_ids": Unsupported(_SCORES),
    "prompt_logprob_start": Unsupported(_SCORES, (0,)),
    "max_thinking_tokens": Unsupported("Use `/v1/chat/completions`.", in_chats=True),
    "thinking_token_budget": Unsupported("Use `/v1/chat/completions`.", (-1,), in_chats=True),
    "repetition_detection": Unsupported("Use `repetition_penalty` or `frequency_penalty`."),
    "watermarking": Unsupported("Leave it out.", (False,)),
    "truncation_side": Unsupported(
        "Leave it out: `truncate_prompt_tokens` keeps the last tokens.", ("left",)
    ),
    "skip_reading_prefix_cache": Unsupported("Use a `cache_salt` of its own.", (False,)),
    "detokenize": Unsupported("Use `return_token_ids`, for tokens beside the text.", (True,)),
    "output_kind": Unsupported("Use `stream`."),
    "return_prompt_text": Unsupported(
        "Use `return_token_ids`, and send the tokens to `/detokenize`.", (False,)
    ),
    "guided_json": Unsupported('Use `structured_outputs`: {"json": ...}.'),
    "guided_regex": Unsupported('Use `structured_outputs`: {"regex": ...}.'),
    "guided_choice": Unsupported('Use `structured_outputs`: {"choice": ...}.'),
    "guided_grammar": Unsupported('Use `structured_outputs`: {"grammar": ...}.'),
    "guided_json_object": Unsupported('Use `structured_outputs`: {"json_object": true}.', (False,)),
    "guided_whitespace_pattern": Unsupported(
        'Use `structured_outputs`: {"json": ..., "whitespace_pattern": ...}.'
    ),
    "structural_tag": Unsupported("Use `structured_outputs` with a grammar, or `tools`."),
    "logits_processors": Unsupported(
        "Use `logit_bias` or `allowed_token_ids`; functions are for `LLM` in Python.", ([],)
    ),
    "trace_decode_token_ids": Unsupported("Use `structured_outputs`."),
    "extra_args": Unsupported(_BY_NAME, ({},)),
    "vllm_xargs": Unsupported(_BY_NAME, ({},)),
    "kv_transfer_params": Unsupported(_ONE_MACHINE, ({},)),
    "ec_transfer_params": Unsupported(_ONE_MACHINE, ({},)),
    "prompt_embeds": Unsupported("Use `prompt`, with a text or tokens."),
    "best_of": Unsupported("Use `n`, and choose among the completions."),
    "suffix": Unsupported("Use `prompt`: write both texts as the model expects them.", ("",)),
    "functions": Unsupported("Use `tools`.", ([],)),
    "function_call": Unsupported("Use `tool_choice`.", ("none",)),
    "audio": Unsupported("Leave it out: models write text."),
}


def refuse_unsupported(request: GenerateRequest) -> None:
    """Raises FieldError for the first field that asks for what is not done here."""
    names, values_of = _looked_at(type(request))
    for name, value in zip(names, values_of(request), strict=True):
        if value is None or not UNSUPPORTED[name].asks(value):
            continue
        if name == "best_of" and value == (request.n or 1):
            continue
        raise FieldError(
            name,
            f"{name}: this server does not support it",
            hint=UNSUPPORTED[name].instead,
            code="unsupported_parameter",
        )


@cache
def _looked_at(kind: type[GenerateRequest]) -> tuple[tuple[str, ...], attrgetter[Any]]:
    """The names of a request's fields that may ask for what is not done, and all their values."""
    names = tuple(
        name
        for name, each in UNSUPPORTED.items()
        if name in kind.__struct_fields__ and not (each.in_chats and issubclass(kind, ChatRequest))
    )
    return names, attrgetter(*names)
