"""A mounted file system with the calls of the module os."""

from __future__ import annotations

import atexit
import errno
import fnmatch
import io
import itertools
import os
import posixpath
import re
import shutil
import stat
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, AnyStr, Generic, Literal, Self, TypeAlias, overload

from foliofs import _native
from foliofs._file import (
    BufferedRandom,
    BufferedReader,
    BufferedWriter,
    PositionedFile,
    RawFile,
    SyncedFile,
    open_flags,
    raw_of,
    wrap,
)
from foliofs._path import FolioPath

HostPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Path: TypeAlias = HostPath | FolioPath
TextPath: TypeAlias = str | os.PathLike[str] | FolioPath
BytesPath: TypeAlias = bytes | os.PathLike[bytes]

# Those of this process that are not closed.
_open: weakref.WeakSet[FileSystem] = weakref.WeakSet()
_devices = itertools.count(1)


class DirEntry(Generic[AnyStr]):
    """An entry of a directory, as os.DirEntry.

    `name` is its name, `path` its path: bytes if the directory was given as bytes. The type is that
    of the listing: only stat, and a type that the file system does not store, read the inode, and
    raise OSError if they cannot.
    """

    __slots__ = ("_fs", "_kind", "_number", "name", "path")

    def __init__(
        self, fs: FileSystem, path: AnyStr, name: AnyStr, kind: int, number: int
    ) -> None:
        self._fs = fs
        self._kind = kind
        self._number = number
        self.name: AnyStr = name
        self.path: AnyStr = path

    def __fspath__(self) -> AnyStr:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def _mode(self, follow_symlinks: bool) -> int:
        if self._kind == 0 or (follow_symlinks and stat.S_ISLNK(self._kind)):
            try:
                return self.stat(follow_symlinks=follow_symlinks).st_mode
            except FileNotFoundError:
                return 0
        return self._kind

    def inode(self) -> int:
        """Returns the inode number."""
        return self._number

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Returns whether this is a directory, or a link to one. False if it was removed."""
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Returns whether this is a regular file, or a link to one. False if it was removed."""
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        """Returns whether this is a symbolic link."""
        return stat.S_ISLNK(self._mode(False))

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns the attributes. Raises OSError: FileNotFoundError if the file was removed."""
        return self._fs.stat(self.path, follow_symlinks=follow_symlinks)


class FileSystem:
    """A mounted file system. Paths start at its root; any thread may call.

    A FolioPath of another file system raises OSError with EXDEV, except in copy.

    As a context manager it is closed at the end: open files are flushed and closed, everything is
    synced, and the image is marked clean. An error on the way is raised, as OSError.

    After os.fork() the child has its own mount of a read-only image. All else raises OSError there.
    """

    def __init__(
        self,
        mount: _native.FileSystem,
        reopen: tuple[str, dict[str, Any]] | None,
        name: str,
        image: str | None = None,
    ) -> None:
        self._native = mount
        self._reopen = reopen
        self._name = name
        self._image = image
        self._device = next(_devices)
        self._files: set[weakref.ref[Any]] = set()
        self._lock = threading.Lock()
        _open.add(self)

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            # Absent only in a child of fork(), and until it is used there.
            if attribute != "_native":
                raise AttributeError(f"'FileSystem' object has no attribute {attribute!r}")
            with self._lock:
                if "_native" not in self.__dict__:
                    assert self._reopen is not None
                    path, options = self._reopen
                    self._native = _native.open_image(path, read_only=True, **options)
            return self._native

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._files = set()
        if self._reopen is not None and "_native" in self.__dict__ and not self._is_closed:
            del self._native

    _is_closed = False

    def __reduce__(self) -> tuple[Callable[..., FileSystem], tuple[Any, ...]]:
        if self._reopen is None or self._is_closed:
            raise TypeError(f"cannot pickle {self!r}: only open read-only images can be pickled")
        return _unpickle, self._reopen

    def __repr__(self) -> str:
        return f"<foliofs.FileSystem {self._name}, {'closed' if self.closed else 'open'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and "_native" in self.__dict__:
            if self._native.is_own:
                warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
                self.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._is_closed

    def close(self) -> None:
        """Flushes and closes the open files, syncs, unmounts and marks the image clean.

        Raises OSError if a file or the image could not be written, with `filename`; it is closed
        nevertheless. Ctrl-C does not stop it.
        """
        if self._is_closed:
            return
        self._is_closed = True
        _open.discard(self)
        first: BaseException | None = None
        for reference in list(self._files):
            if (file := reference()) is not None:
                try:
                    file.close()
                except (OSError, ValueError) as error:
                    first = first or error
        if "_native" in self.__dict__:
            try:
                self._native.close()
            except OSError as error:
                first = first or error
        if first is not None:
            raise first

    @overload
    def open(
        self,
        path: Path,
        mode: Literal["r", "w", "x", "a", "r+", "w+", "x+", "a+", "rt", "wt", "xt", "at"] = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        sync: bool = False,
    ) -> io.TextIOWrapper: ...
    @overload
    def open(
        self, path: Path, mode: Literal["rb"], buffering: Literal[-1] = -1
    ) -> BufferedReader: ...
    @overload
    def open(
        self, path: Path, mode: Literal["wb", "xb", "ab"], buffering: Literal[-1] = -1
    ) -> BufferedWriter: ...
    @overload
    def open(
        self,
        path: Path,
        mode: Literal["rb+", "r+b", "wb+", "w+b", "xb+", "x+b", "ab+", "a+b"],
        buffering: Literal[-1] = -1,
    ) -> BufferedRandom: ...
    @overload
    def open(
        self,
        path: Path,
        mode: Literal["rb", "wb", "xb", "ab", "rb+", "r+b", "wb+", "w+b", "ab+", "a+b"],
        buffering: Literal[0],
    ) -> RawFile: ...
    @overload
    def open(
        self,
        path: Path,
        mode: Literal["wb", "xb", "ab", "rb+", "r+b", "wb+", "w+b", "xb+", "x+b", "ab+", "a+b"],
        buffering: int = -1,
        *,
        sync: Literal[True],
    ) -> SyncedFile: ...
    @overload
    def open(
        self,
        path: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        sync: bool = False,
    ) -> Any: ...
    def open(
        self,
        path: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        sync: bool = False,
    ) -> Any:
        """Opens a file, as built-in open() does; text is UTF-8 unless `encoding` names another.

        A file for writing with `sync` is a SyncedFile: flush() makes its data durable. Any binary
        file with `sync` is a PositionedFile: threads can share it.
        """
        flags = open_flags(mode)
        text = self._text(path)
        kind = RawFile
        if sync:
            kind = PositionedFile if flags & os.O_ACCMODE == os.O_RDONLY else SyncedFile
        raw = kind(self, self._native.open(text, flags, 0o666), text, mode)
        try:
            if "a" in mode:
                raw.seek(0, os.SEEK_END)
            file = wrap(raw, mode, buffering, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise
        # As weakref.WeakSet, at a fifth of its time.
        self._files.add(weakref.ref(file, self._files.discard))
        return file

    def fsync(self, file: IO[Any] | Path, *, data_only: bool = False) -> None:
        """Makes all writes to a file durable, as os.fsync; os.fdatasync with `data_only`.

        `file` is an open text or binary file, whose buffers are written first, or a path. After
        fsync of a directory a rename in it is durable.
        """
        if isinstance(file, str | bytes | os.PathLike | FolioPath):
            self._native.fsync(self._text(file), data_only=data_only)
            return
        raw = raw_of(file)
        if raw is None or raw._fs not in (self, None):
            raise ValueError(f"{file!r} is not a file of {self!r}")
        file.flush()
        raw.fsync(data_only=data_only)

    def path(self, *segments: str | os.PathLike[str] | FolioPath) -> FolioPath:
        """Returns a path as an object, with the methods of pathlib.Path."""
        return FolioPath(self, *segments)

    def read_bytes(self, path: Path) -> bytes:
        """Returns the content of a file."""
        return self._native.read_bytes(self._text(path))

    def write_bytes(self, path: Path, data: bytes | bytearray | memoryview) -> int:
        """Replaces the content of a file, or creates it. Returns the number of bytes."""
        with self.open(path, "wb") as file:
            return file.write(data)

    def read_text(self, path: Path, encoding: str = "utf-8", errors: str | None = None) -> str:
        """Returns the content of a text file."""
        with self.open(path, "r", -1, encoding, errors) as file:
            return file.read()

    def write_text(
        self, path: Path, text: str, encoding: str = "utf-8", errors: str | None = None
    ) -> int:
        """Replaces the content of a file, or creates it. Returns the number of characters."""
        with self.open(path, "w", -1, encoding, errors) as file:
            return file.write(text)

    @overload
    def listdir(self, path: TextPath = "/") -> list[str]: ...
    @overload
    def listdir(self, path: BytesPath) -> list[bytes]: ...
    def listdir(self, path: Path = "/") -> list[str] | list[bytes]:
        """Returns the names in a directory, in no order; of a path in bytes, in bytes."""
        names = [name for name, _, _ in self._native.entries(self._text(path))]
        return [os.fsencode(name) for name in names] if _is_bytes(path) else names

    @overload
    def scandir(self, path: TextPath = "/") -> Iterator[DirEntry[str]]: ...
    @overload
    def scandir(self, path: BytesPath) -> Iterator[DirEntry[bytes]]: ...
    def scandir(self, path: Path = "/") -> Iterator[DirEntry[str]] | Iterator[DirEntry[bytes]]:
        """Returns the entries of a directory, in no order; of a path in bytes, in bytes."""
        directory = self._text(path)
        entries = self._native.entries(directory)
        prefix = posixpath.join(directory, "")
        if _is_bytes(path):
            code = os.fsencode
            return (
                DirEntry(self, code(prefix + name), code(name), kind, number)
                for name, kind, number in entries
            )
        return (DirEntry(self, prefix + entry[0], *entry) for entry in entries)

    @overload
    def walk(
        self,
        top: TextPath = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]: ...
    @overload
    def walk(
        self,
        top: BytesPath,
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]: ...
    def walk(
        self,
        top: Path = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """Yields path, directories and files of each directory below `top`, as os.walk.

        Of a path in bytes all are bytes.
        """
        found = self._walk(self._text(top), topdown, onerror, followlinks, False)
        return _encoded(found) if _is_bytes(top) else found

    def _walk(
        self,
        top: str,
        topdown: bool,
        onerror: Callable[[OSError], object] | None,
        followlinks: bool,
        links_are_files: bool,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        # A tuple is a directory whose subdirectories have been walked.
        left: list[str | tuple[str, list[str], list[str]]] = [top]
        while left:
            path = left.pop()
            if isinstance(path, tuple):
                yield path
                continue
            try:
                directories, files, links = self._native.listing(path)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                continue
            if links_are_files and links and not followlinks:
                files += links
                directories = [name for name in directories if name not in links]
            if topdown:
                yield path, directories, files
            else:
                left.append((path, directories, files))
            for name in reversed(directories):
                if followlinks or name not in links:
                    left.append(posixpath.join(path, name))

    def glob(
        self,
        pattern: str,
        *,
        root_dir: Path = "/",
        include_hidden: bool = False,
        recurse_symlinks: bool = False,
    ) -> list[str]:
        """Returns the paths that match, sorted: `*`, `?`, `[seq]`, and `**` for any depth.

        A relative pattern and its paths begin at `root_dir`. `*` and `**` match names that begin
        with a dot only with `include_hidden`; `**` follows links only with `recurse_symlinks`.
        """
        found = self._glob(pattern, self._text(root_dir), include_hidden, recurse_symlinks)
        return sorted(found - {""})

    def _glob(
        self, pattern: str, root_dir: str, include_hidden: bool, recurse_symlinks: bool
    ) -> set[str]:
        """Returns the paths that match; "" is `root_dir`."""
        root = "/" if pattern.startswith("/") else root_dir
        found = {"/" if pattern.startswith("/") else ""}
        *parts, last = pattern.split("/")
        parts = [part for part in parts if part]
        for part, is_last in [*((part, False) for part in parts), (last, True)]:
            bases, found = found, set()
            for base in bases:
                directory = posixpath.join(root, base)
                if not self.is_dir(directory):
                    continue
                if part == "**":
                    names = self._below(directory, is_last, include_hidden, recurse_symlinks)
                elif re.search(r"[*?[]", part):
                    names = self._matches(directory, part, include_hidden)
                else:
                    is_there = self.exists(posixpath.join(directory, part), follow_symlinks=False)
                    names = iter([part] if is_there else [])
                found.update(posixpath.join(base, name) if name else base for name in names)
        return found

    def _matches(self, directory: str, part: str, include_hidden: bool) -> Iterator[str]:
        """Yields the names in a directory that match one part of a pattern."""
        include_hidden = include_hidden or part.startswith(".")
        for name in self.listdir(directory):
            if (include_hidden or not name.startswith(".")) and fnmatch.fnmatchcase(name, part):
                yield name

    def _below(
        self, top: str, include_files: bool, include_hidden: bool, recurse_symlinks: bool
    ) -> Iterator[str]:
        """Yields what `**` matches in a directory: "", and all paths below it."""
        yield ""
        for root, directories, files in self._walk(top, True, None, recurse_symlinks, True):
            if not include_hidden:
                directories[:] = [name for name in directories if not name.startswith(".")]
                files = [name for name in files if not name.startswith(".")]
            prefix = root[len(top) :].lstrip("/")
            for name in directories + files if include_files else directories:
                yield posixpath.join(prefix, name)

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns the attributes of a file. `st_dev` is a number of this mount."""
        return self._native.stat(self._text(path), self._device, follow_symlinks)

    def lstat(self, path: Path) -> os.stat_result:
        """As stat, of a symbolic link itself."""
        return self.stat(path, follow_symlinks=False)

    def birthtime_ns(self, path: Path) -> int | None:
        """Returns the time of creation in nanoseconds since 1970; None if it is not stored."""
        return self._native.birthtime_ns(self._text(path))

    def exists(self, path: Path, *, follow_symlinks: bool = True) -> bool:
        """Returns whether the path names a file. A broken link is none, unless not followed."""
        return self._native.mode(self._text(path), follow_symlinks) is not None

    def is_file(self, path: Path) -> bool:
        """Returns whether the path names a regular file, or a link to one."""
        return stat.S_ISREG(self._native.mode(self._text(path), True) or 0)

    def is_dir(self, path: Path) -> bool:
        """Returns whether the path names a directory, or a link to one."""
        return stat.S_ISDIR(self._native.mode(self._text(path), True) or 0)

    def is_symlink(self, path: Path) -> bool:
        """Returns whether the path names a symbolic link."""
        return stat.S_ISLNK(self._native.mode(self._text(path), False) or 0)

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Creates a directory."""
        self._native.mkdir(self._text(path), mode)

    def makedirs(self, path: Path, mode: int = 0o777, exist_ok: bool = False) -> None:
        """Creates a directory and those above it."""
        text = self._text(path)
        above = posixpath.dirname(text.rstrip("/"))
        if above.strip("/") and not self.exists(above):
            self.makedirs(above, exist_ok=True)
        try:
            self.mkdir(text, mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir(text):
                raise

    def rmdir(self, path: Path) -> None:
        """Removes an empty directory."""
        self._native.rmdir(self._text(path))

    def unlink(self, path: Path) -> None:
        """Removes a file that is no directory."""
        self._native.unlink(self._text(path))

    remove = unlink

    def rmtree(self, path: Path) -> None:
        """Removes a directory and all below it. Links are removed, not followed."""
        for entry in self.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                self.rmtree(entry.path)
            else:
                self.unlink(entry.path)
        self.rmdir(path)

    def rename(self, source: Path, target: Path) -> None:
        """Renames a file; an existing target is replaced at once, as by rename(2)."""
        self._native.rename(*self._pair(source, target), True)

    replace = rename

    def rename_noreplace(self, source: Path, target: Path) -> None:
        """Renames a file; raises FileExistsError if the target exists."""
        self._native.rename(*self._pair(source, target), False)

    def copy(self, source: Path, target: Path) -> None:
        """Copies content, mode and times of a file; both may be a FolioPath of any file system.

        Raises shutil.SameFileError, and changes nothing, if both are one file.
        """
        source_fs = source.fs if isinstance(source, FolioPath) else self
        target_fs = target.fs if isinstance(target, FolioPath) else self
        if source_fs is target_fs:
            source_fs._check_differ(source, target)
        with source_fs.open(source, "rb") as reader, target_fs.open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
        found = source_fs.stat(source)
        target_fs.chmod(target, stat.S_IMODE(found.st_mode))
        target_fs.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))

    def copy_in(
        self,
        source: HostPath,
        target: Path,
        *,
        preserve_metadata: bool = True,
        exclude: Iterable[str] = (),
    ) -> None:
        """Copies a file or directory of the host; the copy has the path `target`.

        If both are directories, the contents are added. Modes, owners, times, extended attributes
        and hard links are kept, unless `preserve_metadata` is false. `exclude` has patterns as in
        .gitignore. After the failure of one file the copy continues, then raises OSError.
        """
        self._native.copy_in(
            os.fsdecode(source),
            self._text(target),
            keeps_all=preserve_metadata,
            exclude=_patterns(exclude),
        )

    def copy_out(
        self,
        source: Path,
        target: HostPath,
        *,
        preserve_metadata: bool = True,
        exclude: Iterable[str] = (),
    ) -> None:
        """Copies a file or directory to the host, as copy_in.

        No link that the copy makes leads it out of `target`; links that were there before are
        followed, so copy a file system that is not trusted into an empty directory.
        """
        self._native.copy_out(
            self._text(source),
            os.fsdecode(target),
            keeps_all=preserve_metadata,
            exclude=_patterns(exclude),
        )

    def _check_differ(self, source: Path, target: Path) -> None:
        """Raises shutil.SameFileError if both are one file: opening the target empties it."""
        found = self.stat(source)
        try:
            existing = self.stat(target)
        except OSError:
            return
        if os.path.samestat(found, existing):
            text = f"{self._text(source)!r} and {self._text(target)!r} are the same file"
            raise shutil.SameFileError(text)

    def link(self, source: Path, target: Path) -> None:
        """Creates `target` as another name of the file `source`."""
        self._native.link(*self._pair(source, target))

    def symlink(self, source: Path, target: Path) -> None:
        """Creates the symbolic link `target`, which refers to `source`."""
        self._native.symlink(*self._pair(source, target))

    @overload
    def readlink(self, path: TextPath) -> str: ...
    @overload
    def readlink(self, path: BytesPath) -> bytes: ...
    def readlink(self, path: Path) -> str | bytes:
        """Returns what a symbolic link refers to; of a path in bytes, in bytes."""
        target = self._native.readlink(self._text(path))
        return os.fsencode(target) if _is_bytes(path) else target

    def chmod(self, path: Path, mode: int) -> None:
        """Sets the permission bits."""
        self._native.chmod(self._text(path), mode)

    def chown(self, path: Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Sets owner and group; -1 keeps the value."""
        self._native.chown(
            self._text(path),
            None if uid == -1 else uid,
            None if gid == -1 else gid,
            follow_symlinks=follow_symlinks,
        )

    def utime(
        self,
        path: Path,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets the times of access and modification: in seconds, in `ns`, or to now."""
        if times is not None:
            if ns is not None:
                raise ValueError("utime: give either times or ns")
            ns = (round(times[0] * 1e9), round(times[1] * 1e9))
        self._native.utime(self._text(path), ns, follow_symlinks=follow_symlinks)

    def truncate(self, path: Path, length: int | str) -> None:
        """Sets the size of a file in bytes."""
        self._native.truncate(self._text(path), length)

    def mknod(self, path: Path, mode: int = 0o600, device: int = 0) -> None:
        """Creates a file of the type in `mode`; `device` is that of os.makedev."""
        self._native.mknod(self._text(path), mode, device)

    def getxattr(self, path: Path, name: str, *, follow_symlinks: bool = True) -> bytes:
        """Returns the value of an extended attribute."""
        return self._native.getxattr(self._text(path), name, follow_symlinks)

    def setxattr(
        self, path: Path, name: str, value: bytes, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        """Sets an extended attribute; `flags` are os.XATTR_CREATE and os.XATTR_REPLACE."""
        self._native.setxattr(self._text(path), name, value, flags, follow_symlinks)

    def listxattr(self, path: Path, *, follow_symlinks: bool = True) -> list[str]:
        """Returns the names of the extended attributes."""
        return self._native.listxattr(self._text(path), follow_symlinks)

    def removexattr(self, path: Path, name: str, *, follow_symlinks: bool = True) -> None:
        """Removes an extended attribute."""
        self._native.removexattr(self._text(path), name, follow_symlinks)

    def statvfs(self, path: Path = "/") -> os.statvfs_result:
        """Returns the size and the free space, in blocks of f_bsize bytes."""
        size, blocks, free, available, inodes, free_inodes, name_max = self._native.statvfs(
            self._text(path)
        )
        flags = os.ST_RDONLY if self._reopen is not None else 0
        return os.statvfs_result(
            (size, size, blocks, free, available, inodes, free_inodes, free_inodes, flags, name_max)
        )

    def sync(self) -> None:
        """Makes all writes durable, but not what is in the buffers of open files.

        Raises OSError if the image cannot be written. Ctrl-C does not stop it.
        """
        self._native.sync()

    def _text(self, path: Path) -> str:
        if isinstance(path, FolioPath) and path.fs is not self:
            raise OSError(errno.EXDEV, "the path is of another file system", str(path))
        return _text(path)

    def _pair(self, source: Path, target: Path) -> tuple[str, str]:
        texts = _text(source), _text(target)
        for path in (source, target):
            if isinstance(path, FolioPath) and path.fs is not self:
                reason = "a path is of another file system"
                raise OSError(errno.EXDEV, reason, texts[0], None, texts[1])
        return texts


def _is_bytes(path: Path) -> bool:
    if isinstance(path, str | FolioPath):
        return False
    return isinstance(os.fspath(path), bytes)


def _encoded(
    found: Iterator[tuple[str, list[str], list[str]]],
) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]:
    """Yields the tuples of a walk in bytes; a change of the directories is one of the walk."""
    for path, directories, files in found:
        names = [os.fsencode(name) for name in directories]
        yield os.fsencode(path), names, [os.fsencode(name) for name in files]
        directories[:] = [os.fsdecode(name) for name in names]


def _text(path: Path) -> str:
    if type(path) is str:
        return path
    return str(path) if isinstance(path, FolioPath) else os.fsdecode(path)


def _image_name(path: HostPath) -> str:
    """Returns a name of an image that stays valid when the current directory changes."""
    name = os.fsdecode(path)
    return name if _native.is_url(name) else os.path.abspath(name)


def _unpickle(path: str, options: dict[str, Any]) -> FileSystem:
    return open_image(path, "r", **options)


def open_image(
    path: HostPath,
    mode: Literal["r", "r+"] = "r",
    *,
    shared: bool = False,
    partition: int | None = None,
    format: Literal["raw", "qcow2"] | None = None,
    options: str = "",
    cache_bytes: int | str | None = None,
) -> FileSystem:
    """Opens the file system in an image file: raw or qcow2, found by its content.

    ext2, ext3, ext4 and FAT are read and written, squashfs and erofs read.

    `path` may be the URL of an object or a volume (`s3://bucket/disk.qcow2`) where this wheel has
    object storage; objects are read, volumes also written.
    With `shared`, an image that another program writes is read nevertheless, as by `folio -U`; what
    changes meanwhile may appear as errors. `partition` counts from 1. `options` are those of mount(8), such as "noatime". `cache_bytes` is
    the memory for the page cache. Raises OSError: FileNotFoundError; EBUSY if another program uses
    the image; EUCLEAN if it is corrupt; EOPNOTSUPP for features that Folio does not have.
    """
    if mode not in ("r", "r+"):
        raise ValueError(f'invalid mode {mode!r}: expected "r" or "r+"')
    if shared and mode != "r":
        raise ValueError('invalid mode "r+": a shared image is open for reading')
    name = _image_name(path)
    rest = {
        "shared": shared,
        "partition": partition,
        "format": format,
        "options": options,
        "cache_bytes": cache_bytes,
    }
    mount = _native.open_image(name, read_only=mode == "r", **rest)  # type: ignore[arg-type]
    return FileSystem(mount, (name, rest) if mode == "r" else None, f"{name!r} {mode}", name)


def create_image(
    path: HostPath,
    size_bytes: int | str,
    *,
    format: Literal["raw", "qcow2"] | None = None,
    label: str = "",
    uuid: str | None = None,
    time: int | None = None,
    options: str = "",
    cache_bytes: int | str | None = None,
) -> FileSystem:
    """Creates an image file with an empty ext4 file system; without `format`, by its extension.

    A size is in bytes, or text with a unit: "64M". With `uuid` and `time`, in seconds since 1970,
    the same calls make the same bytes. Raises FileExistsError if the file exists.
    """
    name = _image_name(path)
    mount = _native.create_image(
        name,
        size_bytes,
        format=format,
        label=label,
        uuid=uuid,
        time=time,
        options=options,
        cache_bytes=cache_bytes,
    )
    return FileSystem(mount, None, f"{name!r} r+", name)


def _patterns(exclude: Iterable[str]) -> list[str]:
    """Returns the patterns; one str would be a pattern for each of its letters."""
    if isinstance(exclude, (str, bytes)):
        raise TypeError(f"exclude has a list of patterns: [{exclude!r}]")
    return list(exclude)


def build_image(
    path: HostPath,
    *,
    tree: HostPath,
    size: int | str = "auto",
    label: str | None = None,
    uuid: str | None = None,
    source_date_epoch: int | None = None,
    chown: str | None = None,
    chmod: str | None = None,
    manifest: HostPath | None = None,
    exclude: Iterable[str] = (),
) -> None:
    """Creates an image with an ext4 file system and a copy of the directory `tree` in it.

    `size` is a number of bytes, "512M", "2G", or "auto" for the least that holds the tree
    ("auto+20%" leaves room).
    The format is qcow2 for names that end so, else raw. With `uuid` and `source_date_epoch`, in
    seconds since 1970, by default SOURCE_DATE_EPOCH of the environment, the same tree makes the
    same bytes. `chown`, `chmod` and `manifest` are
    options of `folio cp`; `exclude` has patterns as in .gitignore.

    Raises FileExistsError if the image exists, OSError if a file cannot be copied, ValueError for
    an invalid option; no file is left. Ctrl-C takes effect when the image is complete.
    """
    if source_date_epoch is None and "SOURCE_DATE_EPOCH" in os.environ:
        source_date_epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    _native.build_image(
        os.fsdecode(path),
        os.fsdecode(tree),
        size=str(size),
        label=label or "",
        uuid=uuid,
        source_date_epoch=source_date_epoch,
        chown=chown or "",
        chmod=chmod,
        manifest=None if manifest is None else os.fsdecode(manifest),
        exclude=_patterns(exclude),
    )


def open_directory(path: HostPath) -> FileSystem:
    """Opens a directory of the host; nothing outside it can be reached."""
    name = os.fsdecode(path)
    return FileSystem(_native.open_directory(name), None, repr(name))


def memory() -> FileSystem:
    """Creates an empty file system in memory."""
    return FileSystem(_native.memory(), None, "in memory")


def _after_fork() -> None:
    _native.after_fork()
    for fs in list(_open):
        fs._after_fork()


def _at_exit() -> None:
    for fs in list(_open):
        fs.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
