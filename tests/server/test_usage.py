from __future__ import annotations

from server.usage import Usage


def test_details_are_always_there() -> None:
    assert Usage().as_json() == {
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "prompt_cache_hit_tokens": 0,
        "prompt_cache_miss_tokens": 0,
    }


def test_sums() -> None:
    usage = Usage(100, 64, 10, 7).as_json()
    assert usage["total_tokens"] == 110
    assert usage["prompt_cache_hit_tokens"] == 64
    assert usage["prompt_cache_miss_tokens"] == 36
