"""The type stubs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_types_pass_mypy_strict() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    folder = Path(__file__).parent.parent
    command = [sys.executable, "-m", "mypy", "--cache-dir=/dev/null"]
    checked = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def pyright(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("basedpyright", reason="basedpyright is not installed")
    command = [sys.executable, "-m", "basedpyright", *arguments]
    folder = Path(__file__).parent.parent
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_types_pass_pyright() -> None:
    checked = pyright()
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_types_of_the_package_are_complete() -> None:
    checked = pyright("--verifytypes", "foliofs", "--ignoreexternal", "--outputjson")
    symbols = json.loads(checked.stdout)["typeCompleteness"]["symbols"]
    incomplete = {symbol["name"] for symbol in symbols if not symbol["isTypeKnown"]}
    # fsspec, its base, has no types.
    assert len(symbols) > 100 and incomplete <= {"foliofs.fsspec.FolioFileSystem"}


def test_stubs_match_the_module(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    allowed = tmp_path / "allowed"
    # Python shows the buffer protocol as a method from 3.12 on.
    allowed.write_text(r"foliofs\._native\.Borrowed\.__buffer__")
    command = [sys.executable, "-m", "mypy.stubtest", "foliofs._native"]
    command += ["--allowlist", str(allowed), "--ignore-unused-allowlist"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
