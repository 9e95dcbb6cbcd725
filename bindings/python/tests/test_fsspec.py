"""Images through fsspec: its own suite, and the libraries that use it."""

import errno
import gc
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foliofs
import pytest
from conftest import check, mounted_by_kernel

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

import fsspec.tests.abstract as abstract  # noqa: E402
from foliofs.fsspec import FolioFileSystem  # noqa: E402
from foliofs.testing import PowerCutDisk  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, image: Path) -> Iterator[FolioFileSystem]:
        with foliofs.open_image(image, "r+") as fs:
            yield FolioFileSystem.wrap(fs, auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, fs: FolioFileSystem) -> str:
        fs.makedirs("/base")
        return "/base"


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


@pytest.fixture
def writable(image: Path) -> Iterator[FolioFileSystem]:
    fs = FolioFileSystem(fo=str(image), mode="r+")
    yield fs
    fs.close()


def test_calls_of_fsspec(writable: FolioFileSystem) -> None:
    fs = writable
    fs.makedirs("/a/b")
    fs.pipe("/a/file", b"0123456789")
    fs.fs.symlink("file", "/a/link")
    assert fs.ls("/a", detail=False) == ["/a/b", "/a/file", "/a/link"]
    assert fs.info("/a/file")["size"] == 10 and fs.info("/a/b")["type"] == "directory"
    assert fs.info("/a/link")["islink"] and fs.info("folio:///a/link")["type"] == "file"
    assert fs.cat_ranges(["/a/file", "/a/file"], [2, -3], [5, 10]) == [b"234", b"789"]
    assert fs.find("/a") == ["/a/file", "/a/link"]
    assert fs.glob("/a/f*") == ["/a/file"]
    assert fs.du("/a/file") == 10
    fs.mv("/a/file", "/a/b/")
    assert fs.exists("/a/b/file") and not fs.exists("/a/file")
    assert fs.modified("/a/b/file") >= fs.created("/a/b/file")
    fs.rm("/a", recursive=True)
    assert not fs.exists("/a")
    with pytest.raises(FileNotFoundError):
        fs.info("/a")


def test_links_to_directories_are_not_entered(writable: FolioFileSystem, tmp_path: Path) -> None:
    """As by fsspec's file system of the host, on the same tree."""
    host = fsspec.filesystem("file")
    base = str(tmp_path / "host")
    writable.makedirs("/tree/sub")
    writable.pipe("/tree/sub/file", b"0123456789")
    os.makedirs(f"{base}/sub")
    (tmp_path / "host/sub/file").write_bytes(b"0123456789")
    for target, name in ((".", "a"), (".", "b"), ("sub", "c"), ("sub/file", "d")):
        writable.fs.symlink(target, f"/tree/{name}")
        os.symlink(target, f"{base}/{name}")

    def of_both(ours: Any, theirs: Any) -> list[str]:
        names = [str(path).removeprefix(base) for path in theirs]
        assert [path.removeprefix("/tree") for path in ours] == names
        return names

    found = of_both(writable.find("/tree"), host.find(base))
    assert found == ["/a", "/b", "/c", "/d", "/sub/file"]
    of_both(writable.find("/tree", withdirs=True), host.find(base, withdirs=True))
    of_both(writable.glob("/tree/**/file"), host.glob(f"{base}/**/file"))
    assert writable.du("/tree") == 20
    walks: Any = writable.walk("/tree")
    walked = [(path.removeprefix("/tree"), names) for path, names, _ in walks]
    assert walked == [("", ["sub"]), ("/sub", [])]
    assert writable.ls("/tree/c", detail=False) == ["/tree/c/file"]
    writable.get("/tree", str(tmp_path / "copy"), recursive=True)
    assert (tmp_path / "copy/d").read_bytes() == b"0123456789"
    assert os.listdir(tmp_path / "copy/a") == []


def test_copy_onto_itself_is_refused(writable: FolioFileSystem) -> None:
    writable.pipe("/a", b"content")
    with pytest.raises(shutil.SameFileError):
        writable.cp("/a", "/a")
    assert writable.cat("/a") == b"content"


