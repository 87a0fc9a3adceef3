"""Plugins are found, called in order, and blamed by name for what they do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_packages import PluginPackages

from etshared_plugin.errors import PluginError, PluginLoadError, PluginResultError
from etshared_plugin.hookspecs import DelegateDescription, hookimpl
from etshared_plugin.inspection import Finding, Severity
from etshared_plugin.plugins import PluginManager, get_plugins, plugin_manager


@pytest.fixture
def packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PluginPackages]:
    """Packages that the process's plugin manager finds when it is asked next."""
    monkeypatch.syspath_prepend(tmp_path)
    found = PluginPackages(tmp_path)
    plugin_manager.cache_clear()
    yield found
    plugin_manager.cache_clear()
    found.forget()


def _items(manager: PluginManager, hook: str, expected: type, **arguments: object):  # noqa: ANN202
    """What all plugins return; the first error is raised."""
    found = []
    for _, items in manager.items_by_plugin(hook, expected, **arguments):
        if isinstance(items, PluginError):
            raise items
        found += items
    return found


_HOOKIMPL = "from etshared_plugin.hookspecs import hookimpl\n"

_BROKEN = {
    "failing import": ("1 / 0", r"ZeroDivisionError: division by zero"),
    "missing dependency": (
        "import etshared_nowhere",
        r"ModuleNotFoundError: No module named 'etshared_nowhere'",
    ),
    "script": ("raise SystemExit(3)", r"SystemExit: 3"),
    "unknown hook": (
        _HOOKIMPL + "@hookimpl\ndef etshared_chek(report): pass",
        r"PluginValidationError: unknown hook 'etshared_chek' in plugin <module .*>",
    ),
    "wrong argument": (
        _HOOKIMPL + "@hookimpl\ndef etshared_check(program): pass",
        r"PluginValidationError: Plugin 'broken' for hook 'etshared_check' .*"
        r"\{'program'\} are declared in the hookimpl but can not be found in .*",
    ),
    "no hook": ("def etshared_check(report): pass", r"it implements no hook"),
    "wrapper": (
        _HOOKIMPL + "@hookimpl(wrapper=True)\n"
        "def etshared_check(report):\n    return (yield)",
        r"'etshared_check' is a hook wrapper, expected a plain hook",
    ),
}


@pytest.mark.parametrize("fault", _BROKEN)
def test_a_broken_plugin_is_reported_and_the_rest_works(
    packages: PluginPackages,
    fault: str,
) -> None:
    source, message = _BROKEN[fault]
    packages.install("broken", source)
    packages.install("good")
    pattern = rf"^plugin 'broken' \(dist-broken 3\.1\) cannot be used: {message}$"
    with pytest.warns(RuntimeWarning, match=pattern):
        manager = plugin_manager()
    (error,) = manager.errors
    assert (error.plugin_name, error.distribution) == ("broken", "dist-broken")
    broken, good, xnnpack = get_plugins()
    assert (broken.name, broken.version, broken.hooks) == ("broken", "3.1", ())
    assert broken.error == str(error)
    assert good.error is xnnpack.error is None
    assert _items(manager, "etshared_native_libraries", str) == ["dist_good"]


def test_programs_are_lowered_beside_broken_plugins(packages: PluginPackages) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )

    import etshared_plugin as etshared
    from etshared_plugin.pte import PteFile

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.count.add_(x) * x

    for number, (source, _) in enumerate(_BROKEN.values()):
        packages.install(f"broken{number}", source)
    counter = Counter()
    exported = etshared.export(
        counter, {"forward": etshared.EntryPoint(counter.forward, (torch.ones(3),))}
    )
    with pytest.warns(RuntimeWarning) as warned:
        edge = etshared.to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()]
        )
        context = PteFile(edge.to_executorch().buffer).shared_context()
    messages = [str(one.message) for one in warned if one.category is RuntimeWarning]
    assert len([m for m in messages if "plugin 'broken" in m]) == len(_BROKEN)
    assert context is not None
    assert context.delegates[0].operators == (("Add", 1), ("Multiply", 1))


