"""Open files: io.RawIOBase over a descriptor, and buffers over it as built-in open() makes them."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from foliofs import _native

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RawFile(io.RawIOBase):
    """An open file without a buffer. Offsets and sizes are in bytes.

    Several threads may use pread and pwrite at the same time.
    """

    def __init__(self, file: _native.File, path: str, flags: int) -> None:
        super().__init__()
        self._file = file
        self._access = flags & os.O_ACCMODE
        self.name = path

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<foliofs.RawFile {self.name!r}, {state}>"

    def readable(self) -> bool:
        return self._access != os.O_WRONLY

    def writable(self) -> bool:
        return self._access != os.O_RDONLY

    def seekable(self) -> bool:
        return True

    def _check(self, is_allowed: bool, purpose: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not is_allowed:
            raise io.UnsupportedOperation(f"{self.name}: file not open for {purpose}")

    def readinto(self, buffer: Buffer, /) -> int:
        self._check(self.readable(), "reading")
        return self._file.readinto(buffer)

    def readall(self) -> bytes:
        self._check(self.readable(), "reading")
        rest = max(self._file.stat()[5] - self.tell(), 0) + 1
        parts = []
        while part := self._file.read(min(rest, 1 << 28)):
            parts.append(part)
            rest = max(rest - len(part), 64 << 10)
        return b"".join(parts)

    def write(self, data: Buffer, /) -> int:
        self._check(self.writable(), "writing")
        return self._file.write(data)

    def pread(self, len_bytes: int, offset: int) -> bytes:
        """Reads up to `len_bytes` at `offset`, at most 1 GiB; b"" at the end of the file."""
        self._check(self.readable(), "reading")
        return self._file.pread(len_bytes, offset)

    def preadinto(self, buffer: Buffer, offset: int) -> int:
        """Reads into a buffer at `offset`. Returns the number of bytes; 0 at the end."""
        self._check(self.readable(), "reading")
        return self._file.preadinto(buffer, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes at `offset`. Returns the number of bytes."""
        self._check(self.writable(), "writing")
        return self._file.pwrite(data, offset)

    def borrow(self, offset: int, len_bytes: int) -> memoryview:
        """Returns the file's own bytes in the page cache, at most 2 MiB, read only.

        A later write to the file changes them. If the pages are not adjacent in memory, they are a
        copy. The view is shorter at the end of the file.
        """
        self._check(self.readable(), "reading")
        return memoryview(self._file.borrow(offset, len_bytes))

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check(True, "seeking")
        return self._file.seek(offset, whence)

    def truncate(self, size: int | None = None, /) -> int:
        self._check(self.writable(), "writing")
        size = self.tell() if size is None else size
        self._file.truncate(size)
        return size

    def fsync(self, *, data_only: bool = False) -> None:
        """Makes all writes to the file durable, as os.fsync; os.fdatasync with `data_only`."""
        self._check(True, "syncing")
        self._file.fsync(data_only=data_only)

    def close(self) -> None:
        """Closes the descriptor. Raises OSError if an earlier write could not be stored."""
        if self.closed:
            return
        try:
            super().close()
        finally:
            self._file.close()


class BufferedReader(io.BufferedReader):
    """io.BufferedReader with borrow."""

    raw: RawFile

    def borrow(self, offset: int, len_bytes: int) -> memoryview:
        """As RawFile.borrow."""
        return self.raw.borrow(offset, len_bytes)

    def fsync(self, *, data_only: bool = False) -> None:
        """As RawFile.fsync."""
        self.raw.fsync(data_only=data_only)


class BufferedWriter(io.BufferedWriter):
    """io.BufferedWriter with fsync. With `is_synced`, flush() makes the data durable."""

    raw: RawFile

    def __init__(self, raw: RawFile, buffer_size: int, is_synced: bool = False) -> None:
        super().__init__(raw, buffer_size)
        self._is_synced = is_synced

    def flush(self) -> None:
        super().flush()
        if self._is_synced:
            self.raw.fsync()

    def close(self) -> None:
        """Writes the buffer and closes the file, without fsync, as close(2)."""
        self._is_synced = False
        super().close()

    def fsync(self, *, data_only: bool = False) -> None:
        """Writes the buffer, then RawFile.fsync."""
        super().flush()
        self.raw.fsync(data_only=data_only)


class BufferedRandom(io.BufferedRandom):
    """io.BufferedRandom with borrow and fsync. With `is_synced`, flush() makes the data durable."""

    raw: RawFile

    def __init__(self, raw: RawFile, buffer_size: int, is_synced: bool = False) -> None:
        super().__init__(raw, buffer_size)
        self._is_synced = is_synced

    def flush(self) -> None:
        super().flush()
        if self._is_synced:
            self.raw.fsync()

    def close(self) -> None:
        """Writes the buffer and closes the file, without fsync, as close(2)."""
        self._is_synced = False
        super().close()

    def borrow(self, offset: int, len_bytes: int) -> memoryview:
        """Writes the buffer, then RawFile.borrow."""
        super().flush()
        return self.raw.borrow(offset, len_bytes)

    def fsync(self, *, data_only: bool = False) -> None:
        """Writes the buffer, then RawFile.fsync."""
        super().flush()
        self.raw.fsync(data_only=data_only)


def open_flags(mode: str) -> int:
    """Returns the flags of open(2) for a mode of built-in open()."""
    if len(set(mode)) != len(mode) or not set(mode) <= set("rwxabt+"):
        raise ValueError(f"invalid mode: {mode!r}")
    if sum(letter in mode for letter in "rwxa") != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    if "b" in mode and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    if "+" in mode:
        flags = os.O_RDWR
    else:
        flags = os.O_RDONLY if "r" in mode else os.O_WRONLY
    if "w" in mode:
        flags |= os.O_CREAT | os.O_TRUNC
    elif "x" in mode:
        flags |= os.O_CREAT | os.O_EXCL
    elif "a" in mode:
        flags |= os.O_CREAT | os.O_APPEND
    return flags


def wrap(
    raw: RawFile,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    is_synced: bool,
) -> Any:
    """Returns the file object that built-in open() returns for these arguments."""
    is_binary = "b" in mode
    if is_binary and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if buffering == 0:
        if not is_binary:
            raise ValueError("can't have unbuffered text I/O")
        return raw
    size = buffering if buffering > 1 else 128 << 10
    buffered: BufferedReader | BufferedWriter | BufferedRandom
    if raw.readable() and raw.writable():
        buffered = BufferedRandom(raw, size, is_synced)
    elif raw.writable():
        buffered = BufferedWriter(raw, size, is_synced)
    else:
        buffered = BufferedReader(raw, size)
    if is_binary:
        return buffered
    encoding = encoding or "utf-8"
    return io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
