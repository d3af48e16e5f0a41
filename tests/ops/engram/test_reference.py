import torch

from ops.engram import add_memory, gate_streams, hash_rows


def lookback_of(ids: torch.Tensor, pad: int, alive: torch.Tensor | None = None) -> torch.Tensor:
    rows = []
    for p in range(len(ids)):
        row, dead = [], False
        for k in range(4):
            dead = dead or p - k < 0 or (alive is not None and not alive[p - k])
            row.append(pad if dead else int(ids[p - k]))
        rows.append(row)
    return torch.tensor(rows)


def test_released_constants_match_golden(operators):
    ids, alive = operators["engram.compressed_ids"], operators["engram.text_mask"].bool()
    for name, mask in (("rows", None), ("rows_masked", alive)):
        matched = [
            pad
            for pad in range(8)
            if all(
                torch.equal(
                    hash_rows(
                        lookback_of(ids, pad, mask),
                        operators["engram.multipliers"][layer],
                        operators["engram.primes"][layer].flatten(),
                        operators["engram.offsets_local"][layer],
                    ),
                    operators[f"engram.{name}"][:, layer],
                )
                for layer in range(2)
            )
        ]
        assert len(matched) == 1, f"{name}: exactly one pad id explains the rows, got {matched}"


def test_gate_floor_and_sign():
    x = torch.zeros(1, 2, 4)
    x[0, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    keys = torch.ones(1, 2, 4)
    gate = gate_streams(x, keys, torch.ones(2, 4), 1e-20)
    floor = torch.sigmoid(torch.tensor(1e-3))  # sqrt of the 1e-6 floor, never exactly one half
    torch.testing.assert_close(gate[0], floor.expand(2), atol=1e-7, rtol=0)
    negative = gate_streams(-torch.ones(1, 2, 4), keys, torch.ones(2, 4), 1e-20)
    expected = torch.sigmoid(-torch.tensor(2.0).sqrt())  # dot 4 / sqrt(4)
    torch.testing.assert_close(negative[0], expected.expand(2), atol=1e-6, rtol=0)


def test_value_goes_to_every_stream():
    g = torch.Generator().manual_seed(6)
    x, projected = torch.randn(3, 4, 8, generator=g), torch.randn(3, 40, generator=g)
    weight = torch.randn(4, 8, generator=g)
    out = add_memory(x, projected, weight, 1e-20)
    gate = gate_streams(x, projected.view(3, 5, 8)[:, :4], weight, 1e-20)
    expected = x + gate[..., None] * projected.view(3, 5, 8)[:, 4:]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6)
