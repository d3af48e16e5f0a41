import pytest

from engine.request import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Sequence, Status


def make_sequence(number: int, prompt: int = 5) -> Sequence:
    return Sequence(
        request_id=number,
        prompt_ids=tuple(range(prompt)),
        params=SamplingParams(max_tokens=4),
        on_event=lambda event: None,
        stop_ids=frozenset(),
        max_len=100,
    )


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(num_slots=2, chunk_tokens=4, max_rows=8)


def test_oldest_get_slots_and_the_rest_wait(scheduler):
    sequences = [make_sequence(i) for i in range(3)]
    scheduler.waiting.extend(sequences)
    assert scheduler.admit() == sequences[:2]
    assert [s.slot for s in sequences] == [0, 1, -1]
    assert scheduler.admit() == [] and not scheduler.idle
    sequences[1].finish("stop")
    assert scheduler.remove_finished() == [sequences[1]]
    assert scheduler.admit() == [sequences[2]] and sequences[2].slot == 1


def test_prefill_goes_in_chunks_oldest_first(scheduler):
    first, second = make_sequence(0, prompt=9), make_sequence(1)
    scheduler.waiting.extend([first, second])
    scheduler.admit()
    seen = []
    while (work := scheduler.next_prefill()) is not None:
        sequence, start, end = work
        seen.append((sequence.request_id, start, end))
        sequence.num_computed = end
        if end == len(sequence.prompt_ids):
            sequence.status = Status.DECODE
    assert seen == [(0, 0, 4), (0, 4, 8), (0, 8, 9), (1, 0, 4), (1, 4, 5)]


def test_decode_batches_never_exceed_the_largest_bucket():
    scheduler = Scheduler(num_slots=5, chunk_tokens=4, max_rows=2)
    sequences = [make_sequence(i) for i in range(5)]
    scheduler.waiting.extend(sequences)
    scheduler.admit()
    for sequence in sequences[:4] + sequences[4:]:
        sequence.status = Status.DECODE
    sequences[3].status = Status.PREFILL
    batches = scheduler.decode_batches()
    assert [[s.request_id for s in b] for b in batches] == [[0, 1], [2, 4]]


def test_cancelled_while_waiting_leaves_the_queue(scheduler):
    sequences = [make_sequence(i) for i in range(4)]
    scheduler.waiting.extend(sequences)
    scheduler.admit()
    sequences[2].finish("abort")
    scheduler.remove_finished()
    assert list(scheduler.waiting) == [sequences[3]]
    for sequence in sequences:
        sequence.finish("abort")
    scheduler.remove_finished()
    assert scheduler.idle
