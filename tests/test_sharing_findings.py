"""What entry points could share and do not, ``verify`` and ``inspect`` say."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eager_comparison import lower
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir._serialize._program import PTEFile
from executorch.exir.lowered_backend_module import LoweredBackendModule
from program_builders import edited
from torch import nn

import etshared_plugin as etshared
from etshared_plugin.cli import main
from etshared_plugin.context import CONTEXT_KEY, encode
from etshared_plugin.hookspecs import IdentifiedConstants, hookimpl
from etshared_plugin.plugins import plugin_manager
from etshared_plugin.pte import PteFile

MIB = 1 << 20
Findings = list[dict[str, str]]
Show = Callable[[bytes], Findings]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """Return what both commands print, as JSON and as text, of a sound file."""

    def show(data: bytes) -> Findings:
        path = tmp_path / "program.pte"
        path.write_bytes(data)
        found = []
        for command in ("verify", "inspect"):
            capsys.readouterr()
            assert main([command, str(path), "--json"]) == 0
            report = json.loads(capsys.readouterr().out)
            assert report["version"] == 1
            found.append(report["findings"])
            assert main([command, str(path)]) == 0
            text = capsys.readouterr().out
            for one in report["findings"]:
                line = "{severity} [{code}] {place}: {message}".format(**one)
                assert line in text.splitlines()
            assert text.count("note [") == len(report["findings"])
        assert found[0] == found[1]
        return found[0]

    return show


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(512, 512, bias=False)
        self.narrow = nn.Linear(32, 32)
        self.conv = nn.Conv2d(8, 8, 3)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.wide(x))

    def see(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)

    def look(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))

    def look_twice(self, x: torch.Tensor) -> torch.Tensor:
        strided = nn.functional.conv2d(
            x, self.conv.weight, self.conv.bias, stride=2, padding=2
        )
        return self.conv(x) + strided

    def small(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(x)

    def large(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(30 * x)


IMAGE = torch.ones(1, 8, 6, 6)
WIDE = torch.ones(1, 512)
NARROW = torch.linspace(-1, 1, 64).reshape(2, 32)


def entry_points(
    model: Layers, **arguments: torch.Tensor
) -> dict[str, etshared.EntryPoint]:
    return {
        name: etshared.EntryPoint(getattr(model, name), (x,))
        for name, x in arguments.items()
    }


@functools.cache
def wide() -> bytes:
    model = Layers().eval()
    declared = entry_points(model, encode=WIDE, decode=WIDE)
    return lower(model, declared, [XnnpackPartitioner()])


@functools.cache
def half_delegated() -> bytes:
    model = Layers().eval()
    exported = etshared.export(
        model, entry_points(model, encode=WIDE, decode=WIDE, see=IMAGE, look=IMAGE)
    )
    partitioners = {name: [XnnpackPartitioner()] for name in ("encode", "see")}
    edge = etshared.to_edge_transform_and_lower(exported, partitioner=partitioners)
    return bytes(edge.to_executorch().buffer)


def test_a_weight_that_delegates_share_is_stored_once(shown: Show) -> None:
    assert len(wide()) <= 1_060_000
    assert shown(wide()) == []


def test_a_weight_of_kernels_and_delegates_is_stored_twice(shown: Show) -> None:
    # ExecuTorch's own writer gives constants and named data bytes of their own.
    data = edited(half_delegated(), lambda file: None)
    assert 2 * MIB < len(data) < 2.1 * MIB
    convolution, linear = shown(data)
    assert linear == {
        "severity": "note",
        "code": "stored-twice",
        "place": "weight 'wide.weight'",
        "message": f"its {MIB} bytes are stored for kernels of entry point 'decode' "
        "and again for XnnpackBackend in entry point 'encode': kernels read the "
        "program's constants, delegates its named data; with a partitioner that "
        "takes the operators of this weight in all of these entry points it is stored "
        "once",
    }
    # XNNPACK has the channels last.
    assert convolution["place"] == "weight 'conv.weight'"
    assert (
        "its 2304 bytes are stored for kernels of entry point 'look' and again, in "
        "another layout, for XnnpackBackend in entry point 'see'"
    ) in convolution["message"]


def test_other_values_of_one_name_are_not_stored_twice(shown: Show) -> None:
    first, second = Layers().eval(), Layers().eval()
    with torch.no_grad():
        second.conv.weight.add_(1)
    programs = {
        **etshared.export(first, entry_points(first, see=IMAGE)),
        **etshared.export(second, entry_points(second, look=IMAGE)),
    }
    edge = etshared.to_edge_transform_and_lower(
        programs, partitioner={"see": [XnnpackPartitioner()]}
    )
    data = bytes(edge.to_executorch().buffer)
    context = PteFile(data).shared_context()
    assert context is not None
    assert [w.fqns for w in context.weights if w.nbytes == 2304] == [
        ("conv.weight",)
    ] * 2
    assert shown(data) == []


def _quantized(
    model: Layers, *names: str
) -> Mapping[str, torch.export.ExportedProgram]:
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True)
    )
    declared = entry_points(model, **dict.fromkeys(names, NARROW))
    calibration = [(name, (NARROW,)) for name in names]
    return etshared.quantize(etshared.export(model, declared), quantizer, calibration)


@pytest.mark.parametrize("together", [True, False])
def test_a_layer_is_packed_for_each_range_of_its_input(
    together: bool, shown: Show
) -> None:
    model = Layers().eval()
    if together:
        programs = _quantized(model, "small", "large")
    else:
        programs = {**_quantized(model, "small"), **_quantized(model, "large")}
    edge = etshared.to_edge_transform_and_lower(
        programs, partitioner=[XnnpackPartitioner()]
    )
    data = bytes(edge.to_executorch().buffer)
    found = shown(data)
    program = etshared.load(data, tensors="torch")
    program.session().load()
    assert program.stats().constants_packed == (1 if together else 2)
    if together:
        assert found == []
        return
    (finding,) = found
    assert (finding["code"], finding["place"]) == (
        "packed-repeatedly",
        "weight 'narrow.weight'",
    )
    assert finding["message"] == (
        "its 1024 bytes are packed 2 times, for entry points 'large'; 'small': they "
        "differ in bias, quantization of input1, quantization of output"
    )


@pytest.fixture
def unseparated() -> Iterator[None]:
    """Identify nothing, so that a constant may be packed in several ways."""

    class Plugin:
        @hookimpl
        def etshared_identify_constants(
            self, lowered_module: LoweredBackendModule
        ) -> IdentifiedConstants:
            stored = lowered_module.named_data_store_output
            assert stored is not None
            return IdentifiedConstants(
                lowered_module.processed_bytes,
                {key: key for key in stored.pte_data},
                {"weight_cache_enabled": "false"},
            )

    plugin_manager.cache_clear()
    plugin_manager().register(Plugin(), "tested", "dist", "1")
    yield
    plugin_manager.cache_clear()


def test_a_constant_that_is_packed_in_two_ways_keeps_its_method_from_sharing(
    unseparated: None, shown: Show
) -> None:
    model = Layers().eval()
    declared = entry_points(model, look_twice=IMAGE)
    data = lower(model, declared, [XnnpackPartitioner()])
    assert shown(data) == [
        {
            "severity": "note",
            "code": "not-shared",
            "place": "entry point 'look_twice', delegate 0",
            "message": "it packs 'conv.weight' in several ways, which differ in "
            "padding_bottom, padding_left, padding_right, padding_top, "
            "subsampling_height, subsampling_width, so each session packs all weights "
            "of this entry point for itself, here 'conv.weight'",
        }
    ]
    program = etshared.load(data)
    program.session().load()
    (stats,) = program.stats().entry_points
    assert stats.not_shared == "the record does not allow it for delegate 0"


def test_weights_whose_type_may_not_be_shared_are_told_of(shown: Show) -> None:
    model = nn.Linear(32, 32).eval().to(torch.bfloat16)
    declared = {"forward": etshared.EntryPoint(model, (NARROW.bfloat16(),))}
    (finding,) = shown(lower(model, declared, [XnnpackPartitioner(enable_bf16=True)]))
    assert (finding["code"], finding["place"]) == (
        "not-shared",
        "entry point 'forward', delegate 0",
    )
    assert "crashes where it shares bfloat16 weights" in finding["message"]
    assert finding["message"].endswith("here 'weight'")


@pytest.mark.parametrize(
    ("options", "value"),
    [((("weight_cache_enabled", "false"),), "'false'"), ((), "not set")],
)
def test_a_delegate_that_may_not_share_is_told_of(
    options: tuple[tuple[str, str], ...], value: str, shown: Show
) -> None:
    context = PteFile(wide()).shared_context()
    assert context is not None
    # Delegate 0 is that of 'decode'.
    first, second = context.delegates
    changed = replace(context, delegates=(replace(first, options=options), second))

    def edit(file: PTEFile) -> None:
        assert file.named_data is not None
        entry = file.named_data.pte_data[CONTEXT_KEY]
        file.named_data.buffers[entry.buffer_index] = encode(changed)

    (finding,) = shown(edited(wide(), edit))
    assert (finding["code"], finding["place"]) == (
        "not-shared",
        "entry point 'decode', delegate 0",
    )
    assert finding["message"] == (
        f"its option 'weight_cache_enabled' is {value}, so each session packs all "
        "weights of this entry point for itself, here 'wide.weight'"
    )
