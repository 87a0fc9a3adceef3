"""Entry points are quantized as one model."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import quantized_models as models
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import fx, nn

import etshared_plugin as etshared
from etshared_plugin.errors import InputError, QuantizationError
from etshared_plugin.testing import (
    assert_program_matches,
    assert_stock_runtime_matches,
    call,
    eager_outcomes,
    exported_outcomes,
)


def scales_of(program: torch.export.ExportedProgram) -> dict[str, float]:
    """Return the scale of each value that is quantized statically, by its node."""
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    scales = {}
    for node in program.graph.nodes:
        if node.target is quantize:
            source, scale = node.args[:2]
            assert isinstance(source, fx.Node) and isinstance(scale, float)
            scales[source.name] = scale
    return scales


@pytest.mark.parametrize("way", models.WAYS)
def test_results_are_those_of_the_quantized_programs(way: str) -> None:
    programs = models.quantized(way)
    outcomes = exported_outcomes(programs, models.calls(seed=2))
    # XNNPACK rounds halves in another way: results are next to each other on the
    # grid of the last layer. State and codes have finer grids than the decoder.
    step = max(
        [v for k, v in scales_of(programs["forward"]).items() if k.startswith("lin")],
        default=1e-6,
    )
    data = models.lowered(way)
    program = etshared.load(data, tensors="torch")
    assert_program_matches(program, outcomes, atol=1.01 * step)
    assert_stock_runtime_matches(data, outcomes, atol=1.01 * step)


@pytest.mark.parametrize(
    ("way", "decibels"), [("per tensor", 30), ("per channel", 30), ("dynamic", 40)]
)
def test_results_are_close_to_the_float_model(way: str, decibels: float) -> None:
    model, entry_points = models.streamer()
    expected = eager_outcomes(model, entry_points, models.calls(seed=3))
    session = etshared.load(models.lowered(way), tensors="torch").session()
    results = [session[one.call.name](*one.call.args) for one in expected]
    # Eight bits over a range of some four deviations give some 40 dB a layer.
    assert models.signal_to_noise(results, expected) > decibels


@pytest.mark.parametrize("way", models.WAYS)
def test_weights_are_stored_once_and_quantized(way: str) -> None:
    context = models.context_of(models.lowered(way))
    names = {one.name: index for index, one in enumerate(context.entry_points)}
    for layer, users in models.LAYERS.items():
        # XNNPACK has no dynamic quantization for a convolution of one channel, and
        # stores depthwise convolutions in a layout that is not the module's.
        if layer == "conv":
            continue
        (weight,) = [w for w in context.weights if f"{layer}.weight" in w.fqns]
        assert weight.quantization.endswith("int8")
        assert weight.nbytes == models.WIDTH**2
        assert len(weight.keys) == 1
        assert weight.entry_points == ()
        assert {context.delegates[d].entry_point for d in weight.delegates} == {
            names[name] for name in users
        }
    floats = sum(4 * p.numel() for p in models.streamer()[0].parameters())
    assert sum(weight.nbytes for weight in context.weights) < 0.29 * floats
    assert len(models.lowered(way)) < 0.43 * floats


@pytest.mark.parametrize("way", models.WAYS)
def test_weights_are_packed_once(way: str) -> None:
    program = etshared.load(models.lowered(way), tensors="torch")
    program.session().load()
    program.session().load()
    stats = program.stats()
    assert all(one.is_shared for one in stats.entry_points if one.name != "reset_state")
    assert stats.constants_packed == len(models.LAYERS)
    uses = sum(map(len, models.LAYERS.values()))
    assert stats.constants_reused == uses - len(models.LAYERS)
    assert stats.packed_nbytes < 0.35 * 4 * 3 * models.WIDTH**2


def test_nothing_but_the_result_is_changed() -> None:
    model, entry_points = models.streamer()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    attributes = [dict(m.__dict__) for m in model.modules()]
    exported = etshared.export(model, entry_points)
    graphs = {name: str(program.graph) for name, program in exported.items()}
    tensors = {
        name: {k: v.clone() for k, v in program.state_dict.items()}
        for name, program in exported.items()
    }
    quantized = etshared.quantize(
        exported,
        models.quantizer("per channel"),
        [(one.name, one.args) for one in models.calls(1, 8)],
    )
    assert {n: str(program.graph) for n, program in exported.items()} == graphs
    for name, program in exported.items():
        assert_equal(dict(program.state_dict), tensors[name])
    assert_equal(dict(model.state_dict()), before)
    assert [dict(m.__dict__) for m in model.modules()] == attributes
    assert list(quantized.state) == ["hidden", "past"]
    for fqn, buffer in quantized.state.items():
        assert_equal({fqn: buffer.initial_value}, {fqn: before[fqn]})
        for program in quantized.values():
            if fqn in program.state_dict:
                assert_equal({fqn: program.state_dict[fqn]}, {fqn: before[fqn]})


def assert_equal(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        assert torch.equal(actual[name], value), name


class _Layers(nn.Module):
    """One layer in two entry points with inputs of different ranges, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(2, 4))
        self.register_buffer("adapted", torch.eye(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int32))

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        self.count = self.count * 2 + 1
        return self.layer(x)

    def read(self) -> torch.Tensor:
        return self.layer(self.total)

    def adapt(self, x: torch.Tensor) -> torch.Tensor:
        self.adapted = self.adapted * 2
        return nn.functional.linear(x, self.adapted)

    def scaled(self, x: torch.Tensor, *, by: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(x * by["factor"])


@functools.cache
def layers() -> etshared.ExportedEntryPoints:
    model = _Layers().eval()
    x = torch.ones(2, 4)
    factor = {"factor": torch.full((4,), 0.5)}
    return etshared.export(
        model,
        {
            "add": etshared.EntryPoint(model.add, (x,)),
            "read": etshared.EntryPoint(model.read),
            "adapt": etshared.EntryPoint(model.adapt, (x,)),
            "scaled": etshared.EntryPoint(
                model.scaled,
                (x,),
                {"by": factor},
                dynamic_shapes={
                    "x": {0: torch.export.Dim("n", min=1, max=9)},
                    "by": {"factor": None},
                },
            ),
        },
    )


_X = torch.linspace(0.5, 1, 8).reshape(2, 4)
_CALIBRATION: list[tuple[str, tuple[torch.Tensor, ...]]] = [
    *[("add", (_X,))] * 10,
    ("read", ()),
    ("adapt", (_X,)),
]
_SCALED = ("scaled", (_X,), {"by": {"factor": torch.full((4,), 0.5)}})


def input_scales(programs: etshared.ExportedEntryPoints) -> dict[str, float]:
    """Return the scale of the layer's input in each entry point."""
    scales = {}
    for name, program in programs.items():
        for node in program.graph.nodes:
            if node.target is torch.ops.aten.linear.default and name != "adapt":
                scales[name] = node.args[0].args[1]
    return scales


def test_state_flows_from_call_to_call_of_the_calibration() -> None:
    quantizer = models.quantizer("per channel")
    scales = input_scales(
        etshared.quantize(layers(), quantizer, [*_CALIBRATION, _SCALED])
    )
    # Ten times what was added; a histogram of it is exact to a bin.
    assert scales["read"] == pytest.approx(10 / 255, rel=0.02)
    # One layer has one range for its input, that of all calls together.
    assert scales["add"] == scales["read"] == scales["scaled"]
    again = [*_CALIBRATION[:9], ("reset_state", ()), *_CALIBRATION[9:], _SCALED]
    reset = input_scales(etshared.quantize(layers(), quantizer, again))
    assert reset["read"] == pytest.approx(1 / 255, rel=0.02)


def test_integers_stay_integers() -> None:
    programs = etshared.quantize(
        layers(), models.quantizer("per tensor"), [*_CALIBRATION, _SCALED]
    )
    outcomes = exported_outcomes(programs, [call("add", _X)] * 5)
    for step, outcome in enumerate(outcomes):
        count = torch.tensor(2 ** (step + 1) - 1, dtype=torch.int32)
        assert_equal({"count": outcome.state["count"]}, {"count": count})


def test_calibration_may_be_a_generator_or_by_entry_point() -> None:
    quantizer = models.quantizer("per tensor")
    calls = [*_CALIBRATION, ("scaled", (_X, {"factor": torch.ones(4)}))]
    with pytest.raises(InputError, match="entry point 'scaled': got 2 positional"):
        etshared.quantize(layers(), quantizer, calls)
    wanted = graphs_of(etshared.quantize(layers(), quantizer, [*_CALIBRATION, _SCALED]))
    generator = (call for call in [*_CALIBRATION, _SCALED])
    assert graphs_of(etshared.quantize(layers(), quantizer, generator)) == wanted
    without = etshared.ExportedEntryPoints(
        {n: p for n, p in layers().items() if n != "scaled"}, layers().state
    )
    by_entry_point: dict[str, list[tuple[torch.Tensor, ...]]] = {}
    for name, args in _CALIBRATION:
        by_entry_point.setdefault(name, []).append(args)
    expected = graphs_of(etshared.quantize(without, quantizer, _CALIBRATION))
    assert graphs_of(etshared.quantize(without, quantizer, by_entry_point)) == expected


def graphs_of(programs: etshared.ExportedEntryPoints) -> dict[str, str]:
    return {name: str(program.graph) for name, program in programs.items()}


def _quantized_linears() -> etshared.ExportedEntryPoints:
    quantizer = XNNPACKQuantizer().set_operator_type(
        torch.ops.aten.linear.default,
        get_symmetric_quantization_config(is_per_channel=True),
    )
    return etshared.quantize(layers(), quantizer, [*_CALIBRATION, _SCALED])


def test_layers_whose_weight_is_state_stay_as_they_are_and_sizes_open() -> None:
    programs = _quantized_linears()
    edge = etshared.to_edge_transform_and_lower(
        programs, partitioner=[XnnpackPartitioner()]
    )
    data = bytes(edge.to_executorch().buffer)
    calls = [call("adapt", _X)] * 6
    calls += [call("add", _X), call("read")]
    calls += [
        call("scaled", _X[:1].repeat(n, 1), by={"factor": torch.full((4,), 0.5)})
        for n in (1, 9, 2)
    ]
    outcomes = exported_outcomes(programs, calls)
    assert torch.equal(outcomes[5].result, 64 * _X)
    program = etshared.load(data, tensors="torch")
    step = max(scales_of(programs["read"]).values())
    assert_program_matches(program, outcomes, atol=step)
    assert_stock_runtime_matches(data, outcomes, atol=step)
    session = program.session()
    for _ in range(10):
        session.add(_X)
    expected = _Layers().eval().layer(10 * _X).detach()
    torch.testing.assert_close(session.read(), expected, atol=2 * step, rtol=0.0)


def test_the_same_data_give_the_same_programs() -> None:
    first, second = _quantized_linears(), _quantized_linears()
    assert graphs_of(first) == graphs_of(second)
    for name, program in first.items():
        assert_equal(dict(program.state_dict), dict(second[name].state_dict))
        assert list(program.state_dict) == list(second[name].state_dict)


def test_plain_programs_are_quantized_too() -> None:
    model = _Layers().eval()
    programs = {
        "add": torch.export.export(_Method(model, "add"), (_X,)),
        "read": torch.export.export(_Method(model, "read"), ()),
    }
    quantized = etshared.quantize(
        programs, models.quantizer("per channel"), _CALIBRATION[:-1]
    )
    assert list(quantized.state) == ["model.total"]
    scales = input_scales(quantized)
    assert scales["add"] == scales["read"]
    assert scales["read"] == pytest.approx(10 / 255, rel=0.02)


def test_layers_of_two_modules_with_one_name_have_ranges_of_their_own() -> None:
    torch.manual_seed(6)
    roots = {
        name: nn.Sequential(OrderedDict(linear=nn.Linear(4, 4))).eval()
        for name in ("small", "large")
    }
    inputs = {"small": (_X / 10,), "large": (_X * 100,)}
    quantized = etshared.quantize(
        {name: torch.export.export(m, inputs[name]) for name, m in roots.items()},
        models.quantizer("per channel"),
        list(inputs.items()),
    )
    scales = input_scales(quantized)
    assert scales["small"] == pytest.approx(0.1 / 255, rel=0.02)
    assert scales["large"] == pytest.approx(100 / 255, rel=0.02)
    calls = [call(name, *args) for name, args in inputs.items()]
    for outcome in exported_outcomes(quantized, calls):
        name = outcome.call.name
        expected = roots[name](*inputs[name]).detach()
        error = (outcome.result - expected).abs().max()
        assert error < 0.02 * expected.abs().max()


class _Method(nn.Module):
    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(self.model, self.name)(*args)
        return result


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        ([], "'add' has no calibration data for 'b_total'; add calls of 'add'"),
        (_CALIBRATION, "'scaled' has no calibration data for 'x'"),
        ([("sub", ())], "there is no entry point 'sub', only 'add', 'read'"),
        ([("add", (_X.double(),))], "'add': input 'x' is float64, expected float32"),
        ([("add", (_X[:1],))], r"input 'x' is of shape \[1, 4\], expected \[2, 4\]"),
        ([("add", (1.0,))], "input 'x' is a float, expected a tensor"),
        ([("add", ())], r"'add': got 0 positional inputs and \[\], expected.*: x"),
        ([("add", (_X,), {"y": 1})], r"got 1 positional input and \['y'\]"),
        ([("add", _X)], "'add': args are a Tensor, expected a tuple"),
        (["add"], r"a call is 'add', expected \(name, args\), .*call makes"),
        (
            [("scaled", (torch.ones(10, 4),), {"by": {"factor": torch.ones(4)}})],
            r"input 'x' is of shape \[10, 4\]",
        ),
        ([("scaled", (_X,), {"by": torch.ones(4)})], "inputs are nested as"),
    ],
)
def test_calibration_that_does_not_fit_is_refused(
    calibration: list[Any], message: str
) -> None:
    with pytest.raises((InputError, QuantizationError), match=message):
        etshared.quantize(layers(), models.quantizer("per tensor"), calibration)


