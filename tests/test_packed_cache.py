"""Packed weights on disk: right results, packed once for all processes to come."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import packed_cache_use as use
import packed_programs as programs
import pytest
import torch
from packed_cache_use import assert_right, assert_same, facts_of, load, origin
from program_builders import stock_program

import etshared_plugin as etshared
from etshared_plugin.errors import InputError
from etshared_plugin.runtime import _native
from etshared_plugin.runtime.packed_binding import PackingFacts, packing_facts


@pytest.mark.parametrize("source", ["bytes", "file"])
@pytest.mark.parametrize("layer", ["linear", "transposed conv", "prelu"])
def test_first_and_second_start_give_what_no_sharing_gives(
    layer: str, source: str, tmp_path: Path
) -> None:
    data, inputs = programs.one_layer(layer)
    path = tmp_path / "layer.pte"
    path.write_bytes(data)
    expected = use.alone(data, inputs)
    stats = []
    for _ in range(3):
        program = etshared.load(
            data if source == "bytes" else path,
            tensors="numpy",
            packed_cache=tmp_path / "cache",
        )
        assert_same(use.results(program, inputs), expected)
        stats.append(program.stats())
        file = use.packed_file(tmp_path / "cache")
        facts = facts_of(file)
    assert [one.packed_file.origin for one in stats if one.packed_file] == [
        "written",
        "unchanged",
        "unchanged",
    ]
    first, second, _ = stats
    assert first.constants_from_disk == first.from_disk_nbytes == 0
    assert second.constants_packed == second.packed_nbytes == second.pack_seconds == 0
    assert second.constants_from_disk == first.constants_packed > 0
    assert second.from_disk_nbytes == first.packed_nbytes > 0
    assert second.constants_reused == first.constants_reused
    assert second.reused_nbytes == first.reused_nbytes
    assert facts_of(file) == facts


def test_a_second_start_changes_nothing_of_the_file(tmp_path: Path) -> None:
    program = load(tmp_path)
    assert_right(program)
    file = use.packed_file(tmp_path)
    facts = facts_of(file)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o400
    for expected in ("unchanged", "verified", "unchanged"):
        if expected == "verified":
            use.stamp_of(file).unlink()
        program = load(tmp_path)
        assert origin(program) == expected
        assert_right(program)
        del program
        assert facts_of(file) == facts
    assert len(list(tmp_path.iterdir())) == 2


def test_equal_bytes_with_other_meanings_stay_apart_in_the_file(tmp_path: Path) -> None:
    data, inputs = programs.confusable()
    for start in ("written", "unchanged"):
        program = etshared.load(data, tensors="numpy", packed_cache=tmp_path)
        assert origin(program) == start
        results = use.results(program, inputs)
        assert results["in_wide"].tolist() == [[0.875, 2.875, 4.875, 6.875]]
        assert results["in_tall"].tolist() == [[i / 2 + 3 / 16 for i in range(8)]]
        np.testing.assert_array_equal(results["adapted"], results["in_wide"])
        assert all(one.is_shared for one in program.stats().entry_points)


def _quantized(weight: torch.Tensor) -> bytes:
    """A linear layer with dynamic activations and int8 weights per channel."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    layer = torch.nn.Linear(*reversed(weight.shape), bias=False).eval()
    layer.weight.data = weight
    x = (torch.ones(1, weight.shape[1]),)
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    )
    prepared = prepare_pt2e(torch.export.export(layer, x).module(), quantizer)
    prepared(*x)
    converted = convert_pt2e(prepared)
    edge = etshared.to_edge_transform_and_lower(
        {"forward": torch.export.export(converted, x)},
        partitioner=[XnnpackPartitioner()],
    )
    return bytes(edge.to_executorch().buffer)


def test_an_update_under_the_same_name_gives_the_new_results(tmp_path: Path) -> None:
    torch.manual_seed(7)
    weight = torch.randn(6, 8)
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    path = tmp_path / "model.pte"
    found = []
    # Four times the weights are equal integers with other scales.
    for factor in (1, 4, 1, 4):
        path.write_bytes(_quantized(factor * weight))
        program = etshared.load(path, tensors="numpy", packed_cache=tmp_path)
        assert program.stats().entry_points[0].is_shared
        found.append((origin(program), program.session().forward(x)[0]))
    assert [start for start, _ in found] == ["written"] * 2 + ["unchanged"] * 2
    first, other = found[0][1], found[1][1]
    assert np.abs(first).max() > 0.1
    np.testing.assert_array_equal(other, 4 * first)
    np.testing.assert_array_equal(found[2][1], first)
    np.testing.assert_array_equal(found[3][1], other)


def test_programs_in_one_directory_stay_apart(tmp_path: Path) -> None:
    for start in ("written", "unchanged"):
        for data, inputs in (programs.mixed(), programs.confusable()):
            program = etshared.load(data, tensors="numpy", packed_cache=tmp_path)
            assert origin(program) == start
            assert_same(use.results(program, inputs), use.alone(data, inputs))
    assert len(list(tmp_path.glob("*.packed"))) == 2


