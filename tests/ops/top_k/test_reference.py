import pytest
import torch

from ops.top_k import candidate_mask, exact_top_k, select_rows


def slow_order(row: torch.Tensor) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-float(row[i]), i))


@pytest.mark.parametrize("pattern", ["random", "equal", "few_values", "descending", "signed_zero"])
def test_equals_a_full_sort_with_ties_to_the_lower_position(pattern):
    g = torch.Generator().manual_seed(7)
    scores = {
        "random": torch.randn(4, 300, generator=g),
        "equal": torch.full((4, 300), -1.5),
        "few_values": torch.randint(-2, 3, (4, 300), generator=g).float(),
        "descending": -torch.arange(300.0).repeat(4, 1),
        "signed_zero": torch.where(torch.rand(4, 300, generator=g) < 0.5, -0.0, 0.0),
    }[pattern]
    for k in (1, 17, 300):
        ids = exact_top_k(scores, k)
        for t in range(4):
            assert ids[t].tolist() == slow_order(scores[t])[:k]


def test_select_rows_sorts_and_marks_unused():
    scores = torch.tensor([[1.0, 3.0, 2.0, float("-inf")], [5.0, 4.0, 3.0, 2.0]])
    visible = torch.tensor([3, 1])
    assert select_rows(scores, visible, 2).tolist() == [[1, 2], [0, -1]]
    assert select_rows(scores, torch.tensor([0, 4]), 9).tolist() == [[-1] * 4, [0, 1, 2, 3]]


def test_candidates_match_golden(operators):
    kept = candidate_mask(operators["candidates.scores"], operators["candidates.lens"], 8, 6)
    visible = torch.arange(403) < operators["candidates.lens"].unsqueeze(-1)
    expected = operators["candidates.keep_6_blocks_of_8"].bool()
    assert torch.equal(kept & visible, expected & visible)


def test_candidates_pin_the_newest_block_and_take_lower_ties():
    scores = torch.zeros(1, 40)
    scores[0, 33:] = float("-inf")
    kept = candidate_mask(scores, torch.tensor([33]), 8, 2)[0]
    assert kept.tolist() == [True] * 8 + [False] * 24 + [True] * 8
