import math

import pytest

from engine.api import device_lost, first_line
from engine.errors import CapacityError, RequestError
from engine.request import SamplingParams

HEAD = "<｜begin▁of▁sentence｜><｜User｜>"
TAIL = "<｜Assistant｜></think>"
CAPITAL = f"{HEAD}What is the capital of Japan?{TAIL}"
STORY = f"{HEAD}Tell me a story about Leo, a cat, an owl, a lamp and a bridge.{TAIL}"


def text_of(engine, heard):
    return engine.tokenizer.decode(heard.token_ids)


def test_greedy_answer_of_the_trained_model(engine, ask):
    heard = ask(CAPITAL).wait()
    assert text_of(engine, heard) == "The capital of Japan is Tokyo.<｜end▁of▁sentence｜>"
    assert heard.finish.reason == "stop"
    assert heard.prompt.num_tokens == len(engine.tokenizer.encode_markup(CAPITAL))
    assert heard.prompt.num_cached_tokens == 0 and heard.prompt.logprobs is None


def test_concurrent_requests_equal_their_solo_runs(ask, idle_stats):
    codes = ["QX7-48KD", "MB2-91TR", "ZK5-30LW", "HF8-77PA", "CV1-62NE"]
    texts = [f"{HEAD}Repeat exactly: {code}{TAIL}" for code in codes] + [CAPITAL]
    solo = [ask(text).wait().token_ids for text in texts]
    together = [ask(text) for text in texts]  # 3 run, 3 wait
    assert [listener.wait().token_ids for listener in together] == solo
    idle_stats()


def test_seeded_sampling_repeats_and_does_not_depend_on_company(engine, ask):
    unseen = "<｜begin▁of▁sentence｜>vq xj zw"  # nothing the model knows, so it is not certain
    sampled = {"temperature": 2.0, "top_p": 0.95, "ignore_eos": True}
    alone = ask(unseen, seed=11, **sampled).wait().token_ids
    other, again = ask(unseen, seed=12, **sampled), ask(unseen, seed=11, **sampled)
    assert again.wait().token_ids == alone
    assert other.wait().token_ids != alone


def test_logprobs_of_greedy_tokens_are_the_largest(engine, ask):
    heard = ask(CAPITAL, logprobs=3, prompt_logprobs=2).wait()
    assert len(heard.logprobs) == len(heard.token_ids)
    for token, scores in zip(heard.token_ids, heard.logprobs, strict=True):
        assert scores.top[0] == (token, scores.logprob) and len(scores.top) == 3
        assert scores.logprob <= 0 and sum(math.exp(p) for _, p in scores.top) <= 1 + 1e-5
    prompt = heard.prompt.logprobs
    assert len(prompt) == heard.prompt.num_tokens and prompt[0] is None
    assert all(len(p.top) == 2 and p.logprob <= p.top[0][1] for p in prompt[1:])


def test_scoring_only(engine, ask):
    heard = ask(CAPITAL, max_tokens=0, prompt_logprobs=0).wait()
    assert heard.finish.reason == "length" and heard.token_ids == []
    full = ask(CAPITAL, max_tokens=1, prompt_logprobs=1).wait().prompt.logprobs
    for a, b in zip(heard.prompt.logprobs[1:], full[1:], strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4) and a.top == ()


def test_limits_end_with_length(engine, ask):
    assert ask(STORY, max_tokens=5).wait().finish.reason == "length"
    heard = ask(CAPITAL, max_tokens=5000, ignore_eos=True).wait(240)
    assert heard.finish.reason == "length"
    assert heard.prompt.num_tokens + len(heard.token_ids) == engine.max_model_len


def test_min_tokens_and_stop_ids(engine, ask):
    greedy = ask(CAPITAL).wait().token_ids
    longer = ask(CAPITAL, min_tokens=len(greedy) + 3).wait()
    assert len(longer.token_ids) >= len(greedy) + 3
    cut = ask(CAPITAL, stop_token_ids=(greedy[2],)).wait()
    assert cut.token_ids == greedy[:3] and cut.finish.reason == "stop"


def test_bias_and_penalties_change_the_choice(engine, ask):
    greedy = ask(CAPITAL).wait().token_ids
    biased = ask(CAPITAL, logit_bias={greedy[0]: -100.0}).wait().token_ids
    assert biased[0] != greedy[0]
    penalised = ask(STORY, frequency_penalty=2.0, presence_penalty=2.0).wait().token_ids
    assert penalised != ask(STORY).wait().token_ids


def test_cancel_frees_the_slot(ask, idle_stats):
    listeners = [ask(STORY, max_tokens=400, ignore_eos=True) for _ in range(5)]
    for listener in listeners[:3]:  # the other two wait for a slot
        listener.wait_for_token()
    for listener in listeners:
        listener.handle.cancel()
        listener.handle.cancel()
    for listener in listeners:
        assert listener.wait().finish.reason == "abort"
    assert ask(CAPITAL).wait().finish.reason == "stop"
    idle_stats()


def test_full_queue_is_refused(engine, ask):
    listeners = []
    with pytest.raises(CapacityError, match="max_waiting"):
        for _ in range(20):
            listeners.append(ask(STORY, max_tokens=200, ignore_eos=True))
    assert len(listeners) >= 4
    for listener in listeners:
        listener.handle.cancel()
        listener.wait()


@pytest.mark.parametrize(
    ("ids", "params", "match"),
    [
        ([], {}, "prompt is empty"),
        ([5, 99999], {}, "token 99999 is outside the vocabulary"),
        ([-1], {}, "token -1 is outside"),
        ([5], {"logit_bias": {99999: 1.0}}, "logit_bias: token 99999"),
        ([5] * 512, {}, "maximum context length is 512 tokens"),
    ],
)
def test_bad_requests_are_refused_before_they_queue(engine, ids, params, match):
    with pytest.raises(RequestError, match=match):
        engine.submit(ids, SamplingParams(max_tokens=5, **params), lambda event: None)


def test_a_prompt_that_fills_the_context_but_one(engine):
    import queue

    events = queue.Queue()
    ids = [engine.tokenizer.bos_id] + engine.tokenizer.encode_text("word ")[:1] * 510
    engine.submit(ids, SamplingParams(max_tokens=50, temperature=0.0), events.put)
    seen = [events.get(timeout=60) for _ in range(3)]
    assert seen[-1].reason in ("length", "stop") and len(seen[1].token_ids) == 1


def test_stats_count_tokens(ask, idle_stats):
    before = idle_stats()
    heard = ask(CAPITAL).wait()
    after = idle_stats()
    assert after.alive and after.error == "" and after.last_step_age_s is None
    assert after.prompt_tokens_total - before.prompt_tokens_total == heard.prompt.num_tokens
    produced = after.generation_tokens_total - before.generation_tokens_total
    assert produced == len(heard.token_ids)


def test_which_errors_lose_the_device():
    assert device_lost(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not device_lost(RuntimeError("CUDA error: out of memory"))
    assert not device_lost(RuntimeError("shape mismatch"))
    assert first_line(RuntimeError("one\ntwo")) == "one"
