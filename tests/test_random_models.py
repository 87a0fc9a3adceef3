"""Random models do the same as eager in random sequences of calls."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import eager_comparison  # noqa: F401  (makes exporting quicker)
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_models import RandomModel, random_models
from random_sequences import Runner, random_sequences

import etshared_plugin as etshared
from etshared_plugin.errors import EtsharedError

#: For each model.
SEQUENCES = 7

#: From the tenth example on Hypothesis varies the one before, mostly in what does
#: not matter.
_BATCH = 9


@dataclass
class Tally:
    """What has been compared, and what has been refused."""

    models: set[RandomModel] = field(default_factory=set)
    pairs: set[Any] = field(default_factory=set)
    refused: set[RandomModel] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"{len(self.pairs)} pairs of a model and a sequence,"
            f" {len(self.models)} models, {len(self.refused)} of them refused"
        )


def _partitioner(backend: str) -> list[Any]:
    if backend == "portable":
        return []
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )

    return [XnnpackPartitioner()]


def _export(model: RandomModel) -> etshared.ExportedEntryPoints:
    root = model.build()
    exported = etshared.export(root, model.entry_points(root))
    _assert_untouched(root, model.build())
    return exported


def _assert_untouched(root: torch.nn.Module, fresh: torch.nn.Module) -> None:
    found = {**dict(root.named_parameters()), **dict(root.named_buffers())}
    wanted = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
    assert found.keys() == wanted.keys()
    for name, one in found.items():
        assert torch.equal(one, wanted[name]), name
        assert one.requires_grad == wanted[name].requires_grad, name
    for (name, module), other in zip(
        root.named_modules(), fresh.modules(), strict=True
    ):
        assert module.__dict__.keys() == other.__dict__.keys(), name


# Hypothesis changes sequences too, while it makes a failure small.
@functools.lru_cache(maxsize=2 * _BATCH)
def _runner(model: RandomModel, backend: str) -> Runner:
    edge = etshared.to_edge_transform_and_lower(
        _export(model), partitioner=_partitioner(backend)
    )
    data = bytes(edge.to_executorch().buffer)
    return Runner(model, etshared.load(data, tensors="torch"), data)


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_random_models_do_as_eager(
    backend: str, random_model_count: int, random_model_seed: int
) -> None:
    tally = Tally()

    def compare(model: RandomModel, data: st.DataObject) -> None:
        tally.models.add(model)
        if model.refusal is not None:
            with pytest.raises(EtsharedError, match=model.refusal):
                _export(model)
            tally.refused.add(model)
            return
        runner = _runner(model, backend)
        for number in range(SEQUENCES):
            sequence = data.draw(random_sequences(model), label=f"sequence {number}")
            runner.run(sequence)
            tally.pairs.add((model, sequence))

    for start in range(0, random_model_count, _BATCH):
        one = settings(
            max_examples=min(_BATCH, random_model_count - start),
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        drawn = one(given(random_models(), st.data())(compare))
        seed(f"{random_model_seed}, {backend}, {start}")(drawn)()
    print(f"{backend}: {tally}, from seed {random_model_seed}")
    # Each batch starts with the same smallest model.
    assert len(tally.models) >= 0.8 * random_model_count
    assert len(tally.pairs) >= 0.7 * SEQUENCES * random_model_count
    assert len(tally.refused) <= max(1, 0.1 * len(tally.models))
