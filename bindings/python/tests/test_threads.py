"""Threads on one file system."""

import operator
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foliofs
import pytest
from conftest import check


def test_threads_read_and_write(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs:
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                data = bytes([number]) * 50_000
                for turn in range(20):
                    fs.write_bytes(f"/{number}", data)
                    assert fs.read_bytes(f"/{number}") == data, turn
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors


def test_close_while_threads_call_is_an_error_of_theirs(image: Path) -> None:
    """Threads open, read, walk and close; the file system is closed under them."""
    for _ in range(10):
        fs = foliofs.open_image(image, "r+")
        fs.write_bytes("/file", b"x" * 300_000)
        shared = fs.open("/file", "rb", 0)
        outcomes: list[object] = []
        started = threading.Barrier(5)

        def work() -> None:
            started.wait()
            try:
                while True:
                    assert shared.pread(300_000, 0) == b"x" * 300_000
                    with fs.open("/file", "rb") as file:
                        assert file.read() == b"x" * 300_000
                    assert next(fs.walk("/"))[2] == ["file"]
            except BaseException as error:
                outcomes.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        fs.close()
        for thread in threads:
            thread.join()
        assert [str(error) for error in outcomes if not isinstance(error, ValueError)] == []
        assert len(outcomes) == 4 and shared.closed
    check(image)


def test_closed_does_not_wait_for_a_close() -> None:
    """A close waits for calls of other threads; `closed` does not, in the lock of Python."""
    size = 64 << 20
    for _ in range(50):
        fs = foliofs.memory()
        file = fs.open("/file", "wb+", 0)
        file.truncate(size)
        buffer = bytearray(b"x") * size
        reader = threading.Thread(target=file.preadinto, args=(buffer, 0))
        closer = threading.Thread(target=fs._native.close)
        reader.start()
        while buffer[0]:
            pass
        closer.start()
        while not fs._native.closed:
            pass
        is_reading = file._file.closed and buffer[-1] == ord("x")
        reader.join()
        closer.join()
        fs.close()
        file.close()
        if is_reading:
            return
    pytest.fail("the file system was closed only after the call of the other thread")


@pytest.fixture
def switches_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("mode", ["rb", "r+b"])
def test_threads_share_a_position(mode: str, switches_often: None) -> None:
    """seek() and read() are one step for a caller in C, which duckdb is."""
    with foliofs.memory() as fs:
        blocks = [bytes([number]) * 4096 for number in range(64)]
        fs.write_bytes("/file", b"".join(blocks))
        file = fs.open("/file", mode, sync=True)
        wrong: list[int] = []

        def work(first: int) -> None:
            for turn in range(3000):
                number = (first + turn * 7) % 64
                call: Any = operator.call
                # map() runs no bytecode between the two calls.
                calls = map(call, (file.seek, file.read), (number * 4096, 4096))
                if tuple(calls) != (number * 4096, blocks[number]):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        file.close()
