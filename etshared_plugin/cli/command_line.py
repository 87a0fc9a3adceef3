"""Arguments, exit codes and error lines of the ``etshared`` command."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence

from .. import __version__
from ..errors import EtsharedError
from . import cache, demo, inspect, plugins, run, verify
from .printing import printable

_COMMANDS = (inspect, verify, run, cache, plugins, demo)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 means that all is well, 1 that a file or a plugin is bad, 2 that the command
    was called wrongly.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names from files may hold what a terminal's encoding does not.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        arguments = _parser().parse_args(argv)
        with warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)  # of broken plugins
            warnings.showwarning = _show_warning
            exit_code = int(arguments.run(arguments))
        sys.stdout.flush()
    except SystemExit as exit_request:  # argparse has printed help or a complaint
        return int(exit_request.code or 0)
    except BrokenPipeError:
        # The reader has seen enough; Python's own flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EtsharedError as error:
        return _complain(str(error))
    except OSError as error:
        if error.filename is None:
            return _complain(str(error))
        return _complain(f"'{error.filename}': {(error.strerror or '').lower()}")
    return exit_code


def _show_warning(message: Warning | str, *_place: object, **_line: object) -> None:
    _complain(str(message))


def _complain(message: str) -> int:
    print(f"etshared: {printable(message)}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="etshared",
        description="Look at, check and run ExecuTorch programs whose entry points "
        "share weights and state.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"etshared {__version__}",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser
