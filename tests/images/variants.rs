//! Images that qemu-img creates, in every variant: Folio reads the same content, and leaves no
//! error after its writes.

use crate::images::model;
use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{command, qemu_check, run, succeed, text, to_raw};
use folio::block::{BackingPolicy, ImageFormat, OpenOptions, open};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const LEN: usize = 2 << 20;

/// Returns half repeating noise, which compresses, and half zeros.
fn content(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; LEN];
    for block in bytes.chunks_mut(10_000) {
        if random.below(2) == 0 {
            let piece: Vec<u8> = (0..64).map(|_| random.next() as u8).collect();
            block
                .chunks_mut(64)
                .for_each(|part| part.copy_from_slice(&piece[..part.len()]));
        }
    }
    bytes
}

fn qemu_img(folder: &Path, line: &str) {
    succeed(
        command("qemu-img")
            .args(line.split(' '))
            .current_dir(folder),
    );
}

/// Reads the image and compares it with `want`, then writes at random and compares with QEMU's
/// reads.
#[track_caller]
fn read_then_write(path: &Path, mut want: Vec<u8>, seed: u64) {
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = open(path, &read_only).unwrap();
    model::same(&*device, &want, seed);
    drop(device);
    let device = open(path, &OpenOptions::default()).unwrap();
    model::run(&*device, &mut want, seed, 150);
    device.flush().unwrap();
    model::run(&*device, &mut want, seed + 1, 50);
    drop(device);
    qemu_check(path);
    let raw = path.with_extension("back");
    to_raw(path, &raw);
    assert!(
        std::fs::read(&raw).unwrap() == want,
        "{}: QEMU reads different content",
        path.display()
    );
}

/// Converts a raw image with each of these options, and reads and writes the result.
fn convert_and_write(options: &[&str]) {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("source.raw");
    for (seed, option) in options.iter().enumerate() {
        let want = content(seed as u64);
        std::fs::write(&source, &want).unwrap();
        let line = format!("convert -f raw -O qcow2 {option} source.raw disk.qcow2");
        qemu_img(folder.path(), &line);
        read_then_write(&folder.path().join("disk.qcow2"), want, 1000 + seed as u64);
    }
}

#[test]
fn versions_and_cluster_sizes_match_qemu() {
    requires!(tool("qemu-img"));
    convert_and_write(&[
        "-o compat=0.10",
        "-o compat=1.1",
        "-o cluster_size=512",
        "-o cluster_size=512,compat=0.10",
        "-o cluster_size=4096",
        "-o cluster_size=2M",
    ]);
}

#[test]
fn refcount_widths_match_qemu() {
    requires!(tool("qemu-img"));
    let widths =
        [1, 2, 4, 8, 16, 32, 64].map(|bits| format!("-o refcount_bits={bits},cluster_size=1024"));
    convert_and_write(&widths.each_ref().map(String::as_str));
}

#[test]
fn compressed_clusters_match_qemu() {
    requires!(tool("qemu-img"));
    convert_and_write(&[
        "-c",
        "-c -o compression_type=zstd",
        "-c -o cluster_size=4096",
        "-c -o compat=0.10",
        "-c -o cluster_size=2M",
    ]);
}

#[test]
fn extended_l2_entries_match_qemu() {
    requires!(tool("qemu-img"));
    convert_and_write(&[
        "-o extended_l2=on",
        "-o extended_l2=on,cluster_size=16k",
        "-o extended_l2=on,cluster_size=2M",
        "-o extended_l2=on,cluster_size=16k,preallocation=metadata",
        "-o extended_l2=on,cluster_size=16k,lazy_refcounts=on,refcount_bits=1",
        "-c -o extended_l2=on,cluster_size=16k",
        "-c -o extended_l2=on,cluster_size=64k,compression_type=zstd",
    ]);
}

/// Returns 60 random commands for qemu-io.
fn random_lines(random: &mut Random, options: &str) -> Vec<String> {
    const COMMANDS: [&str; 6] = [
        "write -P 5",
        "write -P 6",
        "write -z",
        "write -z -u",
        "discard",
        "write -c -P 7",
    ];
    let mut lines = Vec::new();
    for _ in 0..60 {
        let offset = random.below(LEN as u64 / 512 - 400) * 512;
        let most = if random.below(5) == 0 { 400 } else { 20 };
        let (offset, len) = match random.below(2) {
            0 => (offset, (1 + random.below(most)) * 512),
            _ => (offset & !2047, (1 + random.below(most)) * 2048),
        };
        let len = len.min(LEN as u64 - offset);
        let mut command = COMMANDS[random.below(6) as usize];
        if command.contains("-c") && options.contains("data_file") {
            command = "write -P 8";
        }
        lines.push(if command.contains("-c") {
            let offset = (offset & !0xffff).min(LEN as u64 - 0x10000);
            format!("{command} {offset} 64k")
        } else {
            format!("{command} {offset} {len}")
        });
    }
    lines
}

