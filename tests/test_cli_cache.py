"""The command shows what is kept on disk, and removes it."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import packed_cache_use as use
import packed_programs as programs
import pytest
from packed_cache_use import assert_right, load, origin

import etshared_plugin as etshared
from etshared_plugin.cli import main
from etshared_plugin.runtime import packed_lock


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With the packed weights of one program from a file and one from bytes."""
    path = tmp_path / "mixed\x1b[31m.pte"
    path.write_bytes(programs.mixed()[0])
    cache = tmp_path / "cache"
    etshared.load(programs.confusable()[0], packed_cache=cache)
    etshared.load(path, packed_cache=cache)
    return cache


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report.pop("version") == 1
    return report


def _damage(directory: Path) -> Path:
    """Damage the file that was used last."""
    path = etshared.PackedCache(directory).entries()[0].path
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.unlink()
    path.write_bytes(data)
    return path


def test_ls_lists_what_was_used_last_first(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["cache", "ls", "--directory", str(directory)]
    assert main(command) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (first,) = (row for row in rows if r"mixed\x1b[31m.pte" in row)
    (second,) = (row for row in rows if row[4:6] == ["from", "bytes"])
    assert rows.index(first) < rows.index(second)
    assert first[2:4] == ["20.4", "KiB"]
    newest = etshared.PackedCache(directory).entries()[0].path.name
    assert first[-1] == f"{newest[:12]}….packed"

    assert main([*command, "--json"]) == 0
    report = _json(capsys)
    assert report["directory"] == str(directory)
    assert [file["label"] for file in report["files"]] == ["mixed\x1b[31m.pte", ""]
    for file in report["files"]:
        assert Path(file["path"]).stat().st_size == file["nbytes"]
        assert abs(file["last_used"] - time.time()) < 600


def test_verify_finds_damage(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["cache", "verify", "--directory", str(directory)]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.endswith(".packed: sound") for line in lines)
    path = _damage(directory)
    assert main(command) == 1
    problem = "its bytes from 0 to 20720 differ from their checksums"
    assert f"{path}: damaged: {problem}" in capsys.readouterr().out.splitlines()
    assert main([*command, "--json"]) == 1
    report = _json(capsys)
    assert report["is_sound"] is False
    found = {file["path"]: file["problem"] for file in report["files"]}
    assert found.pop(str(path)) == problem
    assert list(found.values()) == [None]
    assert path.exists()


def test_clear_removes_files_also_under_programs_that_use_them(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load(directory)
    assert origin(program) == "unchanged"
    session = program.session()
    (directory / "other").write_bytes(b"not ours")
    (directory / f"{'0' * 64}.tmp").write_bytes(b"left over")
    nbytes = sum(path.stat().st_size for path in directory.glob("*.packed"))
    command = ["cache", "clear", "--directory", str(directory)]
    assert main([*command, "--json"]) == 0
    report = _json(capsys)
    assert report["nbytes"] == nbytes and len(report["files"]) == 2
    assert [path.name for path in directory.iterdir()] == ["other"]
    session.load()
    assert_right(program)
    assert origin(load(directory)) == "written"
    assert main(command) == 0
    assert f"removed 1 file, 20.3 KiB, from '{directory}'" in capsys.readouterr().out
    assert main(command) == 0
    assert "removed 0 files, 0 B, from" in capsys.readouterr().out


def test_clear_says_what_it_cannot_remove(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    obstacle = directory / f"{'0' * 64}.packed"
    obstacle.mkdir()
    for _ in range(2):
        assert main(["cache", "clear", "--directory", str(directory)]) == 1
        error = capsys.readouterr().err
        assert error == f"etshared: '{obstacle}': is a directory\n"
        assert [path.name for path in directory.iterdir()] == [obstacle.name]
    with pytest.raises(IsADirectoryError):
        etshared.PackedCache(directory).clear()


def test_clear_waits_for_writers(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(packed_lock, "LOCK_SECONDS", 0.05)
    names = {path.name for path in directory.iterdir()}
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert main(["cache", "clear", "--directory", str(directory)]) == 1
    assert capsys.readouterr().err == (
        f"etshared: '{directory}' is in use: another process has had its lock for 0.05 "
        "seconds\n"
    )
    os.close(descriptor)
    assert {path.name for path in directory.iterdir()} == names


@pytest.mark.parametrize("seconds", [2**33 * 30, -(2**33) * 9])
def test_ls_shows_files_with_absurd_times(
    seconds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    # A file system that has such times.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        load(directory)
        stamp = use.stamp_of(use.packed_file(directory))
        os.utime(stamp, (seconds, seconds))
        assert stamp.stat().st_mtime == seconds
        assert main(["cache", "ls", "--directory", name]) == 0
        assert "unknown" in capsys.readouterr().out


def test_the_users_directory_need_not_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for action in ("ls", "verify", "clear"):
        assert main(["cache", action, "--json"]) == 0
        report = _json(capsys)
        assert report["directory"] == str(tmp_path / "etshared")
        assert report["files"] == []
    assert main(["cache", "ls"]) == 0
    text = capsys.readouterr().out
    assert text == f"no packed weights in '{tmp_path / 'etshared'}'\n"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_none_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for action in ("ls", "verify", "clear"):
        assert main(["cache", action, "--directory", str(file)]) == 1
        assert capsys.readouterr().err == (
            f"etshared: '{file}' is not a directory for packed weights\n"
        )
    assert main(["cache"]) == 2


def test_run_keeps_packed_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.pte"
    path.write_bytes(programs.mixed()[0])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    command = ["run", str(path), "--entry", "peek", "--stats", "--packed-cache"]
    default = tmp_path / "caches" / "etshared"
    for arguments, directory in (
        (command, default),
        ([*command, str(tmp_path / "given")], tmp_path / "given"),
    ):
        for start in ("written", "unchanged since it was verified"):
            assert main(arguments) == 0
            out = capsys.readouterr().out
            file = use.packed_file(directory)
            assert f"packed file '{file}': {start}" in out.splitlines()
        assert main([*arguments, "--json"]) == 0
        stats = _json(capsys)["stats"]
        assert stats["packed_file"] == {
            "path": str(file),
            "origin": "unchanged",
            "not_used": None,
        }
        assert (stats["constants_packed"], stats["constants_from_disk"]) == (0, 2)
        found = {one["name"]: one for one in stats["entry_points"]}
        assert found["encode"]["constants_from_disk"] == 1
        assert found["step"]["constants_reused"] == 2


def test_run_says_why_nothing_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.pte"
    path.write_bytes(programs.mixed()[0])
    command = ["run", str(path), "--entry", "peek", "--stats"]
    below = str(path / "below")
    assert main([*command, "--packed-cache", below]) == 0
    captured = capsys.readouterr()
    assert captured.err == (
        f"etshared: packed weights are not kept in '{below}': Not a directory; they "
        "are packed in memory\n"
    )
    assert "no packed file: Not a directory" in captured.out.splitlines()
