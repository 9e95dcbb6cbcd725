"""Paths as objects, with the methods of pathlib.Path."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from typing import TypeAlias

    from foliofs._file_system import FileSystem

    Segment: TypeAlias = "str | os.PathLike[str] | FolioPath"


class PathInfo:
    """The type of a file: pathlib.types.PathInfo. What was asked once is kept."""

    __slots__ = ("_fs", "_modes", "_path")

    def __init__(self, fs: FileSystem, path: str, kind: int = 0) -> None:
        self._fs = fs
        self._path = path
        self._modes: dict[bool, int | None] = {}
        if kind != 0:
            self._modes[False] = kind
            if not stat.S_ISLNK(kind):
                self._modes[True] = kind

    def _mode(self, follow_symlinks: bool) -> int | None:
        if follow_symlinks not in self._modes:
            try:
                mode = self._fs._native.mode(self._path, follow_symlinks)
            except ValueError:
                # A name that no file can have.
                mode = None
            self._modes[follow_symlinks] = mode
        return self._modes[follow_symlinks]

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._mode(follow_symlinks) is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks) or 0)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks) or 0)

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(False) or 0)


class FolioPath:
    """A path of a file system, with the methods of pathlib.Path: FileSystem.path() returns one.

    It has pathlib's protocols for readable and writable paths (pathlib.types, of Python 3.14), and
    no __fspath__: open() of Python, which opens files of the host, refuses it.
    """

    __slots__ = ("_kind", "_pure", "fs")

    fs: FileSystem
    parser: ModuleType = posixpath

    def __init__(self, fs: FileSystem, *segments: Segment) -> None:
        self.fs = fs
        self._pure = PurePosixPath(*(_pure(segment) for segment in segments))
        # The type of an entry of a directory, if it is known.
        self._kind = 0

    def with_segments(self, *segments: Segment) -> FolioPath:
        """Returns a path of the same file system."""
        return FolioPath(self.fs, *segments)

    def __reduce__(self) -> tuple[Callable[..., FolioPath], tuple[Any, ...]]:
        return FolioPath, (self.fs, str(self))

    def __str__(self) -> str:
        return str(self._pure)

    def __vfspath__(self) -> str:
        return str(self)

    def as_posix(self) -> str:
        """Returns the path as text."""
        return str(self)

    def __repr__(self) -> str:
        return f"FolioPath({self.fs!r}, {str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FolioPath):
            return NotImplemented
        return self.fs is other.fs and self._pure == other._pure

    def __hash__(self) -> int:
        return hash((id(self.fs), self._pure))

    def __lt__(self, other: FolioPath) -> bool:
        if not isinstance(other, FolioPath) or self.fs is not other.fs:
            return NotImplemented
        return self._pure < other._pure

    # Parts of the path.

    @property
    def parts(self) -> tuple[str, ...]:
        """The root, if there is one, and the names."""
        return self._pure.parts

    @property
    def anchor(self) -> str:
        """"/" of an absolute path, else ""."""
        return self._pure.anchor

    @property
    def name(self) -> str:
        """The last part."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The name's last suffix, with the dot."""
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes of the name."""
        return self._pure.suffixes

    @property
    def parent(self) -> FolioPath:
        """The directory of the path; "/" is its own."""
        return self.with_segments(self._pure.parent)

    @property
    def parents(self) -> tuple[FolioPath, ...]:
        """The directories above, the nearest first."""
        return tuple(self.with_segments(parent) for parent in self._pure.parents)

    def joinpath(self, *segments: Segment) -> FolioPath:
        """Returns the path with segments added; an absolute one replaces what is before it."""
        return self.with_segments(self, *segments)

    def __truediv__(self, segment: Segment) -> FolioPath:
        try:
            return self.joinpath(segment)
        except TypeError:
            return NotImplemented

    def __rtruediv__(self, segment: Segment) -> FolioPath:
        try:
            return self.with_segments(segment, self)
        except TypeError:
            return NotImplemented

    def with_name(self, name: str) -> FolioPath:
        """Returns the path with another last part."""
        return self.with_segments(self._pure.with_name(name))

    def with_stem(self, stem: str) -> FolioPath:
        """Returns the path with another name before the last suffix."""
        return self.with_segments(self._pure.with_stem(stem))

    def with_suffix(self, suffix: str) -> FolioPath:
        """Returns the path with another last suffix; "" removes it."""
        return self.with_segments(self._pure.with_suffix(suffix))

    def is_absolute(self) -> bool:
        """Returns whether the path names the root; calls take a relative path from the root, too."""
        return self._pure.is_absolute()

    def absolute(self) -> FolioPath:
        """Returns the path from the root on."""
        return self.with_segments("/", self)

    def relative_to(self, other: Segment, *, walk_up: bool = False) -> FolioPath:
        """Returns the path from `other` on; `walk_up`, of Python 3.12, allows "..".

        Raises ValueError if the path is not below `other`.
        """
        if isinstance(other, FolioPath) and other.fs is not self.fs:
            raise ValueError(f"{self!r} is not in the file system of {other!r}")
        options = {"walk_up": True} if walk_up else {}
        return self.with_segments(self._pure.relative_to(_pure(other), **options))

    def is_relative_to(self, other: Segment) -> bool:
        """Returns whether the path is `other` or below it."""
        is_ours = not isinstance(other, FolioPath) or other.fs is self.fs
        return is_ours and self._pure.is_relative_to(_pure(other))

    def match(self, pattern: str) -> bool:
        """Returns whether the last parts match."""
        return self._pure.match(pattern)

    def full_match(self, pattern: str) -> bool:
        """Returns whether the whole path matches; `**` is any number of parts."""
        return _matches(self.parts, PurePosixPath(pattern).parts)

    # Attributes.

    @property
    def info(self) -> PathInfo:
        """The type of the file; a path of iterdir() knows it already."""
        return PathInfo(self.fs, str(self), self._kind)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Returns whether the path names a file; a broken link names none if it is followed."""
        return PathInfo(self.fs, str(self)).exists(follow_symlinks=follow_symlinks)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Returns whether the path names a directory."""
        return PathInfo(self.fs, str(self)).is_dir(follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Returns whether the path names a regular file."""
        return PathInfo(self.fs, str(self)).is_file(follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        """Returns whether the path names a symbolic link."""
        return PathInfo(self.fs, str(self)).is_symlink()

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As FileSystem.stat."""
        return self.fs.stat(str(self), follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        """As FileSystem.lstat."""
        return self.fs.lstat(str(self))

    def samefile(self, other: Segment) -> bool:
        """Returns whether both paths name one file."""
        theirs = self.with_segments(other).stat()
        return os.path.samestat(self.stat(), theirs)

    def chmod(self, mode: int) -> None:
        """As FileSystem.chmod."""
        self.fs.chmod(str(self), mode)

    # Content.

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """As FileSystem.open."""
        return self.fs.open(str(self), mode, buffering, encoding, errors, newline)

    def __open_reader__(self) -> Any:
        return self.open("rb")

    def __open_writer__(self, mode: str) -> Any:
        return self.open(mode + "b")

    def read_bytes(self) -> bytes:
        """Returns the content."""
        return self.fs.read_bytes(str(self))

    def read_text(
        self, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> str:
        """Returns the content as text; UTF-8 unless `encoding` names another."""
        with self.open("r", -1, encoding, errors, newline) as file:
            return cast("str", file.read())

    def write_bytes(self, data: bytes | bytearray | memoryview) -> int:
        """Replaces the content, or creates the file. Returns the number of bytes."""
        # Before the file loses its content.
        view = memoryview(data)
        return self.fs.write_bytes(str(self), view)

    def write_text(
        self,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        """Replaces the content by text, or creates the file. Returns the number of characters."""
        if not isinstance(data, str):
            raise TypeError(f"data must be str, not {type(data).__name__}")
        with self.open("w", -1, encoding, errors, newline) as file:
            return cast("int", file.write(data))

    # Directories.

    def iterdir(self) -> Iterator[FolioPath]:
        """Returns the paths of the entries, in no order."""
        return (self._child(entry.name, entry._kind) for entry in self.fs.scandir(str(self)))

    def _child(self, name: str, kind: int) -> FolioPath:
        child = self / name
        child._kind = kind
        return child

    def glob(self, pattern: str, *, recurse_symlinks: bool = False) -> Iterator[FolioPath]:
        """Yields the paths below that match, sorted; `**` is any depth, hidden names match."""
        if pattern.startswith("/"):
            raise NotImplementedError("Non-relative patterns are unsupported")
        if not pattern:
            raise ValueError(f"Unacceptable pattern: {pattern!r}")
        found = self.fs._glob(pattern, str(self), True, recurse_symlinks)
        return (self / name for name in sorted(found))

    def rglob(self, pattern: str, *, recurse_symlinks: bool = False) -> Iterator[FolioPath]:
        """As glob, with "**/" in front."""
        return self.glob("**/" + pattern, recurse_symlinks=recurse_symlinks)

    def walk(
        self,
        top_down: bool = True,
        on_error: Callable[[OSError], object] | None = None,
        follow_symlinks: bool = False,
    ) -> Iterator[tuple[FolioPath, list[str], list[str]]]:
        """Yields path, directories and files of each directory, as pathlib.Path.walk.

        Unlike FileSystem.walk, it lists a link to a directory as a file, unless it is followed.
        """
        walked = self.fs._walk(str(self), top_down, on_error, follow_symlinks, True)
        for path, directories, files in walked:
            yield self.with_segments(path), directories, files

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Creates a directory, and with `parents` those above it."""
        if parents:
            self.fs.makedirs(str(self), mode, exist_ok)
            return
        try:
            self.fs.mkdir(str(self), mode)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def rmdir(self) -> None:
        """Removes an empty directory."""
        self.fs.rmdir(str(self))

    # Names.

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        """Creates an empty file, or sets its times to now."""
        if exist_ok and self.exists():
            self.fs.utime(str(self))
            return
        with self.open("xb"):
            pass
        if mode != 0o666:
            self.chmod(mode)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes a file that is no directory."""
        try:
            self.fs.unlink(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: Segment) -> FolioPath:
        """Renames a file; an existing target is replaced at once. Returns the target."""
        path = self.with_segments(target)
        self.fs.rename(str(self), str(path))
        return path

    replace = rename

    def symlink_to(self, target: Segment, target_is_directory: bool = False) -> None:
        """Creates a symbolic link to `target`."""
        self.fs.symlink(_pure(target), str(self))

    def hardlink_to(self, target: Segment) -> None:
        """Creates another name of `target`."""
        self.fs.link(_pure(target), str(self))

    def readlink(self) -> FolioPath:
        """Returns what a symbolic link refers to."""
        return self.with_segments(self.fs.readlink(str(self)))

    def copy(
        self,
        target: Any,
        *,
        follow_symlinks: bool = True,
        preserve_metadata: bool = False,
    ) -> Any:
        """Copies a file, or a directory with all below it; returns the target.

        The target is a path of this or another file system, or a pathlib.Path of the host: anything
        with mkdir, symlink_to and open.
        """
        if isinstance(target, str):
            target = self.with_segments(target)
        _copy(self, target, follow_symlinks, preserve_metadata)
        return target

    def copy_into(self, target_dir: Any, **options: Any) -> Any:
        """As copy, to this path's name in a directory."""
        if not self.name:
            raise ValueError(f"{self!r} has an empty name")
        if isinstance(target_dir, str):
            target_dir = self.with_segments(target_dir)
        return self.copy(target_dir / self.name, **options)

    def _copy_from(
        self, source: Any, follow_symlinks: bool = True, preserve_metadata: bool = False
    ) -> None:
        """What copy() of pathlib's paths calls."""
        _copy(source, self, follow_symlinks, preserve_metadata)


def _pure(segment: Segment) -> str | os.PathLike[str]:
    return str(segment) if isinstance(segment, FolioPath) else segment


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[at:], pattern[1:]) for at in range(len(parts) + 1))
    is_match = bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0])
    return is_match and _matches(parts[1:], pattern[1:])


