"""Each hook is called where its documentation says, and what it returns counts."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

import etshared_plugin as etshared
from etshared_plugin import hookspecs, runtime
from etshared_plugin.cli import main
from etshared_plugin.context import ScalarType
from etshared_plugin.hookspecs import (
    DelegateConstant,
    DelegateDescription,
    IdentifiedConstants,
    hookimpl,
)
from etshared_plugin.inspection import (
    Finding,
    ProgramReport,
    Severity,
    inspect_program,
)
from etshared_plugin.lowering.memory_planning import SharedMemoryPlanner
from etshared_plugin.plugins import plugin_manager
from etshared_plugin.pte import PteFile
from etshared_plugin.runtime._libraries import load_plugin_libraries
from etshared_plugin.state import SharedState

README = Path(__file__).resolve().parents[1] / "README.md"
HOOKS = {
    name: hook
    for name, hook in inspect.getmembers(hookspecs, inspect.isfunction)
    if name.startswith("etshared_")
}


class Mean(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("mean", torch.ones(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.5).add_(self.linear(x))
        return self.mean * 2

    def peek(self, x: torch.Tensor) -> torch.Tensor:
        return self.mean + x


@pytest.fixture(scope="module")
def exported() -> Mapping[str, ExportedProgram]:
    model, x = Mean(), (torch.ones(1, 8),)
    return etshared.export(
        model,
        {
            "forward": etshared.EntryPoint(model.forward, x),
            "peek": etshared.EntryPoint(model.peek, x),
        },
    )


@pytest.fixture
def use() -> Iterator[Callable[[object], None]]:
    """Add a plugin to the process's manager for one test."""
    plugin_manager.cache_clear()
    load_plugin_libraries.cache_clear()
    yield lambda plugin: plugin_manager().register(plugin, "tested", "dist", "1")
    plugin_manager.cache_clear()
    load_plugin_libraries.cache_clear()


def lowered(exported: Mapping[str, ExportedProgram], path: Path) -> ProgramReport:
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()]
    )
    path.write_bytes(edge.to_executorch().buffer)
    return inspect_program(path)


class _NoPartitions(Partitioner):
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return PartitionResult(exported_program, {})


def test_hook_etshared_wrap_partitioner(
    use: Callable[[object], None],
    exported: Mapping[str, ExportedProgram],
    tmp_path: Path,
) -> None:
    calls: list[tuple[Partitioner, str, tuple[str, ...]]] = []

    class Plugin:
        @hookimpl
        def etshared_wrap_partitioner(
            self, partitioner: Partitioner, method_name: str, state: tuple[str, ...]
        ) -> Partitioner | None:
            calls.append((partitioner, method_name, state))
            return _NoPartitions() if method_name == "peek" else None

    use(Plugin())
    given = XnnpackPartitioner()
    edge = etshared.to_edge_transform_and_lower(exported, partitioner=[given])
    assert calls == [(given, "forward", ("mean",)), (given, "peek", ("mean",))]
    again = XnnpackPartitioner()
    edge = edge.to_backend({"peek": again})
    assert calls[2:] == [(again, "peek", ("mean",))]
    (tmp_path / "mean.pte").write_bytes(edge.to_executorch().buffer)
    report = inspect_program(tmp_path / "mean.pte")
    delegated = {entry.name: bool(entry.delegates) for entry in report.entry_points}
    assert (delegated["forward"], delegated["peek"]) == (True, False)


def test_hook_etshared_make_memory_planner(
    use: Callable[[object], None],
    exported: Mapping[str, ExportedProgram],
    tmp_path: Path,
) -> None:
    calls: list[tuple[list[str], list[str]]] = []

    class Plugin:
        @hookimpl
        def etshared_make_memory_planner(
            self, passes: Mapping[str, Any], state: SharedState
        ) -> SharedMemoryPlanner:
            calls.append((sorted(passes), sorted(state)))
            return SharedMemoryPlanner(passes, state, alignment=256)

    use(Plugin())
    report = lowered(exported, tmp_path / "mean.pte")
    assert calls == [(["forward", "peek", "reset_state"], ["mean"])]
    (state,) = (arena for arena in report.arenas if arena.kind == "shared_state")
    assert state.nbytes >= 256


