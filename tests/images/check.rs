//! The check against `qemu-img check`: the same sums on good and damaged images, and clean images
//! after a repair.

use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{command, qemu_check, run, succeed};
use folio::block::qcow2::{ImageCheck, Repair};
use folio::block::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const LEN: usize = 3 << 20;

fn qemu_img(folder: &Path, line: &str) {
    succeed(
        command("qemu-img")
            .args(line.split_whitespace())
            .current_dir(folder),
    );
}

fn check(path: &Path, repair: Repair) -> ImageCheck {
    block::tools::check(path, None, repair, &mut |_| {}).unwrap()
}

/// Checks with qemu-img, and returns its sums.
#[track_caller]
fn check_by_qemu(path: &Path) -> ImageCheck {
    let output = command("qemu-img")
        .args(["check", "--output=json"])
        .arg(path)
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let key = |name: &str| json[name].as_u64().unwrap_or(0);
    ImageCheck {
        image_end_offset: key("image-end-offset"),
        total_clusters: key("total-clusters"),
        allocated_clusters: key("allocated-clusters"),
        fragmented_clusters: key("fragmented-clusters"),
        compressed_clusters: key("compressed-clusters"),
        leaks: key("leaks"),
        corruptions: key("corruptions"),
        check_errors: key("check-errors"),
        leaks_fixed: key("leaks-fixed"),
        corruptions_fixed: key("corruptions-fixed"),
    }
}

#[track_caller]
fn agrees(path: &Path) -> ImageCheck {
    let ours = check(path, Repair::Nothing);
    assert_eq!(ours, check_by_qemu(path), "{}", path.display());
    ours
}

fn content(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; LEN];
    for block in bytes.chunks_mut(20_000) {
        let value = random.next() as u8;
        block
            .iter_mut()
            .take(random.below(20_000) as usize)
            .for_each(|byte| *byte = value);
    }
    bytes
}

/// Creates an image with two snapshots and writes between them, in pieces so that it is fragmented.
fn sample(folder: &Path, options: &str) -> PathBuf {
    std::fs::write(folder.join("source.raw"), content(3)).unwrap();
    let data = format!("data_file={}", folder.join("data.raw").display());
    let options = options.replace("data_file=data.raw", &data);
    qemu_img(
        folder,
        &format!("convert -f raw -O qcow2 {options} source.raw disk.qcow2"),
    );
    let path = folder.join("disk.qcow2");
    let text = path.to_str().unwrap().to_owned();
    for (round, at) in ["100k", "1500k"].into_iter().enumerate() {
        if !options.contains("data_file") {
            qemu_img(folder, &format!("snapshot -c round{round} disk.qcow2"));
        }
        for size in ["3k", "70k"] {
            run(
                "qemu-io",
                ["-c", &format!("write -P {} {at} {size}", round + 1), &text],
            );
        }
    }
    path
}

const OPTIONS: [&str; 14] = [
    "-o compat=1.1",
    "-o compat=0.10",
    "-o cluster_size=512",
    "-o cluster_size=4k,refcount_bits=64",
    "-o cluster_size=2M",
    "-o refcount_bits=2",
    "-o refcount_bits=8,cluster_size=1k",
    "-c",
    "-c -o cluster_size=4k",
    "-c -o compression_type=zstd",
    "-o extended_l2=on",
    "-o extended_l2=on,cluster_size=16k",
    "-o data_file=data.raw",
    "-o preallocation=metadata",
];

#[test]
fn undamaged_images_have_no_findings() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in OPTIONS {
        let folder = TempDir::new().unwrap();
        let path = sample(folder.path(), options);
        let report = agrees(&path);
        assert_eq!((report.leaks, report.corruptions), (0, 0), "{options}");
        assert!(report.allocated_clusters > 0);
        // Without errors, a repair writes nothing.
        let before = std::fs::read(&path).unwrap();
        assert_eq!(check(&path, Repair::All), report);
        assert!(std::fs::read(&path).unwrap() == before);
    }
}

#[test]
fn bitmap_clusters_are_counted() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let path = sample(folder.path(), "-o cluster_size=4k");
    qemu_img(folder.path(), "bitmap --add -g 512 disk.qcow2 one");
    qemu_img(folder.path(), "bitmap --add disk.qcow2 two");
    run(
        "qemu-io",
        ["-c", "write -P 9 500k 300k", path.to_str().unwrap()],
    );
    assert_eq!(agrees(&path).leaks, 0);
}

/// Offsets of the tables in an image, by its header.
struct Map {
    file: std::fs::File,
    cluster: u64,
}

impl Map {
    fn open(path: &Path) -> Self {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let mut this = Self { file, cluster: 1 };
        this.cluster = 1 << (this.number(16) & 0xffff_ffff);
        this
    }

    fn number(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_be_bytes(bytes)
    }

    fn set(&self, at: u64, number: u64) {
        self.file.write_all_at(&number.to_be_bytes(), at).unwrap();
    }