def test_chained_url(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs:
        fs.write_text("/note", "text\n")
    url = f"folio:///note::file://{image}"
    with fsspec.open(url, "rt") as file:
        assert file.read() == "text\n"
    opened, path = fsspec.core.url_to_fs(url)
    assert isinstance(opened, FolioFileSystem) and path == "/note"
    opened.close()
    with pytest.raises(ValueError, match="expected a file of the host"):
        fsspec.filesystem("folio", fo="bucket/disk", target_protocol="memory")


def test_image_of_another_protocol_is_copied(image: Path) -> None:
    with foliofs.open_image(image, "r+") as fs:
        fs.write_text("/note", "text")
    remote = fsspec.filesystem("memory")
    remote.put(str(image), "/disk.img")
    url = "folio:///note::simplecache::memory://disk.img"
    with fsspec.open(url) as file:
        assert file.read() == b"text"
    with pytest.raises(ValueError, match="copy in simplecache"):
        fsspec.open(url, "w", folio={"mode": "r+"}).open()
    fsspec.url_to_fs(url)[0].close()
    remote.rm("/disk.img")


def test_relative_image_is_of_its_directory(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(image, tmp_path / name / "disk.img")
        monkeypatch.chdir(tmp_path / name)
        for arguments in ({"fo": "disk.img"}, {"fo": Path("disk.img")}, {"fo": "file://disk.img"}):
            fs = FolioFileSystem(**arguments, mode="r+")
            fs.pipe("/name", name.encode())
            assert fs is FolioFileSystem(fo=str(tmp_path / name / "disk.img"), mode="r+")
        fs.close()
        fs = FolioFileSystem("disk.img", "r+")
        assert fs.cat("/name") == name.encode()
    for name in ("b", "a"):
        fs = FolioFileSystem(str(tmp_path / name / "disk.img"), "r+")
        assert fs.cat("/name") == name.encode()
        fs.close()


def test_url_is_for_reading_unless_told(image: Path) -> None:
    url = f"folio:///new/note::file://{image}"
    for path in ("/new/note", "/note"):
        with pytest.raises(OSError, match=r'pass mode="r\+"') as raised:
            fsspec.open(f"folio://{path}::file://{image}", "w").open()
        assert raised.value.errno == errno.EROFS
    options = {"folio": {"mode": "r+", "auto_mkdir": True}}
    with pytest.raises(OSError, match="in use by this process"):
        fsspec.open(url, "w", **options).open()
    fsspec.url_to_fs(url)[0].close()
    for text in ("one", "two"):
        with fsspec.open(url, "w", **options) as file:
            file.write(text)
        with fsspec.open(url, "r", **options) as file:
            assert file.read() == text
    fsspec.url_to_fs(url, **options)[0].close()
    check(image)


def test_dropped_file_is_closed(writable: FolioFileSystem) -> None:
    writable.pipe("/file", b"content")
    writable.open("/file", "rb").read(1)
    gc.collect()
    assert writable.fs._files == set() and writable.cat("/file") == b"content"


def test_flush_is_durable(image: Path) -> None:
    """A copy of the image while it is open has what was flushed, after the journal's replay."""
    fs: Any = FolioFileSystem(fo=str(image), mode="r+")
    with fs.open("/file", "wb") as file:
        file.write(b"durable")
        file.flush()
        copy = image.with_name("copy.img")
        copy.write_bytes(image.read_bytes())
        with foliofs.open_image(copy, "r+") as cut:
            assert cut.read_bytes("/file") == b"durable"
    fs.close()


def test_pandas_and_pyarrow(image: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.dataset as dataset

    table = pandas.DataFrame({"number": range(10_000), "name": [f"n{n}" for n in range(10_000)]})
    fs = FolioFileSystem(fo=str(image), mode="r+")
    fs.makedirs("/data")
    with fs.open("/data/t.parquet", "wb") as file:
        table.to_parquet(file)
    with fs.open("/data/t.csv", "wb") as file:
        table.to_csv(file, index=False)
    fs.close()
    check(image)
    with mounted_by_kernel(image) as folder:
        assert pandas.read_parquet(folder / "data/t.parquet").equals(table)
        assert pandas.read_csv(folder / "data/t.csv").equals(table)
    read = pandas.read_parquet(f"folio:///data/t.parquet::file://{image}")
    assert read.equals(table)
    assert pandas.read_csv(f"folio:///data/t.csv::file://{image}").equals(table)
    fs = FolioFileSystem(fo=str(image))
    found = dataset.dataset("/data/t.parquet", filesystem=fs, format="parquet")
    assert found.to_table(columns=["number"]).num_rows == 10_000
    fs.close()
    fsspec.filesystem("folio", fo=str(image), target_protocol="file").close()


def test_columns_of_any_type_are_written(writable: FolioFileSystem) -> None:
    """Writers that pass their columns to write() as they are, not as bytes."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import numpy
    import pyarrow.dataset as dataset
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    times = pandas.date_range("2024-01-01", periods=500)
    table = pandas.DataFrame({"x": numpy.linspace(0, 1, 500), "time": times})
    with writable.open("/t.feather", "wb") as file:
        table.to_feather(file)
    with writable.open("/t.feather", "rb") as file:
        assert pandas.read_feather(file).equals(table)
    for column in (table, table.x.to_numpy(), table.time.to_numpy()):
        with writable.fs.open("/t.pickle", "wb", sync=True) as pickled:
            pickle.dump(column, pickled, protocol=5)
        with writable.fs.open("/t.pickle", "rb") as pickled:
            assert (pickle.load(pickled) == column).all(axis=None)
    with writable.open("/times", "wb") as file:
        assert file.write(table.time.to_numpy()) == 4000
    arrow = PyFileSystem(FSSpecHandler(writable))
    with arrow.open_output_stream("/stream") as stream:
        stream.write(pyarrow.array(table.x).buffers()[1])
    with arrow.open_input_stream("/stream") as stream:
        assert stream.read() == table.x.to_numpy().tobytes()
    data = pyarrow.Table.from_pandas(table)
    for kind in ("csv", "feather", "parquet"):
        dataset.write_dataset(data, f"/{kind}", filesystem=arrow, format=kind)
        found = dataset.dataset(f"/{kind}", filesystem=arrow, format=kind)
        assert found.to_table()["x"].equals(data["x"])


def test_pyarrow_writes_a_dataset(image: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.dataset as dataset

    table = pyarrow.table({"number": range(10_000), "part": [n % 3 for n in range(10_000)]})
    fs = FolioFileSystem(fo=str(image), mode="r+")
    parts = dataset.partitioning(pyarrow.schema([("part", pyarrow.int64())]))
    dataset.write_dataset(table, "/t", filesystem=fs, format="parquet", partitioning=parts)
    fs.close()
    check(image)
    with mounted_by_kernel(image) as folder:
        read = dataset.dataset(folder / "t", partitioning=parts).to_table()
        assert read.sort_by("number").select(["number", "part"]).equals(table)


def test_polars(image: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    writable = FolioFileSystem(fo=str(image), mode="r+")
    table = polars.DataFrame({"number": list(range(1000))})
    with writable.open("/t.parquet", "wb") as file:
        table.write_parquet(file)
    with writable.open("/t.parquet", "rb") as file:
        assert polars.read_parquet(file).equals(table)
    writable.close()
    check(image)
    with mounted_by_kernel(image) as folder:
        assert polars.read_parquet(folder / "t.parquet").equals(table)


def test_duckdb_attaches_read_write(image: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")

    def run(fs: Any, *statements: str) -> list[Any]:
        with duckdb.connect() as connection:
            connection.register_filesystem(fs)
            connection.execute("ATTACH 'folio:///base.duckdb' AS base")
            for statement in statements:
                connection.execute(statement)
            rows: list[Any] = connection.fetchall()
            connection.execute("DETACH base")
        return rows

    fs = FolioFileSystem(fo=str(image), mode="r+", update_creates=True)
    run(fs, "CREATE TABLE base.t AS SELECT range AS n FROM range(100000)", "CHECKPOINT base")
    run(fs, "INSERT INTO base.t SELECT range FROM range(5)")
    fs.close()
    check(image)
    fs = FolioFileSystem(fo=str(image), mode="r+")
    rows = [(100_005, 4_999_950_010)]
    assert run(fs, "SELECT count(*), sum(n) FROM base.t") == rows
    fs.close()
    with mounted_by_kernel(image) as folder:
        with duckdb.connect(folder / "base.duckdb", read_only=True) as connection:
            assert connection.execute("SELECT count(*), sum(n) FROM t").fetchall() == rows


def test_duckdb_threads_share_a_file(image: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    fs = FolioFileSystem(fo=str(image), mode="r+", update_creates=True)
    rows = 1_000_000
    table = f"CREATE TABLE s.t AS SELECT range AS n, hash(range) AS h FROM range({rows})"
    for option, statement in (("", table), ("", "SELECT 1"), ("(READ_ONLY)", "SELECT 1")):
        with duckdb.connect() as connection:
            connection.register_filesystem(fs)
            connection.execute("SET threads = 8")
            connection.execute(f"ATTACH 'folio:///s.duckdb' AS s {option}")
            connection.execute(statement)
            connection.execute("SELECT count(*), sum(n) FROM s.t WHERE h = hash(n)")
            assert connection.fetchall() == [(rows, rows * (rows - 1) // 2)]
            connection.execute("DETACH s")
    fs.close()


def test_duckdb_commits_survive_power_cuts() -> None:
    """After a power cut at any moment, each state has all commits that were reported."""
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")

    def attach(fs: foliofs.FileSystem, name: str) -> Any:
        connection = duckdb.connect()
        connection.register_filesystem(FolioFileSystem.wrap(fs, update_creates=True))
        return connection.execute(f"ATTACH 'folio:///{name}.duckdb' AS base")

    def rows(fs: foliofs.FileSystem) -> int:
        # duckdb opens a name once in a process.
        name = f"cut{len(seen)}"
        for file in fs.listdir():
            if file.startswith("base."):
                fs.rename(f"/{file}", f"/{file.replace('base', name)}")
        with attach(fs, name) as connection:
            found: int = connection.execute("SELECT count(*) FROM base.t").fetchone()[0]
            connection.execute("DETACH base")
        return found

    seen: list[int] = []
    with PowerCutDisk(options="noauto_da_alloc") as disk:
        with attach(disk.fs, "base") as connection:
            connection.execute("CREATE TABLE base.t AS SELECT range AS n FROM range(1000)")
            commits = [(disk.moment(), 1000)]
            for _ in range(3):
                connection.execute("INSERT INTO base.t SELECT range FROM range(10)")
                commits.append((disk.moment(), commits[-1][1] + 10))
            for moment in range(commits[0][0], commits[-1][0] + 1):
                reported = max(count for then, count in commits if then <= moment)
                for fs in disk.power_cut(moment=moment, limit=3, seed=moment):
                    seen.append(rows(fs))
                    assert reported <= seen[-1] <= reported + 10, (moment, fs)
            connection.execute("DETACH base")
    assert {1000, 1030} <= set(seen)


def test_zarr(image: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    import numpy
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from zarr.storage import FsspecStore

    content: Any = numpy.arange(90_000, dtype="i4").reshape(300, 300)
    fs = FolioFileSystem(fo=str(image), mode="r+", auto_mkdir=True)
    store: Any = FsspecStore(AsyncFileSystemWrapper(fs, asynchronous=True), path="/a.zarr")
    zarr.create_array(store, data=content, chunks=(100, 100))
    fs.close()
    check(image)
    with mounted_by_kernel(image) as folder:
        assert (zarr.open_array(folder / "a.zarr", mode="r")[:] == content).all()
    store = FsspecStore.from_url(f"folio:///a.zarr::file://{image}", read_only=True)
    assert (zarr.open_array(store, mode="r")[50:150, 7] == content[50:150, 7]).all()
    store.fs.sync_fs.close()
