"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shell_block(marker: str) -> str:
    match = re.search(rf"^<!-- {marker} -->\n```sh\n(.*?)^```$", README, re.M | re.S)
    assert match, f"no shell block '{marker}'"
    return match[1]


def test_the_examples_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    for name in ("smoother", "decoder", "smoother_int8"):
        assert (tmp_path / f"{name}.pte").is_file()


def test_one_command_runs_the_demo_and_one_the_tests() -> None:
    assert shell_block("demo").splitlines() == [
        'pip install ".[demo]" && etshared demo'
    ]
    assert shell_block("tests").splitlines() == ['pip install ".[test]" && pytest']


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from etshared_plugin.cli import main

    assert main(["--help"]) == 0
    commands = re.findall(r"^    ?(\w+) {2,}", capsys.readouterr().out, re.M)
    assert commands
    assert re.findall(r"^etshared (\w+)", README, re.M) == commands


def test_files_that_the_readme_names_exist() -> None:
    for name in re.findall(r"`([\w/]+\.(?:py|md|fbs))`", README):
        assert (ROOT / name).is_file(), name
