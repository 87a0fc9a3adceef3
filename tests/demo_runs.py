"""Runs ``etshared demo`` as a user does, and reads what it prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from etshared_plugin.cli import main


def run_demo(directory: Path, *arguments: str) -> str:
    """Run a demo that writes to ``directory``; return what it prints."""
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from etshared_plugin.cli import main; sys.exit(main())",
            "demo",
            *arguments,
            "--output",
            directory,
        ],
        cwd=directory.parent,  # a checkout has no native module
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def cells(output: str, name: str) -> list[str]:
    """Return the cells of the first row of a table that begins with ``name``."""
    line = next(line for line in output.splitlines() if line.startswith(name))
    return re.split(" {2,}", line.strip())


def assert_recommended_commands_work(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = recommended_commands(output)
    assert [command.split()[0] for command in commands] == ["inspect", "verify", "run"]
    for command in commands:
        assert main(shlex.split(command)) == 0, capsys.readouterr().err


def recommended_commands(output: str) -> list[str]:
    """Return the commands that the demo ends with, without their program's name."""
    return re.findall(r"^  etshared (.*)$", output, re.M)
