"""``etshared cache``: packed weights on disk."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING

from ..wording import counted
from .printing import (
    human_nbytes,
    number,
    print_json,
    print_table,
    printable,
    stdout_console,
    whole,
)

if TYPE_CHECKING:
    from ..runtime import PackedCache, PackedFile


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cache",
        help="list, verify or remove packed weights on disk",
        description="Look after the packed weights that programs have put on disk.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, action, description in (
        ("ls", _list, "List the files, the last used one first."),
        ("verify", _verify, "Read every file. Exits with 1 if one is damaged."),
        ("clear", _clear, "Remove the files. Programs that use one keep its content."),
    ):
        one = actions.add_parser(name, help=description, description=description)
        one.add_argument(
            "--directory",
            metavar="DIR",
            help="where the files are (default: in the user's cache directory)",
        )
        one.add_argument("--json", action="store_true", help="print JSON")
        one.set_defaults(run=_with_cache, action=action)


def _with_cache(arguments: argparse.Namespace) -> int:
    # The other commands do without the native module.
    from ..runtime import PackedCache

    return int(arguments.action(PackedCache(arguments.directory), arguments.json))


def _list(cache: PackedCache, as_json: bool) -> int:
    files = cache.entries()
    if as_json:
        print_json({"directory": str(cache.path), "files": [*map(_file_json, files)]})
        return 0
    if not files:
        print(f"no packed weights in '{printable(str(cache.path))}'")
        return 0
    print_table(
        stdout_console(),
        f"Packed weights in '{cache.path}'",
        (whole("last used"), number("size"), "program", whole("file")),
        (
            (
                _date(file.last_used),
                human_nbytes(file.nbytes),
                "damaged" if file.label is None else file.label or "from bytes",
                f"{file.path.stem[:12]}…{file.path.suffix}",
            )
            for file in files
        ),
    )
    return 0


def _date(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # as their range depends on libc
        return "unknown"


def _verify(cache: PackedCache, as_json: bool) -> int:
    problems = cache.verify()
    is_sound = not any(problems.values())
    if as_json:
        print_json(
            {
                "directory": str(cache.path),
                "files": [
                    {"path": str(path), "problem": problem}
                    for path, problem in problems.items()
                ],
                "is_sound": is_sound,
            }
        )
        return int(not is_sound)
    console = stdout_console()
    for path, problem in problems.items():
        verdict = "sound" if problem is None else f"damaged: {problem}"
        console.print(f"{printable(str(path))}: {verdict}", soft_wrap=True)
    return int(not is_sound)


def _clear(cache: PackedCache, as_json: bool) -> int:
    removed = cache.clear()
    nbytes = sum(file.nbytes for file in removed)
    if as_json:
        print_json(
            {
                "directory": str(cache.path),
                "files": [*map(_file_json, removed)],
                "nbytes": nbytes,
            }
        )
        return 0
    files = counted(len(removed), "file")
    stdout_console().print(
        f"removed {files}, {human_nbytes(nbytes)}, from '{printable(str(cache.path))}'",
        soft_wrap=True,
    )
    return 0


def _file_json(file: PackedFile) -> dict[str, object]:
    return {
        "path": str(file.path),
        "label": file.label,
        "nbytes": file.nbytes,
        "last_used": file.last_used,
    }
