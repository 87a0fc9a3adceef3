"""The command says what is true, to people and to programs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin_packages import PluginPackages
from program_builders import record_of, stock_program, with_record
from runtime_programs import bounded, recurrent

from etshared_plugin import __version__
from etshared_plugin.cli import main
from etshared_plugin.cli.printing import human_nbytes
from etshared_plugin.cli.values import as_json, leaves, values_text
from etshared_plugin.plugins import plugin_manager

# What a terminal would act on, and what rich would take for markup.
HOSTILE = "sum\x1b[31m\n[bold]x[/bold]:smile:\u202e"
ESCAPED = r"sum\x1b[31m\n[bold]x[/bold]:smile:\u202e"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "recurrent.pte"
    path.write_bytes(recurrent("portable"))
    return path


@pytest.fixture
def packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PluginPackages]:
    monkeypatch.syspath_prepend(tmp_path)
    found = PluginPackages(tmp_path)
    plugin_manager.cache_clear()
    yield found
    plugin_manager.cache_clear()
    found.forget()


def write_npy(directory: Path, name: str, array: np.ndarray) -> str:
    path = directory / f"{name}.npy"
    np.save(path, array)
    return str(path)


def printed_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    text = capsys.readouterr().out
    report = json.loads(text)
    assert report["version"] == 1
    assert text == json.dumps(report, indent=2, sort_keys=True) + "\n"
    return report


def test_inspect_shows_what_entry_points_share(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(program)]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = " ".join(lines)  # the path may wrap
    assert f"written by etshared_plugin {__version__}, executorch 1.5.1" in text
    hidden = next(line for line in lines if line.startswith("hidden "))
    assert hidden.split()[:4] == ["hidden", "float32", "[1,4]", "2"]
    assert "initial values are zero but for cache.keys, hidden" in text
    assert any(line.startswith("(generated)") for line in lines)


def test_inspect_prints_the_report_as_json(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(program), "--json"]) == 0
    report = printed_json(capsys)
    assert report["record"] == "present"
    assert [entry["name"] for entry in report["entry_points"]] == [
        *("fill", "forward", "lookup", "nested", "peek", "reset_state"),
    ]
    steps = next(state for state in report["state"] if state["fqn"] == "steps")
    assert (steps["dtype"], steps["sizes"], steps["nbytes"]) == ("int64", [], 8)
    assert "forward" in steps["writers"] and "lookup" in steps["writers"]


def test_inspect_shows_which_sizes_inputs_may_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bounded.pte"
    path.write_bytes(bounded("portable"))
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out.replace("\n", " ")
    assert "[s1=2..16,8]" in text and "[1..5,s1=2..16]" in text
    assert main(["inspect", str(path), "--json"]) == 0
    x, y = printed_json(capsys)["entry_points"][0]["arguments"]
    (sizes,) = y["values"]
    assert (sizes["min_sizes"], sizes["max_sizes"]) == ([1, 2], [5, 16])
    assert sizes["symbols"] == [2, 1]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_looking_at_a_program_does_not_load_the_native_runtime(
    command: str, program: Path, tmp_path: Path
) -> None:
    script = f"""