    /// Sets the 16-bit refcount of a cluster.
    fn set_refcount(&self, cluster: u64, value: u16) {
        let per_block = self.cluster / 2;
        let block = self.number(self.number(48) + cluster / per_block * 8);
        self.file
            .write_all_at(&value.to_be_bytes(), block + cluster % per_block * 2)
            .unwrap();
    }

    fn l1(&self) -> u64 {
        self.number(40)
    }

    fn l2(&self) -> u64 {
        self.number(self.l1()) & 0x00ff_ffff_ffff_fe00
    }

    /// Offset of an entry of the first L2 table that stores data for the disk alone.
    fn data_entry(&self) -> u64 {
        let entry =
            (0..self.cluster / 8).find(|index| self.number(self.l2() + index * 8) >> 63 == 1);
        self.l2() + entry.unwrap() * 8
    }
}

type Damage = (&'static str, fn(&Map));

/// Damage that can be repaired completely.
const MENDABLE: [Damage; 8] = [
    ("a leak", |map| {
        let end = map.file.metadata().unwrap().len() / map.cluster;
        map.file.set_len((end + 2) * map.cluster).unwrap();
        map.set_refcount(end, 1);
        map.set_refcount(end + 1, 3);
    }),
    ("refcounts too high", |map| {
        (0..4).for_each(|cluster| map.set_refcount(cluster, 5))
    }),
    ("a refcount of data is zero", |map| {
        map.set_refcount(
            (map.number(map.data_entry()) & 0x00ff_ffff_ffff_fe00) / map.cluster,
            0,
        );
    }),
    ("the header has a refcount of zero", |map| {
        map.set_refcount(0, 0)
    }),
    ("an L2 entry lacks its flag", |map| {
        let at = map.data_entry();
        map.set(at, map.number(at) & !(1 << 63));
    }),
    ("an L1 entry lacks its flag", |map| {
        map.set(map.l1(), map.number(map.l1()) & !(1 << 63))
    }),
    ("the refcount block is gone", |map| {
        map.set(map.number(48), 0)
    }),
    ("the refcount block is not aligned", |map| {
        map.set(map.number(48), map.number(map.number(48)) + 512)
    }),
];

#[test]
fn damage_is_found_and_repaired() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in ["-o cluster_size=4k", "", "-c -o cluster_size=4k"] {
        for (name, damage) in MENDABLE {
            let folder = TempDir::new().unwrap();
            let path = sample(folder.path(), options);
            let good = folder.path().join("good.qcow2");
            std::fs::copy(&path, &good).unwrap();
            damage(&Map::open(&path));
            // QEMU reports one error for each cluster that such a block described.
            let is_compared = !name.ends_with("not aligned");
            let found = if is_compared {
                agrees(&path)
            } else {
                check(&path, Repair::Nothing)
            };
            assert!(found.leaks + found.corruptions > 0, "{name}");
            if found.corruptions == 0 {
                let left = check(&path, Repair::Leaks);
                assert_eq!((left.leaks, left.leaks_fixed), (0, found.leaks), "{name}");
            } else {
                // Flags that follow from correct refcounts are corrected, as QEMU does.
                let before = check(&path, Repair::Leaks);
                assert_eq!(
                    before.corruptions > 0,
                    !name.ends_with("its flag"),
                    "{name}"
                );
                let left = check(&path, Repair::All);
                assert_eq!((left.leaks, left.corruptions), (0, 0), "{options} {name}");
            }
            qemu_check(&path);
            agrees(&path);
            qemu_img(folder.path(), "compare disk.qcow2 good.qcow2");
            for snapshot in ["round0", "round1"] {
                qemu_img(folder.path(), &format!("snapshot -a {snapshot} disk.qcow2"));
                qemu_img(folder.path(), &format!("snapshot -a {snapshot} good.qcow2"));
                qemu_img(folder.path(), "compare disk.qcow2 good.qcow2");
            }
            qemu_check(&path);
        }
    }
}

/// Damage whose repair would need a guess: reported and counted as QEMU does, and kept with the
/// clusters that may belong to it.
const HOPELESS: [Damage; 6] = [
    ("an L2 entry beyond the end", |map| {
        map.set(map.data_entry(), (1 << 63) | (1 << 40))
    }),
    ("an L2 entry that is not aligned", |map| {
        map.set(map.data_entry(), map.number(map.data_entry()) + 512)
    }),
    ("an L1 entry beyond the end", |map| {
        map.set(map.l1(), (1 << 63) | (1 << 40))
    }),
    ("an L1 entry that is not aligned", |map| {
        map.set(map.l1(), map.number(map.l1()) + 512)
    }),
    ("reserved bits of an L2 entry", |map| {
        map.set(map.data_entry(), map.number(map.data_entry()) | 8)
    }),
    ("reserved bits of an L1 entry", |map| {
        map.set(map.l1(), map.number(map.l1()) | 8)
    }),
];

