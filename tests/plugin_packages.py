"""Installed distributions that announce plugins, as small as they can be."""

from __future__ import annotations

import sys
from pathlib import Path

GOOD = """
from etshared_plugin.hookspecs import hookimpl

@hookimpl
def etshared_native_libraries():
    return [__name__]
"""


class PluginPackages:
    """A directory on ``sys.path`` for modules and their metadata."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._modules: list[str] = []

    def install(
        self, name: str, source: str = GOOD, *, distribution: str = "", target: str = ""
    ) -> None:
        """Announce plugin ``name``, by default from the module of that name."""
        distribution = distribution or f"dist-{name}"
        module = distribution.replace("-", "_")
        self._modules.append(module)
        (self._directory / f"{module}.py").write_text(source, encoding="utf-8")
        metadata = self._directory / f"{module}-3.1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.1\n",
            encoding="utf-8",
        )
        (metadata / "entry_points.txt").write_text(
            f"[etshared]\n{name} = {target or module}\n", encoding="utf-8"
        )

    def forget(self) -> None:
        for module in self._modules:
            sys.modules.pop(module, None)
