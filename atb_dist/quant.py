"""Weights of eight and four bits, and activations of eight: symmetric, with fp32 scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Features that packed int4 stores together: sixteen bytes, features i and i + 16 in byte i.
INT4_RUN = 32


@dataclass(frozen=True)
class QuantTensor:
    """A weight [O, I] of integers times scales.

    values  [O, I] int8, or [O, ⌈I/32⌉·16] uint8 holding two 4-bit values, plus 8, to a byte
    scales  [O, 1] fp32 (one for each output channel) or [O, ⌈I/group⌉]
    features  I
    bits    8 or 4
    group   neighbouring input features that share a scale; I when there is one scale to a channel
    quantized_activations  multiply by activations rounded to int8, adding in int32 (W8A8)
    """

    values: Tensor
    scales: Tensor
    features: int
    bits: int = 8
    group: int = 0
    quantized_activations: bool = False

    @property
    def shape(self) -> torch.Size:
        """The shape of the weight it stands for."""
        return torch.Size((self.values.shape[0], self.features))

    @property
    def device(self) -> torch.device:
        """Where its values are."""
        return self.values.device

    @property
    def is_grouped(self) -> bool:
        """Whether a channel has several scales."""
        return self.group < self.features

    @property
    def run(self) -> int:
        """Input features that a cut must not part: they share a scale or bytes. 0: cut anywhere."""
        return max(self.group, INT4_RUN) if self.bits == 4 or self.is_grouped else 0

    def dim(self) -> int:
        """Two, as for any weight."""
        return 2

    def rows(self, start: int, stop: int) -> QuantTensor:
        """Return output channels start to stop, as views."""
        return self._with(self.values[start:stop], self.scales[start:stop], self.features)

    def chunk(self, chunks: int) -> list[QuantTensor]:
        """Cut the output channels as Tensor.chunk does."""
        pairs = zip(self.values.chunk(chunks), self.scales.chunk(chunks), strict=True)
        return [self._with(values, scales, self.features) for values, scales in pairs]

    def columns(self, start: int, stop: int) -> QuantTensor:
        """Return input features start to stop, as views; groups of scales must stay whole."""
        run = self.run or 1
        if start % run or (stop % run and stop != self.features):
            raise ValueError(
                f"quantized weight {list(self.shape)}: features {start} to {stop} cut a group of "
                f"{run}; cut at multiples of it"
            )
        scales = self.scales
        if self.is_grouped:
            scales = scales[:, start // self.group : -(-stop // self.group)]
        low, high = (start, stop) if self.bits == 8 else (start // 2, -(-stop // INT4_RUN) * 16)
        return self._with(self.values[:, low:high], scales, stop - start)

    def _with(self, values: Tensor, scales: Tensor, features: int) -> QuantTensor:
        group = self.group if self.is_grouped else features
        return QuantTensor(values, scales, features, self.bits, group, self.quantized_activations)


def quantize(
    weight: Tensor, *, bits: int = 8, group: int | None = None, quantized_activations: bool = False
) -> QuantTensor:
    """Round a weight [O, I] to integers, each group's largest value to the largest integer.

    group: multiples of 32, None for one scale to a channel (8 bits only).
    """
    outputs, features = weight.shape
    _check(features, bits, group, quantized_activations)
    width = group or features
    groups = max(-(-features // max(width, 1)), 1)
    padded = torch.nn.functional.pad(weight.float(), (0, groups * width - features))
    blocks = padded.view(outputs, groups, width)
    largest = blocks.abs().amax(dim=2) if width else blocks.new_zeros(outputs, groups)
    scales = largest / (127 if bits == 8 else 7)
    steps = torch.where(scales > 0, scales, 1.0)[:, :, None]
    rounded = (blocks / steps).round().to(torch.int8).view(outputs, groups * width)[:, :features]
    values = rounded.contiguous() if bits == 8 else pack_int4(rounded)
    return QuantTensor(values, scales, features, bits, width, quantized_activations)


def dequantize(weight: QuantTensor) -> Tensor:
    """Return the fp32 weight that a quantized one stands for."""
    integers = weight.values if weight.bits == 8 else unpack_int4(weight.values, weight.features)
    if not weight.is_grouped:
        return integers.float() * weight.scales
    scales = weight.scales.repeat_interleave(weight.group, dim=1)[:, : weight.features]
    return integers.float() * scales


def pack_int4(integers: Tensor) -> Tensor:
    """Pack int8 values [O, I] from -8 to 7 into [O, ⌈I/32⌉·16] bytes; zeros fill the last run."""
    outputs, features = integers.shape
    runs = -(-features // INT4_RUN)
    padded = torch.nn.functional.pad(integers, (0, runs * INT4_RUN - features))
    halves = (padded + 8).to(torch.uint8).view(outputs, runs, 2, 16)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(outputs, runs * 16)


def unpack_int4(packed: Tensor, features: int) -> Tensor:
    """Return the int8 values [O, I] that pack_int4 was given."""
    outputs, count = packed.shape
    runs = packed.reshape(outputs, count // 16, 1, 16)
    both = torch.cat((runs & 15, runs >> 4), dim=2).to(torch.int8) - 8
    return both.reshape(outputs, count * 2)[:, :features]


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round activations [T, I] to int8 with one scale to a row → ([T, I] int8, [T] fp32)."""
    scales = x.abs().amax(dim=1) / 127 if x.shape[1] else x.new_zeros(x.shape[0])
    steps = torch.where(scales > 0, scales, 1.0)[:, None]
    return (x / steps).round().to(torch.int8), scales


def _check(features: int, bits: int, group: int | None, quantized_activations: bool) -> None:
    if bits not in (8, 4):
        raise ValueError(f"quantize: bits={bits} is neither 8 nor 4")
    if group is None and bits == 4:
        raise ValueError("quantize: 4 bits need a group, e.g. group=64")
    if group is not None and (group < 32 or group % 32):
        raise ValueError(f"quantize: group={group} must be a multiple of 32")
    if quantized_activations and (bits != 8 or (group is not None and group < features)):
        raise ValueError("quantize: quantized activations need 8 bits and one scale to a channel")
