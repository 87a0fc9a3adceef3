"""A streaming model, quantized in several ways, each lowered once per process."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils import (
    OP_TO_ANNOTATOR,
)
from torch import nn

import etshared_plugin as etshared
from etshared_plugin.context import SharedContext
from etshared_plugin.pte import PteFile
from etshared_plugin.testing import Call, Outcome, call

WIDTH = 128

# Normalization is fused into convolutions before the quantizer looks for these, and
# making the patterns takes XNNPACKQuantizer two seconds for each entry point.
for _layer in ("conv", "conv_transpose"):
    for _pattern in (f"{_layer}_bn", f"{_layer}_bn_relu"):
        OP_TO_ANNOTATOR[_pattern] = lambda *_: None


class Streamer(nn.Module):
    """An encoder with the past of its convolution, a recurrent cell, a decoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 8, (3, 3), padding=(0, 1))
        self.norm = nn.BatchNorm2d(8)
        self.norm.running_mean = torch.linspace(-0.2, 0.2, 8)
        self.norm.running_var = torch.linspace(0.5, 1.5, 8)
        self.encoder = nn.Linear(8 * 16, WIDTH)
        self.recurrent = nn.Linear(WIDTH, WIDTH)
        self.decoder = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("past", torch.zeros(1, 1, 2, 16))
        self.register_buffer("hidden", torch.full((1, WIDTH), 0.25))

    def encode(self, frame: torch.Tensor) -> torch.Tensor:
        frames = torch.cat([self.past, frame], 2)
        self.past = frames[:, :, 1:]
        features = torch.relu(self.norm(self.conv(frames)))
        return torch.relu(self.encoder(features.flatten(1)))

    def decode(self, code: torch.Tensor) -> torch.Tensor:
        self.hidden = torch.tanh(self.recurrent(self.hidden) + code)
        return self.decoder(self.hidden)

    def forward(self, frame: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(frame))

    def peek(self) -> torch.Tensor:
        return self.decoder(self.hidden)


def streamer() -> tuple[Streamer, dict[str, etshared.EntryPoint]]:
    model = Streamer().eval()
    frame = torch.ones(1, 1, 1, 16)
    return model, {
        "encode": etshared.EntryPoint(model.encode, (frame,)),
        "decode": etshared.EntryPoint(model.decode, (torch.ones(1, WIDTH),)),
        "forward": etshared.EntryPoint(model.forward, (frame,)),
        "peek": etshared.EntryPoint(model.peek),
    }


def calls(seed: int, count: int = 24) -> list[Call]:
    generator = random.Random(seed)
    torch.manual_seed(seed)
    made = []
    for _ in range(count):
        name = generator.choice(["encode", "decode", "forward", "peek"])
        if name == "decode":
            made.append(call(name, torch.rand(1, WIDTH)))
        elif name == "peek":
            made.append(call(name))
        else:
            made.append(call(name, torch.randn(1, 1, 1, 16)))
    return made


def quantizer(way: str) -> XNNPACKQuantizer:
    return XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(
            is_per_channel=way != "per tensor", is_dynamic=way == "dynamic"
        )
    )


#: Ways of quantization, with and without ranges from calibration.
WAYS = ("per tensor", "per channel", "dynamic")


@functools.cache
def exported() -> etshared.ExportedEntryPoints:
    return etshared.export(*streamer())


@functools.cache
def quantized(way: str) -> etshared.ExportedEntryPoints:
    calibration = calls(1, 200) if way != "dynamic" else []
    return etshared.quantize(exported(), quantizer(way), calibration)


@functools.cache
def lowered(way: str) -> bytes:
    edge = etshared.to_edge_transform_and_lower(
        quantized(way), partitioner=[XnnpackPartitioner()]
    )
    return bytes(edge.to_executorch().buffer)


#: By layer: the entry points that use it.
LAYERS = {
    "conv": ["encode", "forward"],
    "encoder": ["encode", "forward"],
    "recurrent": ["decode", "forward"],
    "decoder": ["decode", "forward", "peek"],
}


def context_of(data: bytes) -> SharedContext:
    context = PteFile(data).shared_context()
    assert context is not None
    return context


def signal_to_noise(actual: Sequence[torch.Tensor], expected: list[Outcome]) -> float:
    """Return the ratio of all results in decibels."""
    signal = sum(float((one.result**2).sum()) for one in expected)
    noise = sum(
        float(((a - one.result) ** 2).sum())
        for a, one in zip(actual, expected, strict=True)
    )
    return 10 * math.log10(signal / noise)
