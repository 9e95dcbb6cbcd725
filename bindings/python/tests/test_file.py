"""Open files, beside those of built-in open()."""

import array
import ctypes
import errno
import gc
import io
import operator
import os
import signal
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foliofs
import pytest
from conftest import mounted_by_kernel
from foliofs.testing import PowerCutDisk


@pytest.mark.parametrize("mode", ["r", "rb", "w", "wb", "a", "ab", "r+", "rb+", "w+", "w+b", "x"])
def test_modes_match_builtin_open(mode: str, tmp_path: Path) -> None:
    def run(file: Any) -> list[object]:
        out: list[object] = [file.mode, file.readable(), file.writable(), file.seekable(), file.tell()]
        text = "text" if "b" not in mode else b"text"
        for name, arguments in (("write", [text]), ("seek", [0]), ("read", [])):
            try:
                out.append(getattr(file, name)(*arguments))
            except (OSError, ValueError) as error:
                out.append(type(error))
        file.close()
        return [*out, file.closed]

    host = tmp_path / "host"
    with foliofs.memory() as fs:
        if mode != "x":
            host.write_text("content\nof\n")
            fs.write_text("/file", "content\nof\n")
        assert run(fs.open("/file", mode)) == run(open(host, mode))
        assert fs.read_bytes("/file") == host.read_bytes()


def test_mode_of_each_layer_matches_builtin_open(tmp_path: Path) -> None:
    host = tmp_path / "host"
    with foliofs.memory() as fs:
        for letter in "rwax":
            for mode in (letter, letter + "+"):
                for path in (host, fs.path("/file")):
                    path.unlink(missing_ok=True)
                    if letter != "x":
                        path.write_text("")
                with fs.open("/file", mode) as ours, open(host, mode) as theirs:
                    assert ours.mode == theirs.mode
                    for layer in ("buffer", "raw"):
                        ours, theirs = getattr(ours, layer), getattr(theirs, layer)
                        assert ours.mode == theirs.mode, (mode, layer)


def test_directory_is_refused_at_open(fs: foliofs.FileSystem) -> None:
    fs.mkdir("/directory")
    for mode in ("r", "rb", "r+", "w", "ab"):
        for buffering in (-1, 0) if "b" in mode else (-1,):
            with pytest.raises(IsADirectoryError) as raised:
                fs.open("/directory", mode, buffering)
            assert raised.value.filename == "/directory"
    with pytest.raises(IsADirectoryError):
        fs.read_bytes("/directory")


