"""Power cuts: a program with a bug, found, and the same program without it."""

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


def test_disk_that_is_too_small_is_refused() -> None:
    with pytest.raises(OSError):
        PowerCutDisk(size_bytes=1000)
