"""The command in the wheel."""

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from pathlib import Path

import foliofs
import pytest
from conftest import check, mounted_by_kernel
from foliofs._command import executable


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/motd").write_text("hello\n")
    os.symlink("motd", folder / "etc/link")
    for path in (folder / "etc/motd", folder / "etc", folder):
        os.utime(path, (1000, 1000))
    return folder


def test_module_is_the_command(tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "foliofs"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("folio ")
    image = tmp_path / "disk.img"
    foliofs.build_image(image, tree=tree, size="16M")
    shown = subprocess.run([*command, "cat", f"{image}:/etc/motd"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, "hello\n")
    assert subprocess.run([*command, "--invalid"], capture_output=True).returncode == 2


def test_build_wheel_takes_relative_paths(tmp_path: Path) -> None:
    """The script with a maturin that prints its arguments."""
    script = Path(__file__).parent.parent / "build-wheel"
    maturin = tmp_path / "maturin"
    maturin.write_text('#!/bin/sh\necho "$CARGO_TARGET_DIR $*"\n')
    maturin.chmod(0o755)
    shutil.copy(executable(), tmp_path / "command")
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}", CARGO_TARGET_DIR="t")
    arguments = "--profile dev --command command --out wheels --features x".split()
    built = subprocess.run(
        [script, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    expected = f"{tmp_path}/t build --profile dev --out {tmp_path}/wheels --features x\n"
    assert (built.stdout, built.returncode) == (expected, 0), built.stderr


@pytest.mark.parametrize("name", ["disk.img", "disk.qcow2"])
def test_build_image(name: str, tree: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    foliofs.build_image(path, tree=tree, size="16M", label="root", chown="7:8", chmod="u=rwX")
    with foliofs.open_image(path) as fs:
        assert fs.read_text("/etc/link") == "hello\n"
        found = fs.stat("/etc/motd")
        assert (found.st_uid, found.st_gid, found.st_mtime) == (7, 8, 1000)
    with pytest.raises(FileExistsError):
        foliofs.build_image(path, tree=tree)


def test_built_image_is_reproducible(tree: Path, tmp_path: Path) -> None:
    uuid = "6ff3ebd4-8b5e-4d0c-9c36-9a0e8a0c4d11"
    images = [tmp_path / "a.img", tmp_path / "b.img"]
    for path in images:
        foliofs.build_image(path, tree=tree, size="16M", uuid=uuid, source_date_epoch=0)
    assert images[0].read_bytes() == images[1].read_bytes()
    check(images[0])


def test_build_image_takes_a_size_in_bytes(tree: Path, tmp_path: Path) -> None:
    foliofs.build_image(tmp_path / "disk.img", tree=tree, size=16 << 20)
    assert (tmp_path / "disk.img").stat().st_size == 16 << 20


def test_script_folio_is_the_command() -> None:
    """The script that pip makes of the wheel's entry point."""
    script = Path(sysconfig.get_path("scripts")) / "folio"
    if not script.exists():
        pytest.skip("foliofs is not installed by pip")
    version = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("folio ")
    refused = subprocess.run([script, "ls", "--invalid"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--invalid" in refused.stderr


def test_failed_build_leaves_no_file(tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "disk.img"
    with pytest.raises(ValueError, match="invalid size"):
        foliofs.build_image(path, tree=tree, size="16X")
    with pytest.raises(ValueError, match="invalid mode"):
        foliofs.build_image(path, tree=tree, chmod="rwx")
    with pytest.raises(FileNotFoundError, match="missing"):
        foliofs.build_image(path, tree=tree / "missing", size="16M")
    with pytest.raises(NotADirectoryError):
        foliofs.build_image(path, tree=tree / "etc/motd", size="16M")
    (tree / "large").write_bytes(b"x" * (8 << 20))
    with pytest.raises(OSError, match="large") as raised:
        foliofs.build_image(path, tree=tree, size="4M")
    assert raised.value.errno == errno.ENOSPC
    assert not path.exists()


def test_trees_are_copied_in_and_out(tree: Path, tmp_path: Path) -> None:
    os.link(tree / "etc/motd", tree / "second")
    (tree / "sparse").touch()
    os.truncate(tree / "sparse", 1 << 30)
    (tree / "etc/skip.o").touch()
    os.chmod(tree / "etc/motd", 0o4751)
    with foliofs.create_image(tmp_path / "disk.img", "64M") as fs:
        fs.copy_in(tree, "/srv", exclude=["*.o"])
        assert fs.stat("/srv/etc/motd").st_ino == fs.stat("/srv/second").st_ino
        assert fs.stat("/srv/etc/motd").st_mode == 0o104751
        assert fs.readlink("/srv/etc/link") == "motd"
        assert fs.stat("/srv/sparse").st_blocks == 0
        assert not fs.exists("/srv/etc/skip.o")
        with pytest.raises(TypeError, match="list of patterns"):
            fs.copy_in(tree, "/x", exclude="*.o")
        fs.copy_in(tree / "etc/skip.o", "/srv/one", preserve_metadata=False)
        fs.copy_out("/srv", tmp_path / "back")
        with pytest.raises(FileNotFoundError, match="none"):
            fs.copy_in(tree / "none", "/x")
        with pytest.raises(FileNotFoundError, match="/no"):
            fs.copy_in(tree, "/no/x")
        with pytest.raises(FileNotFoundError, match="none"):
            fs.copy_out("/none", tmp_path / "x")
    back = tmp_path / "back"
    assert (back / "etc/motd").read_text() == "hello\n"
    assert (back / "etc/motd").stat().st_ino == (back / "second").stat().st_ino
    assert (back / "etc/motd").stat().st_mode == 0o104751
    assert (back / "etc/motd").stat().st_mtime == 1000
    assert (back / "sparse").stat().st_size == 1 << 30 and (back / "one").exists()
    check(tmp_path / "disk.img")


def test_sqlite_on_a_mount(image: Path, tmp_path: Path) -> None:
    """SQLite, with its own locks and both of its journals, on `folio mount`; the kernel reads it."""
    folder = tmp_path / "mount"
    folder.mkdir()
    command = [sys.executable, "-m", "foliofs", "--quiet", "mount", str(image), str(folder)]
    server = subprocess.Popen(
        [*command, "--ready-fd", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None and server.stderr is not None
    if server.stdout.readline() != "ready\n":
        pytest.skip(f"folio mount: {server.stderr.read().strip()}")
    rows = [(number, "x" * number) for number in range(300)]
    try:
        for journal in ("delete", "wal"):
            with contextlib.closing(sqlite3.connect(folder / journal)) as base:
                base.execute(f"PRAGMA journal_mode={journal}")
                base.execute("CREATE TABLE t (number INTEGER PRIMARY KEY, text TEXT)")
                with base:
                    base.executemany("INSERT INTO t VALUES (?, ?)", rows)
                with contextlib.closing(sqlite3.connect(folder / journal)) as other:
                    assert other.execute("SELECT * FROM t").fetchall() == rows
    finally:
        server.terminate()
        server.communicate(timeout=120)
    check(image)
    with mounted_by_kernel(image) as kernel:
        for journal in ("delete", "wal"):
            copy = tmp_path / journal
            copy.write_bytes((kernel / journal).read_bytes())
            with contextlib.closing(sqlite3.connect(copy)) as base:
                assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                assert base.execute("SELECT * FROM t").fetchall() == rows
