//! Foreign clients: libnbd, nbdkit's tools and QEMU.

use super::support::requires;
use super::support::tools::{command, qemu_check, run, succeed, text};
use super::{NbdServer, bytes, image};
use std::ffi::OsStr;
use tempfile::TempDir;

#[test]
fn nbdinfo_reports_export_and_extents() {
    requires!(tool("nbdinfo"));
    let folder = TempDir::new().unwrap();
    let server = NbdServer::new(&image(&folder, "disk.qcow2"), &["--export", "a disk"]);
    let output = run("nbdinfo", [&server.uri]);
    for words in [
        "newstyle-fixed without TLS, using structured packets",
        "export=\"a disk\"",
        "export-size: 67108864",
        "base:allocation",
        "is_read_only: false",
        "can_multi_conn: true",
        "can_fua: true",
        "can_zero: true",
        "block_size_maximum: 33554432",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let output = run("nbdinfo", ["--map", &server.uri]);
    let map: Vec<Vec<&str>> = output
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let want = [
        ["0", "1048576", "3", "hole,zero"],
        ["1048576", "2097152", "0", "data"],
        ["3145728", "62914560", "3", "hole,zero"],
        ["66060288", "1048576", "0", "data"],
    ];
    assert_eq!(map, want);
    let output = run(
        "nbdinfo",
        ["--list", server.uri.replace("a%20disk", "").as_str()],
    );
    assert!(output.contains("export=\"a disk\""), "{output}");
    server.stop();
}

#[test]
fn nbdcopy_copies_in_and_out_over_4_connections() {
    requires!(tool("nbdcopy"), tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    for name in ["disk.qcow2", "disk.raw"] {
        let source = image(&folder, name);
        let server = NbdServer::new(&source, &["--read-only"]);
        let copy = folder.path().join("copy");
        run(
            "nbdcopy",
            ["--connections=4", &server.uri, copy.to_str().unwrap()],
        );
        server.stop();
        run(
            "qemu-img",
            [OsStr::new("compare"), source.as_os_str(), copy.as_os_str()],
        );
        let target = folder.path().join("target.qcow2");
        drop(folio::block::create(&target, folio::block::ImageFormat::Qcow2, 64 << 20).unwrap());
        let server = NbdServer::new(&target, &[]);
        run(
            "nbdcopy",
            [
                "--connections=4",
                "--flush",
                copy.to_str().unwrap(),
                &server.uri,
            ],
        );
        server.stop();
        qemu_check(&target);
        run(
            "qemu-img",
            [
                OsStr::new("compare"),
                source.as_os_str(),
                target.as_os_str(),
            ],
        );
        std::fs::remove_file(&target).unwrap();
    }
}

#[test]
fn qemu_img_converts_maps_and_compares() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let source = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&source, &["--read-only"]);
    let converted = folder.path().join("converted.qcow2");
    run(
        "qemu-img",
        [
            "convert",
            "-O",
            "qcow2",
            &server.uri,
            converted.to_str().unwrap(),
        ],
    );
    run(
        "qemu-img",
        ["compare", &server.uri, converted.to_str().unwrap()],
    );
    let map = run("qemu-img", ["map", "--output=json", &server.uri]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let data: Vec<_> = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|extent| extent["data"] == true)
        .map(|extent| {
            (
                extent["start"].as_u64().unwrap(),
                extent["length"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(data, [(1 << 20, 2 << 20), (63 << 20, 1 << 20)]);
    server.stop();
    qemu_check(&converted);
    // Convert into a served image: zeros, holes and data.
    let target = folder.path().join("target.qcow2");
    drop(folio::block::create(&target, folio::block::ImageFormat::Qcow2, 64 << 20).unwrap());
    let server = NbdServer::new(&target, &[]);
    run(
        "qemu-img",
        [
            "convert",
            "-n",
            "-O",
            "raw",
            converted.to_str().unwrap(),
            &server.uri,
        ],
    );
    server.stop();
    qemu_check(&target);
    run(
        "qemu-img",
        [
            OsStr::new("compare"),
            source.as_os_str(),
            target.as_os_str(),
        ],
    );
}

#[test]
fn qemu_io_write_commands_change_the_disk() {
    requires!(tool("qemu-io"), tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    for name in ["disk.qcow2", "disk.raw"] {
        let disk = image(&folder, name);
        let server = NbdServer::new(&disk, &["-f", name.trim_start_matches("disk.")]);
        let mut qemu_io = command("qemu-io");
        qemu_io.args(["-f", "raw"]);
        for words in [
            "write -f -P 0x33 5M 3M",
            "aio_write -P 0x44 9M 128k",
            "aio_write -f -P 0x55 10M 128k",
            "aio_flush",
            "write -P 0x66 12345 777",
            "discard 1M 64k",
            "write -z 2M 100k",
            "write -z -u 40M 4M",
            "flush",
            "read -P 0x33 5M 3M",
            "read -P 0x44 9M 128k",
            "read -P 0 2M 100k",
            "read -P 0x66 12345 777",
            "read -P 0x22 63M 1M",
        ] {
            qemu_io.args(["-c", words]);
        }
        let output = text(&succeed(qemu_io.arg(&server.uri)));
        assert!(!output.contains("failed"), "{output}");
        server.stop();
        if name.ends_with("qcow2") {
            qemu_check(&disk);
        }
        assert!(
            bytes(&disk, 10 << 20, 128 << 10)
                .iter()
                .all(|byte| *byte == 0x55)
        );
        assert!(
            bytes(&disk, 2 << 20, 100 << 10)
                .iter()
                .all(|byte| *byte == 0)
        );
        assert!(
            bytes(&disk, (2 << 20) + (100 << 10), 4096)
                .iter()
                .all(|byte| *byte == 0x11)
        );
        assert!(
            bytes(&disk, 40 << 20, 4 << 20)
                .iter()
                .all(|byte| *byte == 0)
        );
        assert!(bytes(&disk, 12345, 777).iter().all(|byte| *byte == 0x66));
    }
}

#[test]
fn read_only_export_refuses_writes() {
    requires!(tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let before = std::fs::read(&disk).unwrap();
    let server = NbdServer::new(&disk, &["--read-only"]);
    let output = command("qemu-io")
        .args(["-f", "raw", "-c", "write 0 4k", &server.uri])
        .output()
        .unwrap();
    assert!(
        text(&output).contains("Permission denied"),
        "{}",
        text(&output)
    );
    // Another reader may open the image.
    assert!(bytes(&disk, 1 << 20, 4096).iter().all(|byte| *byte == 0x11));
    server.stop();
    assert!(std::fs::read(&disk).unwrap() == before);
}

#[test]
fn libnbd_accepts_every_reply() {
    requires!(tool("nbdsh"));
    let folder = TempDir::new().unwrap();
    let disk = image(&folder, "disk.qcow2");
    let server = NbdServer::new(&disk, &[]);
    // libnbd closes the connection on a chunk that violates the protocol.
    let script = r#"
import errno
chunks = []
def chunk(data, offset, kind, error):
    chunks.append((len(data), offset, kind))
h.pread_structured(4 << 20, 0, chunk)
assert chunks[0] == (1 << 20, 0, nbd.READ_HOLE), chunks[0]
assert sum(size for size, _, _ in chunks) == 4 << 20
assert h.pread(32 << 20, 32 << 20)[-1:] == b"\x22"
del chunks[:]
whole = h.pread_structured(4 << 20, 0, chunk, nbd.CMD_FLAG_DF)
assert chunks == [(4 << 20, 0, nbd.READ_DATA)], chunks
assert whole == bytes(1 << 20) + b"\x11" * (2 << 20) + bytes(1 << 20)
h.pwrite(b"durable", 77, nbd.CMD_FLAG_FUA)
assert h.pread(7, 77) == b"durable"
h.zero(1 << 20, 8 << 20, nbd.CMD_FLAG_FAST_ZERO)
try:
    h.zero(4096, 1 << 20, nbd.CMD_FLAG_FAST_ZERO)
    raise SystemExit("zeroing data is not known to be fast")
except nbd.Error as error:
    assert error.errnum == errno.ENOTSUP, error
extents = []
def extent(context, offset, entries, error):
    extents.append(entries)
h.zero(64 << 10, 20 << 20, nbd.CMD_FLAG_NO_HOLE)
h.block_status(1 << 20, 20 << 20, extent)
assert extents[0][:2] == [64 << 10, 0], extents
h.cache(64 << 20, 0)
h.trim(1 << 20, 1 << 20, nbd.CMD_FLAG_FUA)
h.flush()
h.set_strict_mode(0)
for call in [lambda: h.pread(4096, 64 << 20), lambda: h.trim(1, 64 << 20), lambda: h.cache(2, (64 << 20) - 1)]:
    try:
        call()
        raise SystemExit("beyond the end")
    except nbd.Error as error:
        assert error.errnum == errno.EINVAL, error
try:
    h.pwrite(b"12", (64 << 20) - 1)
    raise SystemExit("beyond the end")
except nbd.Error as error:
    assert error.errnum == errno.ENOSPC, error
assert h.pread(7, 77) == b"durable"
"#;
    let mut nbdsh = command("nbdsh");
    // libnbd's module is installed for the system's Python.
    nbdsh
        .env("PATH", "/usr/bin:/bin")
        .args(["--base-allocation", "-u", &server.uri, "-c", script]);
    succeed(&mut nbdsh);
    server.stop();
    if super::support::Need::Tool("qemu-img").met().is_ok() {
        qemu_check(&disk);
    }
}
