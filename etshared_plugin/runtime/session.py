"""Sessions: one life of a program's state each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Literal

from ..context import EntryPointRecord
from ..errors import InputError, RuntimeFailure, StateMismatchError
from ..wording import counted, quoted
from . import _native
from .state import SessionState, Snapshot
from .structure import flatten, rebuilder
from .tensors import check_numpy_knows, exchangeable, from_native, wants_torch

if TYPE_CHECKING:
    from .program import SharedProgram

#: Which threads a session computes with.
Threads = Literal["pool", "caller"]

_OMITTED = _native.Omitted()


class BoundEntryPoint:
    """An entry point of one session; call it as the eager method."""

    def __init__(
        self, program: SharedProgram, native: _native.Session, name: str
    ) -> None:
        self.__name__ = name
        self._place = f"entry point '{name}'"
        self._program = program
        self._native = native
        self._index = program._index(name)
        self._record: EntryPointRecord | None = program._records.get(name)
        self._inputs = program._native.inputs(self._index)
        self._output_dtypes = [
            output.dtype if output.kind == "tensor" else ""
            for output in program._native.outputs(self._index)
        ]
        self._rebuild = (
            list
            if self._record is None
            else rebuilder(self._record.result, program._classes)
        )
        self._labels = [f"{self._place}: {value.label}" for value in self._inputs]
        self._is_tensor = [value.kind == "tensor" for value in self._inputs]
        arguments = self._record.arguments if self._record is not None else ()
        self._arguments = {one.name: one.structure for one in arguments}
        self._positional = [one.name for one in arguments if not one.keyword_only]

    def __call__(self, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
        """Run the entry point.

        Inputs are not changed, and outputs are the caller's own.

        Raises:
            InputError: if the inputs do not fit; nothing has run.
            SessionPoisonedError: if an earlier call failed midway.
            ExecutorchError: if the entry point cannot be loaded, or fails. In the
                latter case the session is poisoned until it is reset.
        """
        try:
            return self._call(args, kwargs)
        except InputError as error:
            error.method_name = self.__name__
            raise

    def _call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        leaves = self._bind(args, kwargs)
        if len(leaves) == len(self._inputs):
            tensors = [
                leaf
                for leaf, is_tensor in zip(leaves, self._is_tensor, strict=True)
                if is_tensor
            ]
        else:
            tensors = leaves  # the native module refuses the count
        as_torch = wants_torch(self._program._tensors, tensors)
        if not as_torch:
            check_numpy_knows(self._output_dtypes, f"{self._place}: an output")
        labels = chain(self._labels, repeat(self._place))
        values = [*map(exchangeable, leaves, labels)]
        outputs = self._native.call(self._index, values, as_torch)
        return self._rebuild(
            iter(
                [
                    from_native(value, dtype, as_torch)
                    for value, dtype in zip(outputs, self._output_dtypes, strict=True)
                ]
            )
        )

    def _bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> list[object]:
        if self._record is None:
            if kwargs:
                raise InputError(
                    f"{self._place} has no names for its inputs; give them by position"
                )
            return list(args)
        if len(args) > len(self._positional):
            expected = counted(len(self._positional), "positional input")
            raise InputError(f"{self._place} takes {expected}, got {len(args)}")
        given = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise InputError(
                    f"{self._place}: input '{name}' is given by position and by name"
                )
            given[name] = value
        if not given.keys() <= self._arguments.keys():
            known = quoted(self._arguments) or "none"
            unknown = quoted(name for name in given if name not in self._arguments)
            raise InputError(f"{self._place} has no input {unknown}, only {known}")
        leaves: list[object] = []
        for name, structure in self._arguments.items():
            if name in given:
                flatten(given[name], structure, self._place, name, leaves)
                continue
            end = len(leaves) + structure.leaf_count
            if any(self._is_tensor[len(leaves) : end]):
                raise InputError(f"{self._place}: input '{name}' is missing")
            leaves += [_OMITTED] * structure.leaf_count
        return leaves

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{value.label.removeprefix('input ')} {value.dtype} {tuple(value.sizes)}"
            if value.kind == "tensor"
            else f"{value.label.removeprefix('input ')} {value.kind}"
            for value in self._inputs
        )
        return f"<entry point '{self.__name__}' of {inputs or 'no inputs'}>"


class Session:
    """One life of a program's state.

    ``session["name"]`` is an entry point; so is ``session.name``, unless
    ``Session`` itself has that attribute. One call runs at a time: a second
    thread waits. Different sessions may run in different threads.
    """

    def __init__(self, program: SharedProgram, threads: Threads = "pool") -> None:
        if threads not in ("pool", "caller"):
            raise InputError(f"threads is {threads!r}, expected 'pool' or 'caller'")
        self._program = program
        self._native = _native.Session(program._native, threads == "caller")
        self._entry_points: dict[str, BoundEntryPoint] = {}
        buffers = program.context.buffers if program.context is not None else ()
        self._state = SessionState(
            self._native, dict(enumerate(buffers)), program._tensors
        )

    @property
    def state(self) -> SessionState:
        """Live views of the state by name."""
        return self._state

    def load(self, *names: str) -> None:
        """Load entry points now, by default all, rather than when first called.

        Loading never changes state.
        """
        for name in names or self._program.entry_points:
            self._native.load(self._program._index(name))

    def reset(self, names: str | Iterable[str] | None = None) -> None:
        """Give state its initial values.

        Args:
            names: fqns, aliases or groups; what fqns begin with, such as the name
                of a `Bind` with several parts; or globs. None means all state, and
                also ends what an earlier failure did to the session.

        Raises:
            StateMismatchError: if a name stands for no state.
        """
        if names is None:
            self._native.reset()
            return
        if self._program.context is None:
            raise StateMismatchError(
                "the program has no record of its state; reset() without names"
            )
        self._native.reset_buffers(self._state._matching(names))

    def snapshot(self, names: str | Iterable[str] | None = None) -> Snapshot:
        """Copy state.

        Args:
            names: as for :meth:`reset`; None means all.

        Raises:
            StateMismatchError: if a name stands for no state.
        """
        self._check_names()
        return self._state._snapshot(names)

    def restore(
        self, snapshot: Mapping[str, Any], names: str | Iterable[str] | None = None
    ) -> None:
        """Write saved state back, and end what an earlier failure did if it is all.

        Args:
            snapshot: a snapshot, of which all is written, or a mapping with an
                array for all state.
            names: what to write of it, as for :meth:`reset`.

        Raises:
            StateMismatchError: if it does not fit, or lacks state; nothing has been
                written.
            SessionPoisonedError: if it is not all state, and an earlier call failed
                midway.
        """
        self._check_names()
        self._state._restore(snapshot, names)

    def _check_names(self) -> None:
        if self._program.context is None:
            raise RuntimeFailure(
                "the program has no record of its state, so it cannot be saved; "
                "export it with etshared_plugin"
            )

    def __getitem__(self, name: str) -> BoundEntryPoint:
        entry_point = self._entry_points.get(name)
        if entry_point is None:
            entry_point = self._entry_points[name] = BoundEntryPoint(
                self._program, self._native, name
            )
        return entry_point

    def __getattr__(self, name: str) -> BoundEntryPoint:
        if name.startswith("_") or name not in self._program._methods:
            hint = "" if name.startswith("_") else self._program._hint_for(name)
            raise AttributeError(
                f"'Session' has no attribute or entry point '{name}'{hint}"
            )
        return self[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._program.entry_points})

    def __iter__(self) -> Iterator[str]:
        return iter(self._program.entry_points)

    def __len__(self) -> int:
        return len(self._program.entry_points)

    def __contains__(self, name: object) -> bool:
        return name in self._program._methods

    def __repr__(self) -> str:
        loaded = [
            name
            for name, index in self._program._methods.items()
            if self._native.is_loaded(index)
        ]
        return f"<Session of {self._program!r}, loaded: {', '.join(loaded) or 'none'}>"