def test_a_missing_module_is_reported(
    packages: PluginPackages,
) -> None:
    packages.install("gone", target="etshared_nowhere.plugin")
    with pytest.warns(RuntimeWarning, match="No module named 'etshared_nowhere'"):
        manager = plugin_manager()
    assert [error.plugin_name for error in manager.errors] == ["gone"]


def test_plugins_are_registered_by_name_after_the_built_in_one(
    packages: PluginPackages,
) -> None:
    packages.install("zebra", distribution="first-installed")
    packages.install("ant", distribution="last-installed")
    manager = plugin_manager()
    registered = [name for name, _ in manager.pluggy.list_name_plugin()]
    assert registered == ["xnnpack", "ant", "zebra"]
    assert [
        (plugin.name, paths)
        for plugin, paths in manager.items_by_plugin("etshared_native_libraries", str)
    ] == [("zebra", ["first_installed"]), ("ant", ["last_installed"])]


def test_of_two_plugins_of_one_name_the_second_is_reported(
    packages: PluginPackages,
) -> None:
    packages.install("twin", distribution="bravo")
    packages.install("twin", distribution="alpha")
    message = (
        r"^plugin 'twin' \(bravo 3\.1\) cannot be used:"
        r" the name is that of plugin 'twin' \(alpha 3\.1\)$"
    )
    with pytest.warns(RuntimeWarning, match=message):
        manager = plugin_manager()
    first, second, _ = manager.plugins()
    assert (first.distribution, first.error) == ("alpha", None)
    assert (second.distribution, second.hooks) == ("bravo", ())
    assert second.error == str(manager.errors[0])
    assert _items(manager, "etshared_native_libraries", str) == ["alpha"]


def test_a_built_in_plugin_cannot_be_replaced_by_name(
    packages: PluginPackages,
) -> None:
    packages.install("xnnpack", distribution="impostor")
    with pytest.warns(RuntimeWarning, match=r"\(impostor 3\.1\) cannot be used"):
        manager = plugin_manager()
    assert manager.pluggy.get_plugin("xnnpack").__name__.endswith("backends.xnnpack")


class _Libraries:
    """A plugin whose libraries are whatever it is made with."""

    def __init__(self, result: object) -> None:
        self.result = result

    @hookimpl
    def etshared_native_libraries(self) -> object:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class _Description:
    def __init__(self, result: object) -> None:
        self.result = result

    @hookimpl
    def etshared_describe_delegate(self, method_name: str) -> object:
        return self.result


def _describe(manager: PluginManager) -> object:
    return manager.first_result(
        "etshared_describe_delegate",
        DelegateDescription,
        lowered_module=None,
        method_name="forward",
    )


def test_one_object_is_one_plugin() -> None:
    manager = PluginManager()
    plugin = _Libraries(None)
    manager.register(plugin, "once", "dist", "1")
    with pytest.raises(PluginLoadError, match="it is plugin 'once' .dist 1. already"):
        manager.register(plugin, "twice")
    assert [info.name for info in manager.plugins()] == ["once"]


def test_a_refused_plugin_leaves_nothing_behind() -> None:
    class Wrapper:
        @hookimpl
        def etshared_native_libraries(self) -> list[str]:
            return ["left behind"]

        @hookimpl(wrapper=True)
        def etshared_check(self) -> Iterator[None]:
            yield

    manager = PluginManager()
    with pytest.raises(PluginLoadError, match="'etshared_check' is a hook wrapper"):
        manager.register(Wrapper(), "refused")
    assert _items(manager, "etshared_native_libraries", str) == []
    manager.register(_Libraries(["mine"]), "refused")
    assert _items(manager, "etshared_native_libraries", str) == ["mine"]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ("libone.so", "returned str from"),
        (7, "returned int from"),
        (["libone.so", b"libtwo.so"], "returned an item of type bytes from"),
    ],
)
def test_items_of_a_wrong_type_are_blamed_on_their_plugin(
    result: object, found: str
) -> None:
    manager = PluginManager()
    manager.register(_Libraries(["lib.so"]), "right", "dist-right", "1")
    manager.register(_Libraries(result), "wrong", "dist-wrong", "2")
    with pytest.raises(PluginResultError) as raised:
        _items(manager, "etshared_native_libraries", str)
    assert str(raised.value) == (
        f"plugin 'wrong' (dist-wrong 2) {found} 'etshared_native_libraries',"
        " expected an iterable of str"
    )
    assert raised.value.plugin_name == "wrong"
    assert raised.value.distribution == "dist-wrong"


