import torch

from ops.router import route


def test_matches_golden(operators):
    ids, weights = route(operators["router.logits"], operators["router.bias"], 6, 1.5, True)
    expected_ids = operators["router.ids"].long()
    assert torch.equal(ids.sort(-1).values, expected_ids.sort(-1).values)
    order, expected_order = ids.argsort(-1), expected_ids.argsort(-1)
    torch.testing.assert_close(
        weights.gather(-1, order),
        operators["router.weights"].gather(-1, expected_order),
        atol=1e-6,
        rtol=1e-6,
    )


def test_extreme_logits_stay_finite_and_ties_take_the_lower_id():
    logits = torch.tensor([[1e4, -1e4, 0.0, 0.0, 0.0]])
    ids, weights = route(logits, torch.zeros(5), 3, 1.5, True)
    assert ids.tolist() == [[0, 2, 3]]
    assert torch.isfinite(weights).all()
    torch.testing.assert_close(weights.sum(-1), torch.tensor([1.5]))


def test_bias_decides_the_choice_but_not_the_weight():
    logits, bias = torch.zeros(1, 3), torch.tensor([0.0, 0.0, 5.0])
    ids, weights = route(logits, bias, 2, 1.0, False)
    assert ids.tolist() == [[2, 0]]
    torch.testing.assert_close(weights, torch.full((1, 2), 0.6931472).sqrt())
