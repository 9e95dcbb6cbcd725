//! Internal snapshots, compared with qemu-img on a copy: equal results, and no error in either.

use crate::support::requires;
use crate::support::tools::{command, qemu_check, run, succeed};
use folio::block::qcow2::Repair;
use folio::block::{self, CreateOptions, ImageFormat, OpenOptions};
use folio::{Errno, Timespec};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn qemu_img(folder: &Path, line: &str) {
    succeed(
        command("qemu-img")
            .args(line.split_whitespace())
            .current_dir(folder),
    );
}

/// Two copies of an image: Folio changes one, qemu-img the other.
struct Pair {
    folder: TempDir,
    options: String,
}

impl Pair {
    fn new(options: &str) -> Self {
        let folder = TempDir::new().unwrap();
        qemu_img(
            folder.path(),
            &format!("create -f qcow2 {options} ours.qcow2 5M"),
        );
        let this = Self {
            folder,
            options: options.to_owned(),
        };
        run(
            "qemu-io",
            [
                "-c",
                "write -P 1 0 3M",
                "-c",
                "write -P 2 4M 300k",
                this.text("ours"),
            ],
        );
        std::fs::copy(this.path("ours"), this.path("theirs")).unwrap();
        this
    }

    fn path(&self, program: &str) -> PathBuf {
        self.folder.path().join(format!("{program}.qcow2"))
    }

    fn text(&self, program: &str) -> &'static str {
        // Leaks a few short strings, once for each test.
        Box::leak(
            self.path(program)
                .to_str()
                .unwrap()
                .to_owned()
                .into_boxed_str(),
        )
    }

    fn write(&self, line: &str) {
        run("qemu-io", ["-c", line, self.text("theirs")]);
        let words: Vec<&str> = line.split(' ').collect();
        let size = |text: &str| match text.strip_suffix('k') {
            Some(number) => number.parse::<u64>().unwrap() << 10,
            None => text.strip_suffix('M').unwrap().parse::<u64>().unwrap() << 20,
        };
        let device = block::open(self.path("ours"), &OpenOptions::default()).unwrap();
        let bytes = vec![words[2].parse::<u8>().unwrap(); size(words[4]) as usize];
        device.write_at(&bytes, size(words[3])).unwrap();
        device.flush().unwrap();
    }

    fn create(&self, name: &str) {
        block::tools::create_snapshot(
            self.path("ours"),
            None,
            name,
            Timespec::new(1_700_000_000, 5),
        )
        .unwrap();
        qemu_img(
            self.folder.path(),
            &format!("snapshot -c {name} theirs.qcow2"),
        );
        self.same();
    }

    fn apply(&self, which: &str) {
        block::tools::apply_snapshot(self.path("ours"), None, which).unwrap();
        qemu_img(
            self.folder.path(),
            &format!("snapshot -a {which} theirs.qcow2"),
        );
        self.same();
    }

    fn delete(&self, name: &str) {
        block::tools::delete_snapshot(self.path("ours"), None, name).unwrap();
        qemu_img(
            self.folder.path(),
            &format!("snapshot -d {name} theirs.qcow2"),
        );
        self.same();
    }

    #[track_caller]
    fn same(&self) {
        let ours = self.path("ours");
        qemu_check(&ours);
        let report = block::tools::check(&ours, None, Repair::Nothing, &mut |_| {}).unwrap();
        assert_eq!(
            (report.leaks, report.corruptions, report.check_errors),
            (0, 0, 0),
            "{}",
            self.options
        );
        qemu_img(self.folder.path(), "compare -s ours.qcow2 theirs.qcow2");
        let list = |program| -> Vec<(String, String)> {
            let found = block::tools::snapshots(self.path(program), None, false).unwrap();
            found
                .into_iter()
                .map(|snapshot| (snapshot.id, snapshot.name))
                .collect()
        };
        assert_eq!(list("ours"), list("theirs"));
        // The content of each snapshot, read by QEMU.
        for (_, name) in list("ours") {
            for program in ["ours", "theirs"] {
                let line =
                    format!("convert -l snapshot.name={name} -O raw {program}.qcow2 {program}.raw");
                qemu_img(self.folder.path(), &line);
            }
            let read = |program: &str| {
                std::fs::read(self.folder.path().join(format!("{program}.raw"))).unwrap()
            };
            assert!(
                read("ours") == read("theirs"),
                "{}: snapshot {name}",
                self.options
            );
        }
    }
}

#[test]
fn snapshot_operations_match_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in [
        "-o cluster_size=64k",
        "-o cluster_size=4k",
        "-o cluster_size=512",
        "-o compat=0.10",
        "-o refcount_bits=4",
        "-o refcount_bits=64,cluster_size=1k",
        "-o lazy_refcounts=on",
    ] {
        let pair = Pair::new(options);
        pair.create("one");
        pair.write("write -P 3 1M 700k");
        pair.create("two");
        pair.write("write -P 4 2M 2M");
        pair.apply("one");
        pair.write("write -P 5 100k 100k");
        pair.apply("2");
        pair.delete("one");
        pair.write("write -P 6 0k 2M");
        pair.create("three");
        pair.apply("two");
        pair.delete("two");
        pair.delete("three");
    }
}

