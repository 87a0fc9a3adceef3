"""Finds ExecuTorch's libraries, so that one copy of them serves the process."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import warnings
from collections.abc import MutableSequence
from functools import cache
from pathlib import Path

from .. import __version__
from ..errors import PluginError
from ..plugins import plugin_manager

#: The one release that the native module fits: its C++ headers promise no ABI.
EXECUTORCH_VERSION = "1.5.1"

# In order of dependency. The loader then resolves what _native, and
# executorch's own extension, need by soname to these same files, wherever the
# two packages are installed.
_LIBRARIES = (
    "libexecutorch.so",
    "libexecutorch_threadpool.so",
    "libexecutorch_kernels_optimized.so",
    "libexecutorch_kernels_quantized.so",
    "libexecutorch_backend_xnnpack.so",
)


def check_executorch_version() -> None:
    try:
        version = importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError as cause:
        raise ImportError(
            f"executorch is not installed; install executorch=={EXECUTORCH_VERSION}"
        ) from cause
    if version.split("+")[0] != EXECUTORCH_VERSION:
        raise ImportError(
            f"executorch {version} is installed, but etshared_plugin's native module "
            f"is built for {EXECUTORCH_VERSION}; install "
            f"executorch=={EXECUTORCH_VERSION}"
        )


def load_executorch_libraries() -> None:
    # find_spec imports nothing: executorch is a namespace package.
    spec = importlib.util.find_spec("executorch")
    locations = spec.submodule_search_locations if spec is not None else None
    for root in locations or ():
        directory = Path(root, "lib")
        if (directory / _LIBRARIES[0]).is_file():
            for name in _LIBRARIES:
                ctypes.CDLL(str(directory / name))
            return
    raise ImportError("the installed executorch wheel ships no libexecutorch.so")


def find_native_module(search_path: MutableSequence[str]) -> None:
    """Extend the package's path by the installed one's if it has no built module.

    In a checkout the source tree hides the installed package.
    """
    if importlib.util.find_spec(f"{__package__}._native") is not None:
        return
    # At most one: that which would be imported elsewhere.
    installed = next(
        iter(importlib.metadata.distributions(name="etshared-plugin")), None
    )
    if installed is not None and installed.version == __version__:
        search_path.append(str(installed.locate_file("etshared_plugin/runtime")))
    if importlib.util.find_spec(f"{__package__}._native") is None:
        raise ImportError(
            f"etshared_plugin {__version__} has no native module in "
            f"'{search_path[0]}' or in an installed etshared-plugin of this version; "
            "install it, for example with 'pip install .'"
        )


@cache
def load_plugin_libraries() -> None:
    """Load what plugins name, once per process, and warn of what cannot be loaded.

    A program that needs what is missing says so when its methods are loaded.
    """
    for plugin, paths in plugin_manager().items_by_plugin(
        "etshared_native_libraries", str
    ):
        if isinstance(paths, PluginError):
            warnings.warn(str(paths), RuntimeWarning, stacklevel=2)
            continue
        for path in paths:
            try:
                ctypes.CDLL(path)
            except (OSError, ValueError) as error:
                failure = plugin.failure(
                    PluginError,
                    f"names library '{path}', which cannot be loaded: {error}",
                )
                warnings.warn(str(failure), RuntimeWarning, stacklevel=2)
