"""Generate the readers and writers of the FlatBuffers schemas.

Run ``python schema/regenerate.py`` after changing ``shared_context.fbs`` or the
pinned executorch; ``--check`` writes nothing and exits 1 naming every file that
would change, and what released versions of the schema a change breaks. Needs the
packages ``flatc`` and ``executorch``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SCHEMA = Path(__file__).resolve().parent
PACKAGE = SCHEMA.parent / "etshared_plugin"
COMMAND = "python schema/regenerate.py"

SCALAR_SIZES = {
    **dict.fromkeys(("bool", "byte", "ubyte", "int8", "uint8"), 1),
    **dict.fromkeys(("short", "ushort", "int16", "uint16"), 2),
    **dict.fromkeys(("int", "uint", "float", "int32", "uint32", "float32"), 4),
    **dict.fromkeys(("long", "ulong", "double", "int64", "uint64", "float64"), 8),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check

    problems = broken_releases() if check else []
    for path, text in generate().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            name = path.relative_to(SCHEMA.parent).as_posix()
            problems.append(f"{name} is out of date; run {COMMAND}")
        else:
            path.write_text(text, encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def generate() -> dict[Path, str]:
    """Return the text of every generated file by its place in the project."""
    executorch = package_directory("executorch")
    program = executorch / "schema" / "program.fbs"
    scalar_type = executorch / "schema" / "scalar_type.fbs"
    context = SCHEMA / "shared_context.fbs"
    flat_tensor = executorch / "extension" / "flat_tensor" / "serialize"
    serialization = executorch / "backends" / "xnnpack" / "serialization"
    xnnpack_graph = serialization / "runtime_schema.fbs"
    headers = PACKAGE / "csrc" / "generated"
    return {
        headers / "scalar_type_generated.h": cpp(scalar_type),
        headers / "program_generated.h": cpp(program),
        headers / "flat_tensor_generated.h": cpp(flat_tensor / "flat_tensor.fbs"),
        headers / "shared_context_generated.h": cpp(context),
        PACKAGE / "context" / "_generated" / "shared_context.py": python(context),
        PACKAGE / "pte" / "_generated" / "program.py": python(program),
        PACKAGE / "backends" / "_generated" / "xnnpack_graph.py": python(xnnpack_graph),
    }


def cpp(schema: Path) -> str:
    text = flatc(schema, "_generated.h", "--cpp", "--scoped-enums", "--cpp-std=c++17")
    return heading(schema, "//") + text


def python(schema: Path) -> str:
    text = flatc(schema, "_generated.py", "--python", "--gen-onefile")
    return heading(schema, "#") + text + layout(schema)


def heading(schema: Path, comment: str) -> str:
    version = importlib.metadata.version("executorch")
    lines = [f'Generated from {schema.name} by "{COMMAND}", executorch {version}.']
    lines += re.findall(r"^// (Copyright .*)$", schema.read_text(), re.MULTILINE)
    return "".join(f"{comment} {line}\n" for line in lines)


def flatc(schema: Path, suffix: str, *options: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        run_flatc("-I", include_directory(), *options, "-o", directory, schema)
        return (Path(directory) / (schema.stem + suffix)).read_text(encoding="utf-8")


def run_flatc(*arguments: str | Path) -> None:
    # The script of the same name on PATH may be executorch's older one.
    executable = package_directory("flatc") / "bin" / "flatc"
    subprocess.run([executable, *arguments], check=True)


def include_directory() -> Path:
    return package_directory("executorch") / "schema"


def package_directory(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"package '{name}' is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def broken_releases() -> list[str]:
    """Name every released schema that the current one does not extend."""
    problems = []
    for released in sorted((SCHEMA / "released").glob("*.fbs")):
        try:
            run_flatc(
                *("-I", include_directory(), "--conform-includes", include_directory()),
                *("--conform", released, SCHEMA / "shared_context.fbs"),
            )
        except subprocess.CalledProcessError:
            problems.append(
                f"shared_context.fbs breaks schema/released/{released.name}"
            )
    return problems


def layout(schema: Path) -> str:
    """Return the tables' layout as Python, which bounds checking reads.

    flatc generates a verifier for C++ but none for Python.
    """
    text = schema_text(schema)
    sizes = dict(SCALAR_SIZES)
    for name, underlying in re.findall(r"\benum (\w+)\s*:\s*(\w+)", text):
        sizes[name] = sizes[underlying]
    unions: dict[str, tuple[str, ...]] = {}
    for name, body in re.findall(r"\bunion (\w+)\s*{([^}]*)}", text):
        members = [member.split(":")[-1].strip() for member in body.split(",")]
        unions[name] = tuple(member for member in members if member)

    tables: dict[str, list[tuple[str, object]]] = {}
    for table, body in re.findall(r"\btable (\w+)\s*{([^}]*)}", text):
        fields = tables[table] = []
        for name, field_type in re.findall(r"(\w+)\s*:\s*([\w.\[\]]+)[^;]*;", body):
            type_name = field_type.strip("[]").split(".")[-1]
            if type_name in unions:
                fields.append((f"{name}_type", 1))
                fields.append((name, {"union": unions[type_name]}))
                continue
            field: object = sizes.get(type_name, type_name)
            fields.append((name, [field] if field_type.startswith("[") else field))
    (root,) = re.findall(r"\broot_type (\w+);", text)
    (identifier,) = re.findall(r'\bfile_identifier "(\w+)";', text)
    lines = [f"ROOT = {root!r}", f"IDENTIFIER = {identifier.encode()!r}", "TABLES = {"]
    lines += [f"    {name!r}: {fields!r}," for name, fields in tables.items()]
    return "\n" + "\n".join([*lines, "}"]) + "\n"


def schema_text(schema: Path) -> str:
    """Return the schema with its includes and without comments."""
    text = re.sub(r"//.*", "", schema.read_text(encoding="utf-8"))
    if "struct " in text:
        raise SystemExit(f"{schema}: structs are not supported")
    included = re.findall(r'\binclude "([^"]+)";', text)
    return "".join(schema_text(include_directory() / name) for name in included) + text


if __name__ == "__main__":
    sys.exit(main())