def test_hook_etshared_describe_delegate(
    use: Callable[[object], None],
    exported: Mapping[str, ExportedProgram],
    tmp_path: Path,
) -> None:
    calls: list[tuple[str, str]] = []

    class Plugin:
        @hookimpl
        def etshared_describe_delegate(
            self, lowered_module: LoweredBackendModule, method_name: str
        ) -> DelegateDescription | None:
            calls.append((lowered_module.backend_id, method_name))
            if method_name == "peek":
                return None
            keys = sorted(lowered_module.named_data_store_output.pte_data)
            return DelegateDescription(
                {"everything": 3},
                tuple(
                    DelegateConstant(key, ScalarType.CHAR, (4, 64), (f"named.{i}",))
                    for i, key in enumerate(keys)
                ),
            )

    use(Plugin())
    report = lowered(exported, tmp_path / "mean.pte")
    assert set(calls) == {("XnnpackBackend", "forward"), ("XnnpackBackend", "peek")}
    forward, peek = report.delegates
    assert forward.operators == {"everything": 3}
    assert "everything" not in peek.operators  # left to the built-in plugin
    described = [weight for weight in report.weights if weight.dtype == "int8"]
    assert [weight.sizes for weight in described] == [(4, 64)] * len(described)
    assert {fqn for weight in described for fqn in weight.fqns} == {
        f"named.{i}" for i in range(len(described))
    }
    assert described


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two libraries that write their names down when they are loaded."""
    directory = tmp_path_factory.mktemp("libraries")
    source = """
        #include <stdio.h>
        __attribute__((constructor)) static void write_name() {
          FILE* file = fopen("%s/loaded", "a");
          fputs("%s ", file);
          fclose(file);
        }"""
    paths = []
    for name in ("second", "first"):
        path = directory / f"lib{name}.so"
        subprocess.run(
            ["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", path],
            input=source % (directory, name),
            text=True,
            check=True,
        )
        paths.append(str(path))
    return paths


def test_hook_etshared_identify_constants(
    exported: Mapping[str, ExportedProgram], use: Callable[[object], None]
) -> None:
    class Identity:
        @hookimpl
        def etshared_identify_constants(
            self, lowered_module: LoweredBackendModule, method_name: str
        ) -> IdentifiedConstants:
            stored = lowered_module.named_data_store_output
            keys = {} if stored is None else {key: key for key in stored.pte_data}
            return IdentifiedConstants(
                lowered_module.processed_bytes, keys, {"asked_by": method_name}
            )

    use(Identity())
    edge = etshared.to_edge_transform_and_lower(
        exported, partitioner=[XnnpackPartitioner()]
    )
    context = PteFile(edge.to_executorch().buffer).shared_context()
    assert context is not None
    assert [
        (context.entry_points[delegate.entry_point].name, dict(delegate.options))
        for delegate in context.delegates
    ] == [("forward", {"asked_by": "forward"}), ("peek", {"asked_by": "peek"})]


def test_hook_etshared_native_libraries(
    use: Callable[[object], None],
    exported: Mapping[str, ExportedProgram],
    tmp_path: Path,
    libraries: list[str],
) -> None:
    calls = []

    class Plugin:
        @hookimpl
        def etshared_native_libraries(self) -> list[str]:
            calls.append(1)
            return libraries

    use(Plugin())
    lowered(exported, tmp_path / "mean.pte")
    assert not calls
    with pytest.raises(etshared.EtsharedError):
        runtime.load(tmp_path / "no.pte")  # not even this comes before
    loaded = (Path(libraries[0]).parent / "loaded").read_text(encoding="utf-8")
    assert loaded == "second first "
    runtime.load(tmp_path / "mean.pte")
    runtime.load((tmp_path / "mean.pte").read_bytes())
    assert calls == [1]


def test_libraries_that_cannot_be_loaded_are_warned_of_once(
    use: Callable[[object], None],
    exported: Mapping[str, ExportedProgram],
    tmp_path: Path,
    libraries: list[str],
) -> None:
    missing = str(tmp_path / "libmissing.so")

    class Plugin:
        @hookimpl
        def etshared_native_libraries(self) -> list[str]:
            return [missing, "with\0zero", libraries[0]]

    use(Plugin())
    path = tmp_path / "mean.pte"
    lowered(exported, path)
    with pytest.warns(RuntimeWarning) as warned:
        session = runtime.load(path).session()
    first, second = [
        str(one.message) for one in warned if one.category is RuntimeWarning
    ]
    where = rf"^plugin 'tested' \(dist 1\) names library '{missing}', which cannot be"
    assert re.match(where, first)
    assert "embedded null" in second
    assert (Path(libraries[0]).parent / "loaded").exists()
    assert session.peek(torch.ones(1, 8)).shape == (1, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        runtime.load(path)


def test_a_plugin_that_fails_to_name_its_libraries_is_warned_of(
    use: Callable[[object], None],
    exported: Mapping[str, ExportedProgram],
    tmp_path: Path,
) -> None:
    class Plugin:
        @hookimpl
        def etshared_native_libraries(self) -> list[str]:
            raise KeyError("lib")

    use(Plugin())
    path = tmp_path / "mean.pte"
    lowered(exported, path)
    message = r"^plugin 'tested' \(dist 1\) failed in .*: KeyError: 'lib'$"
    with pytest.warns(RuntimeWarning, match=message):
        runtime.load(path)


def test_hook_etshared_check(
    use: Callable[[object], None],
    exported: Mapping[str, ExportedProgram],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Plugin:
        @hookimpl
        def etshared_check(self, report: ProgramReport) -> Iterator[Finding]:
            for state in report.state:
                if state.fqn == "mean":
                    yield Finding(Severity.ERROR, "mean-is-mean", "no", "state 'mean'")

    path = tmp_path / "mean.pte"
    lowered(exported, path)
    assert main(["verify", str(path)]) == 0
    use(Plugin())
    capsys.readouterr()
    assert main(["verify", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"] == [
        {
            "severity": "error",
            "code": "mean-is-mean",
            "message": "no",
            "place": "state 'mean'",
        }
    ]


def test_every_hook_is_tested_by_its_name() -> None:
    assert HOOKS
    tests = {name.removeprefix("test_hook_") for name in globals()}
    assert HOOKS.keys() <= tests


def test_every_hook_is_documented() -> None:
    signatures = {
        f"{name}({', '.join(inspect.signature(hook).parameters)})"
        for name, hook in HOOKS.items()
    }
    headings = re.findall(
        r"^#+ `(etshared_\w+\(.*\))`$", README.read_text(encoding="utf-8"), re.M
    )
    assert sorted(headings) == sorted(signatures)
    for name, hook in HOOKS.items():
        documentation = inspect.getdoc(hook) or ""
        described = re.findall(r"^:param (\w+):", documentation, re.M)
        assert described == list(inspect.signature(hook).parameters), name
        assert ":return:" in documentation
        assert ".. versionadded::" in documentation
