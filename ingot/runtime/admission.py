"""What a request must satisfy before anything is allocated for it."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.errors import RequestError
from ingot.runtime.field_checks import plain
from ingot.runtime.page_table import PageTable
from ingot.runtime.params import SamplingParams

MAX_PRIORITY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChecks:
    """Checks requests against the model's vocabulary and length, and the pages that there are."""

    vocab_size: int
    max_model_len: int
    pages: PageTable

    def check(self, token_ids: list[int], params: SamplingParams | None = None) -> None:
        """Raises RequestError for a prompt that can never be served.

        With `params` None the prompt is only scored, and no token is added to it.
        """
        if not token_ids:
            raise RequestError("the prompt is empty", hint="Give at least one token.")
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self.vocab_size:
            raise RequestError(
                f"the prompt has token {low if low < 0 else high}",
                hint=f"The vocabulary has the tokens 0 to {self.vocab_size - 1}.",
            )
        # A completion needs room for one token; `logits` does not.
        room = self.max_model_len - (params is not None)
        if len(token_ids) > room:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens",
                hint=f"At most {room} fit, as max_model_len is {self.max_model_len}.",
            )
        needed = len(token_ids) if params is None else self.max_len(token_ids, params) - 1
        num_pages = self.pages.most_of(needed)
        if num_pages > self.pages.num_pages:
            raise RequestError(
                f"the request needs {num_pages} pages of the KV cache, which has "
                f"{self.pages.num_pages}",
                hint="Pass a smaller max_tokens, or a larger kv_cache_bytes.",
            )
        if params is not None:
            params.for_model(self.vocab_size)

    def max_len(self, token_ids: list[int], params: SamplingParams) -> int:
        """The most tokens that the sequence can reach."""
        return min(self.max_model_len, len(token_ids) + params.max_tokens)


def check_priority(priority: object) -> None:
    """Raises RequestError unless it is a priority."""
    priority = plain(priority)
    if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise RequestError(
            f"priority is {priority!r:.80}",
            hint=f"priority must be an integer in [-{MAX_PRIORITY}, {MAX_PRIORITY}].",
        )
