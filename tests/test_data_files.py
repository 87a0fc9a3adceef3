"""Programs that keep constants in files beside themselves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eager_comparison import (
    Outcome,
    assert_stock_runtime_matches,
    call,
    eager_outcomes,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize.data_serializer import DataPayload
from executorch.exir.passes.external_constants_pass import (
    delegate_external_constants_pass_unlifted,
)
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer
from runtime_programs import recurrent
from torch import Tensor, fx, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.cli import main
from etshared_plugin.errors import EtsharedError, InputError, ProgramFormatError
from etshared_plugin.inspection import verify_program
from etshared_plugin.testing import assert_program_matches


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("h", torch.full((1, 8), 0.5))
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x) + self.h)
        self.h.copy_(torch.sin(y))
        return y * 2 + self.mask[3]

    def read(self, x: Tensor) -> Tensor:
        return self.h * 3 - self.mask[5].cumsum(0) + x


Files = tuple[Path, Path]


def _to_one_file(node: fx.Node) -> str | None:
    return "weights"


def write(directory: Path, partitioners: list[Any], external: Any) -> Files:  # noqa: ANN401
    model, x = Model(), torch.ones(1, 8)
    exported = etshared.export(
        model,
        {
            "forward": EntryPoint(model.forward, (x,)),
            "read": EntryPoint(model.read, (x,)),
        },
    )
    edge = etshared.to_edge_transform_and_lower(exported, partitioner=partitioners)
    program = edge.to_executorch(ExecutorchBackendConfig(external_constants=external))
    program.save(str(directory / "program.pte"))
    program.write_tensor_data_to_file(str(directory))
    (data,) = directory.glob("*.ptd")
    return directory / "program.pte", data


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    model = Model()
    calls = [
        call(name, torch.randn(1, 8))
        for name in ("read", "forward", "read", "forward", "forward", "read")
    ]
    entry_points = {"forward": model.forward, "read": model.read}
    return eager_outcomes(
        model,
        {
            name: EntryPoint(one, (torch.ones(1, 8),))
            for name, one in entry_points.items()
        },
        calls,
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write(tmp_path_factory.mktemp("portable"), [], True)


@pytest.mark.parametrize("external", [True, _to_one_file])
def test_sequences_of_calls_give_what_eager_gives(
    partitioner: list[Any],
    outcomes: list[Outcome],
    tmp_path: Path,
    external: Any,  # noqa: ANN401
) -> None:
    program, data = write(tmp_path, partitioner, external)
    assert_program_matches(
        etshared.load(program, data_files=[data], tensors="torch"), outcomes
    )
    from_bytes = etshared.load(
        program.read_bytes(), data_files=[data.read_bytes()], tensors="torch"
    )
    assert_program_matches(from_bytes, outcomes)
    assert_stock_runtime_matches(program.read_bytes(), outcomes, data_path=data)
    assert not verify_program(program)


def write_for_delegates(directory: Path, seed: int) -> Files:
    """Write a program of which XNNPACK has one weight inside and one outside."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inside, self.outside = nn.Linear(8, 8), nn.Linear(8, 8)
            torch.manual_seed(seed)
            nn.init.normal_(self.outside.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.outside(torch.relu(self.inside(x)))

    example = (torch.ones(1, 8),)
    tagged = torch.export.export(Layers(), example).module()
    delegate_external_constants_pass_unlifted(
        tagged,
        gen_tag_fn=lambda node: "outside" if "outside" in str(node.target) else None,
    )
    edge = etshared.to_edge_transform_and_lower(
        torch.export.export(tagged, example), partitioner=[XnnpackPartitioner()]
    )
    program = edge.to_executorch()
    directory.mkdir()
    program.save(str(directory / "program.pte"))
    program.write_tensor_data_to_file(str(directory))
    (data,) = directory.glob("*.ptd")
    np.save(directory / "expected.npy", Layers()(*example).detach().numpy())
    return directory / "program.pte", data


def with_buffers(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    serializer = FlatTensorSerializer()
    payload = serializer.deserialize(Cord(data))
    buffers = [change(bytes(one)) for one in payload.buffers]
    return bytes(serializer.serialize(DataPayload(buffers, payload.named_data)))


def test_weights_of_delegates_outside_are_packed_from_the_file_given(
    tmp_path: Path,
) -> None:
    program, data = write_for_delegates(tmp_path / "a", 1)
    x = np.ones((1, 8), np.float32)
    negative = tmp_path / "negative.ptd"
    negative.write_bytes(
        with_buffers(
            data.read_bytes(), lambda one: (-np.frombuffer(one, np.float32)).tobytes()
        )
    )
    results = []
    for one in (data, negative, data):
        loaded = etshared.load(program, data_files=[one], packed_cache=tmp_path / "c")
        results.append(loaded.session().forward(x))
        assert "lie in a data file" in str(loaded.stats().entry_points[0].not_shared)
    expected = np.load(program.parent / "expected.npy")
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.allclose(results[0], results[1], atol=0.1)
    assert not verify_program(program)


def test_data_of_delegates_have_the_recorded_size(tmp_path: Path) -> None:
    program, data = write_for_delegates(tmp_path / "a", 1)
    short = with_buffers(data.read_bytes(), lambda one: one[:16])
    with pytest.raises(ProgramFormatError, match="holds 16 bytes for '.*', of which"):
        etshared.load(program, data_files=[short])
    with pytest.raises(InputError, match="needs the constant"):
        etshared.load(program).session().forward(np.ones((1, 8), np.float32))


def test_packed_weights_are_shared_beside_a_data_file(tmp_path: Path) -> None:
    program, data = write(tmp_path, [XnnpackPartitioner()], True)
    cache = tmp_path / "cache"
    for origin in ("written", "unchanged"):
        loaded = etshared.load(program, data_files=[data], packed_cache=cache)
        packed_file = loaded.stats().packed_file
        assert packed_file is not None and packed_file.origin == origin
        x = np.ones((1, 8), np.float32)
        session, model = loaded.session(), Model()
        expected = model(torch.ones(1, 8)).detach().numpy()
        np.testing.assert_allclose(session.forward(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("data_files", "error", "message"),
    [
        ([], InputError, "needs the constant '.*', which lies outside of the program"),
        ("weights.ptd", InputError, "data_files is one str, expected a list of paths"),
        ([3], InputError, "a data file is .*int.*, expected a path or bytes"),
        (["missing.ptd"], ProgramFormatError, "'missing.ptd': cannot be read"),
        ([b""], ProgramFormatError, "is empty"),
        (
            [bytes(100)],
            ProgramFormatError,
            r"not a data file data_files\[0\]: no ident",
        ),
    ],
)
def test_wrong_data_files_are_refused(
    files: Files,
    data_files: Any,  # noqa: ANN401
    error: type[EtsharedError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        etshared.load(files[0], data_files=data_files).session()


def test_a_key_may_stand_in_one_file_only(files: Files) -> None:
    with pytest.raises(
        ProgramFormatError, match="as it or a file before it does already"
    ):
        etshared.load(files[0], data_files=[files[1], files[1]])


def test_data_of_another_model_are_refused(files: Files, tmp_path: Path) -> None:
    class Wider(Model):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.double())

    model, x = Wider(), torch.ones(1, 8)
    exported = etshared.export(model, {"forward": EntryPoint(model.forward, (x,))})
    program = etshared.to_edge_transform_and_lower(exported).to_executorch(
        ExecutorchBackendConfig(external_constants=True)
    )
    program.write_tensor_data_to_file(str(tmp_path))
    (other,) = tmp_path.glob("*.ptd")
    with pytest.raises(EtsharedError, match="'(forward|reset_state)'"):
        etshared.load(files[0], data_files=[other]).session().load()


def test_a_program_that_keeps_all_inside_may_be_given_data(files: Files) -> None:
    inside = etshared.load(recurrent("portable"), data_files=[files[1]])
    x = np.ones((1, 4), np.float32)
    expected = etshared.load(recurrent("portable")).session().forward(x)
    for got, wanted in zip(inside.session().forward(x), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_damaged_tables_never_crash(files: Files) -> None:
    program, data = files[0].read_bytes(), files[1].read_bytes()
    generator = random.Random(3)
    num_refused = 0
    changes: list[Callable[[int], int]] = [
        lambda byte: byte ^ 1 << generator.randrange(8),
        lambda byte: 0xFF,
        lambda byte: 0,
    ]
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(generator.choice([1, 1, 4])):
            position = generator.randrange(int.from_bytes(data[24:32], "little"))
            damaged[position] = generator.choice(changes)(damaged[position])
        try:
            session = etshared.load(program, data_files=[bytes(damaged)]).session()
            session.forward(np.ones((1, 8), np.float32))
        except EtsharedError:
            num_refused += 1
    assert num_refused > 50
    for length in range(0, len(data), 37):
        with pytest.raises(ProgramFormatError):
            etshared.load(program, data_files=[data[:length]])


def test_the_command_takes_data_files(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = tmp_path / "x.npy"
    np.save(x, np.ones((1, 8), np.float32))
    command = ["run", str(files[0]), "--entry", "forward", "--input", str(x), "--json"]
    assert main([*command, "--data", str(files[1])]) == 0
    assert json.loads(capsys.readouterr().out)["entry_point"] == "forward"
    assert main(command) == 1
    assert "lies outside of the program" in capsys.readouterr().err
    assert main(["inspect", str(files[0])]) == 0
