"""A third party's plugin works from an installed distribution."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "plugins" / "example_plugin"

_SHELL = "import sys; from etshared_plugin.cli import main; sys.exit(main())"

_LOWER = """
import sys

import etshared_plugin as etshared
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.test.op_partitioner_demo import AddMulPartitionerDemo


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("gate", torch.ones(4))

    def forward(self, x):
        self.gate.add_(x)
        return torch.tanh(x)

    def square(self, x):
        return self.gate * x * x


model = Gate()
x = (torch.ones(4),)
exported = etshared.export(
    model,
    {
        "forward": etshared.EntryPoint(model.forward, x),
        "square": etshared.EntryPoint(model.square, x),
    },
)
edge = etshared.to_edge_transform_and_lower(
    exported,
    partitioner={
        "forward": [AddMulPartitionerDemo(), XnnpackPartitioner(per_op_mode=True)],
        "square": [XnnpackPartitioner()],
    },
)
edge.to_executorch().save(sys.argv[1])
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the installed plugin."""
    target = tmp_path_factory.mktemp("site")
    build = tmp_path_factory.mktemp("source") / SOURCE.name  # setuptools writes there
    shutil.copytree(SOURCE, build)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    install = [sys.executable, "-m", "pip", "install", *options, "--target", target]
    subprocess.run([*install, build], check=True)
    paths = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(environment: dict[str, str], script: str, *arguments: str | Path) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_shell_lists_an_installed_plugin(environment: dict[str, str]) -> None:
    listed = json.loads(run(environment, _SHELL, "plugins", "--json"))["plugins"]
    assert listed[0] == {
        "name": "example",
        "distribution": "etshared-example",
        "version": "2.5",
        "hooks": [
            "etshared_check",
            "etshared_describe_delegate",
            "etshared_wrap_partitioner",
        ],
        "error": None,
    }


def test_an_installed_plugin_acts_in_lowering_and_verification(
    environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "gate.pte"
    run(environment, _LOWER, path)
    report = json.loads(run(environment, _SHELL, "inspect", path, "--json"))
    delegates = {
        (delegate["entry_point"], delegate["backend_id"]): delegate["operators"]
        for delegate in report["delegates"]
    }
    assert delegates == {
        ("forward", "BackendWithCompilerDemo"): {"aten.add.Tensor": 1},
        ("square", "XnnpackBackend"): {"Multiply": 2},
    }
    verified = json.loads(run(environment, _SHELL, "verify", path, "--json"))
    assert verified["findings"] == [
        {
            "severity": "note",
            "code": "example-undelegated",
            "message": "'aten::tanh.out' is not delegated",
            "place": "entry point 'forward'",
        }
    ]
