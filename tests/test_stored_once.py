"""What kernels and delegates have in common is stored once."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from eager_comparison import assert_program_equals, call, eager_outcomes
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig
from torch import nn

import etshared_plugin as etshared
from etshared_plugin.cli import main
from etshared_plugin.lowering.stored_once import stored_once
from etshared_plugin.pte import PteFile
from etshared_plugin.testing import Outcome

_MIB = 2**20


class Tied(nn.Module):
    """Rows of a table of 1 MiB, looked up by a kernel and multiplied by XNNPACK."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Parameter(torch.randn(7, 5))
        self.table = nn.Embedding(1024, 256)
        self.table.weight.data /= 16
        self.register_buffer("count", torch.zeros(()))

    def embed(self, token: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.table(token) * self.first.sum()

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.table.weight)

    def both(self, token: torch.Tensor) -> torch.Tensor:
        return self.score(self.table(token)) + self.count


_TOKEN = torch.tensor([[3, 1000]])
_X = torch.linspace(-1, 1, 512).reshape(2, 256)
_CALLS = [
    call("embed", _TOKEN),
    call("score", _X),
    call("both", _TOKEN),
    call("embed", _TOKEN + 1),
]


@functools.cache
def tied() -> tuple[bytes, list[Outcome]]:
    model = Tied().eval()
    entry_points = {
        "embed": etshared.EntryPoint(model.embed, (_TOKEN,)),
        "score": etshared.EntryPoint(model.score, (_X,)),
        "both": etshared.EntryPoint(model.both, (_TOKEN,)),
    }
    exported = etshared.export(model, entry_points)
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()]
    )
    outcomes = eager_outcomes(model, entry_points, _CALLS)
    return bytes(edge.to_executorch().buffer), outcomes


def test_a_tied_table_is_stored_once_and_right_in_both_runtimes() -> None:
    data, outcomes = tied()
    assert len(data) < 1.06 * _MIB
    table = Tied().table.weight.detach().numpy().tobytes()
    assert data.count(table) == 1
    assert_program_equals(data, outcomes)


def test_it_is_right_from_a_file_and_packed_once(tmp_path: Path) -> None:
    data, outcomes = tied()
    path = tmp_path / "tied.pte"
    path.write_bytes(data)
    program = etshared.load(path, tensors="torch")
    sessions = [program.session(), program.session()]
    for session in sessions:
        for outcome in outcomes:
            result = session[outcome.call.name](*outcome.call.args)
            torch.testing.assert_close(result, outcome.result)
    assert program.stats().constants_packed == 1


def test_nothing_is_said_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tied.pte"
    path.write_bytes(tied()[0])
    assert main(["verify", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_damage_to_the_one_copy_is_found_for_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(tied()[0])
    table = Tied().table.weight.detach().numpy().tobytes()
    data[data.index(table) + 500_000] ^= 1
    path = tmp_path / "damaged.pte"
    path.write_bytes(data)
    assert main(["verify", str(path), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {one["code"] for one in findings} == {"weight"}
    assert len(findings) >= 3  # the named datum, and two methods that look up


def test_what_lies_in_the_constants_already_is_left_alone() -> None:
    data = tied()[0]
    alignments = dict.fromkeys(PteFile(data).named_data_segments, 1)
    assert stored_once(data, alignments, 128) == data


def test_what_cannot_be_read_is_left_alone() -> None:
    data = tied()[0][:-100_000]
    assert stored_once(data, {}, 128) == data


class Layer(nn.Module):
    """One layer of 1 MiB, in XNNPACK for one entry point and not for the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(512, 512)

    def quick(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + 1


@pytest.mark.parametrize("segment_alignment", [128, 4096])
def test_a_layer_in_a_delegate_and_outside_is_stored_once(
    segment_alignment: int,
) -> None:
    model = Layer().eval()
    x = torch.linspace(-1, 1, 1024).reshape(2, 512)
    entry_points = {
        name: etshared.EntryPoint(getattr(model, name), (x,))
        for name in ("quick", "plain")
    }
    edge = etshared.to_edge_transform_and_lower(
        etshared.export(model, entry_points),
        partitioner={"quick": [XnnpackPartitioner()], "plain": []},
    )
    config = ExecutorchBackendConfig(segment_alignment=segment_alignment)
    data = bytes(edge.to_executorch(config).buffer)
    assert len(data) < 1.06 * _MIB
    for segment in PteFile(data).segments:
        if segment.nbytes < 2048:  # the others are the layer's
            assert segment.offset % segment_alignment == 0
    calls = [call("quick", x), call("plain", x)]
    assert_program_equals(data, eager_outcomes(model, entry_points, calls))
