import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import RequestError
from engine.pocket import model_path
from engine.score import check_score_request, score_tokens

TOKENS = [0, *np.random.default_rng(5).integers(3, 1500, 90).tolist()]
# Without rounding: a step of FP8 or FP4 may fall the other way when sums are ordered differently.
CONFIG = EngineConfig(device="cpu", max_model_len=16, kv_fake_quant=False)


@pytest.fixture(scope="module")
def whole():
    return score_tokens(model_path(), CONFIG, TOKENS)


@pytest.mark.parametrize(
    "arguments", [{"chunk": 1}, {"chunk": 13}, {"decode_from": 0}, {"decode_from": 64, "chunk": 64}]
)
def test_pieces_equal_the_whole(whole, arguments):
    logits = score_tokens(model_path(), CONFIG, TOKENS, **arguments)
    assert logits.dtype == np.float32 and logits.shape == whole.shape == (91, 1536)
    assert np.isfinite(logits).all()
    assert np.abs(logits - whole).max() < 2e-4


def test_quant_switch_changes_the_numbers(whole):
    other = score_tokens(model_path(), EngineConfig(device="cpu"), TOKENS)
    assert np.abs(other - whole).max() > 1e-3


@pytest.mark.parametrize(
    ("tokens", "chunk", "decode_from", "match"),
    [
        ([], None, None, "empty"),
        ([1, 2000], None, None, "token 2000 at position 1"),
        ([1, True], None, None, "token True"),
        ([1, "2"], None, None, "token '2'"),
        ([1], 0, None, "chunk"),
        ([1], None, -1, "decode-from"),
    ],
)
def test_bad_arguments(tokens, chunk, decode_from, match):
    with pytest.raises(RequestError, match=match):
        check_score_request(tokens, 1536, chunk, decode_from)
