"""Paths as objects, with the methods of pathlib.Path."""

from __future__ import annotations

import errno
import fnmatch
import functools
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
            self._modes[follow_symlinks] = self._fs._native.mode(self._path, follow_symlinks)
        return self._modes[follow_symlinks]

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._mode(follow_symlinks) is not None

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks) or 0)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks) or 0)

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(False) or 0)


@functools.total_ordering
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

    def __bytes__(self) -> bytes:
        return os.fsencode(str(self))

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
    def root(self) -> str:
        """As anchor."""
        return self._pure.root

    @property
    def drive(self) -> str:
        """The empty text: there are no drives."""
        return ""

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

    def resolve(self, strict: bool = False) -> FolioPath:
        """Returns the path from the root on, without symbolic links and "..".

        With `strict` a missing file and a loop of links raise OSError; else they stay as they are.
        """
        return self.with_segments(_resolved(self.fs, str(self), strict))

    def as_uri(self) -> str:
        """Returns the URL of fsspec for a file of an image, which foliofs.fsspec opens.

        `partition` and the other arguments of open_image are not part of it. Raises ValueError for
        a relative path, and if the file system is not in an image file.
        """
        if not self.is_absolute():
            raise ValueError(f"{self!r}: a relative path has no URL")
        if self.fs._image is None or "::" in str(self) + self.fs._image:
            raise ValueError(f"{self!r} has no URL: expected a file of an image, without '::'")
        return f"folio://{self}::file://{self.fs._image}"

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

    def _type(self) -> int:
        return stat.S_IFMT(PathInfo(self.fs, str(self))._mode(True) or 0)

    def is_fifo(self) -> bool:
        """Returns whether the path names a FIFO."""
        return self._type() == stat.S_IFIFO

    def is_socket(self) -> bool:
        """Returns whether the path names a socket."""
        return self._type() == stat.S_IFSOCK

    def is_block_device(self) -> bool:
        """Returns whether the path names a block device."""
        return self._type() == stat.S_IFBLK

    def is_char_device(self) -> bool:
        """Returns whether the path names a character device."""
        return self._type() == stat.S_IFCHR

    def is_mount(self) -> bool:
        """Returns whether the path names the root: there are no other mounts."""
        is_there = self.is_dir() and not self.is_symlink()
        return is_there and self.samefile("/")

    def is_junction(self) -> bool:
        """Returns False: junctions are of Windows."""
        return False

    def owner(self, *, follow_symlinks: bool = True) -> str:
        """Returns the user's name in /etc/passwd of the file system.

        Raises KeyError if the user is not there.
        """
        return _account(self.fs, "/etc/passwd", self.stat(follow_symlinks=follow_symlinks).st_uid)

    def group(self, *, follow_symlinks: bool = True) -> str:
        """As owner, the group's name in /etc/group."""
        return _account(self.fs, "/etc/group", self.stat(follow_symlinks=follow_symlinks).st_gid)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As FileSystem.stat."""
        return self.fs.stat(str(self), follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        """As FileSystem.lstat."""
        return self.fs.lstat(str(self))

    def samefile(self, other: Segment) -> bool:
        """Returns whether both paths name one file."""
        return os.path.samestat(self.stat(), self._target(other).stat())

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        """Sets the permission bits; those of a symbolic link itself raise OSError, as in Linux."""
        if not follow_symlinks and self.is_symlink():
            text = "a symbolic link has no permission bits"
            raise OSError(errno.EOPNOTSUPP, text, str(self))
        self.fs.chmod(str(self), mode)

    def lchmod(self, mode: int) -> None:
        """As chmod without following links."""
        self.chmod(mode, follow_symlinks=False)

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
        """Creates an empty file with `mode` less the umask, or sets its times to now."""
        if exist_ok:
            try:
                self.fs.utime(str(self))
                return
            except FileNotFoundError:
                pass
        flags = os.O_CREAT | os.O_WRONLY | (0 if exist_ok else os.O_EXCL)
        self.fs._native.open(str(self), flags, mode).close()

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes a file that is no directory."""
        try:
            self.fs.unlink(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target: Segment) -> FolioPath:
        """Renames a file; an existing target is replaced at once. Returns the target."""
        path = self._target(target)
        self.fs.rename(self, path)
        return path

    def _target(self, target: Segment) -> FolioPath:
        return target if isinstance(target, FolioPath) else self.with_segments(target)

    replace = rename

    def symlink_to(self, target: Segment, target_is_directory: bool = False) -> None:
        """Creates a symbolic link to `target`."""
        self.fs.symlink(target, self)

    def hardlink_to(self, target: Segment) -> None:
        """Creates another name of `target`."""
        self.fs.link(target, self)

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
        with mkdir, symlink_to and open. With `preserve_metadata` the copies have the mode, the
        times and the extended attributes; without `follow_symlinks` links are copied as links.
        """
        if isinstance(target, str):
            target = self.with_segments(target)
        _copy(self, target, follow_symlinks, preserve_metadata)
        return target

    def copy_into(
        self, target_dir: Any, *, follow_symlinks: bool = True, preserve_metadata: bool = False
    ) -> Any:
        """As copy, to this path's name in a directory."""
        target = self._in(target_dir)
        return self.copy(
            target, follow_symlinks=follow_symlinks, preserve_metadata=preserve_metadata
        )

    def move(self, target: Any) -> Any:
        """Moves a file, or a directory with all below it; returns the target.

        In this file system it is a rename, which replaces an existing file. To another one, or the
        host, it is a copy with metadata, after which the source is removed.
        """
        if isinstance(target, str):
            target = self.with_segments(target)
        if isinstance(target, FolioPath) and target.fs is self.fs:
            if target.exists() and self.samefile(target):
                raise OSError(
                    errno.EINVAL, "both are the same file", str(self), None, str(target)
                )
            return self.replace(target)
        _copy(self, target, False, True)
        if self.is_dir(follow_symlinks=False):
            self.fs.rmtree(self)
        else:
            self.unlink()
        return target

    def move_into(self, target_dir: Any) -> Any:
        """As move, to this path's name in a directory."""
        return self.move(self._in(target_dir))

    def _in(self, directory: Any) -> Any:
        if not self.name:
            raise ValueError(f"{self!r} has an empty name")
        if isinstance(directory, str):
            directory = self.with_segments(directory)
        return directory / self.name


