"""Images with URLs: objects and volumes, in a wheel with the feature object-store."""

import errno
import http.server
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import foliofs
import pytest
from foliofs import _native
from foliofs._command import executable

needs_feature = pytest.mark.skipif(
    not _native.has_object_store, reason="built without the feature object-store"
)


@pytest.fixture
def filled(image: Path) -> Path:
    with foliofs.open_image(image, "r+") as fs:
        fs.write_text("/note", "text")
    return image


@pytest.mark.skipif(_native.has_object_store, reason="built with the feature object-store")
def test_url_without_the_feature_is_refused(tmp_path: Path) -> None:
    def refused(call: Callable[..., object], url: str, *arguments: object) -> None:
        with pytest.raises(OSError, match="build-wheel --features object-store") as raised:
            call(url, *arguments)
        assert (raised.value.errno, raised.value.filename) == (errno.EPROTONOSUPPORT, url)

    for url in ("s3://bucket/disk.qcow2", f"file://{tmp_path}/disk.img", "https://host/disk.img"):
        refused(foliofs.open_image, url)
        refused(foliofs.create_image, url, 1 << 20)


class Ranges(http.server.BaseHTTPRequestHandler):
    """Serves ranges of one file."""

    protocol_version = "HTTP/1.1"
    content = b""

    def do_GET(self) -> None:
        content = self.content
        wanted = self.headers.get("Range")
        if wanted is None:
            self.send_response(200)
        else:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = min(int(last or len(content)), len(content) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{end}/{len(content)}")
            content = content[int(first) : end + 1]
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(params=["file", "http"])
def url(request: pytest.FixtureRequest, filled: Path) -> Iterator[str]:
    """The URL of an image."""
    if request.param == "file":
        yield f"file://{filled}"
        return
    Ranges.content = filled.read_bytes()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/disk.img"
        server.shutdown()
        serving.join()


@needs_feature
def test_object_is_read(url: str) -> None:
    with foliofs.open_image(url) as fs:
        assert fs.read_text("/note") == "text"
    with pytest.raises(OSError, match="cannot be written in place") as raised:
        foliofs.open_image(url, "r+")
    assert (raised.value.errno, raised.value.filename) == (errno.EROFS, url)
    with pytest.raises(FileNotFoundError):
        foliofs.open_image(url + ".missing" if url.startswith("file") else "file:///missing/a.img")


@needs_feature
def test_object_is_an_image_of_fsspec(url: str) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    from foliofs.fsspec import FolioFileSystem, _image_name

    fs = FolioFileSystem(fo=url)
    assert fs.cat("/note") == b"text"
    fs.close()
    assert _image_name("bucket/disk.img", "r", "s3", {}) == "s3://bucket/disk.img"
    assert _image_name("http://host/disk.img", "r", "http", None) == "http://host/disk.img"
    with pytest.raises(ValueError, match="invalid options for s3: key"):
        _image_name("bucket/disk.img", "r", "s3", {"key": "x"})


@needs_feature
def test_volume_is_written(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/volume"
    for command in (["volume", "create", url, "--size", "64M"], ["mkfs", url]):
        ran = subprocess.run([executable(), *command], capture_output=True, text=True)
        if "built without object storage" in ran.stderr:
            pytest.skip("the command folio was built without object storage")
        assert ran.returncode == 0, ran.stderr
    with foliofs.open_image(url, "r+") as fs:
        fs.write_bytes("/file", b"x" * 5_000_000)
    # Its writer has closed it: another one needs no takeover.
    with foliofs.open_image(url, "r+") as fs:
        fs.write_text("/note", "text")
        fs.sync()
        with foliofs.open_image(url) as reader:
            assert reader.read_bytes("/file") == b"x" * 5_000_000
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    with fsspec.open(f"folio:///note::{url}") as file:
        assert file.read() == b"text"
    fsspec.url_to_fs(f"folio:///note::{url}")[0].close()


@needs_feature
def test_child_of_a_user_of_objects_gets_an_error(filled: Path) -> None:
    """Object storage has threads, which a child of fork() does not get."""
    program = """if True:
        import os, sys, warnings, foliofs

        warnings.simplefilter("ignore")
        url = sys.argv[1]

        def in_child(fs):
            if (child := os.fork()) == 0:
                try:
                    opened = fs or foliofs.open_image(url)
                    print(opened.read_text("/note"), flush=True)
                except OSError as error:
                    print(error, flush=True)
                os._exit(0)
            os.waitpid(child, 0)

        in_child(None)
        with foliofs.open_image(url) as fs:
            in_child(fs)
            in_child(None)
    """
    command = [sys.executable, "-c", program, f"file://{filled}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = ran.stdout.splitlines()
    assert len(lines) == 3 and lines[0] == "text", ran.stderr
    assert all("the parent used object storage before fork()" in line for line in lines[1:])
