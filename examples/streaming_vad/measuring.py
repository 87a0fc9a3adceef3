"""Export the model, and measure how its programs do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)

import etshared_plugin as etshared

from .model import CHUNK_SAMPLES, SAMPLE_RATE, load_model, load_reference


@dataclass(frozen=True)
class Round:
    """One pass over the recording; differences are the largest of all chunks."""

    probabilities: list[float]
    forward_difference: float
    peek_difference: float


def export(path: Path, names: tuple[str, ...]) -> Path:
    """Write a program with these methods of the model as entry points."""
    vad = load_model()
    chunk = torch.zeros(1, CHUNK_SAMPLES)
    entry_points = {
        "forward": etshared.EntryPoint(vad.forward, (chunk,)),
        "peek": etshared.EntryPoint(vad.peek, (chunk,)),
        "reset": etshared.EntryPoint(vad.reset),
    }
    exported = etshared.export(
        vad,
        {name: entry_points[name] for name in names},
        state=["state", "context"],
    )
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()]
    )
    edge.to_executorch().save(str(path))
    return path


def stream(session: etshared.Session, chunks: npt.NDArray[np.float32]) -> Round:
    """Run the session, as it is now, and the original from its start."""
    reference = load_reference()
    probabilities = []
    forward_differences = []
    peek_differences = []
    with torch.no_grad():
        for samples in chunks:
            chunk = torch.from_numpy(samples)
            expected = reference(chunk, SAMPLE_RATE).item()
            peeked = session.peek(chunk).item()
            probability = session.forward(chunk).item()
            probabilities.append(probability)
            forward_differences.append(abs(probability - expected))
            peek_differences.append(abs(peeked - expected))
    return Round(probabilities, max(forward_differences), max(peek_differences))
