"""Write generated/kernel_signatures.inc: what each stock kernel unpacks.

Kernels end the process when an argument is not of the kind that their schema
names, so the runtime compares every call with this table first. Run it with
torch and the executorch release that the native module is built against.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import executorch.exir  # noqa: F401  registers the operators' schemas
import executorch.kernels.quantized  # noqa: F401  and those of quantized kernels
import torch
from executorch.runtime import Runtime

_OUTPUT = Path(__file__).parents[1] / "generated" / "kernel_signatures.inc"

_CODES = {
    "Tensor": "T",
    "number": "N",
    "int": "I",
    "bool": "B",
    "float": "F",
    "str": "Z",
    "List[int]": "i",
    "List[bool]": "b",
    "List[float]": "f",
    "List[Tensor]": "t",
    "List[Optional[Tensor]]": "o",
}

# The runtime's own kernels check their numbers themselves; these take tensors.
_PRIMITIVES = {
    "executorch_prim::et_copy_index.tensor": "!TTI",
    "executorch_prim::et_view.default": "TiT",
}


def _code(argument: torch._C.Argument) -> str:
    name = str(argument.type)
    prefix = ""
    if name.startswith("Optional["):
        prefix, name = "?", name[len("Optional[") : -1]
    alias = argument.alias_info
    if alias is not None and alias.is_write:
        prefix += "!"
    return prefix + _CODES[name]


def signatures() -> str:
    schemas = {}
    for schema in torch._C._jit_get_all_schemas():
        overload = f".{schema.overload_name}" if schema.overload_name else ""
        schemas[schema.name + overload] = schema
    lines = [
        '// By "python kernel_signatures.py", executorch 1.5.1.',
        "// T tensor, N number, I int, B bool, F float, Z string; lower case: lists,",
        "// o of optional tensors; ? optional, ! written.",
    ]
    for name in sorted(Runtime.get().operator_registry.operator_names):
        code = _PRIMITIVES.get(name)
        if code is None and name.startswith("executorch_prim::"):
            continue
        if code is None:
            code = "".join(map(_code, schemas[name].arguments))
        lines.append(f'{{"{name}", "{code}"}},')
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    wanted = signatures()
    if parser.parse_args().check:
        return 0 if _OUTPUT.read_text() == wanted else 1
    _OUTPUT.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
