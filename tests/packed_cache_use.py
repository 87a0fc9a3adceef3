"""Loads with packed weights on disk, and what tests ask of them."""

from __future__ import annotations

import functools
import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import packed_programs as programs
import torch
from packed_programs import Inputs, arrays

import etshared_plugin as etshared
from etshared_plugin.errors import PackedCacheWarning
from etshared_plugin.runtime import SharedProgram

Results = dict[str, np.ndarray]


def results(program: SharedProgram, inputs: Inputs) -> Results:
    """Call every entry point in a new session."""
    session = program.session()
    return {name: session[name](*arrays(x)) for name, x in inputs.items()}


def assert_same(actual: Results, expected: Results) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def alone(data: bytes, inputs: Inputs) -> Results:
    """What comes out when every entry point packs for itself."""
    program = etshared.load(data, tensors="numpy", packed_weights=False)
    return results(program, inputs)


@functools.cache
def expected() -> Results:
    return alone(*programs.mixed())


def assert_right(program: SharedProgram) -> None:
    """The mixed program gives what it gives without any sharing."""
    assert_same(results(program, programs.mixed()[1]), expected())


def load(directory: Path, **options: int) -> SharedProgram:
    """Load the mixed program, which must not warn."""
    return etshared.load(
        programs.mixed()[0],
        tensors="numpy",
        packed_cache=etshared.PackedCache(directory, **options),
    )


def load_warned(directory: Path, **options: int) -> tuple[SharedProgram, str]:
    """Load the mixed program, and return the one warning of that too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = load(directory, **options)
    assert [warning.category for warning in caught] == [PackedCacheWarning]
    # Its place is the line that calls load().
    assert caught[0].filename == __file__
    return program, str(caught[0].message)


def origin(program: SharedProgram) -> str | None:
    use = program.stats().packed_file
    assert use is not None
    return use.origin


def why_not(program: SharedProgram) -> str:
    """Why no file is used; sessions share in memory then."""
    stats = program.stats()
    assert stats.packed_file is not None and stats.constants_from_disk == 0
    assert (stats.packed_file.path, stats.packed_file.origin) == (None, None)
    assert stats.packed_file.not_used is not None
    return stats.packed_file.not_used


def assert_loads_agree(
    path: Path,
    directory: Path,
    run: Callable[[etshared.Session], Sequence[torch.Tensor]],
) -> None:
    """Compare the bits of all ways to load: with own weights, shared, and on disk."""
    alone = run(etshared.load(path, packed_weights=False).session())
    for packed_cache, expected_origin in (
        (False, None),
        (directory, "written"),
        (directory, "unchanged"),
    ):
        program = etshared.load(path, packed_cache=packed_cache)
        if packed_cache:
            assert origin(program) == expected_origin
        for values in (run(program.session()), run(program.session())):
            assert all(map(torch.equal, values, alone)), expected_origin
        stats = program.stats()
        assert stats.constants_packed + stats.constants_from_disk > 0
        assert (stats.constants_from_disk > 0) == (expected_origin == "unchanged")


def packed_file(directory: Path) -> Path:
    """The only packed file."""
    (path,) = directory.glob("*.packed")
    return path


def stamp_of(path: Path) -> Path:
    return path.with_suffix(".verified")


def facts_of(path: Path) -> tuple[str, int, int, int, int]:
    """What changes when a file is written, replaced or touched."""
    status = os.stat(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return (
        digest,
        status.st_ino,
        status.st_mode,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
