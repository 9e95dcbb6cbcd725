"""FolioPath, beside pathlib.Path on the host."""

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import foliofs
import pytest
from foliofs import FolioPath

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
            for name in ("name", "stem", "suffix", "suffixes", "parts", "anchor"):
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
                lambda path: path / 1,
            ):
                assert outcome(lambda: call(ours)) == outcome(lambda: call(host)), text


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
