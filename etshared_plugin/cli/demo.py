"""``etshared demo``: run the streaming example."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

from ..errors import EtsharedError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="export a voice activity model and stream a recording through it",
        description="Export Silero VAD with three entry points, stream a recording "
        "through it, compare it with the original, and say what is shared.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("etshared-demo"),
        metavar="DIR",
        help="where the programs are written (default: ./etshared-demo)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    for module in ("torch", "silero_vad"):
        if importlib.util.find_spec(module) is None:
            raise EtsharedError(
                f"the demo needs '{module}', which is not installed; "
                "pip install 'etshared-plugin[demo]'"
            )
    # A process of its own: the demo is a script that users can copy and change.
    command = [sys.executable, str(_script()), "--output", str(arguments.output)]
    return subprocess.run(command, check=False).returncode


def _script() -> Path:
    package = Path(__file__).resolve().parents[1]
    # In a wheel the examples lie in the package, in a checkout beside it.
    for directory in (package, package.parent):
        script = directory / "examples" / "streaming_vad" / "demo.py"
        if script.is_file():
            return script
    raise EtsharedError("the examples are not installed")
