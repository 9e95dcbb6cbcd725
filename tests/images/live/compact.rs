//! Compaction of generations into an image that threads write meanwhile.

use super::writers::{LEN_BYTES, Writers};
use super::{Scene, assert_qemu_reads, content, names};
use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{command, succeed};
use folio::Errno;
use folio::block::{CompactOptions, Device, ImageFormat, OpenOptions};
use std::cell::Cell;
use tempfile::TempDir;

fn bytes_of(image: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0xaa; image.len_bytes() as usize];
    image.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Creates the image over a raw file of random bytes, longer than the image.
fn over_base(options: &str) -> (Scene, Vec<u8>) {
    let folder = TempDir::new().unwrap();
    let mut random = Random::new(7);
    let bytes: Vec<u8> = (0..LEN_BYTES + (1 << 20))
        .map(|_| random.next() as u8)
        .collect();
    std::fs::write(folder.path().join("base.raw"), &bytes).unwrap();
    let line = format!("create -q -f qcow2 -o {options} -b base.raw -F raw disk.qcow2 {LEN_BYTES}");
    succeed(
        command("qemu-img")
            .args(line.split(' '))
            .current_dir(&folder),
    );
    (Scene::open(folder, &OpenOptions::default()), bytes)
}

#[test]
fn compaction_keeps_what_threads_write() {
    requires!(tool("qemu-img"));
    for (options, has_discards) in [
        ("cluster_size=4k", true),
        ("compat=1.1", false),
        ("extended_l2=on", false),
        ("compat=0.10", false),
    ] {
        let (scene, mut base) = over_base(options);
        base.truncate(LEN_BYTES);
        let writers = Writers::new(base, has_discards);
        writers.run(&scene.image, || {
            for round in 0..3 {
                for fork in 0..2 {
                    writers.wait(100);
                    scene
                        .image
                        .fork(scene.at(&format!("{round}-{fork}.qcow2")))
                        .unwrap();
                }
                let done = Cell::new(0);
                let compact = CompactOptions {
                    progress: &|count| done.set(done.get() + count),
                    ..CompactOptions::default()
                };
                let released = scene.image.compact(&compact).unwrap();
                assert_eq!(done.get(), LEN_BYTES as u64);
                let expected =
                    [2 * round + 2, 2 * round + 1].map(|n| format!("disk.gen-{n}.qcow2"));
                assert_eq!(names(&released).len(), 2);
                if round == 0 {
                    assert_eq!(names(&released), expected);
                }
                for path in released {
                    assert!(path.exists());
                }
                assert_eq!(scene.image.generations(), 0);
                assert_eq!(scene.image.chain()[1].format, ImageFormat::Raw);
            }
        });
        let bytes = bytes_of(&scene.image);
        writers.check_all(&bytes);
        let disk = scene.at("disk.qcow2");
        let folder = scene.close();
        assert_qemu_reads(&disk, &bytes);
        // The image needs no generation any more.
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().contains(".gen-") {
                std::fs::remove_file(path).unwrap();
            }
        }
        assert!(content(&disk) == bytes);
    }
}

#[test]
fn fork_ends_a_compaction() {
    requires!(tool("qemu-img"));
    let (scene, _) = over_base("cluster_size=4k");
    scene.image.write_at(&[1; 1 << 20], 0).unwrap();
    scene.image.fork(scene.at("1.qcow2")).unwrap();
    let canceled = CompactOptions {
        is_canceled: &|| true,
        ..CompactOptions::default()
    };
    let error = scene.image.compact(&canceled).unwrap_err();
    assert_eq!(error.errno(), Errno::INTR);
    let forked = CompactOptions {
        progress: &|_| {
            if scene.image.generations() == 1 {
                scene.image.fork(scene.at("2.qcow2")).unwrap();
                let second = scene.image.compact(&CompactOptions::default());
                assert_eq!(second.unwrap_err().errno(), Errno::BUSY);
            }
        },
        ..CompactOptions::default()
    };
    let error = scene.image.compact(&forked).unwrap_err();
    assert_eq!(error.errno(), Errno::AGAIN);
    // Down to the older one only.
    let down_to = |name: &str| CompactOptions {
        base: Some(scene.at(name)),
        ..CompactOptions::default()
    };
    let error = scene.image.compact(&down_to("1.qcow2")).unwrap_err();
    assert_eq!(error.errno(), Errno::NOENT);
    let before = bytes_of(&scene.image);
    let released = scene.image.compact(&down_to("disk.gen-1.qcow2")).unwrap();
    assert_eq!(names(&released), ["disk.gen-2.qcow2"]);
    assert_eq!(scene.image.generations(), 1);
    assert!(bytes_of(&scene.image) == before);
    scene.image.snapshot("a").unwrap();
    let error = scene.image.compact(&CompactOptions::default()).unwrap_err();
    assert_eq!(error.errno(), Errno::OPNOTSUPP);
    scene.close();
}

/// What a fork stores of its shared generation, it needs no more.
#[test]
fn compacted_fork_is_independent() {
    requires!(tool("qemu-img"));
    let scene = Scene::new("compat=1.1");
    scene.image.write_at(&[1; 300_000], 100_000).unwrap();
    scene.image.fork(scene.at("fork.qcow2")).unwrap();
    let fork =
        folio::block::LiveImage::open(scene.at("fork.qcow2"), &OpenOptions::default()).unwrap();
    fork.write_at(&[2; 1000], 200_000).unwrap();
    let before = bytes_of(&fork);
    fork.compact(&CompactOptions::default()).unwrap();
    assert!(bytes_of(&fork) == before);
    assert_eq!(fork.chain().len(), 1);
    drop(fork);
    let path = scene.at("fork.qcow2");
    scene.image.compact(&CompactOptions::default()).unwrap();
    std::fs::remove_file(scene.at("disk.gen-1.qcow2")).unwrap();
    let _folder = scene.close();
    assert_qemu_reads(&path, &before);
}

#[test]
fn compaction_hides_a_longer_base() {
    requires!(tool("qemu-img"));
    for options in [
        "compat=1.1",
        "compat=0.10",
        "cluster_size=4k",
        "extended_l2=on",
    ] {
        let (scene, base) = over_base(options);
        // The generation ends before the base does: behind its end the image reads as zeros.
        scene.image.fork(scene.at("1.qcow2")).unwrap();
        scene
            .image
            .resize((LEN_BYTES + (3 << 19)) as u64, false)
            .unwrap();
        scene
            .image
            .write_at(&[5; 1000], LEN_BYTES as u64 + 5000)
            .unwrap();
        scene.image.fork(scene.at("2.qcow2")).unwrap();
        let mut expected = base[..LEN_BYTES].to_vec();
        expected.resize(LEN_BYTES + (3 << 19), 0);
        expected[LEN_BYTES + 5000..LEN_BYTES + 6000].fill(5);
        assert!(bytes_of(&scene.image) == expected);
        scene.image.compact(&CompactOptions::default()).unwrap();
        assert!(bytes_of(&scene.image) == expected, "{options}");
        let disk = scene.at("disk.qcow2");
        let _folder = scene.close();
        assert_qemu_reads(&disk, &expected);
    }
}