import sys
from etshared_plugin.cli import main
assert main([{command!r}, {str(program)!r}]) == 0
assert not {{"torch", "etshared_plugin.runtime"}} & sys.modules.keys()
assert "libexecutorch" not in open("/proc/self/maps").read()
"""
    finished = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert (finished.returncode, finished.stderr) == (0, "")


def test_names_from_a_file_reach_no_terminal_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = stock_program(delegated=False)
    record = record_of(data)
    buffers = (dataclasses.replace(record.buffers[0], fqn=HOSTILE), *record.buffers[1:])
    path = tmp_path / "hostile.pte"
    path.write_bytes(with_record(data, dataclasses.replace(record, buffers=buffers)))
    for command in (
        ["inspect", str(path)],
        ["verify", str(path)],
        ["run", str(path), "--entry", "peek"],
        ["run", str(path), "--entry", HOSTILE],
    ):
        main(command)
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert "\x1b" not in text and "\u202e" not in text
        if command[0] == "inspect":
            folded = "".join(line.split("  ")[0].strip() for line in text.splitlines())
            assert ESCAPED.replace(" ", "") in folded


def test_a_program_without_a_record_is_inspected_by_its_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stock.pte"
    path.write_bytes(stock_program(delegated=False))
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    assert "no record of what entry points share" in text
    assert "root.sum" in text
    assert main(["verify", str(path)]) == 0


@pytest.mark.parametrize(
    ("name", "problem"),
    [("gone.pte", "No such file or directory"), ("", "Is a directory")],
)
@pytest.mark.parametrize("command", ["inspect", "verify", "run"])
def test_a_file_that_cannot_be_read_is_one_line_on_stderr(
    command: str,
    name: str,
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    more = ["--entry", "forward"] if command == "run" else []
    assert main([command, str(path), *more]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"etshared: '{path}': cannot be read: {problem}\n"


@pytest.mark.parametrize("command", ["inspect", "run"])
def test_a_file_that_is_no_program_is_named_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no.pte"
    path.write_bytes(b"PK")
    more = ["--entry", "forward"] if command == "run" else []
    assert main([command, str(path), *more]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"etshared: '{path}': ") and error.count("no.pte") == 1


def test_verify_passes_a_sound_program(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(program)]) == 0
    assert capsys.readouterr().out == f"{program}: sound\n"
    assert main(["verify", str(program), "--json"]) == 0
    report = printed_json(capsys)
    assert (report["is_sound"], report["findings"]) == (True, [])


def test_verify_fails_a_wrong_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = stock_program(delegated=False)
    record = record_of(data)
    arenas = (
        record.arenas[0],
        dataclasses.replace(record.arenas[1], nbytes=record.arenas[1].nbytes + 16),
    )
    path = tmp_path / "wrong.pte"
    path.write_bytes(with_record(data, dataclasses.replace(record, arenas=arenas)))
    assert main(["verify", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error [arena-size] arena 2: the record tells of")
    assert lines[-1] == f"{path}: not sound"
    assert main(["verify", str(path), "--json"]) == 1
    report = printed_json(capsys)
    assert not report["is_sound"]
    assert report["findings"][0]["code"] == "arena-size"


def test_verify_tells_what_a_plugin_finds(
    program: Path, packages: PluginPackages, capsys: pytest.CaptureFixture[str]
) -> None:
    packages.install(
        "critic",
        """
from etshared_plugin.hookspecs import hookimpl
from etshared_plugin.inspection import Finding, Severity

@hookimpl
def etshared_check(report):
    return [Finding(Severity.ERROR, "critic-big", f"{report.nbytes} bytes are many")]
""",
    )
    assert main(["verify", str(program)]) == 1
    nbytes = program.stat().st_size
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"error [critic-big] {nbytes} bytes are many"


def test_verify_tells_its_own_findings_before_those_of_a_plugin_that_raises(
    tmp_path: Path, packages: PluginPackages, capsys: pytest.CaptureFixture[str]
) -> None:
    packages.install(
        "critic",
        """
from etshared_plugin.hookspecs import hookimpl

@hookimpl
def etshared_check(report):
    yield from ()
    raise OSError("no rules")
