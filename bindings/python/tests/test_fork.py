"""Child processes: fork, forkserver, spawn. A hang is ended by a time limit far above any run."""

import errno
import multiprocessing
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import foliofs
import pytest

# Seconds; a child takes far less.
LIMIT = 120

# Python warns of fork() in a process with threads, which is the subject here.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def filled(image: Path) -> Path:
    with foliofs.open_image(image, "r+") as fs:
        for number in range(64):
            fs.write_bytes(f"/{number}", bytes([number]) * 100_000)
    return image


def in_child(work: Callable[[], object]) -> object:
    """Returns what `work` returns, or the error that it raises, in a child of os.fork()."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            try:
                outcome: object = work()
            except BaseException as error:
                outcome = error
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(outcome, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    timer = threading.Timer(LIMIT, os.kill, (child, 9))
    timer.start()
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    timer.cancel()
    os.waitpid(child, 0)
    assert data, "the child hung or crashed"
    answer: object = pickle.loads(data)
    return answer


def is_fork_error(answer: object) -> bool:
    return (
        isinstance(answer, OSError)
        and answer.errno == errno.EINVAL
        and "before fork()" in str(answer)
    )


@pytest.fixture
def reading_threads(filled: Path) -> Iterator[foliofs.FileSystem]:
    """A writable file system that is busy in four threads, so that its locks are taken."""
    fs = foliofs.open_image(filled, "r+")
    ended = threading.Event()

    def work(number: int) -> None:
        while not ended.is_set():
            fs.write_bytes(f"/{number}", fs.read_bytes(f"/{number + 4}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    yield fs
    ended.set()
    for thread in threads:
        thread.join()
    fs.close()


def test_child_of_a_busy_parent_gets_an_error(reading_threads: foliofs.FileSystem) -> None:
    fs = reading_threads
    file = fs.open("/60", "rb")
    shared = fs.open("/60", "rb", sync=True)
    view = file.borrow(0, 4096)
    for _ in range(10):
        assert is_fork_error(in_child(lambda: fs.read_bytes("/60")))
        assert is_fork_error(in_child(lambda: fs.write_text("/new", "x")))
        assert is_fork_error(in_child(lambda: file.seek(0) or file.read()))
        assert is_fork_error(in_child(lambda: shared.seek(0)))
        assert is_fork_error(in_child(shared.readline))
        assert in_child(lambda: bytes(view)) == bytes([60]) * 4096
        assert in_child(fs.close) is None
    with file, shared:
        assert file.read() == shared.read() == bytes([60]) * 100_000
    assert not fs.exists("/new")


def test_child_that_drops_everything_ends(filled: Path) -> None:
    owned: dict[str, Any] = {}
    fs = owned["fs"] = foliofs.open_image(filled, "r+")
    writer = owned["file"] = fs.open("/kept", "wb")
    with fs.open("/1", "rb") as file:
        owned["view"] = file.borrow(0, 10)
    writer.write(b"once")

    def drop() -> int:
        import gc

        owned["fs"].close()
        owned.clear()
        return gc.collect() * 0

    assert in_child(drop) == 0
    fs.close()
    with foliofs.open_image(filled) as fs:
        assert fs.read_bytes("/kept") == b"once"


def test_read_only_image_is_reopened_in_the_child(filled: Path) -> None:
    with foliofs.open_image(filled) as fs:
        assert fs.read_bytes("/7") == bytes([7]) * 100_000
        file = fs.open("/7", "rb", 0)
        assert in_child(lambda: fs.read_bytes("/7")) == bytes([7]) * 100_000
        assert is_fork_error(in_child(lambda: file.read(1)))
        nested = in_child(lambda: in_child(lambda: fs.read_bytes("/8")))
        assert nested == bytes([8]) * 100_000
        assert fs.read_bytes("/9") == bytes([9]) * 100_000


def test_child_opens_images_beside_mounts_of_its_parent(filled: Path) -> None:
    """Threads of the parent's mounts wait; the child's threads get the memory of their stacks."""
    images = [filled.with_name(f"{number}.img") for number in range(6)]
    for image in images:
        shutil.copy(filled, image)
    parents = [foliofs.open_image(image, "r+") for image in images]
    for fs in parents:
        fs.write_text("/new", "wakes the threads of the mount")
        fs.sync()

    def read() -> int:
        counts: list[int] = []

        def work() -> None:
            with foliofs.open_image(filled) as fs:
                for number in range(64):
                    assert fs.read_bytes(f"/{number}") == bytes([number]) * 100_000
            counts.append(64)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)

    for _ in range(40):
        assert in_child(read) == 6 * 64
    for fs in parents:
        fs.close()


class Dataset:
    """Items of an image, as a DataLoader's workers read them."""

    def __init__(self, fs: foliofs.FileSystem) -> None:
        self.paths = [fs.path("/", str(number)) for number in range(64)]

    def __call__(self, number: int) -> int:
        return sum(self.paths[number].read_bytes())


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_read_one_image(method: str, filled: Path) -> None:
    with foliofs.open_image(filled) as fs:
        dataset = Dataset(fs)
        expected = [dataset(number) for number in range(64)]
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            answer = pool.map_async(dataset, range(64)).get(LIMIT)
        assert answer == expected == [number * 100_000 for number in range(64)]


def test_writable_file_system_is_not_pickled(filled: Path) -> None:
    with foliofs.open_image(filled, "r+") as fs, pytest.raises(TypeError, match="read-only"):
        pickle.dumps(fs)
    with foliofs.memory() as fs, pytest.raises(TypeError, match="read-only"):
        pickle.dumps(fs)


def test_pickle_keeps_the_options(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(filled.parent)
    with foliofs.open_image(filled.name, format="raw", cache_bytes=8 << 20) as fs:
        data = pickle.dumps(fs)
    monkeypatch.chdir("/")
    with pickle.loads(data) as copy:
        assert copy.read_bytes("/3") == bytes([3]) * 100_000
