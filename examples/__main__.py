"""Run an example: ``python examples text_embedding --output DIR``."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import warnings
from pathlib import Path


def main() -> int:
    names = sorted(demo.parent.name for demo in Path(__file__).parent.glob("*/demo.py"))
    parser = argparse.ArgumentParser(prog="examples", description="Run an example.")
    parser.add_argument("name", choices=names)
    parser.add_argument(
        "--output", type=Path, default=Path("etshared-demo"), metavar="DIR"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    # What torch and torchao say about themselves while they are imported and trace.
    logging.disable(logging.WARNING)
    for category in (DeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", category)
    demo = importlib.import_module(f"{arguments.name}.demo")
    status: int = demo.run(arguments.output)
    return status


if __name__ == "__main__":
    sys.exit(main())
