"""C++ programs that use nothing but the executorch wheel."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sysconfig
from pathlib import Path

_SOURCE = Path(__file__).parent / "cpp"


def build(name: str, directory: Path) -> Path:
    """Build one of the programs in ``cpp`` and return its path."""
    spec = importlib.util.find_spec("executorch")
    assert spec is not None and spec.submodule_search_locations
    packages = Path(spec.submodule_search_locations[0], "lib", "cmake")
    # The test extra's cmake and ninja, be their environment activated or not.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    configure = ["-S", _SOURCE, "-B", directory, "-G", "Ninja"]
    for arguments in (
        [*configure, f"-DCMAKE_PREFIX_PATH={packages}", "-DCMAKE_BUILD_TYPE=Release"],
        ["--build", directory, "--target", name],
    ):
        done = subprocess.run(
            ["cmake", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return directory / name
