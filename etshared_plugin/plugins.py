"""Find plugins, call their hooks, and say which one is at fault."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from . import hookspecs
from .errors import PluginError, PluginLoadError, PluginResultError

#: Group of packaging entry points that announce plugins.
GROUP = "etshared"

#: Built-in plugins, registered first and through the same hooks.
_BUILT_IN = {"xnnpack": "etshared_plugin.backends.xnnpack"}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin as found; ``error`` says why it could not be used."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    error: str | None = None


class PluginManager:
    """A pluggy manager that outlives broken plugins.

    ``errors`` holds one :class:`PluginLoadError` for each that could not be used.
    """

    def __init__(self) -> None:
        self.pluggy = pluggy.PluginManager("etshared")
        self.pluggy.add_hookspecs(hookspecs)
        self.errors: list[PluginLoadError] = []
        self._found: dict[str, tuple[str, str]] = {}

    def register(
        self, plugin: object, name: str, distribution: str = "", version: str = ""
    ) -> None:
        """Add a plugin under ``name``.

        Raises:
            PluginLoadError: the name is taken, or a hook does not exist or has
                arguments that it does not get.
        """
        self._found[name] = (distribution, version)
        try:
            self.pluggy.register(plugin, name)
            self.pluggy.check_pending()
        except Exception as error:
            if self.pluggy.get_plugin(name) is plugin:
                self.pluggy.unregister(plugin)
            raise self._load_error(name, distribution, error) from error

    def discover(self) -> None:
        """Register the plugins of the entry-point group, by name.

        What cannot be used is collected in ``errors`` and warned of.
        """
        for entry_point in sorted(entry_points(group=GROUP), key=lambda e: e.name):
            distribution, version = _distribution(entry_point)
            self._found.setdefault(entry_point.name, (distribution, version))
            try:
                try:
                    plugin = entry_point.load()
                except Exception as error:
                    raise self._load_error(
                        entry_point.name, distribution, error
                    ) from error
                self.register(plugin, entry_point.name, distribution, version)
            except PluginLoadError as error:
                self.errors.append(error)
                warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    def first_result(
        self,
        hook: str,
        expected: type,
        **arguments: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Return the first result of ``hook`` that is not None, else None.

        Raises:
            PluginResultError: the result is no ``expected``.
            PluginError: an implementation raised.
        """
        for name, result in self._results(hook, arguments):
            if isinstance(result, expected):
                return result
            raise PluginResultError(
                f"plugin {self._described(name)} returned"
                f" {type(result).__name__} from '{hook}', expected"
                f" {expected.__name__}",
                plugin_name=name,
                distribution=self._found[name][0] or None,
            )
        return None

    def all_results(
        self,
        hook: str,
        expected: type,
        **arguments: Any,  # noqa: ANN401
    ) -> list[Any]:
        """Return the items that all implementations of ``hook`` return.

        Raises:
            PluginResultError: an item is no ``expected``.
            PluginError: an implementation raised.
        """
        items: list[Any] = []
        for name, result in self._results(hook, arguments):
            found = [result] if isinstance(result, str) else list(result)
            for item in found:
                if not isinstance(item, expected):
                    raise PluginResultError(
                        f"plugin {self._described(name)} returned an item of type"
                        f" {type(item).__name__} from '{hook}', expected"
                        f" {expected.__name__}",
                        plugin_name=name,
                        distribution=self._found[name][0] or None,
                    )
            items += found
        return items

    def _results(
        self, hook: str, arguments: dict[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        """Call one plugin after another, last registered first, until consumed."""
        plugins = [
            impl.plugin for impl in getattr(self.pluggy.hook, hook).get_hookimpls()
        ]
        for plugin in reversed(plugins):
            name = self.pluggy.get_name(plugin) or ""
            others = [other for other in plugins if other is not plugin]
            caller = self.pluggy.subset_hook_caller(hook, others)
            try:
                answer = caller(**arguments)
            except Exception as error:
                raise PluginError(
                    f"plugin {self._described(name)} failed in '{hook}': {error}",
                    plugin_name=name,
                    distribution=self._found[name][0] or None,
                ) from error
            # A hook of many results gives a list with this plugin's one.
            for result in answer if isinstance(answer, list) else [answer]:
                if result is not None:
                    yield name, result

    def plugins(self) -> list[PluginInfo]:
        """Return every plugin that was found, usable or not, by name."""
        errors = {error.plugin_name: str(error) for error in self.errors}
        infos = []
        for name, (distribution, version) in sorted(self._found.items()):
            plugin = self.pluggy.get_plugin(name)
            callers = self.pluggy.get_hookcallers(plugin) if plugin else None
            infos.append(
                PluginInfo(
                    name,
                    distribution,
                    version,
                    tuple(sorted(caller.name for caller in callers or ())),
                    errors.get(name),
                )
            )
        return infos

    def _described(self, name: str) -> str:
        distribution, version = self._found[name]
        source = f" ({distribution} {version})" if distribution else ""
        return f"'{name}'{source}"

    def _load_error(
        self, name: str, distribution: str, error: Exception
    ) -> PluginLoadError:
        return PluginLoadError(
            f"plugin {self._described(name)} cannot be used:"
            f" {type(error).__name__}: {error}",
            plugin_name=name,
            distribution=distribution or None,
        )


def _distribution(entry_point: EntryPoint) -> tuple[str, str]:
    found = entry_point.dist
    return (found.name, found.version) if found is not None else ("", "")


@cache
def plugin_manager() -> PluginManager:
    """Return the process's manager; built-in plugins first, then those found."""
    import importlib

    from . import __version__

    manager = PluginManager()
    for name, module in _BUILT_IN.items():
        manager.register(
            importlib.import_module(module), name, "etshared-plugin", __version__
        )
    manager.discover()
    return manager


def get_plugins() -> list[PluginInfo]:
    """Return every plugin of this process, usable or not, by name."""
    return plugin_manager().plugins()