/// QEMU and Folio write in turns, at random, with subclusters in every state.
#[test]
fn subclusters_written_in_turns_match_qemu() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let raw = folder.path().join("back.raw");
    std::fs::write(folder.path().join("base.raw"), content(60)).unwrap();
    for (seed, options) in ["", "-b base.raw -F raw", "-o data_file=data.raw"]
        .into_iter()
        .enumerate()
    {
        let seed = seed as u64;
        let line =
            format!("create -f qcow2 -o extended_l2=on,cluster_size=64k {options} disk.qcow2 2M");
        qemu_img(folder.path(), line.replace("  ", " ").as_str());
        let mut random = Random::new(seed);
        for round in 0..3 {
            let lines = random_lines(&mut random, options);
            let mut qemu_io = command("qemu-io");
            qemu_io
                .current_dir(folder.path())
                .args(["-d", "unmap", "disk.qcow2"]);
            lines.iter().for_each(|line| {
                qemu_io.args(["-c", line]);
            });
            // qemu-io prints an error where it would write a compressed cluster over another one.
            let said = text(&qemu_io.output().unwrap());
            assert!(said.contains("wrote"), "{said}");
            qemu_img(folder.path(), "convert -O raw disk.qcow2 back.raw");
            let mut want = std::fs::read(&raw).unwrap();
            let device = open(&path, &OpenOptions::default()).unwrap();
            model::same(&*device, &want, seed);
            model::run(&*device, &mut want, 4000 + 10 * seed + round, 150);
            drop(device);
            qemu_img(folder.path(), "check disk.qcow2");
            qemu_img(folder.path(), "convert -O raw disk.qcow2 back.raw");
            let found = std::fs::read(&raw).unwrap();
            assert!(
                found == want,
                "{options:?}, round {round}: QEMU reads different content"
            );
        }
    }
}

/// A small write copies the rest of its subcluster, not of its cluster; a cluster without data
/// releases its space.
#[test]
fn small_write_copies_only_its_subcluster() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    std::fs::write(folder.path().join("base.raw"), vec![7; LEN]).unwrap();
    let line = "create -f qcow2 -o extended_l2=on,cluster_size=64k -b base.raw -F raw disk.qcow2";
    qemu_img(folder.path(), line);
    let device = open(&path, &OpenOptions::default()).unwrap();
    device.write_at(&[1; 512], (64 << 10) + 2048 + 100).unwrap();
    device.flush().unwrap();
    let map = run(
        "qemu-img",
        ["map", "-U", "--output=json", path.to_str().unwrap()],
    );
    let own: Vec<&str> = map
        .lines()
        .filter(|line| line.contains("\"depth\": 0"))
        .collect();
    let is_one = own.len() == 1 && own[0].contains("\"start\": 67584, \"length\": 2048,");
    assert!(is_one, "{map}");
    let used = |path: &Path| {
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512
    };
    device.write_at(&vec![2; 1 << 20], 64 << 10).unwrap();
    device.flush().unwrap();
    let before = used(&path);
    for at in (64 << 10..(64 << 10) + (1 << 20)).step_by(8 << 10) {
        device.discard(at, 8 << 10).unwrap();
    }
    device.flush().unwrap();
    let after = used(&path);
    assert!(
        after + (900 << 10) < before,
        "{before} bytes on the host, then {after}"
    );
    drop(device);
    qemu_check(&path);
}

#[test]
fn preallocated_and_lazy_images_match_qemu() {
    requires!(tool("qemu-img"));
    convert_and_write(&[
        "-o preallocation=metadata",
        "-o preallocation=falloc",
        "-o preallocation=full",
        "-o lazy_refcounts=on",
        "-S 0",
    ]);
}

#[test]
fn both_kinds_of_zero_clusters_match_qemu() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    qemu_img(folder.path(), "create -f qcow2 disk.qcow2 2M");
    let path_text = path.to_str().unwrap();
    let lines = [
        "write -P 7 0 1M",
        "write -z 64k 128k",
        "write -z -u 512k 64k",
        "write -z 1M 256k",
    ];
    run(
        "qemu-io",
        lines
            .iter()
            .flat_map(|line| ["-c", line])
            .chain([path_text]),
    );
    let mut want = vec![0; LEN];
    want[..1 << 20].fill(7);
    want[64 << 10..192 << 10].fill(0);
    want[512 << 10..576 << 10].fill(0);
    read_then_write(&path, want, 7);
}