def _copy(source: Any, target: Any, follow_symlinks: bool, preserve_metadata: bool) -> None:
    """Copies between any two kinds of paths."""
    if source == target or source in target.parents:
        raise OSError(22, "source and target are the same, or one is in the other", str(source))
    left = [(source, target)]
    while left:
        path, to = left.pop()
        # pathlib.Path has it from Python 3.14 on.
        info = getattr(path, "info", path)
        if not follow_symlinks and info.is_symlink():
            link = path.readlink()
            to.symlink_to(link.__vfspath__() if hasattr(link, "__vfspath__") else str(link))
            continue
        if info.is_dir():
            children = list(path.iterdir())
            to.mkdir()
            left.extend((child, to / child.name) for child in children)
        else:
            if isinstance(path, FolioPath) and isinstance(to, FolioPath) and path.fs is to.fs:
                path.fs._check_differ(str(path), str(to))
            with _opened(path, "r") as reader, _opened(to, "w") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
        if preserve_metadata:
            to.chmod(stat.S_IMODE(path.stat().st_mode))


def _opened(path: Any, mode: str) -> Any:
    """Opens a path of pathlib's protocols, which need no open()."""
    if mode == "r" and hasattr(path, "__open_reader__"):
        return path.__open_reader__()
    if mode == "w" and hasattr(path, "__open_writer__"):
        return path.__open_writer__("w")
    return path.open(mode + "b")