#[test]
fn snapshots_share_subclusters_and_compressed() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at / 5000) as u8).collect();
    std::fs::write(folder.path().join("source.raw"), &bytes).unwrap();
    for options in ["-c", "-c -o cluster_size=4k", "-o extended_l2=on"] {
        qemu_img(
            folder.path(),
            &format!("convert -f raw -O qcow2 {options} source.raw disk.qcow2"),
        );
        let path = folder.path().join("disk.qcow2");
        block::tools::create_snapshot(&path, None, "one", Timespec::new(1, 0)).unwrap();
        qemu_check(&path);
        run("qemu-io", ["-c", "write -P 1 0 1M", path.to_str().unwrap()]);
        qemu_check(&path);
        block::tools::apply_snapshot(&path, None, "one").unwrap();
        qemu_check(&path);
        qemu_img(
            folder.path(),
            "compare -f qcow2 -F raw disk.qcow2 source.raw",
        );
        block::tools::delete_snapshot(&path, None, "1").unwrap();
        qemu_check(&path);
        qemu_img(
            folder.path(),
            "compare -f qcow2 -F raw disk.qcow2 source.raw",
        );
    }
}

#[test]
fn apply_restores_the_disk_size() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new("-o cluster_size=4k");
    pair.create("small");
    for program in ["ours", "theirs"] {
        qemu_img(pair.folder.path(), &format!("resize {program}.qcow2 40M"));
    }
    pair.write("write -P 9 30M 1M");
    pair.create("large");
    pair.apply("small");
    pair.apply("large");
    pair.delete("small");
    pair.delete("large");
}

#[test]
fn rejected_operations_change_nothing() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new("-o refcount_bits=1");
    let path = pair.path("ours");
    let before = std::fs::read(&path).unwrap();
    let refused = |done: folio::Result<()>, words: &str| {
        let said = done.unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    };
    let now = Timespec::new(1, 0);
    refused(
        block::tools::create_snapshot(&path, None, "one", now),
        "than 1 bits count",
    );
    refused(
        block::tools::apply_snapshot(&path, None, "one"),
        "no snapshot \"one\"",
    );
    refused(
        block::tools::delete_snapshot(&path, None, "1"),
        "no snapshot \"1\"",
    );
    refused(
        block::tools::create_snapshot(&path, None, &"x".repeat(256), now),
        "longer than 255 bytes",
    );
    let after = std::fs::read(&path).unwrap();
    assert!(
        after.starts_with(&before[..64 << 10])
            && block::tools::snapshots(&path, None, false)
                .unwrap()
                .is_empty()
    );
    qemu_check(&path);
    refused(
        block::tools::create_snapshot(&path, Some(block::ImageFormat::Raw), "one", now),
        "no snapshots",
    );
    let device = block::open(&path, &OpenOptions::default()).unwrap();
    refused(
        block::tools::create_snapshot(&path, None, "one", now),
        "in use",
    );
    drop(device);
    // An image with leaks is accepted; one with any other error is rejected.
    let mut bytes = before;
    bytes[48..56].fill(0);
    std::fs::write(&path, bytes).unwrap();
    refused(
        block::tools::create_snapshot(&path, None, "one", now),
        "--repair all",
    );
}

/// More snapshots than the clusters of the first refcount block, so the refcount tree grows.
#[test]
fn many_snapshots_grow_the_refcount_tree() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new("-o cluster_size=512,refcount_bits=16");
    let path = pair.path("ours");
    for index in 0..40 {
        let device = block::open(&path, &OpenOptions::default()).unwrap();
        device
            .write_at(&[index as u8; 5000], index * 100_000)
            .unwrap();
        device.flush().unwrap();
        drop(device);
        block::tools::create_snapshot(&path, None, &format!("s{index}"), Timespec::new(1, 0))
            .unwrap();
    }
    qemu_check(&path);
    for index in (0..40).step_by(3) {
        block::tools::delete_snapshot(&path, None, &format!("s{index}")).unwrap();
    }
    qemu_check(&path);
    let report = block::tools::check(&path, None, Repair::Nothing, &mut |_| {}).unwrap();
    assert_eq!((report.leaks, report.corruptions), (0, 0));
}

/// A cluster whose refcount is at the maximum cannot be shared, with 64 bits either.
#[test]
fn snapshot_beyond_a_full_refcount_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("full.qcow2");
    for refcount_bits in [8, 64] {
        let options = CreateOptions {
            cluster_bytes: 4096,
            refcount_bits,
            ..CreateOptions::default()
        };
        block::create_with(&path, ImageFormat::Qcow2, 1 << 20, &options).unwrap();
        let device = block::open(&path, &OpenOptions::default()).unwrap();
        device.write_at(&[7; 4096], 0).unwrap();
        device.flush().unwrap();
        drop(device);
        let bytes = fs::read(&path).unwrap();
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        // Offset of the data by the L1 and the L2 table, without the flags.
        let place = |at: usize| number(at) & 0x00ff_ffff_ffff_fe00;
        let data = place(place(number(40)));
        let refcount = number(number(48)) + data / 4096 * (refcount_bits as usize / 8);
        let file = File::options().write(true).open(&path).unwrap();
        let full = [0xff; 8];
        let full = &full[..refcount_bits as usize / 8];
        file.write_all_at(full, refcount as u64).unwrap();
        let before = fs::read(&path).unwrap();
        let error =
            block::tools::create_snapshot(&path, None, "s", Timespec::new(1, 0)).unwrap_err();
        assert_eq!(error.errno(), Errno::FBIG, "{refcount_bits} bits: {error}");
        let after = fs::read(&path).unwrap();
        let place = refcount..refcount + full.len();
        assert!(
            after[place.clone()] == before[place],
            "{refcount_bits} bits"
        );
        fs::remove_file(&path).unwrap();
    }
}
