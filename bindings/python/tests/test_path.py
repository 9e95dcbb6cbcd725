"""FolioPath, beside pathlib.Path on the host."""

import errno
import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import foliofs
import pytest
from foliofs import FolioPath
from foliofs._path import _copy

FILES = ("a/b/one.txt", "a/two.txt", "a/.hidden", "three.py", "c/d/e/four.txt", "[odd]/name")


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[FolioPath, Path]]:
    """The same tree as a FolioPath and as a Path."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for name, target in (("link", "a"), ("broken", "missing"), ("loop", "loop")):
        (tmp_path / name).symlink_to(target)
    with foliofs.open_directory(tmp_path) as fs:
        yield fs.path("/"), tmp_path


def outcome(call: Callable[[], Any]) -> Any:
    """Returns what a call returns, or the type and errno of its error."""
    try:
        return call()
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        return type(error), getattr(error, "errno", None)


def relative(found: Any, root: Any) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in found)


def test_parts_match_pathlib() -> None:
    with foliofs.memory() as fs:
        for text in ("/a/b.tar.gz", "a//b/./c", "/", "", ".hidden", "/a/../b", "x.py"):
            ours, host = fs.path(text), Path(text)
            names = ("name", "stem", "suffix", "suffixes", "parts", "anchor", "root", "drive")
            for name in names:
                assert getattr(ours, name) == getattr(host, name), (text, name)
            assert [str(path) for path in ours.parents] == [str(path) for path in host.parents]
            assert str(ours.parent) == str(host.parent)
            assert ours.is_absolute() == host.is_absolute()
            for call in (
                lambda path: str(path / "x" / "/y"),
                lambda path: str("x" / path),
                lambda path: str(path.joinpath("x", "y/z")),
                lambda path: str(path.with_name("n")),
                lambda path: str(path.with_stem("n")),
                lambda path: str(path.with_suffix(".n")),
                lambda path: str(path.relative_to("/a")),
                lambda path: path.is_relative_to("/a"),
                lambda path: path.match("*.py"),
                lambda path: bytes(path),
                lambda path: path <= path / "/b",
                lambda path: path > path / "/b",
                lambda path: path / 1,
            ):
                assert outcome(lambda: call(ours)) == outcome(lambda: call(host)), text


def test_methods_of_pathlib_are_there() -> None:
    # Of the host, or of Windows.
    absent = {"cwd", "home", "expanduser", "from_uri", "is_reserved", "link_to"}
    # For open() of Python, which opens files of the host, and for a deprecated "with path:".
    absent |= {"__fspath__", "__enter__", "__exit__"}
    inner = {name for name in dir(Path) if name.startswith("_") and name not in dir(object)}
    inner -= {"__bytes__", "__fspath__", "__truediv__", "__rtruediv__", "__enter__", "__exit__"}
    assert set(dir(Path)) - inner - set(dir(FolioPath)) <= absent
    # Those of Python 3.12 to 3.14.
    later = {"walk", "with_segments", "is_junction", "full_match", "parser"}
    later |= {"info", "copy", "copy_into", "move", "move_into"}
    assert later <= set(dir(FolioPath))


def test_identity_is_of_path_and_file_system() -> None:
    with foliofs.memory() as fs, foliofs.memory() as other:
        assert fs.path("/a//b") == fs.path("/", "a", "b") != other.path("/a/b")
        assert len({fs.path("/a"), fs.path("/a/"), other.path("/a")}) == 2
        assert sorted([fs.path("/b"), fs.path("/a")])[0].name == "a"
        assert not fs.path("/a").is_relative_to(other.path("/"))
        with pytest.raises(TypeError):
            open(fs.path("/etc/passwd"))  # type: ignore[call-overload]


def test_attributes_match_pathlib(both: tuple[FolioPath, Path]) -> None:
    ours, host = both
    for name in (*FILES, "a", "link", "link/two.txt", "broken", "loop", "none", "three.py/x"):
        for method in ("exists", "is_dir", "is_file", "is_symlink"):
            path = getattr(ours / name, method)
            assert path() == getattr(host / name, method)(), (name, method)
            assert getattr((ours / name).info, method)() == path(), (name, method)
        size = outcome(lambda: (ours / name).stat().st_size)
        assert size == outcome(lambda: (host / name).stat().st_size), name
    assert (ours / "link/two.txt").samefile("/a/two.txt")
    assert not (ours / "name\0").exists() and not (ours / "name\ud800").exists()


def test_resolve_matches_pathlib(both: tuple[FolioPath, Path]) -> None:
    ours, host = both
    (host / "c/up").symlink_to("../a/./b/..")
    (host / "a/round").symlink_to("../link/b")
    names = [*FILES, "link/two.txt", "c/up", "c/up/../b", "a/round/one.txt", "broken/x", "none/../a"]
    for name in [*names, "three.py/x", "."]:
        for strict in (False, True):
            expected = outcome(lambda: "/" + str((host / name).resolve(strict).relative_to(host)))
            found = outcome(lambda: str((ours / name).resolve(strict)))
            assert found == (expected if expected != "/." else "/"), (name, strict)
    assert str((ours / "loop/x").resolve()) == "/loop/x"
    with pytest.raises(OSError) as raised:
        (ours / "loop").resolve(strict=True)
    assert raised.value.errno == errno.ELOOP
    (ours / "absolute").symlink_to("/a/b")
    assert str(ours.with_segments("absolute/../two.txt").resolve()) == "/a/two.txt"
    assert str(ours.with_segments("../../a").resolve()) == "/a"


def test_types_match_pathlib(tmp_path: Path) -> None:
    kinds = (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG, stat.S_IFBLK, stat.S_IFCHR)
    with foliofs.memory() as fs, foliofs.open_directory(tmp_path) as host:
        for kind in kinds:
            fs.mknod(f"/{kind}", kind | 0o600, os.makedev(1, 7))
            if os.geteuid() == 0 or kind not in (stat.S_IFBLK, stat.S_IFCHR):
                os.mknod(tmp_path / f"{kind}", kind | 0o600, os.makedev(1, 7))
        fs.symlink(f"{stat.S_IFIFO}", "/link")
        (tmp_path / "link").symlink_to(f"{stat.S_IFIFO}")
        for path in tmp_path.iterdir():
            for name in ("fifo", "socket", "block_device", "char_device", "mount", "junction"):
                for each in (fs, host):
                    found = getattr(each.path("/", path.name), "is_" + name)()
                    theirs: Callable[[], bool] = getattr(path, "is_" + name, lambda: False)
                    assert found == theirs(), (path, name)
        assert not fs.path("/missing").is_fifo() and not fs.path("/missing").is_mount()
        fs.symlink("/", "/root")
        fs.mkdir("/directory")
        for text, expected in (("/", True), ("/directory/..", True), ("/directory", False)):
            assert fs.path(text).is_mount() == expected
        assert not fs.path("/root").is_mount()


def test_owner_is_of_the_file_system(fs: foliofs.FileSystem) -> None:
    fs.write_text("/file", "")
    fs.chown("/file", 7, 8)
    path = fs.path("/file")
    for call in (path.owner, path.group):
        with pytest.raises(KeyError, match="has no entry"):
            call()
    fs.mkdir("/etc")
    fs.write_text("/etc/passwd", "\nroot:x:0:0::/root:/bin/sh\nada:x:7:9::/:/bin/sh\n")
    fs.write_bytes("/etc/group", b"root:x:0:\n\xff:x:8:ada\n")
    assert (path.owner(), path.group()) == ("ada", os.fsdecode(b"\xff"))
    fs.symlink("file", "/link")
    fs.chown("/link", 0, 0, follow_symlinks=False)
    link = fs.path("/link")
    assert (link.owner(), link.owner(follow_symlinks=False)) == ("ada", "root")


def test_mode_of_a_link_is_refused(fs: foliofs.FileSystem) -> None:
    fs.write_text("/file", "")
    fs.symlink("file", "/link")
    fs.path("/file").lchmod(0o600)
    with pytest.raises(OSError) as raised:
        fs.path("/link").lchmod(0o640)
    assert raised.value.errno == errno.EOPNOTSUPP
    assert fs.stat("/file").st_mode & 0o777 == 0o600
    fs.path("/link").chmod(0o640)
    assert fs.stat("/file").st_mode & 0o777 == 0o640


def test_touch_makes_mode_less_umask(both: tuple[FolioPath, Path]) -> None:
    ours, host = both
    for name, mode in (("one", 0o600), ("two", 0o666), ("three", 0o777)):
        (ours / name).touch(mode)
        assert (host / name).stat().st_mode & 0o777 == mode & ~0o022
    (ours / "broken").touch()
    assert (host / "missing").read_bytes() == b""
    with pytest.raises(NotADirectoryError):
        (ours / "three.py/x").touch()


def test_uri_is_that_of_fsspec(image: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with foliofs.open_image(image, "r+") as fs:
        fs.write_text("/a b%20", "content")
        uri = fs.path("/a b%20").as_uri()
        with pytest.raises(ValueError, match="relative"):
            fs.path("a").as_uri()
    assert uri == f"folio:///a b%20::file://{image}"
    with fsspec.open(uri, "rt") as file:
        assert file.read() == "content"
    fsspec.filesystem("folio", fo=str(image), target_protocol="file").close()
    with foliofs.memory() as memory, pytest.raises(ValueError, match="expected a file of an image"):
        memory.path("/a").as_uri()


def test_listings_match_pathlib(both: tuple[FolioPath, Path]) -> None:
    ours, host = both
    assert relative(ours.iterdir(), ours) == relative(host.iterdir(), host)
    kinds = {path.name: path.info for path in ours.iterdir()}
    assert kinds["link"].is_symlink() and kinds["link"].is_dir() and kinds["three.py"].is_file()
    for pattern in ("*", "a/*", "*/*.txt", "**/*.txt", "a/**/*", "[[]odd]/*", "none/*", "*.py"):
        assert relative(ours.glob(pattern), ours) == relative(host.glob(pattern), host), pattern
    assert relative(ours.rglob("*.txt"), ours) == relative(host.rglob("*.txt"), host)
    for pattern in ("", "/a"):
        assert outcome(lambda: list(ours.glob(pattern))) == outcome(
            lambda: list(host.glob(pattern))
        )


@pytest.mark.skipif(not hasattr(Path, "walk"), reason="pathlib.Path.walk is of Python 3.12")
def test_walk_matches_pathlib(both: tuple[FolioPath, Path]) -> None:
    def walked(root: Any, *arguments: Any) -> list[Any]:
        found = root.walk(*arguments)
        return sorted((str(path.relative_to(root)), sorted(d), sorted(f)) for path, d, f in found)

    for arguments in ((), (False,), (True, None, True)):
        assert walked(both[0], *arguments) == walked(both[1], *arguments)


def test_walk_lists_links_as_files(both: tuple[FolioPath, Path]) -> None:
    path, directories, files = next(both[0].walk())
    assert path == both[0] and "link" in files and "link" not in directories


def test_changes_match_pathlib(both: tuple[FolioPath, Path]) -> None:
    """Each step on the FolioPath is judged by pathlib on the directory behind it."""
    ours, host = both
    (ours / "new/deep").mkdir(parents=True)
    assert (host / "new/deep").is_dir()
    (ours / "new").mkdir(exist_ok=True)
    for wrong in (ours / "new", ours / "three.py"):
        with pytest.raises(FileExistsError):
            wrong.mkdir(exist_ok=wrong.name != "new")
    assert (ours / "new/f").write_text("grüße\n", newline="\r\n") == 6
    assert (host / "new/f").read_bytes() == "grüße\r\n".encode()
    assert (ours / "new/f").read_text() == "grüße\n"
    assert (ours / "new/f").write_bytes(b"\xe4") == 1
    assert (ours / "new/f").read_text("latin-1") == "ä"
    with pytest.raises(TypeError):
        (ours / "new/f").write_text(b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        (ours / "new/f").write_bytes("")  # type: ignore[arg-type]
    assert (host / "new/f").read_bytes() == b"\xe4"
    (ours / "new/touched").touch()
    (ours / "new/touched").touch()
    with pytest.raises(FileExistsError):
        (ours / "new/touched").touch(exist_ok=False)
    (ours / "new/touched").chmod(0o640)
    assert (host / "new/touched").stat().st_mode & 0o777 == 0o640
    assert (ours / "new/f").rename("/new/g") == ours / "new/g"
    (ours / "new/g").replace(ours / "new/touched")
    assert (host / "new/touched").read_bytes() == b"\xe4" and not (host / "new/g").exists()
    (ours / "new/l").symlink_to("touched")
    assert os.readlink(host / "new/l") == "touched" == str((ours / "new/l").readlink())
    (ours / "new/hard").hardlink_to("/new/touched")
    assert (host / "new/hard").samefile(host / "new/touched")
    for name in ("hard", "touched", "l"):
        (ours / "new" / name).unlink()
    (ours / "new/l").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (ours / "new/l").unlink()
    (ours / "new/deep").rmdir()
    assert list((host / "new").iterdir()) == []


def test_trees_are_copied_between_file_systems(fs: foliofs.FileSystem, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in FILES:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "link").symlink_to("a")
    (source / "three.py").chmod(0o755)
    with foliofs.open_directory(tmp_path) as host, foliofs.memory() as memory:
        copy = host.path("/source").copy_into(fs.path("/"), follow_symlinks=False)
        assert copy == fs.path("/source") and str((copy / "link").readlink()) == "a"
        copy.copy(memory.path("/again"), preserve_metadata=True)
        back = memory.path("/again").copy(tmp_path / "back", preserve_metadata=True)
        assert back == tmp_path / "back"
        with pytest.raises(OSError) as raised:
            copy.copy(copy / "inside")
        assert raised.value.errno == errno.EINVAL
        with pytest.raises(FileExistsError):
            (copy / "a").copy("/source/c")
    for name in (*FILES, "link/two.txt"):
        assert (back / name).read_text() == (source / name).read_text()


def test_copy_preserves_metadata(fs: foliofs.FileSystem, tmp_path: Path) -> None:
    source = fs.path("/source")
    (source / "inner").mkdir(parents=True)
    (source / "inner/file").write_text("content")
    (source / "link").symlink_to("inner")
    names = ("inner/file", "inner", "link", "")
    for number, name in enumerate(names, 1):
        times = (number * 10**9 + 1, number * 10**9 + 2)
        fs.utime(source / name, ns=times, follow_symlinks=False)
    (source / "inner").chmod(0o750)
    (source / "inner/file").chmod(0o640)
    with foliofs.memory() as memory:
        copy = source.copy(memory.path("/copy"), follow_symlinks=False, preserve_metadata=True)
        back = copy.copy(tmp_path / "back", follow_symlinks=False, preserve_metadata=True)
        for copied in (copy, back):
            for name in names:
                before, after = (source / name).lstat(), (copied / name).lstat()
                assert after.st_mtime_ns == before.st_mtime_ns, (copied, name)
                assert after.st_mode == before.st_mode, (copied, name)
        plain = source.copy(memory.path("/plain"))
        assert (plain / "inner/file").stat().st_mtime_ns > 10**18


def test_copy_preserves_extended_attributes(image: Path, tmp_path: Path) -> None:
    with foliofs.open_image(image, "r+") as fs, foliofs.memory() as memory:
        path = fs.path("/file")
        path.write_text("")
        fs.setxattr(path, "user.color", b"red")
        path.copy("/copy", preserve_metadata=True)
        assert fs.getxattr("/copy", "user.color") == b"red"
        # It is no error that a target has none.
        path.copy(memory.path("/copy"), preserve_metadata=True)
        path.copy(tmp_path / "copy", preserve_metadata=True)
        with pytest.raises(TypeError, match="no metadata of"):
            path.copy(Corrupt("target", []), preserve_metadata=True)


class Corrupt:
    """A directory whose entries may have one name twice."""

    parents: tuple[object, ...] = ()

    def __init__(self, name: str, children: list[Any]) -> None:
        self.name, self.children = name, children

    def is_symlink(self) -> bool:
        return False

    def is_dir(self) -> bool:
        return True

    def iterdir(self) -> list[Any]:
        return self.children


def test_corrupt_directory_copies_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    with foliofs.memory() as fs:
        fs.makedirs("/file")
        fs.symlink(tmp_path / "outside", "/name")
        fs.write_text("/file/name", "changed")
        twice = [fs.path("/name"), fs.path("/file/name")]
        for number, children in enumerate((twice, twice[::-1])):
            with pytest.raises(FileExistsError):
                _copy(Corrupt("top", children), tmp_path / f"{number}", False, False)
    assert (tmp_path / "outside").read_text() == "kept"


def test_special_file_is_not_copied(fs: foliofs.FileSystem, tmp_path: Path) -> None:
    fs.mknod("/pipe", stat.S_IFIFO | 0o600)
    with pytest.raises(shutil.SpecialFileError):
        fs.path("/pipe").copy(tmp_path / "pipe")
    assert not (tmp_path / "pipe").exists()


def test_move(fs: foliofs.FileSystem, tmp_path: Path) -> None:
    (fs.path("/one/deep")).mkdir(parents=True)
    fs.write_text("/one/deep/file", "content")
    fs.symlink("file", "/one/deep/link")
    fs.utime("/one/deep/file", ns=(1_000_000_001, 2_000_000_002))
    number = fs.stat("/one/deep/file").st_ino
    two = fs.path("/one").move("/two")
    assert two == fs.path("/two") and not fs.exists("/one")
    fs.mkdir("/into")
    assert two.move_into("/into") == fs.path("/into/two") and not two.exists()
    assert fs.stat("/into/two/deep/file").st_ino == number
    with pytest.raises(OSError) as raised:
        fs.path("/into/two").move("/into/two")
    assert raised.value.errno == errno.EINVAL
    with foliofs.memory() as memory:
        away = fs.path("/into/two").move_into(memory.path("/"))
        assert away == memory.path("/two") and fs.listdir("/into") == []
        back = away.move(tmp_path / "back")
        assert back == tmp_path / "back" and memory.listdir("/") == []
    assert (back / "deep/file").read_text() == "content"
    assert (back / "deep/file").stat().st_mtime_ns == 2_000_000_002
    assert os.readlink(back / "deep/link") == "file"
    fs.write_text("/file", "text")
    assert fs.path("/file").move(back / "file").read_text() == "text" and not fs.exists("/file")


def test_path_is_pickled_with_its_image(image: Path) -> None:
    with foliofs.open_image(image) as fs:
        copy = pickle.loads(pickle.dumps(fs.path("/lost+found")))
        assert copy.is_dir() and copy.fs is not fs
        copy.fs.close()


def test_paths_are_arguments(fs: foliofs.FileSystem) -> None:
    path = fs.path("/directory")
    fs.mkdir(path)
    fs.write_text(path / "file", "text")
    assert fs.listdir(path) == ["file"] and fs.read_text(path / "file") == "text"
    assert fs.glob("*", root_dir=path) == ["file"]


def test_protocols_of_pathlib() -> None:
    abc = pytest.importorskip("pathlib_abc", reason="pathlib-abc is not installed")
    with foliofs.memory() as fs:
        path = fs.path("/file")
        with abc.vfsopen(path, "w", encoding="utf-8") as file:
            file.write("text")
        with abc.vfsopen(path, "rb") as file:
            assert file.read() == b"text"
        assert isinstance(path.info, abc.PathInfo) and isinstance(path.parser, abc.PathParser)
        assert abc.vfspath(path) == "/file"
        for kind in (abc.ReadablePath, abc.WritablePath):
            missing = {name for name in kind.__abstractmethods__ if not hasattr(path, name)}
            assert not missing
