"""All errors that etshared_plugin raises for something a user can cause."""

from __future__ import annotations

from pathlib import Path


class EtsharedError(Exception):
    """Base of every error of this package."""


class PluginError(EtsharedError):
    """A plugin misbehaved; ``plugin_name`` and ``distribution`` say which."""

    def __init__(
        self, message: str, *, plugin_name: str, distribution: str | None = None
    ) -> None:
        super().__init__(message)
        self.plugin_name = plugin_name
        self.distribution = distribution


class PluginLoadError(PluginError):
    """A plugin failed to import or to register."""


class PluginResultError(PluginError):
    """A hook returned something that it may not return."""


class LoweringError(EtsharedError):
    """Export, lowering or planning cannot be done faithfully."""

    def __init__(
        self, message: str, *, method_name: str | None = None, fqn: str | None = None
    ) -> None:
        super().__init__(message)
        self.method_name = method_name
        self.fqn = fqn


class EntryPointError(LoweringError):
    """What an entry point does cannot be exported so that it equals eager."""


class StateError(LoweringError):
    """Names, shapes, dtypes or aliases of shared state do not fit together."""


class PartitionError(LoweringError):
    """A partitioner did something that shared state does not allow."""


class QuantizationError(LoweringError):
    """A quantizer or its calibration data do not fit the entry points."""


class MemoryPlanningError(LoweringError):
    """Shared state cannot be placed; ``mem_id`` names the arena, if it is one."""

    def __init__(
        self,
        message: str,
        *,
        mem_id: int | None = None,
        method_name: str | None = None,
        fqn: str | None = None,
    ) -> None:
        super().__init__(message, method_name=method_name, fqn=fqn)
        self.mem_id = mem_id


class FormatError(EtsharedError, ValueError):
    """Bytes are not what they should be; ``offset`` counts from the file's start.

    The text begins with the path, if there is one; ``message`` is it without.
    """

    def __init__(
        self, message: str, *, path: Path | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.offset = offset

    def __str__(self) -> str:
        return self.message if self.path is None else f"'{self.path}': {self.message}"


class ProgramFormatError(FormatError):
    """Not a ``.pte``, truncated, with a damaged table, or not to be read at all."""


class ContextFormatError(FormatError):
    """The record of what is shared is missing, of another version, or inconsistent."""


class RuntimeFailure(EtsharedError):
    """Loading or running a program failed."""

    def __init__(self, message: str, *, method_name: str | None = None) -> None:
        super().__init__(message)
        self.method_name = method_name


class InputError(RuntimeFailure, ValueError):
    """Count, name, dtype, shape or structure of inputs is wrong; nothing has run."""


class SessionPoisonedError(RuntimeFailure):
    """An earlier call failed midway; ``reset()`` or ``restore()`` the session first."""


class StateMismatchError(RuntimeFailure, ValueError):
    """Saved state does not fit this program."""


class ExecutorchError(RuntimeFailure):
    """ExecuTorch returned an error; ``code`` is its ``executorch::runtime::Error``."""

    def __init__(
        self, message: str, *, code: int, method_name: str | None = None
    ) -> None:
        super().__init__(message, method_name=method_name)
        self.code = code


class PackedCacheWarning(RuntimeWarning):
    """Packed weights could not be kept on disk, or were damaged there."""
