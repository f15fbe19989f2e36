"""`Streams`: sessions that advance together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from ingot.errors import RequestError
from ingot.runtime.arrays import Float32
from ingot.runtime.output import RequestOutput
from ingot.runtime.params import SamplingParams
from ingot.runtime.prompts import list_of_params
from ingot.runtime.sessions.session import Session, logits
from ingot.runtime.subscription import complete


class Streams:
    """Sessions of one engine that are fed and asked side by side, in the same steps.

    `sessions` are there for what each does by itself. A context manager. See `LLM.open_streams`.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = [*sessions]

    def step(self, token_ids: Sequence[int]) -> Float32:
        """Feeds one token to each session; the logits after it: float32 [streams, V]."""
        rows = self.logits([[token] for token in token_ids])
        return np.concatenate(rows)

    def logits(self, token_ids: Sequence[Sequence[int]]) -> list[Float32]:
        """Feeds each session tokens of its own, one at least; the logits after each of them."""
        return logits(self.sessions, self._for_each(token_ids))

    def feed(self, token_ids: Sequence[Sequence[int]]) -> None:
        """Feeds each session tokens of its own, or none."""
        for session, each in zip(self.sessions, self._for_each(token_ids), strict=True):
            session.feed(each)

    def generate(
        self,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        keep_last: bool = True,
    ) -> list[RequestOutput]:
        """Has all sessions go on, side by side; see `Session.generate`."""
        defaults = self.sessions[0]._model.get_default_sampling_params
        params = list_of_params(sampling_params, len(self), defaults)
        with ExitStack() as turns:
            requests = []
            for session, each in zip(self.sessions, params, strict=True):
                request = session._asked(each, 0, keep_last=keep_last)
                turns.callback(request.refused)
                requests.append(request)
            return complete(self.sessions[0]._thread, requests, progress=False)

    def close(self) -> None:
        """Closes all sessions."""
        for session in self.sessions:
            session.close()

    def __len__(self) -> int:
        return len(self.sessions)

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _for_each(self, token_ids: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        if len(token_ids) != len(self):
            raise RequestError(
                f"there are {len(token_ids)} lists of tokens for {len(self)} streams",
                hint="Give one for each.",
            )
        return token_ids
