"""``etshared plugins``: the plugins that are found, and the broken ones."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings

from ..plugins import get_plugins
from .printing import print_json, print_table, printable, stdout_console


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "plugins",
        help="list the plugins and their hooks",
        description="List the installed plugins and the hooks that they implement. "
        "Exits with 1 if one cannot be loaded.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they say is told below
        plugins = get_plugins()
    if arguments.json:
        print_json({"plugins": [dataclasses.asdict(plugin) for plugin in plugins]})
    else:
        print_table(
            stdout_console(),
            "Plugins",
            ("name", "distribution", "version", "hooks"),
            (
                (
                    plugin.name,
                    plugin.distribution,
                    plugin.version,
                    "broken" if plugin.error else ", ".join(plugin.hooks),
                )
                for plugin in plugins
            ),
        )
    for plugin in plugins:
        if plugin.error:
            print(f"etshared: {printable(plugin.error)}", file=sys.stderr)
    return int(any(plugin.error for plugin in plugins))
