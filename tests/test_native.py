"""The native module as it is built and installed."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import runtime_programs as programs

from etshared_plugin import __version__
from etshared_plugin.runtime import _libraries, _native

_ROOT = Path(__file__).parent.parent


def _dynamic_strings(path: Path, tags: set[int]) -> list[str]:
    """Return the strings that entries of a 64-bit ELF's dynamic section name."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 32)
    entry_size, count = struct.unpack_from("<HH", data, 54)
    headers = [
        struct.unpack_from("<IIQQQQ", data, table + i * entry_size)
        for i in range(count)
    ]
    loads = [header for header in headers if header[0] == 1]
    dynamic = next(header for header in headers if header[0] == 2)
    entries = list(struct.iter_unpack("<QQ", data[dynamic[2] :][: dynamic[5]]))
    address = next(value for tag, value in entries if tag == 5)
    strings = next(
        address - load[3] + load[2]
        for load in loads
        if load[3] <= address < load[3] + load[5]
    )
    return [
        data[strings + value : data.index(b"\0", strings + value)].decode()
        for tag, value in entries
        if tag in tags
    ]


def test_the_only_runpath_is_executorchs_library_folder() -> None:
    runpath, rpath = 29, 15
    assert _dynamic_strings(Path(_native.__file__), {runpath, rpath}) == [
        "$ORIGIN/../../executorch/lib"
    ]


def test_neither_torch_nor_python_is_linked() -> None:
    needed = _dynamic_strings(Path(_native.__file__), {1})
    assert "libexecutorch.so" in needed
    foreign = ("libtorch", "libc10", "libpython")
    assert not [name for name in needed if name.startswith(foreign)]


_IMPORTS = {
    "ours first": "import etshared_plugin.runtime, executorch.runtime",
    "executorch first": "import executorch.runtime, etshared_plugin.runtime",
    "ours alone": "import etshared_plugin.runtime",
}


@pytest.mark.parametrize("order", _IMPORTS)
def test_one_executorch_library_serves_the_process(order: str) -> None:
    code = f"""
{_IMPORTS[order]}
with open("/proc/self/maps") as maps:
    paths = {{line.split()[-1] for line in maps}}
print(*[path for path in paths if path.endswith("/libexecutorch.so")], sep="\\n")
"""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 1


def test_the_package_imports_neither_torch_nor_the_native_module() -> None:
    code = """
import sys, etshared_plugin
assert not {"torch", "etshared_plugin.runtime"} & sys.modules.keys()
import etshared_plugin.runtime
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, Path]:
    """A source tree without a built module, and an installed package with one."""
    source = tmp_path / "checkout"
    shutil.copytree(
        _ROOT / "etshared_plugin",
        source / "etshared_plugin",
        ignore=shutil.ignore_patterns("*.so", "csrc", "__pycache__"),
    )
    installed = tmp_path / "site-packages"
    shutil.copytree(source / "etshared_plugin", installed / "etshared_plugin")
    shutil.copy(_native.__file__, installed / "etshared_plugin" / "runtime")
    return source, installed


def _import_in(checkout: Path, installed: Path, version: str) -> tuple[str, str]:
    metadata = installed / f"etshared_plugin-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Name: etshared-plugin\nVersion: {version}\n")
    # Without site, for this package may be installed as editable here.
    code = "import etshared_plugin.runtime._native as n; print(n.__file__)"
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=checkout,
        env={"PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
    )
    return result.stdout, result.stderr


def test_a_checkout_uses_the_module_of_the_installed_package(
    checkout: tuple[Path, Path],
) -> None:
    source, installed = checkout
    path, error = _import_in(source, installed, __version__)
    assert Path(path.strip()).parent == installed / "etshared_plugin" / "runtime", error


def test_a_checkout_says_what_to_do_without_an_installed_package(
    checkout: tuple[Path, Path],
) -> None:
    source, installed = checkout
    _, error = _import_in(source, installed, "0.0.1")
    assert error.splitlines()[-1] == (
        f"ImportError: etshared_plugin {__version__} has no native module in "
        f"'{source}/etshared_plugin/runtime' or in an installed etshared-plugin of "
        "this version; install it, for example with 'pip install .'"
    )


def test_another_executorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _libraries.check_executorch_version()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.6.0")
    with pytest.raises(ImportError, match="executorch 1.6.0 is installed.*for 1.5.1"):
        _libraries.check_executorch_version()


def test_the_stub_is_what_the_module_offers(tmp_path: Path) -> None:
    stub = tmp_path / "_native.pyi"
    subprocess.run(
        [
            *(sys.executable, "-m", "nanobind.stubgen", "-q"),
            *("-m", "etshared_plugin.runtime._native", "-o", str(stub)),
        ],
        check=True,
    )
    committed = _ROOT / "etshared_plugin" / "runtime" / "_native.pyi"
    assert committed.read_text() == stub.read_text()


def test_the_table_of_kernel_signatures_is_up_to_date() -> None:
    script = _ROOT / "etshared_plugin" / "csrc" / "program" / "kernel_signatures.py"
    subprocess.run([sys.executable, "-W", "ignore", script, "--check"], check=True)


def test_sessions_may_live_until_the_interpreter_ends(tmp_path: Path) -> None:
    code = """
import sys
import etshared_plugin as etshared
program = etshared.load(sys.argv[1], tensors="numpy")
session = program.session()
view = session.state["hidden"]
forward = session.forward
cycle = [session]
cycle.append(cycle)
"""
    path = tmp_path / "recurrent.pte"
    path.write_bytes(programs.recurrent("portable"))
    result = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "nanobind" not in result.stderr  # it reports what leaks
