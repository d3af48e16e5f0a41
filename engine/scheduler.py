"""Decides what the next step does; no tensors.

Rule: every turn runs at most one prefill chunk (of the oldest sequence that needs one) and then one
decode step of every sequence that is generating, so that a long prompt delays a running answer by
one chunk per token at most.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.sequence import Sequence, Status


@dataclass
class Scheduler:
    """Waiting and running sequences, and free slots.

    Args:
        num_slots: cache slots.
        chunk_tokens: most prompt tokens of one prefill step.
        max_rows: most rows of one decode step.
    """

    num_slots: int
    chunk_tokens: int
    max_rows: int
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    """Admission order."""

    def __post_init__(self) -> None:
        self._free_slots = list(range(self.num_slots - 1, -1, -1))

    def admit(self) -> list[Sequence]:
        """Give free slots to waiting sequences, oldest first; return those that got one."""
        admitted = []
        while self.waiting and self._free_slots:
            sequence = self.waiting.popleft()
            sequence.slot = self._free_slots.pop()
            sequence.status = Status.PREFILL
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def next_prefill(self) -> tuple[Sequence, int, int] | None:
        """Return the sequence, first and end position of the next prefill chunk, or None."""
        for sequence in self.running:
            if sequence.status is Status.PREFILL:
                start = sequence.num_computed
                return sequence, start, min(start + self.chunk_tokens, len(sequence.prompt_ids))
        return None

    def decode_batches(self) -> list[list[Sequence]]:
        """Return the sequences that are generating, in batches of at most `max_rows`."""
        decoding = [s for s in self.running if s.status is Status.DECODE]
        return [decoding[i : i + self.max_rows] for i in range(0, len(decoding), self.max_rows)]

    def remove_finished(self) -> list[Sequence]:
        """Take finished sequences out and free their slots; return them."""
        finished = [s for s in self.running if s.status is Status.FINISHED]
        for sequence in finished:
            self.running.remove(sequence)
            self._free_slots.append(sequence.slot)
            sequence.slot = -1
        self.waiting = deque(s for s in self.waiting if s.status is not Status.FINISHED)
        return finished

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running