def test_file_keeps_its_file_system(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs:
        fs.write_text("/file", "content")
    file = foliofs.open_image(image).open("/file")
    gc.collect()
    assert file.read() == "content"
    with pytest.warns(ResourceWarning, match="unclosed <foliofs.FileSystem"):
        file.close()
        gc.collect()
    foliofs.open_image(image, "r+").close()


def test_dropped_file_warns(fs: foliofs.FileSystem) -> None:
    for mode, kind in (("w", "TextIOWrapper"), ("wb", "BufferedWriter"), ("wb+", "RawFile")):
        file = fs.open("/file", mode, 0 if kind == "RawFile" else -1)
        with pytest.warns(ResourceWarning, match=f"unclosed file <.*{kind}.*'/file'") as found:
            del file
            gc.collect()
        assert len(found) == 1
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        for mode in ("r", "rb", "rb+"):
            with fs.open("/file", mode):
                pass
        gc.collect()
    assert not others


def test_negative_sizes_are_refused(fs: foliofs.FileSystem, tmp_path: Path) -> None:
    with fs.open("/file", "wb+", 0) as file:
        calls: list[Callable[[], object]] = [
            lambda: file.pread(-1, 0),
            lambda: file.pread(1, -1),
            lambda: file.preadinto(bytearray(1), -1),
            lambda: file.pwrite(b"x", -1),
            lambda: file.borrow(-1, 1),
            lambda: file.borrow(0, -1),
            lambda: file.truncate(-1),
            lambda: file.seek(-1),
            lambda: fs.truncate("/file", -1),
            lambda: foliofs.create_image(tmp_path / "new", -1),
            lambda: foliofs.open_image(tmp_path / "new", cache_bytes=-1),
        ]
        for call in calls:
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == errno.EINVAL


def test_fsync_takes_every_kind_of_file() -> None:
    with PowerCutDisk() as disk, foliofs.memory() as other:
        for mode, buffering in (("w", -1), ("w", 1), ("wb", -1), ("wb+", -1), ("wb", 0)):
            with disk.fs.open("/file", mode, buffering) as file:
                file.write("text" if mode == "w" else b"text")
                disk.fs.fsync(file)
                disk.fs.fsync(file, data_only=True)
                for cut in disk.power_cut(limit=3):
                    assert cut.read_text("/file") == "text"
                with pytest.raises(ValueError, match="not a file of"):
                    other.fsync(file)
        with disk.fs.open("/file", "w", sync=True) as text:
            text.write("more")
            disk.fs.fsync(text)
            with pytest.raises(io.UnsupportedOperation, match="the host has no descriptor of it: read or borrow its bytes"):
                os.fsync(text.fileno())
        for wrong in (io.StringIO(), io.BytesIO()):
            with pytest.raises(ValueError, match="not a file of"):
                disk.fs.fsync(wrong)


def test_random_access_matches_builtin_open(fs: foliofs.FileSystem, tmp_path: Path) -> None:
    import random

    rng = random.Random(21)
    with open(tmp_path / "host", "wb+") as host, fs.open("/file", "wb+") as ours:
        for _ in range(500):
            match rng.randrange(5):
                case 0:
                    data = rng.randbytes(rng.randrange(100_000))
                    assert ours.write(data) == host.write(data)
                case 1:
                    size = rng.randrange(300_000)
                    assert ours.read(size) == host.read(size)
                case 2:
                    place = rng.randrange(2_000_000)
                    assert ours.seek(place) == host.seek(place)
                case 3:
                    assert ours.seek(-1 if ours.seek(0, 2) else 0, 2) == host.seek(
                        -1 if host.seek(0, 2) else 0, 2
                    )
                case 4:
                    size = rng.randrange(2_000_000)
                    assert ours.truncate(size) == host.truncate(size)
            assert ours.tell() == host.tell()
    assert fs.read_bytes("/file") == (tmp_path / "host").read_bytes()


def test_raw_file(fs: foliofs.FileSystem) -> None:
    with fs.open("/file", "wb+", 0) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.write(b"0123456789") == 10
        assert file.pread(3, 4) == b"456"
        assert file.pwrite(b"ab", 1) == 2
        buffer = bytearray(4)
        assert file.preadinto(buffer, 0) == 4
        assert buffer == b"0ab3"
        file.seek(8)
        assert file.readinto(memoryview(buffer)[1:]) == 2
        assert file.read(10) == b""
        file.fsync()
        file.fsync(data_only=True)
        with pytest.raises(BufferError):
            file.readinto(b"read only")
    with pytest.raises(ValueError, match="closed file"):
        file.read(1)
    with fs.open("/file", "rb", 0) as file:
        writes: list[Callable[[], object]] = [
            lambda: file.write(b"x"),
            lambda: file.pwrite(b"x", 0),
            lambda: file.truncate(),
        ]
        for call in writes:
            with pytest.raises(io.UnsupportedOperation, match="not open for writing"):
                call()
    with fs.open("/file", "ab", 0) as file:
        reads: list[Callable[[], object]] = [
            lambda: file.read(),
            lambda: file.pread(1, 0),
            lambda: file.borrow(0, 1),
        ]
        for call in reads:
            with pytest.raises(io.UnsupportedOperation, match="not open for reading"):
                call()


@pytest.mark.parametrize("sync", [False, True])
def test_elements_of_any_type_are_bytes(sync: bool, fs: foliofs.FileSystem) -> None:
    content = array.array("d", [0.5, -1.25, 3.0])
    for buffering in (0, -1):
        with fs.open("/file", "wb+", buffering, sync=sync) as file:
            assert file.write(content) == 24
            assert file.write(memoryview(content)[1:]) == 16
            file.seek(0)
            read = array.array("d", [0.0] * 5)
            assert file.readinto(read) == 40
            assert read == content + content[1:]
            with pytest.raises(BufferError):
                file.write(memoryview(content)[::2])
            with pytest.raises(TypeError, match="bytes-like"):
                file.write("text")
    with fs.open("/file", "rb+", 0) as raw:
        assert raw.pwrite(content, 8) == 24
        assert raw.preadinto(read, 8) == 32 and read[:3] == content


def test_readall_starts_at_the_position(fs: foliofs.FileSystem) -> None:
    content = os.urandom(3_000_000)
    fs.write_bytes("/file", content)
    with fs.open("/file", "rb+", 0) as file:
        for position in (0, 1, 2_999_999, 3_000_000, 4_000_000):
            file.seek(position)
            assert file.readall() == content[position:]
            assert file.tell() == max(position, 3_000_000)


def test_holes_are_found(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs, fs.open("/file", "wb+", 0) as file:
        file.pwrite(b"x", 1 << 20)
        file.fsync()
        assert file.seek(0, os.SEEK_DATA) == 1 << 20
        assert file.seek(0, os.SEEK_HOLE) == 0
        with pytest.raises(OSError) as raised:
            file.seek(2 << 20, os.SEEK_DATA)
        assert raised.value.errno == errno.ENXIO


def test_borrowed_pages_are_the_file(image: Path) -> None:
    content = os.urandom(300_000)
    with foliofs.open_image(image, "r+") as fs:
        fs.write_bytes("/file", content)
        with fs.open("/file", "rb+") as file:
            view = file.borrow(1000, 1 << 20)
            assert view.readonly and view == content[1000:]
            page = file.borrow(0, 10)
            file.seek(0)
            file.write(b"NEW")
            file.flush()
            assert bytes(page[:3]) == b"NEW"
            assert len(file.borrow(300_000, 10)) == 0
            with pytest.raises(TypeError):
                page[0] = 1
    assert view == content[1000:]


def test_close_of_file_system_writes_buffers(image: Path) -> None:
    fs = foliofs.open_image(image, "r+")
    file = fs.open("/file", "w")
    file.write("in a buffer")
    fs.close()
    assert file.closed
    with foliofs.open_image(image) as fs:
        assert fs.read_text("/file") == "in a buffer"


def test_error_of_close_is_raised(tmp_path: Path) -> None:
    fs = foliofs.create_image(tmp_path / "disk.img", 8 << 20)
    file = fs.open("/file", "wb", 64 << 20)
    file.write(bytes(32 << 20))
    with pytest.raises(OSError) as raised:
        fs.close()
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/file")
    assert fs.closed and file.closed


def test_archives(image: Path) -> None:
    content = os.urandom(200_000)
    with foliofs.open_image(image, "r+") as fs:
        with fs.open("/a.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr("inner", content)
        with fs.open("/a.zip", "rb") as reader, zipfile.ZipFile(reader) as archive:
            assert archive.read("inner") == content
        with fs.open("/a.tar.gz", "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                entry = tarfile.TarInfo("inner")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
        with fs.open("/a.tar.gz", "rb") as reader, tarfile.open(fileobj=reader) as tar:
            inner = tar.extractfile("inner")
            assert inner is not None and inner.read() == content
    with mounted_by_kernel(image) as folder:
        assert zipfile.ZipFile(folder / "a.zip").read("inner") == content
        with tarfile.open(folder / "a.tar.gz") as tar:
            assert tar.getnames() == ["inner"]


def test_writes_of_a_synced_file_are_in_its_size(fs: foliofs.FileSystem) -> None:
    with fs.open("/file", "wb", sync=True) as file:
        for size in (3, 10_000):
            assert file.write(b"x" * size) == size
            assert fs.stat("/file").st_size == file.tell()
        file.flush()
    with fs.open("/file", "r", sync=True) as reader:
        assert len(reader.read()) == 10_003
    with fs.open("/text", "w", sync=True) as text:
        text.write("line\n")
        text.flush()
        assert fs.read_text("/text") == "line\n"


def test_synced_file_on_a_full_disk_raises(tmp_path: Path) -> None:
    with foliofs.create_image(tmp_path / "disk.img", 8 << 20) as fs:
        with fs.open("/file", "wb", sync=True) as file, pytest.raises(OSError) as raised:
            file.write(bytes(32 << 20))
        assert raised.value.errno == errno.ENOSPC
        fs.unlink("/file")


def test_huge_read_raises_memory_error() -> None:
    program = """if True:
        import resource, foliofs
        with foliofs.memory() as fs:
            fs.write_text("/small", "content")
            with fs.open("/huge", "wb") as file:
                file.truncate(64 << 30)
            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
            for read in (lambda: fs.read_bytes("/huge"), lambda: fs.open("/huge", "rb").read()):
                try:
                    read()
                except MemoryError:
                    print("refused")
            print(fs.read_text("/small"))
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.split() == ["refused", "refused", "content"], ran.stderr


@pytest.mark.parametrize("sync", [False, True])
def test_read_of_more_than_the_file_has(sync: bool, fs: foliofs.FileSystem) -> None:
    """A reader passes a size without knowing the file's: no memory is taken for it."""
    content = os.urandom(3_000_000)
    fs.write_bytes("/file", content)
    with fs.open("/file", "rb", sync=sync) as file:
        raw = file if sync else file.raw
        assert raw.pread(1 << 60, 0) == content
        assert raw.pread(1 << 60, 2_000_000) == content[2_000_000:]
        assert raw.pread(1 << 60, 4_000_000) == b""
        if sync:
            assert file.read(1 << 62) == content and file.tell() == len(content)
            assert file.read(1 << 62) == b"" and file.tell() == len(content)


def test_read_of_more_than_a_part() -> None:
    """Long calls are in parts of 64 MiB; a handler that raises ends them there."""
    with foliofs.memory() as fs:
        content = b"0123456789" * (7 << 20)
        assert fs.write_bytes("/file", content) == len(content)
        with fs.open("/file", "rb+", sync=True) as file:
            assert file.read(1 << 62) == content
            buffer = bytearray(len(content))
            assert file.preadinto(buffer, 0) == len(content) and buffer == content
            file.seek(0)
            assert file.readinto(buffer) == len(content)
            assert file.write(content) == len(content) and file.tell() == 2 * len(content)
        assert fs.read_bytes("/file") == content * 2


def test_signal_ends_a_long_call() -> None:
    libc: Any = ctypes.CDLL(None)
    call: Any = operator.call
    size = 80 << 20

    def interrupted(work: Callable[[Any, int], object], argument: Any) -> None:
        # map() runs no bytecode, where handlers run, between the two calls.
        calls = map(call, (libc["raise"], work), (signal.SIGINT, argument), (0, 0))
        with pytest.raises(KeyboardInterrupt):
            tuple(calls)

    with foliofs.memory() as fs, fs.open("/file", "wb+", 0) as file:
        file.truncate(size)
        buffer = bytearray(b"x") * size
        interrupted(file._file.preadinto, buffer)
        assert (buffer[0], buffer[-1]) == (0, ord("x"))
        interrupted(file._file.pread, size)
        interrupted(file._file.pwrite, bytearray(b"x") * size)
        assert (file.pread(1, 0), file.pread(1, size - 1)) == (b"x", b"\0")


def test_positioned_file_matches_a_file_of_python(tmp_path: Path) -> None:
    """The same calls on both files give the same bytes and positions."""
    data = b"".join(b"%d " % number * (number % 9) + b"\n" for number in range(3000)) + b"\n\nend"
    (tmp_path / "file").write_bytes(data)
    with foliofs.memory() as fs:
        fs.write_bytes("/file", data)
        for mode in ("rb", "r+b"):
            with fs.open("/file", mode, sync=True) as ours, open(tmp_path / "file", mode) as theirs:

                def both(name: str, *arguments: object) -> None:
                    got = [getattr(file, name)(*arguments) for file in (ours, theirs)]
                    assert got[0] == got[1], (name, arguments)
                    assert ours.tell() == theirs.tell(), (name, arguments)

                both("readline")
                both("readline", 3)
                both("readline", 0)
                both("read", 10)
                both("readline", None)
                both("seek", 5, 1)
                both("readlines", 4000)
                both("seek", -3, 2)
                both("read")
                both("read", 1)
                both("readline")
                both("seek", len(data) + 5)
                both("read", None)
                both("seek", 0)
                both("readlines")
                both("seek", len(data) - 20_000)
                both("read", -1)
                for arguments in ((-1,), (-(10**9), 1), (-(10**9), 2)):
                    for file in (ours, theirs):
                        with pytest.raises(OSError) as raised:
                            file.seek(*arguments)
                        assert raised.value.errno == errno.EINVAL
                if mode == "r+b":
                    both("seek", 100)
                    both("write", b"x" * 70_000)
                    both("readline")
                    both("seek", 0)
                    both("read")
            for file in (ours, theirs):
                for name in ("read", "readline", "tell", "readlines"):
                    with pytest.raises(ValueError):
                        getattr(file, name)()


def test_positioned_file_reads_lines_written_later() -> None:
    with foliofs.memory() as fs:
        fs.write_bytes("/file", b"one\ntwo")
        with fs.open("/file", "rb", sync=True) as file, fs.open("/file", "ab", sync=True) as end:
            assert end.tell() == 7
            assert (file.readline(), file.readline(), file.readline()) == (b"one\n", b"two", b"")
            end.write(b"more\nlast\n")
            assert end.tell() == 17
            assert list(file) == [b"more\n", b"last\n"]
            file.seek(0)
            end.truncate(4)
            assert file.read() == b"one\n"