#[test]
fn writes_keep_snapshots_intact() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("source.raw");
    let options = [
        "-o cluster_size=4096",
        "-c -o cluster_size=4096",
        "",
        "-o extended_l2=on,cluster_size=16k",
        "-c -o extended_l2=on,cluster_size=16k",
    ];
    for (seed, option) in options.iter().enumerate() {
        let want = content(50 + seed as u64);
        std::fs::write(&source, &want).unwrap();
        let line = format!("convert -f raw -O qcow2 {option} source.raw disk.qcow2");
        qemu_img(folder.path(), line.replace("  ", " ").as_str());
        qemu_img(folder.path(), "snapshot -c before disk.qcow2");
        let path = folder.path().join("disk.qcow2");
        read_then_write(&path, want.clone(), 2000 + seed as u64);
        qemu_img(folder.path(), "snapshot -a before disk.qcow2");
        qemu_check(&path);
        read_then_write(&path, want, 2100 + seed as u64);
        qemu_img(folder.path(), "snapshot -d before disk.qcow2");
        qemu_check(&path);
    }
}

#[test]
fn backing_chains_read_through() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for option in [
        "compat=1.1",
        "compat=0.10",
        "compat=1.1,cluster_size=1k",
        "extended_l2=on",
        "extended_l2=on,cluster_size=16k",
    ] {
        let folder = TempDir::new().unwrap();
        // The base is shorter than its overlays, and its size is not a multiple of a cluster.
        let mut want = content(90)[..(1 << 20) + 512].to_vec();
        std::fs::write(folder.path().join("base.raw"), &want).unwrap();
        qemu_img(
            folder.path(),
            &format!("create -f qcow2 -o {option} -b base.raw -F raw middle.qcow2 2M"),
        );
        let middle = folder.path().join("middle.qcow2");
        run(
            "qemu-io",
            ["-c", "write -P 9 300k 100k", middle.to_str().unwrap()],
        );
        want.resize(LEN, 0);
        want[300 << 10..400 << 10].fill(9);
        qemu_img(
            folder.path(),
            &format!("create -f qcow2 -o {option} -b middle.qcow2 -F qcow2 top.qcow2"),
        );
        let base_before = std::fs::read(&middle).unwrap();
        read_then_write(&folder.path().join("top.qcow2"), want, 3000);
        assert!(
            std::fs::read(&middle).unwrap() == base_before,
            "the backing file was written"
        );
    }
}

fn refusal(path: &Path, options: &OpenOptions) -> String {
    open(path, options)
        .err()
        .expect("must be rejected")
        .to_string()
}

#[test]
fn backing_file_elsewhere_needs_permission() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(folder.path().join("base.raw"), vec![5; LEN]).unwrap();
    std::os::unix::fs::symlink("../base.raw", inner.join("link.raw")).unwrap();
    let top = inner.join("top.qcow2");
    for name in ["../base.raw", "link.raw"] {
        qemu_img(
            &inner,
            &format!("create -f qcow2 -b {name} -F raw top.qcow2 2M"),
        );
        let said = refusal(&top, &OpenOptions::default());
        assert!(said.contains("is outside the image's folder"), "{said}");
        let anywhere = OpenOptions {
            backing: BackingPolicy::Anywhere,
            ..OpenOptions::default()
        };
        model::same(&*open(&top, &anywhere).unwrap(), &vec![5; LEN], 0);
    }
    let beside = folder.path().join("beside.qcow2");
    qemu_img(
        folder.path(),
        "create -f qcow2 -b base.raw -F raw beside.qcow2 2M",
    );
    open(&beside, &OpenOptions::default()).unwrap();
    let none = OpenOptions {
        backing: BackingPolicy::Refuse,
        ..OpenOptions::default()
    };
    assert!(refusal(&beside, &none).contains("backing files are not allowed"));
    // A loop, created with -u so that qemu-img does not open it.
    qemu_img(folder.path(), "create -f qcow2 a.qcow2 1M");
    qemu_img(
        folder.path(),
        "create -f qcow2 -b a.qcow2 -F qcow2 b.qcow2 1M",
    );
    qemu_img(folder.path(), "rebase -u -b b.qcow2 -F qcow2 a.qcow2");
    assert!(
        refusal(&folder.path().join("a.qcow2"), &OpenOptions::default())
            .contains("its own backing file")
    );
}

#[test]
fn unsupported_features_are_named() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let refused = |line: &str, name: &str| {
        let path: PathBuf = folder.path().join("disk.qcow2");
        qemu_img(folder.path(), line);
        let said = refusal(&path, &OpenOptions::default());
        assert!(said.contains(name), "{said}");
        std::fs::remove_file(path).unwrap();
    };
    // hostile.rs tests LUKS with a changed header, because qemu-img measures the machine to create
    // it.
    let secret =
        "create -f qcow2 --object secret,id=key,data=abc -o encrypt.key-secret=key,encrypt.format";
    refused(
        &format!("{secret}=aes disk.qcow2 1M"),
        "encryption (AES) is not supported",
    );
    // The caller may open any image as raw.
    qemu_img(folder.path(), "create -f qcow2 disk.qcow2 1M");
    let raw = OpenOptions {
        format: Some(ImageFormat::Raw),
        ..OpenOptions::default()
    };
    let path = folder.path().join("disk.qcow2");
    assert_eq!(
        open(&path, &raw).unwrap().len_bytes(),
        std::fs::metadata(&path).unwrap().len()
    );
}
