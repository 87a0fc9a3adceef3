"""``etshared run``: call one entry point of a program."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..wording import counted, quoted
from .printing import (
    human_seconds,
    print_json,
    print_table,
    printable,
    stdout_console,
    whole,
)
from .stats import print_stats, stats_json
from .values import as_json, leaves, type_text, values_text

if TYPE_CHECKING:
    from ..runtime import Session

Array = npt.NDArray[np.generic]

_NAMED_INPUT = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class _StateChange:
    fqn: str
    before: Array
    after: Array

    @property
    def is_empty(self) -> bool:
        # Bytes, because a NaN that stayed is no change.
        return self.before.tobytes() == self.after.tobytes()


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="call an entry point on .npy files and numbers",
        description="Call one entry point in a new session, and summarise what it "
        "returns and what it does to the state.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a .pte file")
    parser.add_argument(
        "--entry", required=True, metavar="NAME", help="the entry point"
    )
    parser.add_argument(
        "--input",
        dest="inputs",
        type=_parse_input,
        action="extend",
        nargs="+",
        default=[],
        metavar="[NAME=]VALUE",
        help="an input, in order or by name: the path of a .npy file, or a number, "
        "true, false or null",
    )
    parser.add_argument(
        "--data",
        type=Path,
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="a .ptd file with what the program keeps outside of itself",
    )
    parser.add_argument(
        "--repeat",
        type=_parse_count,
        default=1,
        metavar="N",
        help="call N times in a row, and report on the last call (default: 1)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write each output to DIR as a .npy file",
    )
    parser.add_argument(
        "--stats",
        action="store_true",
        help="load every entry point, and show what that took and what is shared",
    )
    parser.add_argument(
        "--packed-cache",
        nargs="?",
        const=True,
        default=False,
        metavar="DIR",
        help="keep packed weights on disk, in DIR or in the user's cache directory",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    # The other commands do without the native module.
    from ..runtime import _native, load

    _native.hide_info_log()
    program = load(
        arguments.file,
        data_files=arguments.data,
        tensors="numpy",
        packed_cache=arguments.packed_cache,
    )
    session = program.session()
    if arguments.entry not in session:
        names = quoted(session)
        arguments.parser.error(
            printable(f"there is no entry point '{arguments.entry}', only {names}")
        )
    positional = [value for name, value in arguments.inputs if name is None]
    named = {name: value for name, value in arguments.inputs if name is not None}

    before = _copy_of_state(session)
    seconds = []
    for _ in range(arguments.repeat):
        started = time.perf_counter()
        result = session[arguments.entry](*positional, **named)
        seconds.append(time.perf_counter() - started)
    changes = [
        _StateChange(fqn, before[fqn], value)
        for fqn, value in _copy_of_state(session).items()
    ]
    outputs = dict(leaves(result))
    if arguments.output is not None:
        _save(arguments.output, outputs)
    stats = None
    if arguments.stats:
        session.load()
        stats = program.stats()
    if arguments.json:
        print_json(
            {
                "entry_point": arguments.entry,
                "outputs": [
                    {"path": path, **as_json(value)} for path, value in outputs.items()
                ],
                "state": [
                    {
                        "fqn": change.fqn,
                        "before": as_json(change.before),
                        "after": as_json(change.after),
                        "is_changed": not change.is_empty,
                    }
                    for change in changes
                ],
                **({"stats": stats_json(stats)} if stats is not None else {}),
            }
        )
    else:
        _print_tables(arguments.entry, outputs, changes, seconds)
        if stats is not None:
            print_stats(stdout_console(), stats)
    return 0


def _parse_input(text: str) -> tuple[str | None, object]:
    named = _NAMED_INPUT.fullmatch(text)
    name, value = named.groups() if named else (None, text)
    if value.endswith(".npy"):
        try:
            return name, np.load(value, allow_pickle=False)
        except OSError as error:
            raise argparse.ArgumentTypeError(
                f"cannot read '{value}': {error.strerror or error}"
            ) from error
        except (ValueError, EOFError) as error:
            raise argparse.ArgumentTypeError(f"'{value}': {error}") from error
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = text
    if parsed is not None and not isinstance(parsed, (bool, int, float)):
        raise argparse.ArgumentTypeError(
            f"'{value}' is neither the path of a .npy file nor a number, true, false "
            "or null"
        )
    return name, parsed


def _parse_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 up")
    return int(text)


def _copy_of_state(session: Session) -> dict[str, Array]:
    return {fqn: np.array(value) for fqn, value in session.state.items()}


def _save(directory: Path, outputs: Mapping[str, object]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for index, value in enumerate(outputs.values()):
        if value is not None:
            array = np.asarray(value)
            np.save(directory / f"output-{index}.npy", array, allow_pickle=False)


def _print_tables(
    entry: str,
    outputs: Mapping[str, object],
    changes: list[_StateChange],
    seconds: list[float],
) -> None:
    console = stdout_console()
    if outputs:
        print_table(
            console,
            f"Results of '{entry}'",
            ("result", whole("type"), "values"),
            (
                (
                    path or "result",
                    type_text(value),
                    values_text(value),
                )
                for path, value in outputs.items()
            ),
        )
    else:
        console.print(f"'{printable(entry)}' returned nothing")
    if changes:
        print_table(
            console,
            "State",
            ("buffer", whole("type"), "before", "after"),
            (
                (
                    change.fqn,
                    type_text(change.after),
                    values_text(change.before),
                    "unchanged" if change.is_empty else values_text(change.after),
                )
                for change in changes
            ),
        )
    console.print()
    calls = counted(len(seconds), "call") + (", median" if len(seconds) > 1 else "")
    console.print(f"{calls}: {human_seconds(statistics.median(seconds))}")
