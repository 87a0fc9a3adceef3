"""State, groups, binds, configs and values of the wrong kind are named."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from eager_comparison import lower
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.passes import MemoryPlanningPass
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import Bind, EntryPoint
from etshared_plugin.errors import (
    EntryPointError,
    EtsharedError,
    InputError,
    LoweringError,
    MemoryPlanningError,
    QuantizationError,
    StateError,
    StateMismatchError,
)
from etshared_plugin.testing import assert_matches_eager


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("h", torch.zeros(3))

    def add(self, x: Tensor) -> Tensor:
        self.h += x
        return self.h * 2

    def step(self, x: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
        return x + old, old + 1

    def project(self, x: Tensor) -> Tensor:
        projected: Tensor = self.linear(x)
        return projected


MODEL = _Model().eval()
X = torch.ones(3)


def _exported(**options: Any) -> etshared.ExportedEntryPoints:  # noqa: ANN401
    return etshared.export(MODEL, {"add": EntryPoint(MODEL.add, (X,))}, **options)


@pytest.mark.parametrize(
    ("binds", "message"),
    [
        (
            [Bind(1, 1)],
            r"binds are an instance of list, expected a dict; write {'name'",
        ),
        ({1: Bind(1, 1)}, "bind 1 has a name that no state can have"),
        ({"": Bind(1, 1)}, "bind '' has a name"),
        ({"h*": Bind(1, 1)}, r"bind 'h\*' has a name"),
        ({"s": 3}, "bind 's' is an instance of int, expected a Bind"),
        ({"s": Bind(True, 1)}, "bind 's' has input=True, expected a position or name"),
        ({"s": Bind(1, 1.0)}, r"bind 's' has output=1\.0, expected an index, key or f"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_bind_is_refused(binds: Any, message: str) -> None:  # noqa: ANN401
    entry_point = EntryPoint(MODEL.step, (X, X), binds=binds)
    with pytest.raises(EntryPointError, match=f"'step': {message}"):
        etshared.export(MODEL, {"step": entry_point})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": 3}, "state has an instance of int, expected names"),
        ({"state": [X]}, "state has an instance of Tensor, expected names"),
        ({"groups": ["h"]}, r"groups is an instance of list, .* write {'group': \['h'"),
        ({"groups": {"g": 3}}, "group 'g' has an instance of int, expected names"),
    ],
)
def test_what_names_no_state_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        _exported(**options)


@pytest.mark.parametrize("shapes", [3, "x"])
def test_what_are_no_dynamic_shapes_is_refused(shapes: object) -> None:
    entry_point = EntryPoint(MODEL.add, (X,), dynamic_shapes=shapes)
    message = "dynamic shapes of entry point 'add' are an instance of .*, expected a"
    with pytest.raises(EntryPointError, match=message):
        etshared.export(MODEL, {"add": entry_point})


def test_buffers_that_are_not_dense_are_refused() -> None:
    model = _Model()
    model.register_buffer("odd", torch.eye(3).to_sparse())
    with pytest.raises(StateError, match="'odd' is no dense tensor"):
        etshared.export(model, {"add": EntryPoint(model.add, (X,))})


def test_tensors_without_a_size_are_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(StateError, match=r"'0\.weight' has no size yet; call the modu"):
        etshared.export(model, {"forward": EntryPoint(model.forward, (X,))})
    entry_point = EntryPoint(MODEL.add, (nn.UninitializedBuffer(),))
    with pytest.raises(EntryPointError, match="'add': an example input has no size"):
        etshared.export(MODEL, {"add": entry_point})


@pytest.mark.parametrize("odd", [X.to_sparse(), X.to("meta")])
def test_example_inputs_without_plain_values_are_refused(odd: torch.Tensor) -> None:
    message = "'add': an example input is (no dense tensor|on the meta device)"
    with pytest.raises(EntryPointError, match=message):
        etshared.export(MODEL, {"add": EntryPoint(MODEL.add, (odd,))})


def test_weights_without_values_are_refused() -> None:
    model = nn.Linear(3, 3, device="meta")
    with pytest.raises(StateError, match="'weight' is on the meta device"):
        etshared.export(model, {"forward": EntryPoint(model.forward, (X,))})


def test_what_is_no_config_is_refused() -> None:
    with pytest.raises(LoweringError, match="constant_methods is an instance of int"):
        etshared.to_edge_transform_and_lower(_exported(), constant_methods=3)  # type: ignore[arg-type]
    with pytest.raises(LoweringError, match="compile_config is an instance of int"):
        etshared.to_edge_transform_and_lower(_exported(), compile_config=3)  # type: ignore[arg-type]
    edge = etshared.to_edge_transform_and_lower(_exported())
    with pytest.raises(
        LoweringError, match="config is an instance of int, expected an"
    ):
        edge.to_executorch(3)  # type: ignore[arg-type]
    config = ExecutorchBackendConfig(
        memory_planning_pass={"ad": MemoryPlanningPass()}  # type: ignore[arg-type]
    )
    with pytest.raises(
        MemoryPlanningError, match="'ad', expected some of 'add', 'rese"
    ):
        edge.to_executorch(config)


def test_values_that_are_no_plain_tensors_are_refused() -> None:
    data = lower(MODEL, {"add": EntryPoint(MODEL.add, (X,))})
    session = etshared.load(data, tensors="numpy").session()
    masked = np.ma.MaskedArray(np.ones(3, np.float32), [True, False, False])
    with pytest.raises(InputError, match="masked array"):
        session.add(masked)
    with pytest.raises(EtsharedError, match="masked array"):
        session.state["h"] = masked
    with pytest.raises(StateMismatchError, match="the value for state 'h' is None"):
        session.state["h"] = None
    with pytest.raises(KeyError, match="there is no state"):
        session.state[1]  # type: ignore[index]
    np.testing.assert_array_equal(session.state["h"], np.zeros(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": 3}, "calls is an instance of int, expected several"),
        (
            {"inputs": [X]},
            "inputs is an instance of list, expected a dict of functions",
        ),
        ({"inputs": {"ad": tuple}}, "inputs has 'ad', expected one of 'add'"),
        ({"inputs": {"add": 3}}, "of entry point 'add' is an instance of int"),
    ],
)
def test_what_gives_no_calls_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        assert_matches_eager(MODEL, {"add": EntryPoint(MODEL.add, (X,))}, **options)


def test_attributes_that_cannot_be_copied_are_named() -> None:
    model = nn.Sequential(_Model())
    model[0].lock = threading.Lock()
    message = r"cannot be copied .* attribute '0\.lock' is an instance of lock"
    with pytest.raises(InputError, match=message):
        assert_matches_eager(model, {"add": EntryPoint(model[0].add, (X,))})


def test_calls_of_a_calibration_that_fail_are_named() -> None:
    exported = etshared.export(
        MODEL, {"project": EntryPoint(MODEL.project, (X[None],))}
    )
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config())
    with pytest.raises(InputError, match="calibration is an instance of NoneType"):
        etshared.quantize(exported, quantizer, None)  # type: ignore[arg-type]
    calls = [("project", (X[None],)), ("project", (X[None] * torch.nan,))]
    with pytest.raises(QuantizationError, match="call 2 of the .*, 'project'.*, fails"):
        etshared.quantize(exported, quantizer, calls)
