"""Scratch file systems that lose power on command, for tests of storage software.

A test runs its program on the file system, asks for the states that a power cut could leave, and
checks in each of them that nothing is lost that was reported as stored:

    def test_config_survives(folio_disk):
        fs = folio_disk.fs
        save_config(fs, "/config", "old")
        fs.sync()
        save_config(fs, "/config", "new")
        fs.fsync("/")
        for cut in folio_disk.power_cut():
            assert cut.read_text("/config") in ("old", "new")

The states have what reached the disk, and nothing does without a flush. sync() stores the first
file: else a program that flushes nothing leaves states without it. fsync() of a directory commits
names, but no data of files, as a timer or another program may: else the states have the old file.

`folio_disk` is a fixture of pytest. It needs this line in conftest.py:

    pytest_plugins = ["foliofs.testing"]
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from foliofs import _native
from foliofs._file_system import FileSystem

try:
    import pytest
except ModuleNotFoundError:  # PowerCutDisk needs none.
    pytest = None  # type: ignore[assignment]

SIZE_BYTES: int = 64 << 20


class CutFileSystem(FileSystem):
    """The file system of a PowerCutDisk after a power cut."""

    def describe(self) -> str:
        """Returns the state and the moment, and the call that yields it again."""
        return self._name


class PowerCutDisk:
    """A disk in memory whose writes are recorded, with an ext4 file system, mounted as `fs`.

    `options` are those of mount(8). "noauto_da_alloc" switches off the protection that ext4 gives
    to programs that rename without fsync(2).
    """

    def __init__(self, size_bytes: int | str = SIZE_BYTES, options: str = "") -> None:
        self._disk = _native.Disk(size_bytes)
        self.fs: FileSystem = FileSystem(self._disk.mount(options), None, "on a PowerCutDisk")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmounts the file system."""
        self.fs.close()

    def moment(self) -> int:
        """Returns the current moment: the number of writes and flushes of the disk so far."""
        return self._disk.moment()

    def power_cut(
        self,
        *,
        moment: int | None = None,
        limit: int = 1000,
        seed: int = 0,
        state: int | None = None,
        options: str = "",
    ) -> Iterator[CutFileSystem]:
        """Yields the file system as each state that a power cut now could leave, at most `limit`.

        With `moment`, a power cut then; with `state`, that one alone: describe() has both. Raises
        ValueError for a state that is not there.

        Every write before the disk's last flush is there. Of the later ones any combination may be:
        all combinations up to 10 writes, else those that `seed` chooses. Some are torn at sectors
        of 512 bytes. A state is mounted with `options` and closed when the next one is asked for;
        changes of one state reach no other. The disk itself keeps its power.
        """
        moment = self.moment() if moment is None else moment
        cuts = self._disk.cuts(moment, limit=limit, seed=seed)
        if state is not None and not 1 <= state <= len(cuts):
            raise ValueError(f"state {state} of {len(cuts)} at moment {moment}")
        again = f"moment={moment}, limit={limit}, seed={seed}"
        if options:
            again += f", options={options!r}"
        for number, cut in enumerate(cuts, 1):
            if state in (None, number):
                name = (
                    f"state {number} of {len(cuts)}, {cut!r}; "
                    f"again: power_cut({again}, state={number})"
                )
                with CutFileSystem(cut.mount(options), None, name) as fs:
                    yield fs

    def power_cuts(
        self, *, since: int = 0, limit: int = 20, seed: int = 0, options: str = ""
    ) -> Iterator[CutFileSystem]:
        """Yields the states of power_cut() at every moment from `since` on, at most `limit` each.

        It finds what a single moment hides:

            before = disk.moment()
            save_config(disk.fs, "/config", "new")
            for cut in disk.power_cuts(since=before):
                assert cut.read_text("/config") in ("old", "new"), cut.describe()
        """
        for moment in range(since, self.moment() + 1):
            yield from self.power_cut(moment=moment, limit=limit, seed=seed, options=options)


def folio_disk() -> Iterator[PowerCutDisk]:
    """A PowerCutDisk of 64 MiB, without the protection of auto_da_alloc."""
    with PowerCutDisk(options="noauto_da_alloc") as disk:
        yield disk


if pytest is not None:
    folio_disk = pytest.fixture(folio_disk)
