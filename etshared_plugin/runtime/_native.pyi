"""Programs with shared state over ExecuTorch 1.5.1."""

from collections.abc import Sequence


class MethodStats:
    """What loading one method has taken."""

    @property
    def num_loads(self) -> int: ...

    @property
    def load_seconds(self) -> float: ...

    @property
    def pack_seconds(self) -> float: ...

    @property
    def num_packed(self) -> int: ...

    @property
    def packed_nbytes(self) -> int: ...

    @property
    def num_from_disk(self) -> int: ...

    @property
    def from_disk_nbytes(self) -> int: ...

    @property
    def num_reused(self) -> int: ...

    @property
    def reused_nbytes(self) -> int: ...

    @property
    def obstacle(self) -> str: ...

def crc32c_of_chunks(data: bytes | bytearray | memoryview, chunk_nbytes: int) -> bytes:
    """
    CRC-32C of each chunk, the last of which may be shorter, in four bytes, little-endian.
    """

def crc32c_variants(data: bytes | bytearray | memoryview) -> dict[str, int]:
    """CRC-32C as it is computed here, and on any CPU."""

def xnnpack_build() -> tuple[bytes, bytes]:
    """
    GNU build id of the library that holds XNNPACK, empty when it has none, and what XNNPACK calls the build.
    """

class DataFiles:
    """What files beside a program hold, verified."""

    def __init__(self) -> None: ...

    def add_path(self, path: bytes) -> None: ...

    def add_bytes(self, data: bytes, name: str) -> None: ...

def hide_info_log() -> None:
    """From now on, ExecuTorch logs warnings and errors only."""

class Value:
    """One flat input or output of a method."""

    @property
    def kind(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def sizes(self) -> list[int]: ...

    @property
    def is_dynamic(self) -> bool: ...

class Program:
    """A verified program, mapped or owned."""

    @staticmethod
    def open(path: bytes, data_files: DataFiles, packed_weights: bool) -> Program: ...

    @staticmethod
    def from_bytes(data: bytes, data_files: DataFiles, packed_weights: bool) -> Program: ...

    @property
    def method_names(self) -> list[str]: ...

    @property
    def generated_method(self) -> int | None: ...

    @property
    def context(self) -> bytes | None: ...

    def inputs(self, method: int) -> list[Value]: ...

    def outputs(self, method: int) -> list[Value]: ...

    def named_data(self, key: str) -> memoryview | None:
        """The bytes under a key, as they lie in memory."""

    def stats(self) -> list[MethodStats]: ...

    @property
    def has_shareable(self) -> bool: ...

    def pack(self) -> tuple[bool, str]:
        """Whether any method shares, and what could not be packed."""

    @property
    def packed_descriptor(self) -> int: ...

    def use_packed_file(self, descriptor: int) -> tuple[bool, str]:
        """Whether the file could be read, and why it is not used."""

class Omitted:
    """Stands for an input that export recorded."""

    def __init__(self) -> None: ...

class Session:
    """Arenas and loaded methods: one life of the state."""

    def __init__(self, program: Program, in_caller: bool) -> None: ...

    def call(self, method: int, inputs: list[object], as_torch: bool) -> list[object]: ...

    def load(self, method: int) -> None: ...

    def is_loaded(self, method: int) -> bool: ...

    def reset(self) -> None: ...

    def reset_buffers(self, buffers: Sequence[int]) -> None: ...

    def snapshot(self, buffers: Sequence[int]) -> list[object]: ...

    def restore(self, values: Sequence[tuple[int, object]]) -> None: ...

    def assign(self, buffer: int, value: object) -> None: ...

    def view(self, buffer: int, as_torch: bool) -> object: ...
