"""The calls on paths, beside those of os on the host."""

import errno
import importlib.metadata
import itertools
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import foliofs
import pytest
from conftest import check, mounted_by_kernel


def test_content_survives_reopen(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs:
        fs.makedirs("/etc/app")
        fs.write_text("/etc/app/motd", "grüße\n")
        fs.write_bytes("/data", b"x" * 3_000_000)
    with foliofs.open_image(image) as fs:
        assert fs.read_text("/etc/app/motd") == "grüße\n"
        assert fs.read_bytes("/data") == b"x" * 3_000_000


def test_image_in_use_is_read_shared(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs:
        fs.write_text("/file", "content")
        fs.sync()
        with pytest.raises(OSError) as raised:
            foliofs.open_image(image)
        assert raised.value.errno == errno.EBUSY
        with foliofs.open_image(image, shared=True) as reader:
            assert reader.read_text("/file") == "content"
            with pytest.raises(OSError) as raised:
                reader.write_text("/new", "")
            assert raised.value.errno == errno.EROFS
    with pytest.raises(ValueError, match="shared"):
        foliofs.open_image(image, "r+", shared=True)


def test_error_of_close_names_the_image(image: Path) -> None:
    program = """if True:
        import resource, sys, foliofs
        fs = foliofs.open_image(sys.argv[1], "r+")
        fs.write_bytes("/file", bytes(5_000_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            fs.close()
        except OSError as error:
            print(error.filename)
    """
    command = [sys.executable, "-c", program, str(image)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout.strip() == str(image), ran.stderr


def test_closed_image_is_clean_to_e2fsck(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs:
        for number in range(300):
            fs.write_text(f"/file {number}", str(number) * number)
        fs.symlink("file 1", "/link")
        fs.setxattr("/file 2", "user.color", b"red")
        fs.mknod("/pipe", stat.S_IFIFO | 0o640)
    check(image)


def test_kernel_reads_what_python_wrote(image: Path) -> None:
    content = os.urandom(1_000_001)
    with foliofs.open_image(image, "r+") as fs:
        fs.mkdir("/a")
        fs.write_bytes("/a/random", content)
        fs.chown("/a/random", 12, 34)
        fs.chmod("/a/random", 0o4750)
        fs.utime("/a/random", ns=(1_000_000_001, 2_000_000_002))
        fs.symlink("random", "/a/link")
    with mounted_by_kernel(image) as folder:
        assert (folder / "a/random").read_bytes() == content
        found = os.stat(folder / "a/random")
        assert (found.st_mode, found.st_uid, found.st_gid) == (0o104750, 12, 34)
        assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_001, 2_000_000_002)
        assert os.readlink(folder / "a/link") == "random"


def test_stat_matches_os(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.symlink("file", tmp_path / "link")
    os.utime(tmp_path / "file", ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321))
    with foliofs.open_directory(tmp_path) as fs:
        ours, host = fs.stat("/link"), os.stat(tmp_path / "file")
        names = [name for name in dir(host) if name.startswith("st_")]
        assert {"st_mtime", "st_mtime_ns", "st_blocks", "st_rdev"} <= set(names)
        for name in set(names) - {"st_dev", "st_ino"}:
            assert getattr(ours, name) == getattr(host, name), name
        assert ours[:10][3:] == host[:10][3:]
        assert stat.S_ISLNK(fs.lstat("/link").st_mode)


def test_names_and_kinds(fs: foliofs.FileSystem) -> None:
    fs.makedirs("/a/b/c")
    fs.write_text("/a/file", "x")
    fs.symlink("b", "/a/link")
    assert sorted(fs.listdir("/a")) == ["b", "file", "link"]
    entries = {entry.name: entry for entry in fs.scandir("/a")}
    assert entries["b"].is_dir() and not entries["b"].is_file()
    assert entries["file"].is_file() and entries["file"].path == "/a/file"
    assert entries["link"].is_symlink() and entries["link"].is_dir()
    assert not entries["link"].is_dir(follow_symlinks=False)
    assert entries["file"].inode() == entries["file"].stat().st_ino
    assert fs.readlink("/a/link") == "b"
    assert fs.exists("/a/file") and not fs.exists("/a/other") and not fs.exists("/a/file/x")


def test_walk_and_glob_match_the_host(tmp_path: Path) -> None:
    import glob

    for name in ("a/b/one.txt", "a/two.txt", "a/.hidden", "three.py", "c/d/e/four.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    os.symlink("a", tmp_path / "link")
    os.symlink("missing", tmp_path / "broken")
    with foliofs.open_directory(tmp_path) as fs:
        for order, follows in itertools.product((True, False), repeat=2):
            walked = fs.walk("/", order, followlinks=follows)
            ours = [(r, sorted(d), sorted(f)) for r, d, f in walked]
            host = [
                ("/" + os.path.relpath(r, tmp_path).removeprefix("."), sorted(d), sorted(f))
                for r, d, f in os.walk(tmp_path, order, followlinks=follows)
            ]
            assert sorted(ours) == sorted(host)
        parents = [root for root, _, _ in fs.walk("/", topdown=False)]
        assert parents.index("/a/b") < parents.index("/a") < parents.index("/")
        seen = []
        for root, directories, _ in fs.walk("/"):
            seen.append(root)
            directories[:] = [name for name in directories if name != "c"]
        assert "/a/b" in seen and "/c" not in seen
        failed: list[OSError] = []
        assert list(fs.walk("/missing", onerror=failed.append)) == []
        assert failed[0].filename == "/missing"
        for pattern in ("a/*.txt", "*.py", "a/*", "?/*/one.txt", "[ac]/*", "none/*"):
            assert fs.glob(pattern) == sorted(glob.glob(pattern, root_dir=tmp_path)), pattern
        assert fs.glob("/c/**/*.txt") == ["/c/d/e/four.txt"]
        assert "/a/b/one.txt" in fs.glob("/**/*.txt")


def test_rename_link_remove(fs: foliofs.FileSystem) -> None:
    fs.write_text("/one", "1")
    fs.write_text("/two", "2")
    fs.replace("/one", "/two")
    assert set(fs.listdir("/")) - {"lost+found"} == {"two"}
    fs.link("/two", "/three")
    assert fs.stat("/three").st_nlink == 2
    with pytest.raises(FileExistsError):
        fs.rename_noreplace("/two", "/three")
    fs.unlink("/three")
    fs.copy("/two", "/copy")
    assert fs.read_text("/copy") == "1"
    assert fs.stat("/copy").st_mtime_ns == fs.stat("/two").st_mtime_ns
    fs.makedirs("/tree/a/b")
    fs.write_text("/tree/a/file", "")
    fs.symlink("/two", "/tree/link")
    fs.rmtree("/tree")
    assert not fs.exists("/tree") and fs.exists("/two")
    fs.truncate("/two", 5)
    assert fs.read_bytes("/two") == b"1\0\0\0\0"


def test_extended_attributes(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs:
        fs.write_text("/file", "")
        fs.setxattr("/file", "user.color", b"red", os.XATTR_CREATE)
        with pytest.raises(FileExistsError):
            fs.setxattr("/file", "user.color", b"blue", os.XATTR_CREATE)
        assert fs.listxattr("/file") == ["user.color"]
        assert fs.getxattr("/file", "user.color") == b"red"
        fs.removexattr("/file", "user.color")
        with pytest.raises(OSError) as raised:
            fs.getxattr("/file", "user.color")
        assert raised.value.errno == errno.ENODATA


def test_errors_have_errno_name_and_cause(fs: foliofs.FileSystem) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        fs.read_bytes("/no/such")
    assert missing.value.errno == errno.ENOENT
    assert missing.value.filename == "/no/such"
    fs.mkdir("/full")
    fs.write_text("/full/file", "")
    with pytest.raises(OSError) as full:
        fs.rmdir("/full")
    assert full.value.errno == errno.ENOTEMPTY
    with pytest.raises(IsADirectoryError):
        fs.unlink("/full")
    with pytest.raises(NotADirectoryError):
        fs.listdir("/full/file")
    with pytest.raises(FileExistsError):
        fs.makedirs("/full")
    fs.makedirs("/full", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("/full/file", exist_ok=True)


def test_errors_of_two_paths_name_both(fs: foliofs.FileSystem, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    for name in ("file", "directory/child"):
        fs.makedirs("/directory", exist_ok=True)
        fs.write_text("/" + name, "")
        (tmp_path / "host/directory").mkdir(exist_ok=True)
        (tmp_path / "host" / name).write_text("")

    def failed(calls: Any, name: str, first: Path, second: Path) -> tuple[object, ...]:
        with pytest.raises(OSError) as raised:
            getattr(calls, name)(first, second)
        error = raised.value
        assert (error.filename, error.filename2) == (str(first), str(second))
        return error.errno, error.strerror

    for name, first, second in (
        ("rename", "/missing", "/new"),
        ("rename", "/file", "/missing/new"),
        ("rename", "/directory", "/directory/child/new"),
        ("replace", "/file", "/directory"),
        ("link", "/missing", "/new"),
        ("link", "/file", "/missing/new"),
        ("link", "/file", "/directory"),
        ("symlink", "/file", "/missing/new"),
        ("symlink", "/file", "/file"),
    ):
        host = [Path(f"{tmp_path}/host{path}") for path in (first, second)]
        expected = failed(os, name, *host)
        assert failed(fs, name, Path(first), Path(second)) == expected, (name, first, second)


def test_null_byte_in_a_path_is_refused(fs: foliofs.FileSystem, tmp_path: Path) -> None:
    calls: list[Callable[[str], object]] = [
        fs.open,
        fs.stat,
        fs.listdir,
        fs.mkdir,
        fs.read_bytes,
        fs.unlink,
        lambda path: fs.rename(path, "/new"),
        lambda path: fs.rename("/", path),
        lambda path: fs.link("/", path),
        lambda path: fs.symlink(path, "/new"),
        foliofs.open_image,
        foliofs.open_directory,
        lambda path: foliofs.create_image(path, 1 << 24),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="embedded null byte"):
            call(f"{tmp_path}/a\0b")
    for name in ("/a\0b", "/a\ud800"):
        assert not (fs.exists(name) or fs.is_file(name) or fs.is_dir(name) or fs.is_symlink(name))


def test_paths_of_another_file_system_are_refused(fs: foliofs.FileSystem) -> None:
    with foliofs.memory() as other:
        for each in (fs, other):
            each.write_text("/file", f"{each}")
            each.write_text("/other", f"{each}")
        contents = [each.read_text(name) for each in (fs, other) for name in ("/file", "/other")]
        foreign, own = other.path("/file"), fs.path("/other")
        calls: list[Callable[[], object]] = []
        for call in (fs.rename, fs.replace, fs.rename_noreplace, fs.link, fs.symlink):
            calls += [partial(call, foreign, own), partial(call, own, foreign)]
        for method in (own.rename, own.replace, own.symlink_to, own.hardlink_to):
            calls += [partial(method, foreign)]
        for one in (fs.stat, fs.unlink, fs.open, fs.read_bytes, fs.listdir, fs.mkdir, fs.rmtree):
            calls += [partial(one, foreign)]
        for each_call in calls:
            with pytest.raises(OSError) as raised:
                each_call()
            assert raised.value.errno == errno.EXDEV
        with pytest.raises(OSError) as raised:
            fs.rename(foreign, "/new")
        assert (raised.value.filename, raised.value.filename2) == ("/file", "/new")
        assert not own.samefile(foreign) and own.samefile(fs.path("/other"))
        assert contents == [
            each.read_text(name) for each in (fs, other) for name in ("/file", "/other")
        ]
        with pytest.raises(TypeError):
            foliofs.open_image(foreign)  # type: ignore[arg-type]


def test_copy_between_file_systems(fs: foliofs.FileSystem) -> None:
    with foliofs.memory() as other:
        for each in (fs, other):
            each.write_text("/file", f"{each}")
        fs.chmod("/file", 0o640)
        fs.utime("/file", ns=(1_000_000_001, 2_000_000_002))
        for call in (fs.copy, other.copy):
            call(fs.path("/file"), other.path("/file"))
            found = other.stat("/file")
            assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o640, 2_000_000_002)
            assert other.read_text("/file") == fs.read_text("/file") == f"{fs}"
        fs.copy(other.path("/file"), "/back")
        assert fs.read_text("/back") == f"{fs}"


def test_read_only_image_refuses_writes(image: Path) -> None:
    with foliofs.open_image(image) as fs:
        with pytest.raises(OSError) as raised:
            fs.write_text("/file", "x")
        assert raised.value.errno == errno.EROFS
        assert fs.statvfs().f_flag & os.ST_RDONLY


def test_image_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        foliofs.open_image(tmp_path / "missing")
    assert missing.value.filename == str(tmp_path / "missing")
    (tmp_path / "text").write_text("text" * 10_000)
    with pytest.raises(OSError) as raised:
        foliofs.open_image(tmp_path / "text")
    assert raised.value.errno and raised.value.strerror
    with pytest.raises(ValueError, match="invalid mode"):
        foliofs.open_image(tmp_path / "text", "w")  # type: ignore[arg-type]


def test_image_in_use_is_refused(image: Path) -> None:
    for held, mode in (("r+", "r+"), ("r+", "r"), ("r", "r+")):
        with foliofs.open_image(image, held):  # type: ignore[arg-type]
            with pytest.raises(OSError, match="in use by this process") as raised:
                foliofs.open_image(image, mode)  # type: ignore[arg-type]
            assert raised.value.errno == errno.EBUSY
    program = f"import foliofs; fs = foliofs.open_image({str(image)!r}, 'r+'); print(); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"\n"
        with pytest.raises(OSError, match=rf"by another process.*: \S+ \(process {holder.pid}\)"):
            foliofs.open_image(image)
        holder.communicate(b"\n")


def test_invalid_arguments_are_explained(image: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='invalid uuid "zz": expected 32 hexadecimal digits'):
        foliofs.create_image(tmp_path / "new", 16 << 20, uuid="zz")
    for number in (0, -1, 1 << 40):
        with pytest.raises(ValueError, match=f"invalid partition {number}: partitions count from"):
            foliofs.open_image(image, partition=number)
    assert not (tmp_path / "new").exists()


def test_same_calls_make_the_same_bytes(tmp_path: Path) -> None:
    images = [tmp_path / "a.img", tmp_path / "b.img"]
    for path in images:
        uuid = "6ff3ebd4-8b5e-4d0c-9c36-9a0e8a0c4d11"
        with foliofs.create_image(path, 16 << 20, label="test", uuid=uuid, time=0) as fs:
            fs.write_text("/file", "content")
    assert images[0].read_bytes() == images[1].read_bytes()


def test_closed_file_system_is_an_error(image: Path) -> None:
    fs = foliofs.open_image(image)
    fs.close()
    fs.close()
    assert fs.closed
    calls: list[Callable[[], object]] = [fs.listdir, fs.sync, fs.path("/").exists]
    for call in [*calls, fs.path("/").info.is_dir]:
        with pytest.raises(ValueError, match="closed file system"):
            call()


def test_unclosed_file_system_is_closed_at_exit(image: Path) -> None:
    code = f"""
import foliofs
fs = foliofs.open_image({str(image)!r}, "r+")
file = fs.open("/file", "w")
file.write("kept")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with foliofs.open_image(image) as fs:
        assert fs.read_text("/file") == "kept"
    check(image)


def test_copy_onto_itself_is_refused(fs: foliofs.FileSystem) -> None:
    fs.write_text("/v", "content")
    fs.link("/v", "/hard")
    fs.symlink("v", "/soft")
    for source, target in (("/v", "/v"), ("/hard", "/v"), ("/v", "/hard"), ("/soft", "/v")):
        with pytest.raises(shutil.SameFileError):
            fs.copy(source, target)
        with pytest.raises((shutil.SameFileError, OSError)):
            fs.path(source).copy(fs.path(target))
        assert fs.read_text("/v") == "content", (source, target)
    with pytest.raises(IsADirectoryError):
        fs.copy("/v", "/")
    fs.copy("/soft", "/other")
    assert fs.read_text("/other") == "content"


def test_bytes_in_are_bytes_out_as_in_os(tmp_path: Path) -> None:
    name = b"\xff name"
    with foliofs.memory() as fs:
        host = os.fsencode(tmp_path)
        fs.makedirs(b"/d/" + name)
        fs.symlink(b"to " + name, b"/d/l")
        os.makedirs(host + b"/d/" + name)
        os.symlink(b"to " + name, host + b"/d/l")
        assert sorted(fs.listdir(b"/d")) == sorted(os.listdir(host + b"/d"))
        assert fs.readlink(b"/d/l") == os.readlink(host + b"/d/l")
        found = sorted((entry.name, entry.path) for entry in fs.scandir(b"/d"))
        expected = sorted((entry.name, entry.path) for entry in os.scandir(host + b"/d"))
        assert found == [(name, path.removeprefix(host)) for name, path in expected]
        walked = [(path.removeprefix(host), *rest) for path, *rest in os.walk(host + b"/d")]
        assert list(fs.walk(b"/d")) == walked
        for _, directories, _ in fs.walk(b"/"):
            directories[:] = []
        assert fs.listdir("/d") == [os.fsdecode(name) for name in fs.listdir(b"/d")]


def test_sizes_are_text_too(tmp_path: Path) -> None:
    path = tmp_path / "disk.img"
    with foliofs.create_image(path, "16M", cache_bytes="8M") as fs:
        fs.write_text("/f", "")
        fs.truncate("/f", "1K")
        assert fs.stat("/f").st_size == 1024
    assert path.stat().st_size == 16 << 20
    with pytest.raises(ValueError, match='invalid size "16 eggs"'):
        foliofs.create_image(tmp_path / "other", "16 eggs")
    assert not (tmp_path / "other").exists()


def test_version_is_that_of_the_package() -> None:
    assert foliofs.__version__ == importlib.metadata.version("foliofs")
