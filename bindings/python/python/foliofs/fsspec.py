"""Images as file systems of fsspec, for pandas, pyarrow, duckdb and other libraries.

    pandas.read_parquet("folio:///data/t.parquet::file://disk.qcow2")
    fsspec.filesystem("folio", fo="disk.qcow2", mode="r+", partition=2)
    FolioFileSystem.wrap(foliofs.memory())

Nothing is cached here: Folio's page cache is below.
"""

from __future__ import annotations

import datetime
import errno
import os
import stat
from typing import Any, Literal

import foliofs
import fsspec
from foliofs import _native
from foliofs._file import raw_of
from foliofs._file_system import FileSystem
from fsspec import AbstractFileSystem
from fsspec.spec import _Cached
from fsspec.utils import stringify_path

# Protocols of fsspec for what Folio reads itself, and the schemes of its URLs.
_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "https"}
_HOST = (None, "file", "local")


class _ByImage(_Cached):
    """fsspec keeps a file system for each set of arguments; a path there must be absolute."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if options.get("target_protocol") in _HOST:
            if arguments:
                arguments = (_absolute(arguments[0]), *arguments[1:])
            elif "fo" in options:
                options["fo"] = _absolute(options["fo"])
        return super().__call__(*arguments, **options)


def _absolute(image: Any) -> Any:
    if image is None:
        return None
    name = os.fsdecode(image).removeprefix("file://").removeprefix("local://")
    return name if _native.is_url(name) else os.path.abspath(name)


def _image_name(
    fo: str, mode: str, target_protocol: str | None, target_options: dict[str, Any] | None
) -> str:
    """Returns the path or URL of the image that a chained URL names."""
    if target_protocol in _HOST:
        # A directory is a volume.
        return f"file://{fo}" if _native.has_object_store and os.path.isdir(fo) else fo
    scheme = _SCHEMES.get(str(target_protocol))
    if scheme is not None:
        if target_options:
            names = ", ".join(target_options)
            raise ValueError(
                f"invalid options for {target_protocol}: {names}: Folio opens the image itself; "
                "set its environment, such as AWS_ENDPOINT_URL, or copy the image with simplecache::"
            )
        return fo if "://" in fo else f"{scheme}://{fo}"
    target = fsspec.filesystem(target_protocol, **(target_options or {}))
    if not getattr(target, "local_file", False):
        raise ValueError(
            f"invalid image {target_protocol}://{fo}: expected a file of the host: put "
            "simplecache:: before the image's URL"
        )
    if mode != "r":
        raise ValueError(f"invalid mode {mode!r}: the image is a copy in {target_protocol}")
    with target.open(fo, "rb") as copy:
        return str(copy.name)


class FolioFileSystem(AbstractFileSystem, metaclass=_ByImage):
    """The files of an image.

    `fo` is the image's path on the host, or its URL (`s3://bucket/disk.qcow2`) where this wheel has
    object storage. `mode` is "r" or "r+"; `shared`, `partition`, `format`, `options` and
    `cache_bytes` are those of foliofs.open_image, as are the errors. fsspec keeps one for each
    thread and set of arguments, and the image open, until close(): use the same arguments for all
    reads and writes.

    With `auto_mkdir`, writing a file creates the directories above it. With `update_creates`, mode
    "rb+" creates a missing file, as duckdb expects for a new database.

    Methods raise OSError by errno with `filename`, such as FileNotFoundError; EROFS for changes of an
    image that is open for reading.
    """

    protocol: str | tuple[str, ...] = "folio"
    root_marker: str = "/"

    _is_read_only = False

    def __init__(
        self,
        fo: str | None = None,
        mode: Literal["r", "r+"] = "r",
        *,
        fs: FileSystem | None = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        shared: bool = False,
        partition: int | None = None,
        format: Literal["raw", "qcow2"] | None = None,
        options: str = "",
        cache_bytes: int | None = None,
        auto_mkdir: bool = False,
        update_creates: bool = False,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        if (fo is None) == (fs is None):
            raise ValueError("no image: expected folio:///PATH::file://IMAGE, or fo=IMAGE")
        if fs is None:
            fs = foliofs.open_image(
                _image_name(str(fo), mode, target_protocol, target_options),
                mode,
                shared=shared,
                partition=partition,
                format=format,
                options=options,
                cache_bytes=cache_bytes,
            )
            self._is_read_only = mode == "r"
        self.fs: FileSystem = fs
        self.auto_mkdir: bool = auto_mkdir
        self.update_creates: bool = update_creates

    @classmethod
    def wrap(cls, fs: FileSystem, **storage_options: Any) -> FolioFileSystem:
        """Returns the file system of an open foliofs.FileSystem."""
        return cls(fs=fs, skip_instance_cache=True, **storage_options)

    def close(self) -> None:
        """Closes the image. fsspec keeps file systems for later calls; this ends that, too."""
        self._cache.pop(self._fs_token, None)
        self.fs.close()

    @property
    def fsid(self) -> str:
        return f"folio-{self.fs._device}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = stringify_path(path)
        text = text.removeprefix("folio://").removeprefix("folio:")
        return "/" + text.strip("/")

    @classmethod
    def _parent(cls, path: Any) -> str:
        return str(cls._strip_protocol(path)).rpartition("/")[0] or "/"

    def _check_writable(self, path: str) -> None:
        if self._is_read_only:
            text = 'the image is open for reading: pass mode="r+", by URL with folio={"mode": "r+"}'
            raise OSError(errno.EROFS, text, path)

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.fs.makedirs(self._parent(path), exist_ok=True)

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns attributes; those of the target for a link, with `islink`."""
        path = self._strip_protocol(path)
        found = self.fs.lstat(path)
        is_link = stat.S_ISLNK(found.st_mode)
        out: dict[str, Any] = {"name": path, "islink": is_link}
        if is_link:
            out["destination"] = self.fs.readlink(path)
            try:
                found = self.fs.stat(path)
            except OSError:
                pass  # Broken: the link itself.
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
        kind = kinds.get(stat.S_IFMT(found.st_mode), "other")
        for field in ("mode", "uid", "gid", "ino", "nlink", "mtime"):
            out[field] = getattr(found, "st_" + field)
        return out | {"size": found.st_size if kind != "directory" else 0, "type": kind}

    def ls(self, path: Any, detail: bool = False, **kwargs: Any) -> list[Any]:
        """Returns the paths in a directory, or their attributes.

        A link to a directory has the type "link" there, so that walk, find, du, glob and get do not
        enter it: an image could have two links to `.`, and paths without end.
        """
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] == "directory":
            names = sorted(self.fs.listdir(path))
            paths = [path.rstrip("/") + "/" + name for name in names]
            return [self._entry(each) for each in paths] if detail else paths
        return [info] if detail else [path]

    def _entry(self, path: str) -> dict[str, Any]:
        info = self.info(path)
        if info["islink"] and info["type"] == "directory":
            info["type"] = "link"
        return info

    def exists(self, path: Any, **kwargs: Any) -> bool:
        """Returns whether the path names a file; a broken link is none."""
        return self.fs.exists(self._strip_protocol(path))

    def lexists(self, path: Any, **kwargs: Any) -> bool:
        """Returns whether the path names a file or any link."""
        return self.fs.exists(self._strip_protocol(path), follow_symlinks=False)

    def isfile(self, path: Any) -> bool:
        """Returns whether the path names a regular file, or a link to one."""
        return self.fs.is_file(self._strip_protocol(path))

    def isdir(self, path: Any) -> bool:
        """Returns whether the path names a directory, or a link to one."""
        return self.fs.is_dir(self._strip_protocol(path))

    def created(self, path: Any) -> datetime.datetime:
        """Returns the time of creation, in UTC; the time of the last change if it is not stored."""
        path = self._strip_protocol(path)
        nanos = self.fs.birthtime_ns(path)
        return _time(self.fs.stat(path).st_ctime_ns if nanos is None else nanos)

    def modified(self, path: Any) -> datetime.datetime:
        """Returns the time of the last write, in UTC."""
        return _time(self.fs.stat(self._strip_protocol(path)).st_mtime_ns)

    def mkdir(self, path: Any, create_parents: bool = True, **kwargs: Any) -> None:
        """Creates a directory. Raises FileExistsError."""
        path = self._strip_protocol(path)
        if create_parents:
            self.fs.makedirs(path)
        else:
            self.fs.mkdir(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Creates a directory and those above it. Raises FileExistsError without `exist_ok`."""
        path = self._strip_protocol(path)
        # fsspec.open calls this first, also for a directory that exists.
        if not self.fs.is_dir(path):
            self._check_writable(path)
        self.fs.makedirs(path, exist_ok=exist_ok)

    def rmdir(self, path: Any) -> None:
        """Removes an empty directory."""
        self.fs.rmdir(self._strip_protocol(path))

    def rm_file(self, path: Any) -> None:
        """Removes a file that is no directory."""
        self.fs.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files and empty directories, with `recursive` all below; links are not followed."""
        for each in path if isinstance(path, list) else [path]:
            each = self._strip_protocol(each)
            is_directory = stat.S_ISDIR(self.fs.lstat(each).st_mode)
            if is_directory and recursive and maxdepth is None:
                self.fs.rmtree(each)
            elif is_directory:
                self.fs.rmdir(each)
            else:
                self.fs.unlink(each)

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        """Copies a file; creates a directory. Raises shutil.SameFileError if both are one file."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.fs.is_dir(source):
            self.fs.makedirs(target, exist_ok=True)
            return
        self._make_parent(target)
        self.fs.copy(source, target)

    def mv_file(self, path1: Any, path2: Any) -> None:
        """Renames a file; an existing target is replaced at once."""
        self.fs.replace(self._strip_protocol(path1), self._strip_protocol(path2))

    def mv(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Renames a file or directory, into `path2` if that is a directory."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if str(path2).endswith("/") or self.fs.is_dir(target):
            target = target.rstrip("/") + "/" + source.rpartition("/")[2]
        self._make_parent(target)
        self.fs.replace(source, target)

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> None:
        """Creates a file or empties it; without `truncate` sets its times only."""
        path = self._strip_protocol(path)
        self._make_parent(path)
        self.fs.open(path, "wb" if truncate else "ab").close()
        self.fs.utime(path)

    def cat_file(
        self, path: Any, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """Returns the bytes of a file from `start` to `end`; negative ones count from its end."""
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.fs.read_bytes(path)
        with self.fs.open(path, "rb", 0) as file:
            size = file.seek(0, 2)
            first, last, _ = slice(start, end).indices(size)
            return file.pread(max(last - first, 0), first)

    def pipe_file(self, path: Any, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes a file. Raises FileExistsError in mode "create"."""
        path = self._strip_protocol(path)
        self._make_parent(path)
        with self.fs.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if not autocommit:
            raise NotImplementedError("transactions of fsspec: write and rename instead")
        if mode != "rb":
            self._check_writable(path)
        if not mode.startswith("r"):
            self._make_parent(path)
        if self.update_creates and mode in ("rb+", "r+b") and not self.fs.exists(path):
            self.touch(path)
        # Databases over fsspec call flush() where they need fsync(2), and info() for the size.
        file = self.fs.open(path, mode, sync=True)
        # duckdb and others close no file; those of fsspec itself do not warn either.
        raw = raw_of(file)
        assert raw is not None
        raw._warns = False
        return file


def _time(nanos: int) -> datetime.datetime:
    seconds = datetime.datetime.fromtimestamp(nanos // 10**9, datetime.timezone.utc)
    return seconds + datetime.timedelta(microseconds=nanos % 10**9 // 1000)
