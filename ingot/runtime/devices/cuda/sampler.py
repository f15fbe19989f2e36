"""Draws tokens on the device, so that the logits of a step stay there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ingot.artifact.launches import DRAWS, EDITED, DrawArray
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.host_draws import HostDraws, lists_of
from ingot.runtime.devices.cuda.memory import Memory, array_bytes
from ingot.runtime.devices.cuda.program import Program
from ingot.runtime.executor import Draws
from ingot.runtime.sampling_state import SamplingState


class DeviceSampler:
    """Draws what a device can draw by itself: tokens without log-probabilities.

    Args:
        arrays: of drawing; they lie in `memory` side by side, those on the device last.

    It changes the logits of sequences that have edits.
    """

    def __init__(
        self,
        driver: Driver,
        memory: Memory,
        program: Program,
        arrays: Sequence[DrawArray],
        vocab_size: int,
    ) -> None:
        self._driver = driver
        self._program = program
        self._vocab_size = vocab_size
        self._arrays = [array for array in arrays if not array.on_device]
        shapes = {array.name: array.shape for array in self._arrays}
        (self._most_draws,), (self._most_listed,) = shapes["draw_rows"], shapes["edit_tokens"]
        self._base = memory.array(self._arrays[0].name)

    def host_draws(self) -> HostDraws:
        """New memory of the host for the draws of a step."""
        host = self._driver.host_memory(sum(map(array_bytes, self._arrays)))
        return HostDraws(self._arrays, host, self._vocab_size)

    def takes(self, draws: Draws) -> bool:
        """Whether the device can draw all of a step.

        Log-probabilities and processors are for the host. So are more draws or longer lists than
        there is room for, and edits of a row that others draw from.
        """
        states = [sequence.sampling for sequence in draws.sequences]
        if len(states) > self._most_draws or not all(map(_plain, states)):
            return False
        for sequence, state in zip(draws.sequences, states, strict=True):
            state.advance(sequence.token_ids, sequence.num_prompt)
        edited = [i for i, state in enumerate(states) if state.has_edits]
        times = Counter(draws.rows)
        shared = any(times[draws.rows[i]] > 1 for i in edited)
        listed = sum(len(tokens) for i in edited for tokens in lists_of(states[i]))
        return not shared and listed <= self._most_listed

    def upload(self, host: HostDraws) -> None:
        """Queues the copies of what the launches read."""
        if not host.count:
            return
        parts = [host.part("draw_rows", "draw_edited")]
        if host.num_edited:
            parts.append(host.part("edit_rows", "edit_lists"))
            parts += map(host.listed, ("edit_tokens", "edit_values"))
        for begin, data in parts:
            self._driver.upload(self._base + begin, data)

    def launch(self, count: int, num_edited: int = 0) -> None:
        """Queues so many draws, so many of which are from edited rows."""
        if count:
            self._program.draw({DRAWS: count, EDITED: num_edited})

    def download(self, host: HostDraws) -> None:
        """Queues the copies of what was drawn."""
        if host.count:
            begin, data = host.part("drawn_tokens", "drawn_statuses")
            self._driver.download(data, self._base + begin)


def _plain(state: SamplingState) -> bool:
    """Whether a device can draw for it."""
    return state.params.logprobs is None and not state.may_spoil
