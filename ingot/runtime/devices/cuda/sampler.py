"""Draws and scores tokens on the device, so that the logits of a step stay there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ingot.artifact.launches import DrawArray
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.host_draws import HostDraws, lists_of
from ingot.runtime.devices.cuda.memory import Memory, array_bytes
from ingot.runtime.devices.cuda.program import LaunchedProgram
from ingot.runtime.devices.cuda.scores import SCORES, ScoreRoom
from ingot.runtime.executor import StepWants


class DeviceSampler:
    """Draws what a device can draw by itself, with the log-probabilities that are asked for.

    Args:
        arrays: of drawing; they lie in `memory` side by side, those on the device last.
        num_rows: of the logits that the device has room for.

    It changes the logits of sequences that have edits, and rows that no draw is from.
    """

    def __init__(
        self,
        driver: Driver,
        memory: Memory,
        program: LaunchedProgram,
        arrays: Sequence[DrawArray],
        vocab_size: int,
        num_rows: int,
    ) -> None:
        self._driver = driver
        self._program = program
        self._vocab_size = vocab_size
        self._arrays = [array for array in arrays if not array.on_device]
        shapes = {array.name: array.shape for array in self._arrays}
        (self._most_draws,), (self._most_listed,) = shapes["draw_rows"], shapes["edit_tokens"]
        self._room = ScoreRoom(num_rows, *shapes["scored_tokens"])
        self._base = memory.array(self._arrays[0].name)

    def host_draws(self) -> HostDraws:
        """New memory of the host for the draws of a step."""
        host = self._driver.host_memory(sum(map(array_bytes, self._arrays)))
        return HostDraws(self._arrays, host, self._vocab_size, self._room)

    def takes(self, wants: StepWants) -> bool:
        """Returns whether the device can draw and score all of a step.

        The host takes steps with processors, with more draws, longer lists or more
        log-probabilities than there is room for, and with edits of a row that others draw from.
        """
        states = [sequence.sampling for sequence in wants.sequences]
        if len(states) > self._most_draws or any(state.may_spoil for state in states):
            return False
        for sequence, state in zip(wants.sequences, states, strict=True):
            state.advance(sequence.token_ids, sequence.num_prompt)
        edited = [i for i, state in enumerate(states) if state.has_edits]
        times = Counter(wants.rows)
        shared = any(times[wants.rows[i]] > 1 for i in edited)
        listed = sum(len(tokens) for i in edited for tokens in lists_of(states[i]))
        edited_rows = [wants.rows[i] for i in edited]
        return not shared and listed <= self._most_listed and self._room.takes(wants, edited_rows)

    def upload(self, host: HostDraws) -> None:
        """Queues the copies of what the launches read."""
        parts = [host.part("draw_rows", "draw_edited")] if host.count else []
        if host.num_edited:
            parts.append(host.part("edit_rows", "edit_lists"))
            parts += (host.first(n, host.num_listed) for n in ("edit_tokens", "edit_values"))
        if host.num_scored:
            parts.append(host.first("score_asked", host.num_scored))
        for begin, data in parts:
            self._driver.upload(self._base + begin, data)

    def launch(self, sizes: Mapping[str, int]) -> None:
        """Queues so many draws and scorings."""
        self._program.draw(sizes)

    def download(self, host: HostDraws) -> None:
        """Queues the copies of what was drawn and scored."""
        parts = [host.part("drawn_tokens", "drawn_statuses")] if host.count else []
        if host.num_scored:
            parts += (host.first(name, host.num_scored) for name in SCORES)
        for begin, data in parts:
            self._driver.download(data, self._base + begin)