def test_a_directory_may_have_a_long_path(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["long" * 50] * 5)
    assert len(str(directory)) > 1000
    assert origin(load(directory)) == "written"
    program = load(directory)
    assert origin(program) == "unchanged"
    assert_right(program)


def test_a_file_is_no_more_open_than_its_program(tmp_path: Path) -> None:
    path = tmp_path / "mixed.pte"
    path.write_bytes(programs.mixed()[0])
    for mode, expected in ((0o640, 0o440), (0o755, 0o444), (0o600, 0o400)):
        path.chmod(mode)
        directory = tmp_path / f"{mode:o}"
        assert origin(etshared.load(path, packed_cache=directory)) == "written"
        file = use.packed_file(directory)
        assert stat.S_IMODE(file.stat().st_mode) == expected
        # Others may read that a file was verified, where they may read the file.
        umask = os.umask(0)
        os.umask(umask)
        stamp = use.stamp_of(file)
        assert stat.S_IMODE(stamp.stat().st_mode) == 0o644 & ~umask


def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = load(Path("cache"))
    found = program.stats().packed_file
    assert found is not None and found.path == use.packed_file(tmp_path / "cache")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home in ("relative", "~"):
        monkeypatch.setenv("HOME", home)
        with pytest.raises(InputError, match="no home directory for a packed cache"):
            etshared.PackedCache().entries()
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_true_is_the_users_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = programs.mixed()[0]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value, base in (
        (str(tmp_path / "caches"), tmp_path / "caches"),
        ("relative", tmp_path / "home" / ".cache"),
        ("", tmp_path / "home" / ".cache"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        program = etshared.load(data, packed_cache=True)
        directory = base / "etshared"
        assert etshared.PackedCache().path == directory
        stats = program.stats().packed_file
        assert stats is not None and stats.path == use.packed_file(directory)
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


def test_what_is_asked_for_must_mean_something(tmp_path: Path) -> None:
    data = programs.mixed()[0]
    file = tmp_path / "file"
    file.write_bytes(b"")
    for packed_cache, problem in (
        (str(file), f"'{file}' is not a directory"),
        (file, f"'{file}' is not a directory"),
        ("", "directory of a packed cache is ''"),
        ("a\0b", r"directory of a packed cache is 'a\\x00b'"),
        (3, "packed_cache is 3, expected True, a directory or a PackedCache"),
        (None, "packed_cache is None, expected"),
        (b"bytes", "packed_cache is b'bytes', expected"),
    ):
        with pytest.raises(InputError, match=problem):
            etshared.load(data, packed_cache=packed_cache)  # type: ignore[arg-type]
    for max_nbytes in (0, -1, 1.5, True, "1"):
        with pytest.raises(InputError, match="max_nbytes is .*, expected a positive"):
            etshared.PackedCache(tmp_path, max_nbytes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="directory of a packed cache is 3, expected"):
        etshared.PackedCache(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="packed weights, which are switched off"):
        etshared.load(data, packed_cache=tmp_path, packed_weights=False)
    assert list(tmp_path.iterdir()) == [file]


def test_nothing_is_written_for_what_shares_nothing(tmp_path: Path) -> None:
    program = etshared.load(stock_program(delegated=True), packed_cache=tmp_path)
    assert use.why_not(program) == "nothing in the program may share"
    assert etshared.load(programs.mixed()[0]).stats().packed_file is None
    assert list(tmp_path.iterdir()) == []


def test_the_binding_depends_on_every_fact() -> None:
    context = _native.Program.from_bytes(
        programs.mixed()[0], _native.DataFiles(), True
    ).context
    assert context is not None
    facts = packing_facts(context)
    assert len(facts.xnnpack_build_id) >= 16 and len(facts.xnnpack_identifier) >= 16
    assert any(line.startswith(("flags: ", "Features: ")) for line in facts.cpu)
    assert facts == packing_facts(context)
    other = _native.Program.from_bytes(
        programs.confusable()[0], _native.DataFiles(), True
    ).context
    assert other is not None and packing_facts(other).record != facts.record
    changes = {
        "executorch": "1.5.2",
        "xnnpack_build_id": facts.xnnpack_build_id[::-1],
        "xnnpack_identifier": facts.xnnpack_identifier[1:],
        "cpu": tuple(line.replace(" sse4_2", "") for line in facts.cpu[:-1]),
        "record": facts.record[::-1],
    }
    assert changes.keys() == {field.name for field in dataclasses.fields(PackingFacts)}
    bindings = {facts.binding()} | {
        dataclasses.replace(facts, **{name: value}).binding()
        for name, value in changes.items()
    }
    assert len(bindings) == 1 + len(changes)
    assert {len(binding) for binding in bindings} == {32}


def test_the_build_id_is_that_of_the_library() -> None:
    build_id, _ = _native.xnnpack_build()
    with open("/proc/self/maps") as file:
        (path,) = {
            line.split()[-1] for line in file if "libexecutorch_backend_xnnpack" in line
        }
    assert b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0" + build_id in Path(path).read_bytes()


def test_checksums_are_those_of_crc_32c() -> None:
    data = np.random.default_rng(1).bytes(10_000)
    assert set(_native.crc32c_variants(b"123456789").values()) == {0xE3069283}
    assert set(_native.crc32c_variants(b"").values()) == {0}
    assert set(_native.crc32c_variants(bytes(32)).values()) == {0x8A9136AA}
    for start in range(9):
        for size in (*range(40), 4095, 9000):
            piece = data[start : start + size]
            assert len(set(_native.crc32c_variants(piece).values())) == 1
    sums = _native.crc32c_of_chunks(data, 4096)
    assert sums == b"".join(
        _native.crc32c_variants(data[start : start + 4096])["portable"].to_bytes(
            4, "little"
        )
        for start in (0, 4096, 8192)
    )


def test_least_recently_used_files_go_first(tmp_path: Path) -> None:
    sources = {name: programs.one_layer(name)[0] for name in ("linear", "conv")}
    sources["mixed"] = programs.mixed()[0]

    def start(name: str, max_nbytes: int) -> Path:
        cache = etshared.PackedCache(tmp_path, max_nbytes)
        stats = etshared.load(sources[name], packed_cache=cache).stats().packed_file
        assert stats is not None and stats.path is not None
        return stats.path

    paths = {name: start(name, 2**20) for name in ("linear", "conv")}
    start("linear", 2**20)  # which is now the last used one
    listed = etshared.PackedCache(tmp_path).entries()
    assert [file.path for file in listed] == [paths["linear"], paths["conv"]]
    other = tmp_path / "not ours.packed"
    other.write_bytes(bytes(2**20))
    paths["mixed"] = start("mixed", 2**20)
    assert all(path.exists() for path in paths.values())

    # No room for the one that has not been used for longest.
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    paths["mixed"].unlink()
    start("mixed", sizes["linear"] + sizes["mixed"])
    assert {name for name, path in paths.items() if path.exists()} == {
        "linear",
        "mixed",
    }
    assert not use.stamp_of(paths["conv"]).exists()
    # What was just written stays, and what is not ours.
    start("conv", sizes["conv"])
    assert [name for name, path in paths.items() if path.exists()] == ["conv"]
    assert other.stat().st_size == 2**20


def test_a_file_larger_than_the_limit_is_not_written(tmp_path: Path) -> None:
    program, warning = use.load_warned(tmp_path, max_nbytes=1000)
    assert "bytes are more than max_nbytes, 1000; they are packed in memory" in warning
    assert use.why_not(program).endswith("bytes are more than max_nbytes, 1000")
    assert_right(program)
    assert program.stats().constants_packed == 2
    assert list(tmp_path.iterdir()) == []
    # One that is there already is used.
    load(tmp_path)
    assert origin(load(tmp_path, max_nbytes=1000)) == "unchanged"


def test_leftovers_of_dead_writers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    name = "ab" * 32
    for suffix in (".tmp", ".verified"):
        (tmp_path / f"{name}{suffix}").write_bytes(b"left over")
    others = [f"{name}.pte", f"{name[1:]}.tmp", f"{name.upper()}.tmp", "x.tmp"]
    for other in others:
        (tmp_path / other).write_bytes(b"someone's")
    assert origin(load(tmp_path)) == "written"
    file = use.packed_file(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *others,
        file.name,
        use.stamp_of(file).name,
    }


def _unlinked(file: Path) -> None:
    file.unlink()


def _replaced(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(bytes(100))
    other.rename(file)


@pytest.mark.parametrize("change", [_unlinked, _replaced])
def test_sessions_keep_a_file_that_is_removed_or_replaced(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    load(tmp_path)
    program = load(tmp_path)
    session = program.session()
    session.load("encode")
    change(use.packed_file(tmp_path))
    assert_right(program)
    session.load()
    del session
    assert_right(program)


def test_sessions_and_programs_end_in_any_order(tmp_path: Path) -> None:
    inputs = programs.mixed()[1]
    loaded = [load(tmp_path) for _ in range(4)]
    sessions = [program.session() for program in loaded for _ in range(2)]
    for session in sessions:
        session.load("encode", "decode")
    for index in (5, 0, 3, 1, 1):
        del sessions[index]
        del loaded[:1]
        for session in sessions:
            session.reset()
            found = {
                name: session[name](*map(np.asarray, x)) for name, x in inputs.items()
            }
            assert_same(found, use.expected())
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in _open_descriptors()]
    assert sum(str(tmp_path) in name for name in names) <= 3
    del sessions, session, loaded
    names = [os.readlink(f"/proc/self/fd/{fd}") for fd in _open_descriptors()]
    assert not [name for name in names if str(tmp_path) in name]


def _open_descriptors() -> list[str]:
    return [
        fd
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
