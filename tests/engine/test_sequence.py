from engine.request import FinishEvent, SamplingParams
from engine.sequence import Sequence, Status, stop_ids_of


def make_sequence(events=None, **params) -> Sequence:
    return Sequence(
        request_id=1,
        prompt_ids=(5, 6),
        params=SamplingParams(**{"max_tokens": 3, **params}),
        on_event=(lambda event: None) if events is None else events.append,
        stop_ids=frozenset({9}),
        max_len=4,
    )


def test_ends_at_stop_id_max_tokens_or_context():
    sequence = make_sequence(max_tokens=9)
    assert sequence.append(7) is None and sequence.num_generated == 1
    assert sequence.append(8) == "length", "the context of 4 is full"
    assert make_sequence().append(9) == "stop"
    assert make_sequence(max_tokens=1).append(7) == "length"
    assert make_sequence(max_tokens=1).append(9) == "stop", "a stop id at the limit is a stop"


def test_one_last_event_only():
    events = []
    sequence = make_sequence(events)
    sequence.finish("error", "why")
    sequence.finish("abort")
    assert events == [FinishEvent("error", "why")]
    assert sequence.status is Status.FINISHED


def test_seed_is_kept_or_drawn():
    assert make_sequence(seed=7).seed == 7
    assert make_sequence().seed != make_sequence().seed


def test_ignore_eos_keeps_the_requests_own_stop_ids():
    params = SamplingParams(max_tokens=1, stop_token_ids=(3,), ignore_eos=True)
    assert stop_ids_of(params, (1, 2)) == {3}
    params = SamplingParams(max_tokens=1, stop_token_ids=(3,))
    assert stop_ids_of(params, (1, 2)) == {1, 2, 3}


def test_a_listener_that_raises_ends_only_its_own_request():
    def broken(event):
        raise RuntimeError("the event loop is closed")

    sequence = make_sequence()
    sequence.on_event = broken
    sequence.emit(FinishEvent("stop"))
    assert sequence.status is Status.FINISHED
    sequence.finish("abort")
