"""Power cuts: a program with a bug, found, and the same program without it."""

import dbm.dumb
import os
import re
import subprocess
import sys
from typing import Any

import foliofs
import pytest
from foliofs.testing import PowerCutDisk


def save(fs: foliofs.FileSystem, path: str, text: str, *, is_synced: bool) -> None:
    """Replaces a file by writing a new one and renaming it."""
    with fs.open(path + ".new", "wb") as file:
        file.write(text.encode())
        if is_synced:
            file.fsync()
    fs.replace(path + ".new", path)


def lost_states(disk: PowerCutDisk, *, is_synced: bool) -> list[str]:
    """Returns what is in the file in those states that have neither the old text nor the new."""
    disk.fs.write_text("/config", "old")
    disk.fs.sync()
    save(disk.fs, "/config", "new", is_synced=is_synced)
    # Another program calls fsync(2), which commits the rename, too.
    with disk.fs.open("/other", "wb") as file:
        file.fsync()
    states = [fs.read_text("/config") for fs in disk.power_cut(limit=200, seed=1)]
    assert states
    return [text for text in states if text not in ("old", "new")]


def test_rename_without_fsync_is_found(folio_disk: PowerCutDisk) -> None:
    lost = lost_states(folio_disk, is_synced=False)
    assert lost and set(lost) <= {"", "\0\0\0"}


def test_rename_after_fsync_loses_nothing(folio_disk: PowerCutDisk) -> None:
    assert lost_states(folio_disk, is_synced=True) == []


def test_every_moment_is_tried_and_described(folio_disk: PowerCutDisk) -> None:
    folio_disk.fs.write_text("/config", "old")
    folio_disk.fs.sync()
    before = folio_disk.moment()
    save(folio_disk.fs, "/config", "new", is_synced=False)
    with folio_disk.fs.open("/other", "wb") as file:
        file.fsync()
    lost = [
        (cut.describe(), cut.read_text("/config"))
        for cut in folio_disk.power_cuts(since=before)
        if cut.read_text("/config") not in ("old", "new")
    ]
    assert lost
    words, text = lost[0]
    found = re.search(
        r"^state (\d+) of \d+, .*at moment (\d+).*; "
        r"again: power_cut\(moment=(\d+), limit=20, seed=0, state=(\d+)\)$",
        words,
    )
    assert found, words
    number, at, moment, state = map(int, found.groups())
    assert (number, at) == (state, moment) and moment >= before
    again = folio_disk.power_cut(moment=moment, limit=20, seed=0, state=state)
    assert [cut.read_text("/config") for cut in again] == [text]
    for invalid in (0, 10_000):
        with pytest.raises(ValueError, match=f"state {invalid} of"):
            next(folio_disk.power_cut(moment=moment, state=invalid))
    first = next(folio_disk.power_cut(options="noatime"))
    assert "seed=0, options='noatime', state=1)" in first.describe()


class FileModules:
    """The calls of io and os that dbm.dumb makes, on a file system of foliofs."""

    def __init__(self, fs: foliofs.FileSystem) -> None:
        self.open, self.rename, self.chmod = fs.open, fs.rename, fs.chmod
        self.unlink = self.remove = fs.unlink
        self.fsencode, self.umask = os.fsencode, os.umask


def test_dbm_dumb_loses_what_it_synced(
    folio_disk: PowerCutDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard library has the bug, too: sync() of Python's dbm.dumb calls no fsync(2)."""

    def open_on(fs: foliofs.FileSystem) -> Any:
        for owner in (dbm.dumb, dbm.dumb._Database):
            for name in ("_io", "_os"):
                monkeypatch.setattr(owner, name, FileModules(fs))
        return dbm.dumb.open("/base")

    base = open_on(folio_disk.fs)
    base[b"key"] = b"old"
    base.sync()
    folio_disk.fs.sync()
    start = folio_disk.moment()
    base[b"key"] = b"new"
    base.sync()
    with folio_disk.fs.open("/other", "wb") as file:
        file.fsync()
    found = set()
    for moment in range(start, folio_disk.moment() + 1):
        for fs in folio_disk.power_cut(moment=moment, limit=20, seed=moment):
            found.add(open_on(fs).get(b"key"))
    assert {b"old", None} <= found, "the index of all keys is gone"
    open_on(folio_disk.fs)


def test_states_are_apart(folio_disk: PowerCutDisk) -> None:
    folio_disk.fs.write_text("/file", "kept")
    folio_disk.fs.sync()
    for fs in folio_disk.power_cut(limit=5):
        assert fs.read_text("/file") == "kept"
        assert not fs.exists("/added")
        fs.write_text("/added", "")
    assert folio_disk.fs.listdir("/").count("added") == 0


def test_unsynced_write_may_be_lost_or_not(folio_disk: PowerCutDisk) -> None:
    fs = folio_disk.fs
    fs.write_bytes("/file", b"x" * 4096)
    fs.sync()
    with fs.open("/file", "rb+") as file:
        file.write(b"y" * 4096)
    texts = {cut.read_bytes("/file") for cut in folio_disk.power_cut(limit=50)}
    assert texts == {b"x" * 4096}, "nothing was written back yet"
    with fs.open("/file", "rb+") as file:
        file.fsync()
    texts = {cut.read_bytes("/file") for cut in folio_disk.power_cut(limit=50)}
    assert texts == {b"y" * 4096}


def test_fsync_of_a_directory_commits_its_names(folio_disk: PowerCutDisk) -> None:
    fs = folio_disk.fs
    fs.mkdir("/directory")
    fs.write_text("/directory/old", "")
    fs.sync()
    fs.rename("/directory/old", "/directory/new")
    names = [cut.listdir("/directory") for cut in folio_disk.power_cut(limit=3)]
    assert names and all(each == ["old"] for each in names)
    fs.fsync("/directory")
    names = [cut.listdir("/directory") for cut in folio_disk.power_cut(limit=3)]
    assert names and all(each == ["new"] for each in names)
    with pytest.raises(FileNotFoundError):
        fs.fsync("/missing")


def test_disk_needs_no_pytest() -> None:
    program = """if True:
        import sys
        sys.modules["pytest"] = None
        from foliofs.testing import PowerCutDisk
        with PowerCutDisk() as disk:
            disk.fs.write_text("/file", "content")
            disk.fs.sync()
            print(*[fs.read_text("/file") for fs in disk.power_cut(limit=1)])
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "content\n", ran.stderr


def test_disk_that_is_too_small_is_refused() -> None:
    with pytest.raises(OSError):
        PowerCutDisk(size_bytes=1000)
