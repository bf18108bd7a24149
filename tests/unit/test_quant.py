"""Quantized weights: rounding, packing, cutting, refusals."""

from __future__ import annotations

import pytest
import torch

from atb_dist.quant import dequantize, pack_int4, quantize, quantize_rows, unpack_int4


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("bits", "group"), [(8, None), (8, 32), (8, 64), (4, 32), (4, 128)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 32), (5, 100), (4, 256), (0, 8)])
def test_every_weight_is_within_half_a_step(
    bits: int, group: int | None, shape: tuple[int, int]
) -> None:
    weight = noise(*shape)
    quantized = quantize(weight, bits=bits, group=group)
    width = min(group or shape[1], shape[1])
    assert quantized.shape == weight.shape
    assert quantized.scales.shape == (shape[0], -(-shape[1] // width))
    steps = quantized.scales.repeat_interleave(width, dim=1)[:, : shape[1]]
    error = (dequantize(quantized) - weight).abs()
    assert bool((error <= steps * 0.5001).all())


def test_zero_weights_stay_zero() -> None:
    for bits in (8, 4):
        assert not dequantize(quantize(torch.zeros(3, 64), bits=bits, group=32)).any()


@pytest.mark.parametrize("features", [1, 31, 32, 33, 64, 100])
def test_packing_keeps_all_four_bit_values(features: int) -> None:
    values = (torch.arange(3 * features) % 16 - 8).to(torch.int8).view(3, features)
    packed = pack_int4(values)
    assert packed.shape == (3, -(-features // 32) * 16)
    assert torch.equal(unpack_int4(packed, features), values)


@pytest.mark.parametrize(("bits", "group"), [(8, None), (8, 64), (4, 64)])
def test_a_part_stands_for_the_part_of_the_weight(bits: int, group: int | None) -> None:
    quantized = quantize(noise(10, 300), bits=bits, group=group)
    whole = dequantize(quantized)
    for low, high in ((0, 64), (64, 192), (128, 300), (0, 300)):
        assert torch.equal(dequantize(quantized.columns(low, high)), whole[:, low:high])
    assert torch.equal(dequantize(quantized.rows(2, 7)), whole[2:7])
    assert [p.shape for p in quantized.chunk(3)] == [p.shape for p in whole.chunk(3)]


def test_a_cut_through_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="features 0 to 100 cut a group of 64"):
        quantize(noise(4, 300), group=64).columns(0, 100)
    with pytest.raises(ValueError, match="features 32 to 300 cut a group of 64"):
        quantize(noise(4, 300), bits=4, group=64).columns(32, 300)
    assert quantize(noise(4, 300)).columns(7, 100).shape == (4, 93)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bits": 5}, "bits=5 is neither 8 nor 4"),
        ({"bits": 4}, "4 bits need a group"),
        ({"group": 48}, "group=48 must be a multiple of 32"),
        ({"group": 0}, "group=0 must be a multiple of 32"),
        ({"group": 32, "quantized_activations": True}, "one scale to a channel"),
        ({"bits": 4, "group": 32, "quantized_activations": True}, "need 8 bits"),
    ],
)
def test_what_does_not_exist_is_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        quantize(noise(4, 96), **options)  # type: ignore[arg-type]


def test_rows_of_activations_have_their_own_scales() -> None:
    x = torch.cat((noise(3, 50), torch.zeros(1, 50)))
    values, scales = quantize_rows(x)
    assert values.dtype == torch.int8
    assert values.abs().amax(dim=1).tolist() == [127, 127, 127, 0]
    assert bool(((values * scales[:, None] - x).abs() <= scales[:, None] * 0.5001).all())