def test_a_result_of_a_wrong_type_is_blamed_on_its_plugin() -> None:
    manager = PluginManager()
    manager.register(_Description({"Add": 1}), "wrong", "dist-wrong", "2")
    with pytest.raises(PluginResultError) as raised:
        _describe(manager)
    assert str(raised.value) == (
        "plugin 'wrong' (dist-wrong 2) returned dict from"
        " 'etshared_describe_delegate', expected DelegateDescription"
    )


def _yield_then_fail() -> Iterator[str]:
    yield "libone.so"
    raise KeyError("libtwo.so")


@pytest.mark.parametrize("result", [KeyError("libtwo.so"), _yield_then_fail()])
def test_a_hook_that_raises_is_blamed_on_its_plugin(result: object) -> None:
    manager = PluginManager()
    manager.register(_Libraries(result), "failing", "dist-failing", "2")
    with pytest.raises(PluginError) as raised:
        _items(manager, "etshared_native_libraries", str)
    assert str(raised.value) == (
        "plugin 'failing' (dist-failing 2) failed in 'etshared_native_libraries':"
        " KeyError: 'libtwo.so'"
    )
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_plugin_that_fails_does_not_keep_others_from_being_asked() -> None:
    class Leaving:
        @hookimpl
        def etshared_native_libraries(self) -> list[str]:
            raise SystemExit(3)

    manager = PluginManager()
    manager.register(_Libraries(["one.so", "two.so"]), "sound")
    manager.register(_Libraries(7), "wrong")
    manager.register(Leaving(), "leaving")
    leaving, wrong, sound = manager.items_by_plugin("etshared_native_libraries", str)
    assert str(leaving[1]).endswith("'etshared_native_libraries': SystemExit: 3")
    assert isinstance(wrong[1], PluginResultError)
    assert (sound[0].name, sound[1]) == ("sound", ["one.so", "two.so"])


def test_the_last_plugin_is_asked_first_and_none_passes_on() -> None:
    manager = PluginManager()
    assert _describe(manager) is None
    for position, result in enumerate(
        [DelegateDescription({"Add": 1}), DelegateDescription({"Add": 2}), None]
    ):
        manager.register(_Description(result), f"plugin{position}")
    assert _describe(manager) == DelegateDescription({"Add": 2})


def test_a_plugin_may_ask_to_be_first_or_last() -> None:
    class First:
        @hookimpl(tryfirst=True)
        def etshared_check(self) -> list[Finding]:
            return [Finding(Severity.NOTE, "first", "")]

    class Last:
        @hookimpl(trylast=True, specname="etshared_check")
        def anything(self, report: object = None) -> list[Finding]:
            return [Finding(Severity.NOTE, f"last-{report}", "")]

    class Plain:
        @hookimpl
        def etshared_check(self, report: object) -> Iterator[Finding]:
            yield Finding(Severity.NOTE, f"plain-{report}", "")

    manager = PluginManager()
    for plugin in (First(), Plain(), Last()):
        manager.register(plugin, type(plugin).__name__)
    findings = _items(manager, "etshared_check", Finding, report="r")
    assert [finding.code for finding in findings] == ["first", "plain-r", "last-r"]


def test_plugins_are_found_without_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['executorch.exir'] = None\n"
        "from etshared_plugin.plugins import get_plugins\n"
        "print([plugin.name for plugin in get_plugins() if not plugin.error])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert "'xnnpack'" in finished.stdout
