"""The format of packed files.

A packed file is what XNNPACK's weight cache of ExecuTorch 1.5.1 writes, with one
block before its footer, where the cache does not look. Numbers are little-endian:

======================  ========================================================
packed weights, index   as the cache has written them
block                   magic (8 bytes), binding (32), bytes before the block (8),
                        bytes of a chunk (4), bytes of the label (4), the label,
                        CRC-32C of each chunk of what is before the block (4 each)
digest                  SHA-256 of the block and the footer (32)
size                    bytes of block and digest (4)
footer                  the cache's (20)
======================  ========================================================

Files are read with ``pread``, never through a mapping: one that is cut meanwhile
is a short read then, and not the end of the process.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import struct
from dataclasses import dataclass

from . import _native

_MAGIC = b"ETSPACK1"
_HEAD = struct.Struct("<8s32sQII")
_SIZE = struct.Struct("<I")
_DIGEST_NBYTES = 32
_FOOTER_NBYTES = 20

_CHUNK_NBYTES = 64 * 1024
_SUM_NBYTES = 4
_MAX_LABEL_NBYTES = 255

#: Bytes that are read at once: some chunks, which fit the CPU's cache.
_PIECE_NBYTES = 16 * _CHUNK_NBYTES

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

#: What opening says of links, directories, sockets and the like.
_NO_FILE_ERRNOS = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO})


class DamagedFileError(Exception):
    """A packed file is not what was written."""


@dataclass(frozen=True, slots=True)
class PackedFileBlock:
    """What a packed file says of itself; the block is intact, the rest may not be.

    Attributes:
        binding: what the content depends on.
        label: name of the program that it was made from, for people.
    """

    binding: bytes
    label: str
    _content_nbytes: int
    _sums: bytes

    def check_content(self, descriptor: int) -> None:
        """Read all of the content and compare it with its checksums.

        Raises:
            DamagedFileError: if it is not what was written.
        """
        buffer = memoryview(bytearray(_PIECE_NBYTES))
        for start in range(0, self._content_nbytes, _PIECE_NBYTES):
            piece = buffer[: self._content_nbytes - start]
            _read(descriptor, start, piece)
            sums = _native.crc32c_of_chunks(piece, _CHUNK_NBYTES)
            first = start // _CHUNK_NBYTES * _SUM_NBYTES
            if sums != self._sums[first : first + len(sums)]:
                raise DamagedFileError(
                    f"its bytes from {start} to {start + len(piece)} differ from "
                    "their checksums"
                )


def open_packed_file(
    directory: int, name: str, binding: bytes
) -> tuple[int, PackedFileBlock]:
    """Open a packed file to read it, with a shared lock.

    Returns:
        A descriptor, which the caller closes, and what the file says of itself.

    Raises:
        DamagedFileError: if it is no packed file, a damaged one, or another's.
        OSError: if it cannot be opened or locked.
    """
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno not in _NO_FILE_ERRNOS:
            raise
        raise DamagedFileError(f"it cannot be opened: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DamagedFileError("it is not a regular file")
        # As long as this lock is held, XNNPACK's weight cache, which would
        # write, gets none.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        block = read_block(descriptor)
        if block.binding != binding:
            raise DamagedFileError("it belongs to another program or machine")
        return descriptor, block
    except BaseException:
        os.close(descriptor)
        raise


def read_block(descriptor: int) -> PackedFileBlock:
    """Read what a packed file says of itself, without its content.

    Raises:
        DamagedFileError: if it is no packed file, or a damaged one.
    """
    tail_nbytes = _SIZE.size + _FOOTER_NBYTES
    rest_nbytes = os.fstat(descriptor).st_size - tail_nbytes
    least = _HEAD.size + _DIGEST_NBYTES
    if rest_nbytes < least:
        raise DamagedFileError("it is too short")
    tail = _read_new(descriptor, rest_nbytes, tail_nbytes)
    (nbytes,) = _SIZE.unpack_from(tail)
    if not least <= nbytes <= rest_nbytes:
        raise DamagedFileError("it does not end as a packed file")
    content_nbytes = rest_nbytes - nbytes
    data = _read_new(descriptor, content_nbytes, nbytes)
    block, digest = data[:-_DIGEST_NBYTES], data[-_DIGEST_NBYTES:]
    footer = tail[_SIZE.size :]
    if hashlib.sha256(block + footer).digest() != digest:
        raise DamagedFileError("its checksums are damaged")
    magic, binding, given_nbytes, chunk_nbytes, label_nbytes = _HEAD.unpack_from(block)
    sums = block[_HEAD.size + label_nbytes :]
    if (magic, given_nbytes, chunk_nbytes, len(sums)) != (
        _MAGIC,
        content_nbytes,
        _CHUNK_NBYTES,
        _num_chunks(content_nbytes) * _SUM_NBYTES,
    ):
        raise DamagedFileError("it is of another kind or size")
    label = block[_HEAD.size :][:label_nbytes].decode(errors="replace")
    return PackedFileBlock(binding, label, content_nbytes, sums)


def packed_file_nbytes(source: int, label: str) -> int:
    """Return how large the file would be that ``write_packed_file`` writes."""
    nbytes = os.fstat(source).st_size
    head = _HEAD.size + len(_label_bytes(label))
    sums = _num_chunks(nbytes - _FOOTER_NBYTES) * _SUM_NBYTES
    return nbytes + head + sums + _DIGEST_NBYTES + _SIZE.size


def write_packed_file(source: int, target: int, binding: bytes, label: str) -> None:
    """Write a packed file to an empty one.

    Args:
        source: descriptor of what the weight cache has written, which must not
            change.
        target: descriptor of the empty file.

    Raises:
        OSError: if it cannot be written; the file is then incomplete.
    """
    content_nbytes = os.fstat(source).st_size - _FOOTER_NBYTES
    buffer = memoryview(bytearray(_PIECE_NBYTES))
    label_bytes = _label_bytes(label)
    block = bytearray(
        _HEAD.pack(_MAGIC, binding, content_nbytes, _CHUNK_NBYTES, len(label_bytes))
    )
    block += label_bytes
    for start in range(0, content_nbytes, _PIECE_NBYTES):
        piece = buffer[: content_nbytes - start]
        _read(source, start, piece)
        block += _native.crc32c_of_chunks(piece, _CHUNK_NBYTES)
        _write(target, piece)
    footer = _read_new(source, content_nbytes, _FOOTER_NBYTES)
    digest = hashlib.sha256(block + footer).digest()
    size = _SIZE.pack(len(block) + len(digest))
    _write(target, memoryview(bytes(block) + digest + size + footer))


def _num_chunks(nbytes: int) -> int:
    return -(-nbytes // _CHUNK_NBYTES)


def _label_bytes(label: str) -> bytes:
    return label.encode(errors="replace")[:_MAX_LABEL_NBYTES]


def _read_new(descriptor: int, offset: int, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    _read(descriptor, offset, memoryview(data))
    return bytes(data)


def _read(descriptor: int, offset: int, data: memoryview) -> None:
    while data:
        try:
            count = os.preadv(descriptor, [data], offset)
        except OSError as error:
            raise DamagedFileError(f"it cannot be read: {error.strerror}") from error
        if count == 0:
            raise DamagedFileError("it is shorter than it should be")
        data = data[count:]
        offset += count


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
