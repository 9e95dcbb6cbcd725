"""Open files: io.RawIOBase over a descriptor, and buffers over it as built-in open() makes them."""

from __future__ import annotations

import functools
import io
import os
import warnings
from typing import TYPE_CHECKING, Any

from foliofs import _native

if TYPE_CHECKING:
    from foliofs._file_system import FileSystem
    from typing_extensions import Buffer

BUFFER_BYTES = 128 << 10


class RawFile(io.RawIOBase):
    """An open file without a buffer. Offsets and sizes are in bytes.

    Several threads may use pread and pwrite at the same time. Its file system stays open as long
    as the file, unless it is closed.

    Calls raise OSError, with `filename`, if the image cannot be read or written;
    io.UnsupportedOperation if the file is not open for that; ValueError if it is closed. Ctrl-C ends
    reads and writes between parts of 64 MiB, but not fsync and close.
    """

    # Whether dropping the open file is a ResourceWarning, and what was dropped.
    _warns = True
    _dropped: str | None = None

    def __init__(self, fs: FileSystem, file: _native.File, path: str, mode: str) -> None:
        self._fs: FileSystem | None = fs
        self._file = file
        self._access = open_flags(mode) & os.O_ACCMODE
        self.name: str = path
        self.mode: str = _binary_mode(mode)

    def _dealloc_warn(self, source: object) -> None:
        # The buffers of io call it when they are dropped.
        if self._warns and not self._file.closed:
            self._dropped = repr(source)

    def __del__(self) -> None:
        if not self.closed:
            self._dealloc_warn(self)
        self._finalize()
        if self._dropped is not None:
            text = f"unclosed file {self._dropped}"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _finalize(self) -> None:
        super().__del__()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<foliofs.RawFile {self.name!r}, {state}>"

    def readable(self) -> bool:
        """Returns whether the file is open for reading."""
        return self._access != os.O_WRONLY

    def writable(self) -> bool:
        """Returns whether the file is open for writing."""
        return self._access != os.O_RDONLY

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def fileno(self) -> int:
        """Raises io.UnsupportedOperation: the host has no descriptor of the file."""
        raise io.UnsupportedOperation(
            f"{self.name}: the file is in a file system of this program, and the host has no "
            "descriptor of it: read or borrow its bytes, and call fsync of the file system"
        )

    def readinto(self, buffer: Buffer, /) -> int:
        """Reads into a buffer at the position. Returns the number of bytes; 0 at the end."""
        return self._file.readinto(buffer)

    def readall(self) -> bytes:
        """Reads all from the position to the end. Raises MemoryError if that is too much."""
        return self._file.readall()

    def write(self, data: Buffer, /) -> int:
        """Writes at the position. Returns the number of bytes: fewer before an error."""
        return self._file.write(data)

    def pread(self, len_bytes: int, offset: int) -> bytes:
        """Reads up to `len_bytes` at `offset`; b"" at the end of the file."""
        return self._file.pread(len_bytes, offset)

    def preadinto(self, buffer: Buffer, offset: int) -> int:
        """Reads into a buffer at `offset`. Returns the number of bytes; 0 at the end."""
        return self._file.preadinto(buffer, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes at `offset`. Returns the number of bytes."""
        return self._file.pwrite(data, offset)

    def borrow(self, offset: int, len_bytes: int) -> memoryview:
        """Returns the file's own bytes in the page cache, at most 2 MiB, read only.

        A later write to the file changes them. If the pages are not adjacent in memory, they are a
        copy. The view is shorter at the end of the file.
        """
        return memoryview(self._file.borrow(offset, len_bytes))

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves the position, also by os.SEEK_DATA and SEEK_HOLE. Returns it."""
        return self._file.seek(offset, whence)

    def truncate(self, size: int | None = None, /) -> int:
        """Sets the size, by default to the position. Returns it."""
        size = self.tell() if size is None else size
        if not self.writable():
            raise io.UnsupportedOperation(f"{self.name}: file not open for writing")
        self._file.truncate(size)
        return size

    def fsync(self, *, data_only: bool = False) -> None:
        """Makes all writes to the file durable, as os.fsync; os.fdatasync with `data_only`."""
        self._file.fsync(data_only=data_only)

    def close(self) -> None:
        """Closes the descriptor. Raises OSError if an earlier write could not be stored."""
        if self.closed:
            return
        try:
            super().close()
        finally:
            self._file.close()
            self._fs = None


class PositionedFile(RawFile):
    """A file without a buffer whose seek() and read() threads can share.

    Its methods are native: a thread that holds the interpreter's lock from a seek() to the read()
    reads there, as duckdb expects. The page cache is its buffer.
    """

    def __init__(self, fs: FileSystem, file: _native.File, path: str, mode: str) -> None:
        super().__init__(fs, file, path, mode)
        at = _native.Positioned(file, "a" in mode)
        # Attributes of the object, not methods of the class: a call of one runs no bytecode, where
        # the interpreter switches threads.
        for name in ("seek", "read", "readall", "readinto", "readline", "write"):
            setattr(self, name, getattr(at, name))

    def _finalize(self) -> None:
        # No close(): in fs.open(path).read() the file is dropped before the method runs. The native
        # file closes itself when that has returned.
        pass


class SyncedFile(PositionedFile):
    """A file whose flush() is fsync(2), and whose writes are in its size at once.

    Databases over fsspec need both.
    """

    _is_closing = False

    def flush(self) -> None:
        """Makes all writes to the file durable."""
        super().flush()
        if not self._is_closing and self.writable():
            self._file.fsync()

    def close(self) -> None:
        """Closes the file, without fsync, as close(2)."""
        self._is_closing = True
        super().close()


class _Buffered(io.BufferedIOBase):
    """What the buffers add to those of io."""

    raw: Any  # A RawFile.

    def borrow(self, offset: int, len_bytes: int) -> memoryview:
        """Writes the buffer, then RawFile.borrow."""
        self.flush()
        view: memoryview = self.raw.borrow(offset, len_bytes)
        return view

    def fsync(self, *, data_only: bool = False) -> None:
        """Writes the buffer, then RawFile.fsync."""
        self.flush()
        self.raw.fsync(data_only=data_only)


class BufferedReader(_Buffered, io.BufferedReader):
    """io.BufferedReader with borrow and fsync."""


class BufferedWriter(_Buffered, io.BufferedWriter):
    """io.BufferedWriter with borrow and fsync."""


class BufferedRandom(_Buffered, io.BufferedRandom):
    """io.BufferedRandom with borrow and fsync."""


@functools.cache
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


def _binary_mode(mode: str) -> str:
    """Returns the mode that io.FileIO shows."""
    letter = next((letter for letter in "xa" if letter in mode), None)
    if letter is None:
        letter = "r" if "r" in mode or "+" in mode else "w"
    return letter + ("b+" if "+" in mode else "b")


def raw_of(file: Any) -> RawFile | None:
    """Returns the file below the wrappers of io; None if it is not of this package."""
    while file is not None and not isinstance(file, RawFile):
        file = getattr(file, "buffer", None) or getattr(file, "raw", None)
    return file


def wrap(
    raw: RawFile,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    """Returns the file object that built-in open() returns for these arguments."""
    is_binary = "b" in mode
    if is_binary and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if buffering == 0 and not is_binary:
        raise ValueError("can't have unbuffered text I/O")
    buffered: Any = raw
    if buffering != 0 and not isinstance(raw, PositionedFile):
        size = buffering if buffering > 1 else BUFFER_BYTES
        if not raw.writable():
            buffered = BufferedReader(raw, size)
        elif raw.readable():
            buffered = BufferedRandom(raw, size)
        else:
            buffered = BufferedWriter(raw, size)
    if is_binary:
        return buffered
    encoding = encoding or "utf-8"
    text: Any = io.TextIOWrapper(
        buffered, encoding, errors, newline, line_buffering=buffering == 1
    )
    text.mode = mode
    return text
