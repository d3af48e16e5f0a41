"""The draft module against golden blocks, float32 on the CPU."""

import pytest
import torch

LIMIT = {False: 1e-4, True: 5e-4}


@pytest.mark.parametrize("quant", [False, True], ids=["quant_off", "quant_on"])
def test_blocks_match_golden(golden_models, golden_case, device, quant):
    golden, model = golden_case("prefill_100_decode_40", quant), golden_models(quant)
    tokens, compared = golden["tokens"].tolist(), 0
    model.step(tokens, 0, 100, True)
    for position in range(99, 140):
        if position > 99:
            model.step(tokens, position, position + 1, False)
        prefix = f"draft_at_{position}"
        if f"{prefix}.logits" not in golden:
            continue
        seen = {}
        with torch.inference_mode():
            block = model.draft.propose(
                model.backbone,
                golden[f"{prefix}.input_token"].long().view(1).to(device),
                torch.tensor([position], device=device),
                torch.tensor([1], device=device),
                model.state,
                probe=lambda name, layer, v, seen=seen: seen.__setitem__((name, layer), v),
            )
            main = model.draft.project_taps(model.taps[-1:])
        assert torch.equal(block.token_ids[0].cpu(), golden[f"{prefix}.draft_ids"].long())
        for value, key in (
            (block.logits[0], "logits"),
            (block.base_logits[0], "base_logits"),
            (block.confidence[0], "confidence"),
            (main, "main_x"),
            (seen[("draft_x_out", 0)], "x_out.0"),
            (seen[("draft_x_out", 1)], "x_out.1"),
        ):
            expected = golden[f"{prefix}.{key}"].view(value.shape)
            torch.testing.assert_close(value.cpu(), expected, atol=LIMIT[quant], rtol=0, msg=key)
        compared += 1
    assert compared == 4


def test_several_sequences_draft_as_if_alone(golden_models, golden_case, device):
    golden, model = golden_case("prefill_100_decode_40", True), golden_models(True)
    tokens = golden["tokens"].tolist()
    model.step(tokens, 0, 50, True, slot=0)
    model.step(tokens, 0, 5, True, slot=1)
    next_ids, last = torch.tensor([[tokens[50], tokens[5]], [49, 4]], device=device)
    slots = torch.tensor([0, 1], device=device)
    with torch.inference_mode():
        together = model.draft.propose(model.backbone, next_ids, last, slots, model.state)
        for row in range(2):
            one = slice(row, row + 1)
            alone = model.draft.propose(
                model.backbone, next_ids[one], last[one], slots[one], model.state
            )
            assert torch.equal(alone.token_ids[0], together.token_ids[row])
            torch.testing.assert_close(alone.logits[0], together.logits[row], atol=1e-4, rtol=0)