""",
    )
    data = stock_program(delegated=False)
    record = record_of(data)
    arenas = (record.arenas[0], dataclasses.replace(record.arenas[1], nbytes=136))
    path = tmp_path / "wrong.pte"
    path.write_bytes(with_record(data, dataclasses.replace(record, arenas=arenas)))
    assert main(["verify", str(path)]) == 1
    first, *others, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("error [arena-size] arena 2: ")
    assert (
        "error [plugin] plugin 'critic' (dist-critic 3.1) failed in 'etshared_check': "
        "OSError: no rules"
    ) in others
    assert verdict == f"{path}: not sound"


def test_run_calls_an_entry_point_with_its_state(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = write_npy(tmp_path, "x", np.full((1, 4), 1.5, np.float32))
    assert main(["run", str(program), "--entry", "peek", "--input", x]) == 0
    text = capsys.readouterr().out
    assert "Results of 'peek'" in text
    assert "6.5 6.5 6.5 6.5" in text
    command = ["run", str(program), "--entry", "forward", "--input", x]
    assert main([*command, "--json"]) == 0
    report = printed_json(capsys)
    assert [output["path"] for output in report["outputs"]] == ["[0]", "[1]"]
    assert report["outputs"][1]["values"] == [1]
    states = {state["fqn"]: state for state in report["state"]}
    assert states["hidden"]["before"]["values"] == [5.0] * 4
    assert states["hidden"]["is_changed"] and not states["cache.keys"]["is_changed"]
    assert states["steps"]["after"]["values"] == [1]


def test_run_repeats_calls_in_one_session(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = write_npy(tmp_path, "index", np.array([1]))
    command = ["run", str(program), "--entry", "lookup", "--input", f"index={index}"]
    assert main([*command, "--repeat", "3", "--json"]) == 0
    report = printed_json(capsys)
    steps = next(state for state in report["state"] if state["fqn"] == "steps")
    assert steps["after"]["values"] == [3]


def test_run_saves_its_outputs(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = write_npy(tmp_path, "x", np.ones((1, 4), np.float32))
    out = tmp_path / "outputs" / "here"
    command = ["run", str(program), "--entry", "forward", "--input", x]
    assert main([*command, "--output", str(out)]) == 0
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    expected = [output["values"] for output in printed_json(capsys)["outputs"]]
    saved = [np.load(out / f"output-{index}.npy") for index in (0, 1)]
    assert [array.flatten().tolist() for array in saved] == expected


def test_run_without_results_or_inputs(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = write_npy(tmp_path, "row", np.ones((1, 3), np.float32))
    assert main(["run", str(program), "--entry", "fill", "--input", row]) == 0
    text = capsys.readouterr().out
    assert "'fill' returned nothing" in text
    assert "0 to 5, mean 2.5" in text and "1 to 6, mean 3.5" in text


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([], "the following arguments are required: COMMAND"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["inspect"], "the following arguments are required: FILE"),
        (["run", "{file}"], "the following arguments are required: --entry"),
        (
            ["run", "{file}", "--entry", "nope"],
            "there is no entry point 'nope', only",
        ),
        (
            ["run", "{file}", "--entry", "peek", "--input", "x.txt"],
            "'x.txt' is neither the path of a .npy file nor a number",
        ),
        (
            ["run", "{file}", "--entry", "peek", "--input", "x=gone.npy"],
            "cannot read 'gone.npy': No such file or directory",
        ),
        (
            ["run", "{file}", "--entry", "peek", "--repeat", "0"],
            "'0' is not a number from 1 up",
        ),
    ],
)
def test_wrong_usage_exits_with_2(
    program: Path,
    arguments: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [argument.replace("{file}", str(program)) for argument in arguments]
    assert main(filled) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err


def test_inputs_that_do_not_fit_are_one_line_on_stderr(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = write_npy(tmp_path, "x", np.ones((1, 5), np.float32))
    for inputs in ([], ["--input", x], ["--input", "1.5"], ["--input", f"y={x}"]):
        assert main(["run", str(program), "--entry", "peek", *inputs]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("etshared: entry point 'peek'")
        assert captured.err.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "verify", "run"])
def test_a_bad_file_exits_with_1(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage = tmp_path / "garbage.pte"
    garbage.write_bytes(b"no program\n" * 50)
    for path in (garbage, tmp_path / "absent.pte", tmp_path):
        entry = ["--entry", "forward"] if command == "run" else []
        assert main([command, str(path), *entry]) == 1
        captured = capsys.readouterr()
        if command == "verify" and path is garbage:
            assert captured.out.startswith("error [program-damaged]")
        else:
            assert captured.out == ""
            assert captured.err.startswith("etshared: ")
            assert str(path) in captured.err
            assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "nbytes, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**3 // 2, "2.5 GiB"),
        (3 * 1024**4, "3.0 TiB"),
    ],
)
def test_sizes_have_units(nbytes: int, text: str) -> None:
    assert human_nbytes(nbytes) == text


def test_json_has_text_where_it_has_no_number() -> None:
    report = as_json(np.array([1.0, np.inf, np.nan], np.float32))
    assert report["values"] == [1.0, "inf", "nan"]
    assert json.dumps(report, allow_nan=False)
    assert as_json(np.zeros((0, 3)))["mean"] is None
    assert as_json(True) == {"type": "bool", "value": True}


def test_results_are_found_where_python_would_look() -> None:
    result = {"a": (1, [2, None]), "b": 3}
    assert dict(leaves(result)) == {
        "['a'][0]": 1,
        "['a'][1][0]": 2,
        "['a'][1][1]": None,
        "['b']": 3,
    }
    assert dict(leaves(None)) == {}


def test_plugins_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    text = capsys.readouterr().out
    assert "xnnpack" in text and "etshared_describe_delegate" in text
    assert main(["plugins", "--json"]) == 0
    (first, *_) = printed_json(capsys)["plugins"]
    assert first["name"] == "xnnpack"
    assert first["distribution"] == "etshared-plugin"
    assert first["error"] is None


def test_a_broken_plugin_is_named_and_the_rest_works(
    program: Path, packages: PluginPackages, capsys: pytest.CaptureFixture[str]
) -> None:
    packages.install("broken", "import etshared_nowhere")
    assert main(["plugins"]) == 1
    captured = capsys.readouterr()
    assert "xnnpack" in captured.out and "dist-broken" in captured.out
    assert captured.err.startswith("etshared: plugin 'broken' (dist-broken 3.1)")
    assert captured.err.count("\n") == 1
    plugin_manager.cache_clear()
    assert main(["verify", str(program)]) == 0
    assert capsys.readouterr().err.startswith("etshared: plugin 'broken'")


def test_integers_are_shown_in_full() -> None:
    assert values_text(np.array([1234567, -1])) == "1234567 -1"
    assert values_text(np.full(9, 1234567)) == "all 1234567"
    assert values_text(np.array([1234567.5])) == "1.23457e+06"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"etshared {__version__}\n"


def test_a_reader_that_stops_early_is_no_error(program: Path, tmp_path: Path) -> None:
    finished = subprocess.run(
        f"{sys.executable} -c 'from etshared_plugin.cli import main; "
        f"raise SystemExit(main())' inspect {program} --json | head -1; "
        'exit "${PIPESTATUS[0]}"',
        shell=True,
        cwd=tmp_path,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == "{\n"


def test_run_is_silent_of_what_executorch_finds_out_about_the_cpu(
    tmp_path: Path,
) -> None:
    path = tmp_path / "delegated.pte"
    path.write_bytes(recurrent("xnnpack"))
    x = write_npy(tmp_path, "x", np.ones((1, 4), np.float32))
    script = "from etshared_plugin.cli import main; raise SystemExit(main())"
    finished = subprocess.run(
        [
            *(sys.executable, "-c", script, "run", str(path), "--entry", "forward"),
            *("--input", x),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "Results of 'forward'" in finished.stdout


def test_all_but_the_demo_works_without_torch(program: Path, tmp_path: Path) -> None:
    x = write_npy(tmp_path, "x", np.ones((1, 4), np.float32))
    script = f"""
import sys
sys.modules["torch"] = None
from etshared_plugin.cli import main
from etshared_plugin.cli.printing import human_nbytes
from etshared_plugin.cli.values import as_json, leaves
for command in (
    ["inspect", {str(program)!r}],
    ["verify", {str(program)!r}],
    ["run", {str(program)!r}, "--entry", "peek", "--input", {x!r}],
    ["plugins"],
):
    assert main(command) == 0, command
assert main(["demo"]) == 1
"""
    finished = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert "the demo needs 'torch', which is not installed" in finished.stderr