def test_a_quantizer_that_annotates_nothing_is_refused() -> None:
    with pytest.raises(
        QuantizationError, match="XNNPACKQuantizer annotates no operator of entry"
    ):
        etshared.quantize(layers(), XNNPACKQuantizer(), _CALIBRATION)


def test_an_error_of_the_quantizer_names_the_entry_point() -> None:
    class Broken(XNNPACKQuantizer):  # type: ignore[misc]
        def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
            raise RuntimeError("out of numbers")

    with pytest.raises(
        QuantizationError, match="'add' cannot be quantized: RuntimeError: out of"
    ):
        etshared.quantize(layers(), Broken(), _CALIBRATION)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = layers(), models.quantizer("per tensor"), [*_CALIBRATION, _SCALED]
    etshared.quantize(*arguments)
    assert capfd.readouterr() == ("", "")
    for name in ("TTY_COMPATIBLE", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    etshared.quantize(*arguments)
    assert "calibrating" in terminal.getvalue()
    assert "13/13" in terminal.getvalue()


def test_what_no_delegate_takes_runs_in_kernels(tmp_path: Path) -> None:
    programs = etshared.quantize(
        layers(), models.quantizer("per channel"), [*_CALIBRATION, _SCALED]
    )
    path = tmp_path / "layers.pte"
    etshared.to_edge_transform_and_lower(programs).to_executorch().save(str(path))
    outcome, last = exported_outcomes(programs, [call("add", _X), call("read")])
    code = f"""
import numpy as np
import etshared_plugin as etshared
session = etshared.load({str(path)!r}).session()
print(session.add(np.array({_X.tolist()}, np.float32)).tolist())
print(session.read().tolist())
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    for line, one in zip(finished.stdout.splitlines(), (outcome, last), strict=True):
        torch.testing.assert_close(torch.tensor(json.loads(line)), one.result)