def _pure(segment: Segment) -> str | os.PathLike[str]:
    return str(segment) if isinstance(segment, FolioPath) else segment


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[at:], pattern[1:]) for at in range(len(parts) + 1))
    is_match = bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0])
    return is_match and _matches(parts[1:], pattern[1:])


# Of a path, as in Linux.
_LINKS_MAX = 40


def _resolved(fs: FileSystem, path: str, strict: bool) -> str:
    done = "/"
    left = path.split("/")[::-1]
    links = 0
    while left:
        name = left.pop()
        if name == "..":
            done = posixpath.dirname(done)
        if name in ("", ".", ".."):
            continue
        path = posixpath.join(done, name)
        try:
            target = fs.readlink(path)
        except OSError as error:
            # EINVAL: not a link.
            if strict and error.errno != errno.EINVAL:
                raise
            done = path
            continue
        links += 1
        if links <= _LINKS_MAX:
            done = "/" if target.startswith("/") else done
            left += target.split("/")[::-1]
        elif strict:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        else:
            done = path
    return done


def _account(fs: FileSystem, table: str, number: int) -> str:
    """Returns the name of a user or group in a file as /etc/passwd."""
    try:
        lines = fs.read_text(table, errors="surrogateescape").splitlines()
    except FileNotFoundError:
        lines = []
    for fields in (line.split(":") for line in lines):
        if len(fields) > 2 and fields[2] == str(number):
            return fields[0]
    raise KeyError(f"{table} of the file system has no entry for {number}")


def _copy(source: Any, target: Any, follow_symlinks: bool, preserve_metadata: bool) -> None:
    """Copies between any two kinds of paths."""
    if source == target or source in target.parents:
        raise OSError(errno.EINVAL, "the target is the source, or in it", str(source))
    if preserve_metadata:
        _os_calls(target)
    directories = []
    left = [(source, target)]
    while left:
        path, to = left.pop()
        # pathlib.Path has it from Python 3.14 on.
        info = getattr(path, "info", path)
        is_link = not follow_symlinks and info.is_symlink()
        if is_link:
            link = path.readlink()
            to.symlink_to(link.__vfspath__() if hasattr(link, "__vfspath__") else str(link))
        elif info.is_dir():
            children = list(path.iterdir())
            to.mkdir()
            left.extend((child, to / child.name) for child in children)
            # Their content changes their times.
            directories.append((path, to))
            continue
        else:
            # In a new directory nothing exists but a second entry of the same name: of a corrupt
            # image, and maybe a link to a file elsewhere.
            _copy_file(path, to, "w" if to is target else "x")
        if preserve_metadata:
            _copy_metadata(path, to, not is_link)
    if preserve_metadata:
        for path, to in reversed(directories):
            _copy_metadata(path, to, True)


def _copy_file(path: Any, to: Any, mode: str) -> None:
    if isinstance(path, FolioPath) and isinstance(to, FolioPath) and path.fs is to.fs:
        path.fs._check_differ(str(path), str(to))
    info = getattr(path, "info", path)
    if info.exists() and not info.is_file():
        raise shutil.SpecialFileError(f"{path!r} is neither a file nor a directory")
    with _opened(path, "r") as reader, _opened(to, mode) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)


def _os_calls(path: Any) -> Any:
    """Returns what has the calls of the module os for a path."""
    if isinstance(path, FolioPath):
        return path.fs
    if isinstance(path, os.PathLike):
        return os
    raise TypeError(f"no metadata of {path!r}: expected a FolioPath or a path of the host")


def _copy_metadata(source: Any, target: Any, follow_symlinks: bool) -> None:
    """Copies what shutil.copystat copies."""
    from_calls, to_calls = _os_calls(source), _os_calls(target)
    found = from_calls.stat(source, follow_symlinks=follow_symlinks)
    times = (found.st_atime_ns, found.st_mtime_ns)
    to_calls.utime(target, ns=times, follow_symlinks=follow_symlinks)
    try:
        names = from_calls.listxattr(source, follow_symlinks=follow_symlinks)
    except OSError as error:
        if error.errno not in _XATTR_ERRORS:
            raise
        names = []
    for name in names:
        try:
            value = from_calls.getxattr(source, name, follow_symlinks=follow_symlinks)
            to_calls.setxattr(target, name, value, follow_symlinks=follow_symlinks)
        except OSError as error:
            if error.errno not in _XATTR_ERRORS:
                raise
    if follow_symlinks:
        to_calls.chmod(target, stat.S_IMODE(found.st_mode))


# The target has no such attributes, or the caller may not set them.
_XATTR_ERRORS = (
    errno.EPERM,
    errno.EACCES,
    errno.ENOTSUP,
    errno.ENODATA,
    errno.EINVAL,
)


def _opened(path: Any, mode: str) -> Any:
    """Opens a path of pathlib's protocols, which need no open()."""
    if mode == "r" and hasattr(path, "__open_reader__"):
        return path.__open_reader__()
    if mode != "r" and hasattr(path, "__open_writer__"):
        return path.__open_writer__(mode)
    return path.open(mode + "b")
