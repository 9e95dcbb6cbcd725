"""Images for tests."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import foliofs
import pytest

pytest_plugins = ["foliofs.testing"]

SIZE_BYTES = 64 << 20


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image file with an empty file system, closed."""
    path = tmp_path / "disk.img"
    foliofs.create_image(path, SIZE_BYTES).close()
    return path


@pytest.fixture(params=["raw", "qcow2", "memory", "directory"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[foliofs.FileSystem]:
    """A writable file system of each kind."""
    match request.param:
        case "memory":
            opened = foliofs.memory()
        case "directory":
            (tmp_path / "directory").mkdir()
            opened = foliofs.open_directory(tmp_path / "directory")
        case kind:
            opened = foliofs.create_image(tmp_path / f"disk.{kind}", SIZE_BYTES, format=kind)
    with opened:
        yield opened


@contextlib.contextmanager
def mounted_by_kernel(image: Path) -> Iterator[Path]:
    """The image, mounted by the kernel, read only. Skips the test where that cannot be done."""
    folder = image.with_name("kernel")
    folder.mkdir()
    mount = ["mount", "-o", "loop,ro", str(image), str(folder)]
    is_able = os.geteuid() == 0 and shutil.which("mount") is not None
    if not is_able or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mount -o loop: needs root and loop devices")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


def check(image: Path) -> None:
    """Fails if e2fsck finds an error, or a journal to be replayed. Skips the test without it."""
    if shutil.which("e2fsck") is None:
        pytest.skip("e2fsck is not installed")
    checked = subprocess.run(["e2fsck", "-fn", image], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