#[test]
fn ambiguous_damage_is_reported_and_kept() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for (name, damage) in HOPELESS {
        let folder = TempDir::new().unwrap();
        let path = sample(folder.path(), "-o cluster_size=4k");
        damage(&Map::open(&path));
        let found = check(&path, Repair::Nothing);
        let judged = check_by_qemu(&path);
        assert!(
            found.corruptions > 0 && judged.corruptions > 0,
            "{name}: {found:?}, {judged:?}"
        );
        let left = check(&path, Repair::All);
        assert!(left.corruptions > 0, "{name}");
        assert_eq!(
            left.leaks, found.leaks,
            "{name}: what could be lost data is not given back"
        );
    }
}

#[test]
fn cluster_with_two_uses_is_found() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let path = sample(folder.path(), "-o cluster_size=4k");
    let map = Map::open(&path);
    // Guest data in the L1 table's cluster, with a refcount of two.
    map.set(map.data_entry(), map.l1());
    map.set_refcount(map.l1() / map.cluster, 2);
    let report = check(&path, Repair::Nothing);
    assert!(report.corruptions > 0, "{report:?}");
}

#[test]
fn dirty_image_is_repaired() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in [
        "lazy_refcounts=on",
        "lazy_refcounts=on,cluster_size=4k",
        "lazy_refcounts=on,extended_l2=on",
    ] {
        let folder = TempDir::new().unwrap();
        qemu_img(
            folder.path(),
            &format!("create -f qcow2 -o {options} disk.qcow2 64M"),
        );
        let path = folder.path().join("disk.qcow2");
        let lines = ["write -P 1 0 200k", "write -P 2 10M 3M", "flush", "abort"];
        let arguments = lines
            .iter()
            .flat_map(|line| ["-c", line])
            .chain([path.to_str().unwrap()]);
        let _ = command("qemu-io").args(arguments).output().unwrap();
        assert_eq!(Map::open(&path).number(72) & 1, 1, "marked dirty");
        let found = agrees(&path);
        assert!(found.corruptions > 0);
        let copy = folder.path().join("copy.qcow2");
        std::fs::copy(&path, &copy).unwrap();
        let repaired = command("qemu-img")
            .args(["check", "-r", "all", "--output=json"])
            .arg(&copy)
            .output()
            .unwrap();
        let real: serde_json::Value = serde_json::from_slice(&repaired.stdout).unwrap();
        let left = check(&path, Repair::All);
        // The flags follow from the refcounts, so they do not count.
        assert_eq!(
            (left.corruptions, Some(left.corruptions_fixed)),
            (0, real["corruptions-fixed"].as_u64())
        );
        assert_eq!(Map::open(&path).number(72) & 1, 0, "the mark is gone");
        qemu_check(&path);
        for line in ["read -P 1 0 200k", "read -P 0 200k 9m", "read -P 2 10M 3M"] {
            let said = run("qemu-io", ["-r", "-c", line, path.to_str().unwrap()]);
            assert!(!said.contains("failed"), "{said}");
        }
    }
}

#[test]
fn new_image_is_clean_and_raw_is_unsupported() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk");
    drop(block::create(&path, block::ImageFormat::Qcow2, 1 << 30).unwrap());
    let device = block::open(&path, &OpenOptions::default()).unwrap();
    device.write_at(&[1; 100_000], 77_777).unwrap();
    device.flush().unwrap();
    let error = block::tools::check(&path, None, Repair::Nothing, &mut |_| {}).unwrap_err();
    assert_eq!(error.errno(), folio::Errno::BUSY);
    drop(device);
    let report = check(&path, Repair::Nothing);
    assert_eq!(
        (report.leaks, report.corruptions, report.allocated_clusters),
        (0, 0, 2)
    );
    let raw = Some(block::ImageFormat::Raw);
    let error = block::tools::check(&path, raw, Repair::Nothing, &mut |_| {}).unwrap_err();
    assert_eq!(error.errno(), folio::Errno::OPNOTSUPP);
}

/// Random damage: the check ends without a panic, and a repair never adds errors.
#[test]
fn flipped_bits_are_reported() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new_in("/dev/shm")
        .or_else(|_| TempDir::new())
        .unwrap();
    let path = sample(folder.path(), "-o cluster_size=512");
    let good = std::fs::read(&path).unwrap();
    let mut random = Random::new(8);
    let places: Vec<usize> = (0..112)
        .chain((0..300).map(|_| random.below(good.len() as u64) as usize))
        .collect();
    for at in places {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << random.below(8);
        std::fs::write(&path, &bytes).unwrap();
        let Ok(found) = block::tools::check(&path, None, Repair::Nothing, &mut |_| {}) else {
            continue;
        };
        let Ok(left) = block::tools::check(&path, None, Repair::All, &mut |_| {}) else {
            continue;
        };
        assert!(
            left.corruptions <= found.corruptions,
            "byte {at}: {found:?}, then {left:?}"
        );
    }
}
