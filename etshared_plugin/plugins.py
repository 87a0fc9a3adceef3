"""Find plugins, call their hooks, and say which one is at fault."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import pluggy

from . import __version__, hookspecs
from .errors import PluginError, PluginLoadError, PluginResultError

_Error = TypeVar("_Error", bound=PluginError)

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

    @property
    def label(self) -> str:
        """How messages call it."""
        source = f" ({self.distribution} {self.version})" if self.distribution else ""
        return f"plugin '{self.name}'{source}"

    def failure(self, kind: type[_Error], problem: str) -> _Error:
        """Return an error that blames this plugin."""
        return kind(
            f"{self.label} {problem}",
            plugin_name=self.name,
            distribution=self.distribution or None,
        )


class PluginManager:
    """A pluggy manager that outlives broken plugins.

    ``errors`` holds one :class:`PluginLoadError` for each that could not be used.
    """

    def __init__(self) -> None:
        self.pluggy = pluggy.PluginManager("etshared")
        self.pluggy.add_hookspecs(hookspecs)
        self.errors: list[PluginLoadError] = []
        self._usable: dict[str, PluginInfo] = {}
        self._broken: list[PluginInfo] = []

    def register(
        self, plugin: object, name: str, distribution: str = "", version: str = ""
    ) -> None:
        """Add a plugin under ``name``.

        Raises:
            PluginLoadError: the name is taken, or the plugin implements no hook,
                an unknown one, one with arguments that it does not get, or a
                hook wrapper.
        """
        info = PluginInfo(name, distribution, version)
        if name in self._usable:
            raise _unusable(info, f"the name is that of {self._usable[name].label}")
        known = self.pluggy.get_name(plugin)
        if known is not None:
            raise _unusable(info, f"it is {self._usable[known].label} already")
        try:
            self.pluggy.register(plugin, name)
            self.pluggy.check_pending()
        except Exception as error:
            self.pluggy.unregister(name=name)
            raise _unusable(info, _one_line(error)) from error
        hooks = self.pluggy.get_hookcallers(plugin) or []
        problem = "" if hooks else "it implements no hook"
        for hook in hooks:
            for impl in hook.get_hookimpls():
                # A wrapper's result could not be blamed on one plugin.
                if impl.plugin is plugin and (impl.wrapper or impl.hookwrapper):
                    problem = f"'{hook.name}' is a hook wrapper, expected a plain hook"
        if problem:
            self.pluggy.unregister(name=name)
            raise _unusable(info, problem)
        self._usable[name] = replace(info, hooks=tuple(sorted(h.name for h in hooks)))

    def discover(self) -> None:
        """Register the plugins of the entry-point group, by name.

        What cannot be used is collected in ``errors`` and warned of.
        """
        for info, entry_point in _announced():
            try:
                try:
                    plugin = entry_point.load()
                except (Exception, SystemExit) as error:
                    raise _unusable(info, _one_line(error)) from error
                self.register(plugin, info.name, info.distribution, info.version)
            except PluginLoadError as error:
                self.errors.append(error)
                self._broken.append(replace(info, error=str(error)))
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
        for plugin, call in self._calls(hook, arguments):
            with _blamed_on(plugin, hook):
                result = call()
            if result is None:
                continue
            if not isinstance(result, expected):
                raise _unexpected(plugin, hook, result, expected.__name__)
            return result
        return None

    def items_by_plugin(
        self,
        hook: str,
        expected: type,
        **arguments: Any,  # noqa: ANN401
    ) -> Iterator[tuple[PluginInfo, list[Any] | PluginError]]:
        """Yield the items that each implementation of ``hook`` returns.

        In place of items that are no ``expected``, or of an implementation that
        raised, there is an error; others are asked all the same.
        """
        for plugin, call in self._calls(hook, arguments):
            try:
                yield plugin, _items(plugin, hook, expected, call)
            except PluginError as error:
                yield plugin, error

    def _calls(
        self, hook: str, arguments: dict[str, Any]
    ) -> Iterator[tuple[PluginInfo, Callable[[], Any]]]:
        """Yield what calls each implementation, in pluggy's order.

        A call through pluggy itself would not say whose result it returns.
        """
        for impl in reversed(getattr(self.pluggy.hook, hook).get_hookimpls()):
            yield (
                self._usable[impl.plugin_name],
                partial(
                    impl.function,
                    *(arguments[n] for n in impl.argnames),
                    **{n: arguments[n] for n in impl.kwargnames if n in arguments},
                ),
            )

    def plugins(self) -> list[PluginInfo]:
        """Return every plugin that was found, usable or not, by name."""
        return sorted([*self._usable.values(), *self._broken], key=_by_name)


def _announced() -> list[tuple[PluginInfo, EntryPoint]]:
    found = []
    for entry_point in entry_points(group=GROUP):
        source = entry_point.dist
        info = PluginInfo(
            entry_point.name,
            source.name if source is not None else "",
            source.version if source is not None else "",
        )
        found.append((info, entry_point))
    return sorted(found, key=lambda pair: _by_name(pair[0]))


def _by_name(plugin: PluginInfo) -> tuple[str, str]:
    return plugin.name, plugin.distribution


def _items(
    plugin: PluginInfo, hook: str, expected: type, call: Callable[[], Any]
) -> list[Any]:
    with _blamed_on(plugin, hook):
        result = call()
        if result is None:
            return []
        items = (
            list(result)
            if isinstance(result, Iterable) and not isinstance(result, str)
            else None
        )
    wanted = f"an iterable of {expected.__name__}"
    if items is None:
        raise _unexpected(plugin, hook, result, wanted)
    for item in items:
        if not isinstance(item, expected):
            raise _unexpected(plugin, hook, item, wanted, "an item of type ")
    return items


@contextmanager
def _blamed_on(plugin: PluginInfo, hook: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        raise plugin.failure(
            PluginError, f"failed in '{hook}': {_one_line(error)}"
        ) from error


def _unexpected(
    plugin: PluginInfo,
    hook: str,
    result: object,
    expected: str,
    what: str = "",
) -> PluginResultError:
    return plugin.failure(
        PluginResultError,
        f"returned {what}{type(result).__name__} from '{hook}', expected {expected}",
    )


def _unusable(plugin: PluginInfo, problem: str) -> PluginLoadError:
    return plugin.failure(PluginLoadError, f"cannot be used: {problem}")


def _one_line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {message}" if message else name


@cache
def plugin_manager() -> PluginManager:
    """Return the process's manager; built-in plugins first, then those found."""
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
