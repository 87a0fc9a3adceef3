"""Random models do the same as eager in random sequences of calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Batch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from random_models import RandomModel, random_models
from random_sequences import Runner, random_sequences

import etshared_plugin as etshared
from etshared_plugin.errors import EtsharedError

#: For each model.
SEQUENCES = 7


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
@functools.lru_cache(maxsize=32)
def _runner(model: RandomModel, backend: str) -> Runner:
    edge = etshared.to_edge_transform_and_lower(
        _export(model), partitioner=_partitioner(backend)
    )
    data = bytes(edge.to_executorch().buffer)
    return Runner(model, etshared.load(data, tensors="torch"), data)


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_random_models_do_as_eager(
    backend: str,
    random_models_batch: Batch,
    record_property: Callable[[str, object], None],
) -> None:
    models: set[RandomModel] = set()
    refused: set[RandomModel] = set()
    pairs: set[Any] = set()

    def compare(model: RandomModel, data: st.DataObject) -> None:
        models.add(model)
        if model.refusal is not None:
            with pytest.raises(EtsharedError, match=model.refusal):
                _export(model)
            refused.add(model)
            return
        runner = _runner(model, backend)
        for number in range(SEQUENCES):
            sequence = data.draw(random_sequences(model), label=f"sequence {number}")
            runner.run(sequence)
            pairs.add((model, sequence))

    count = random_models_batch.count
    one = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    drawn = one(given(random_models(), st.data())(compare))
    seed(f"{backend}, {random_models_batch}")(drawn)()
    for name, found in ("models", models), ("refused", refused), ("pairs", pairs):
        record_property(name, len(found))
    assert len(models) >= 0.6 * count
    # A batch starts with the smallest model and the smallest sequences of it.
    assert len(pairs) > SEQUENCES * (len(models) - len(refused) - 1)
    assert len(refused) <= max(1, 0.5 * len(models))
