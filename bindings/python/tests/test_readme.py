"""The examples of README.md."""

import re
from pathlib import Path
from typing import Any

import foliofs
import pytest
from foliofs.testing import PowerCutDisk

README = Path(__file__).parent.parent / "README.md"


def example(word: str) -> str:
    """Returns the example that has a word."""
    found = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (text,) = (each for each in found if word in each)
    return str(text)


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """disk.qcow2 in the working directory."""
    monkeypatch.chdir(tmp_path)
    with foliofs.create_image("disk.qcow2", 64 << 20) as fs:
        fs.makedirs("/etc")
        fs.makedirs("/var/lib")
        fs.write_text("/etc/os-release", "NAME=test")
        fs.write_bytes("/var/lib/data.bin", b"x" * 10_000)


def test_first_example_runs() -> None:
    names: dict[str, Any] = {}
    exec(example("fs.walk"), names)
    assert len(names["view"]) == 10_000
    with foliofs.open_image("disk.qcow2") as fs:
        assert fs.read_text("/etc/motd") == "hi"


def test_example_of_fsspec_runs() -> None:
    for library in ("fsspec", "pandas", "pyarrow", "duckdb"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    exec(example("duckdb"), {})
    with foliofs.open_image("disk.qcow2") as fs:
        assert fs.read_text("/note.txt") == "by URL"
        assert fs.exists("/data/t.parquet") and fs.exists("/base.duckdb")


def test_example_of_power_cuts_needs_each_step() -> None:
    text = example("test_config_survives")
    steps = {"file": "        fs.fsync(file)", "all": "    fs.sync()", "names": '    fs.fsync("/")'}

    def outcome(*left_out: str) -> object:
        program = text
        for step in left_out:
            assert text.count(steps[step]) == 1
            program = re.sub(re.escape(steps[step]) + ".*", "", program)
        names: dict[str, Any] = {}
        exec(program, names)
        try:
            with PowerCutDisk(options="noauto_da_alloc") as disk:
                return names["test_config_survives"](disk)
        except (AssertionError, OSError) as error:
            return type(error)

    assert outcome() is None
    assert outcome("file") is AssertionError
    assert outcome("file", "names") is None
    assert outcome("file", "names", "all") is FileNotFoundError
