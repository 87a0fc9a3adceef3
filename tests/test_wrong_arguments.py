"""What is passed by mistake is named, with what was meant."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from torch import Tensor, nn
from torch.export import ExportedProgram

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import (
    EntryPointError,
    InputError,
    LoweringError,
    PartitionError,
    QuantizationError,
    StateMismatchError,
)
from etshared_plugin.testing import (
    assert_matches_eager,
    call,
    eager_outcomes,
    exported_outcomes,
)


class _Part(nn.Module):
    def scale(self, x: Tensor | None = None) -> Tensor:
        return x * 3


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = _Part()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x
        return self.total * 2

    def read(self) -> Tensor:
        return self.total + 1

    @staticmethod
    def double(x: Tensor) -> Tensor:
        return 2 * x


X = torch.tensor([1.0, -2.0])
MODEL = _Model()
ENTRY_POINTS = {"forward": EntryPoint(MODEL.forward, (X,))}


@functools.cache
def _program() -> ExportedProgram:
    return torch.export.export(nn.Linear(2, 2), (X,))


PROGRAMS = [
    (MODEL, "programs is an instance of _Model, expected what .*export returns"),
    (_Model, "programs is the class _Model, expected what"),
    (ENTRY_POINTS, "program 'forward' is an instance of EntryPoint, expected what"),
    ([MODEL], "programs is an instance of list, expected"),
    ({}, "there is no program"),
]


@pytest.mark.parametrize(("given", "message"), PROGRAMS)
@pytest.mark.parametrize(
    "use",
    [
        etshared.to_edge_transform_and_lower,
        lambda given: etshared.quantize(given, XNNPACKQuantizer()),
        lambda given: exported_outcomes(given, [call("forward", X)]),
    ],
    ids=["lower", "quantize", "outcomes"],
)
def test_what_is_not_exported_is_refused(
    use: Callable[[Any], object], given: object, message: str
) -> None:
    with pytest.raises(EntryPointError, match=message):
        use(given)


@pytest.mark.parametrize(
    ("root", "message"),
    [
        (_Model, r"root is the class _Model, expected an instance of it; write _Model"),
        (MODEL.forward, "root is an instance of method, expected a torch.nn.Module"),
        (None, "root is an instance of NoneType, expected a torch.nn.Module"),
    ],
)
@pytest.mark.parametrize(
    "use",
    [etshared.export, assert_matches_eager, lambda *a: eager_outcomes(*a, [])],
    ids=["export", "matches", "outcomes"],
)
def test_what_is_no_module_is_refused(
    use: Callable[[Any, Any], object], root: object, message: str
) -> None:
    with pytest.raises(EntryPointError, match=message):
        use(root, ENTRY_POINTS)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (_Model, "'f' is the class _Model, expected a method; write .*model.f"),
        (3, "'f' is an instance of int, expected a method"),
        (
            _Part.scale,
            "'f' is _Part.scale without an instance, and the root is a _Model; write"
            ".*with the _Part that",
        ),
    ],
)
def test_what_is_no_method_of_the_model_is_refused(fn: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(EntryPointError, match=message):
        etshared.export(MODEL, {"f": EntryPoint(fn, (X,))})


def test_methods_of_the_class_are_called_on_the_root() -> None:
    entry_points = {
        "forward": EntryPoint(_Model.forward, (X,)),
        "read": EntryPoint(_Model.read),
        "double": EntryPoint(_Model.double, (X,)),
    }
    calls = [call("forward", X), call("read"), call("double", X), call("forward", X)]
    outcomes = exported_outcomes(etshared.export(MODEL, entry_points), calls)
    results = [one.result for one in outcomes]
    torch.testing.assert_close(results, [2 * X, X + 1, 2 * X, 4 * X])
    results = [one.result for one in eager_outcomes(MODEL, entry_points, calls)]
    torch.testing.assert_close(results, [2 * X, X + 1, 2 * X, 4 * X])
    with pytest.raises(EntryPointError, match=r"signature \(x: .*missing .* 'x'"):
        etshared.export(MODEL, {"forward": EntryPoint(_Model.forward)})


@pytest.mark.parametrize("quantizer", [XNNPACKQuantizer, None, MODEL])
def test_what_is_no_quantizer_is_refused(quantizer: Any) -> None:  # noqa: ANN401
    with pytest.raises(QuantizationError, match="quantizer is .*, expected a quantiz"):
        etshared.quantize(_program(), quantizer)


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        (XnnpackPartitioner, r"is the class Xnn.*, such as XnnpackPartitioner\(\)"),
        ([XnnpackPartitioner], "of entry point 'forward' is the class XnnpackPart"),
        ("XNNPACK", "'forward' is an instance of str, expected a Partitioner or a"),
    ],
)
def test_what_is_no_partitioner_is_refused(partitioner: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(PartitionError, match=message):
        etshared.to_edge_transform_and_lower(_program(), partitioner=partitioner)


@pytest.mark.parametrize("as_list", [True, False])
def test_a_partitioner_among_the_passes_is_refused(as_list: bool) -> None:
    one = XnnpackPartitioner()
    with pytest.raises(PartitionError, match="XnnpackPartitioner; pass it as 'partit"):
        etshared.to_edge_transform_and_lower(_program(), [one] if as_list else one)


@pytest.mark.parametrize("passes", [3, [3], {"forward": [3]}, [XnnpackPartitioner]])
def test_what_is_no_pass_is_refused(passes: Any) -> None:  # noqa: ANN401
    message = "transform_passes is or has (an instance of int|the class Xnn.*), expecte"
    with pytest.raises(LoweringError, match=message):
        etshared.to_edge_transform_and_lower(_program(), passes)


def test_names_are_checked_at_each_step_of_lowering() -> None:
    with pytest.raises(
        LoweringError, match="passes for entry point 'frward', expected"
    ):
        etshared.to_edge_transform_and_lower(_program(), {"frward": []})
    edge = etshared.to_edge_transform_and_lower(_program())
    with pytest.raises(
        LoweringError, match="passes for entry point 'frward', expected"
    ):
        edge.transform({"frward": []})
    with pytest.raises(PartitionError, match="is for entry point 'frward', expected"):
        edge.to_backend({"frward": XnnpackPartitioner()})
    with pytest.raises(PartitionError, match="'forward' is the class XnnpackPartition"):
        edge.to_backend([XnnpackPartitioner])


def _apply(model: _Model, x: Tensor) -> Tensor:
    return model.double(x) + model.total


@pytest.mark.parametrize(
    "entry_point",
    [EntryPoint(_apply, (MODEL, X)), EntryPoint(_apply, (), {"x": X, "model": MODEL})],
)
def test_a_module_among_the_inputs_is_refused(entry_point: EntryPoint) -> None:
    message = "'apply' has an instance of _Model, a module, among its inputs; write .*"
    with pytest.raises(EntryPointError, match=message + r"partial\(fn, module\)"):
        etshared.export(MODEL, {"apply": entry_point})


def test_a_module_may_be_the_argument_of_a_partial() -> None:
    entry_points = {
        "partial": EntryPoint(functools.partial(_apply, MODEL), (X,)),
        "root": EntryPoint(_apply, (X,)),
        "forward": ENTRY_POINTS["forward"],
    }
    calls = [call(name, X) for name in ("forward", "partial", "forward", "root")]
    assert_matches_eager(MODEL, entry_points, calls)


def test_what_names_no_state_is_refused() -> None:
    exported = etshared.export(MODEL, ENTRY_POINTS)
    edge = etshared.to_edge_transform_and_lower(exported)
    session = etshared.load(edge.to_executorch().buffer).session()
    names: Any
    for names in (3, [3], ["total", None]):
        for use in (session.snapshot, session.reset):
            with pytest.raises(StateMismatchError, match="named by an instance of "):
                use(names)
    assert list(session.snapshot(["total"])) == ["total"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": 3}, "types is an instance of int, expected a list of classes"),
        ({"types": [3]}, "types has an instance of int, expected classes"),
        ({"types": _Model}, "types is the class _Model, expected a list of classes"),
        ({"data_files": 3}, "data_files is one int, expected a list of paths"),
    ],
)
def test_what_load_does_not_take_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        etshared.load(b"", **options)
