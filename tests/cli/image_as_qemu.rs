//! States of images in which Folio and qemu-img differed: both print the same, and store the same.

use crate::cli::TestDir;
use crate::support::tools::{command, qemu_check, succeed};
use crate::support::{report_skip, requires};
use std::fs;

impl TestDir {
    #[track_caller]
    fn qemu_io(&self, image: &str, commands: &[&str]) {
        succeed(
            command("qemu-io")
                .args(commands.iter().flat_map(|line| ["-c", line]))
                .arg(image)
                .current_dir(self.folder.path()),
        );
    }

    fn len(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).unwrap().len()
    }
}

#[test]
fn empty_image_leaks_no_cluster() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    fs::write(dir.path("empty.raw"), "").unwrap();
    for (name, line) in [
        ("a.qcow2", "create -f qcow2 a.qcow2 0"),
        ("b.qcow2", "create -f qcow2 -o cluster_size=512 b.qcow2 0"),
        ("c.qcow2", "create -f qcow2 -o compat=0.10 c.qcow2 0"),
        ("d.qcow2", "convert -O qcow2 empty.raw d.qcow2"),
    ] {
        dir.image(line);
        qemu_check(&dir.path(name));
        dir.same(&format!("check --output=json {name}"));
        dir.same(&format!("info --output=json {name}"));
        dir.image(&format!("resize {name} 3M"));
        dir.qemu_io(name, &["read -P 0 0 3M", "write -P 5 1M 64k"]);
        dir.image(&format!("resize {name} 5M"));
        dir.qemu_io(name, &["read -P 5 1M 64k", "read -P 0 3M 2M"]);
        qemu_check(&dir.path(name));
    }
}

#[test]
fn raw_data_file_is_visible_through_the_image() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    for options in ["", ",extended_l2=on", ",cluster_size=4k"] {
        for name in ["a.qcow2", "d.raw"] {
            let _ = fs::remove_file(dir.path(name));
        }
        dir.image(&format!(
            "create -f qcow2 -o data_file=d.raw,data_file_raw=on{options} a.qcow2 1000K"
        ));
        let mut bytes = fs::read(dir.path("d.raw")).unwrap();
        bytes[70_000..75_000].fill(9);
        fs::write(dir.path("d.raw"), &bytes).unwrap();
        dir.qemu_io("a.qcow2", &["read -P 9 70000 5000", "read -P 0 0 70000"]);
        dir.same("map --output=json a.qcow2");
        dir.image("resize a.qcow2 2M");
        bytes = fs::read(dir.path("d.raw")).unwrap();
        assert_eq!(bytes.len(), 2 << 20);
        bytes[1_500_000..].fill(8);
        fs::write(dir.path("d.raw"), &bytes).unwrap();
        dir.qemu_io("a.qcow2", &["read -P 8 1500000 64k"]);
        dir.qemu_img("compare -f raw -F qcow2 d.raw a.qcow2");
        dir.qemu_img("check a.qcow2");
    }
    dir.image_fails(
        "create -f qcow2 -o data_file_raw=on b.qcow2 1M",
        2,
        "requires the name of the data file",
    );
    assert!(!dir.path("b.qcow2").exists());
}

#[test]
fn force_replaces_the_data_file_last() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    let create = "-f qcow2 -o data_file=d.raw,data_file_raw=on a.qcow2 1M";
    dir.image(&format!("create {create}"));
    dir.qemu_io("a.qcow2", &["write -P 7 0 1M"]);
    let old = fs::read(dir.path("a.qcow2")).unwrap();
    dir.image_fails(&format!("create {create}"), 1, "use --force");
    // Nothing is lost where the new image cannot be created.
    dir.image_fails(
        "create --force -f qcow2 -o data_file=d.raw,cluster_size=512 a.qcow2 1P",
        3,
        "too large",
    );
    fs::create_dir(dir.path("folder")).unwrap();
    dir.image_fails(
        "create --force -f qcow2 -o data_file=folder a.qcow2 1M",
        3,
        "File exists",
    );
    dir.image_fails(
        "create --force -f qcow2 -o data_file=a.qcow2 a.qcow2 1M",
        3,
        "in use",
    );
    assert!(fs::read(dir.path("a.qcow2")).unwrap() == old);
    assert!(fs::read(dir.path("d.raw")).unwrap() == vec![7; 1 << 20]);
    dir.image(&format!("create --force {create}"));
    dir.qemu_io("a.qcow2", &["read -P 0 0 1M"]);
    assert!(fs::read(dir.path("d.raw")).unwrap() == vec![0; 1 << 20]);
    dir.qemu_img("check a.qcow2");
}

#[test]
fn info_lists_snapshots_and_bitmaps() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    dir.image("create -f qcow2 a.qcow2 4M");
    dir.qemu_img("snapshot -c theirs a.qcow2");
    dir.image("snapshot -c ours a.qcow2");
    dir.qemu_img("bitmap --add a.qcow2 every");
    dir.qemu_img("bitmap --add --disable -g 32k a.qcow2 frozen");
    for line in ["info a.qcow2", "info --output=json a.qcow2"] {
        dir.same(line);
    }
    dir.same("snapshot -l a.qcow2");
    // A bitmap that may lack changes.
    dir.image("resize a.qcow2 5M");
    for line in ["info a.qcow2", "info --output=json a.qcow2"] {
        dir.same(line);
    }
}

#[test]
fn map_of_preallocated_image_matches_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    for mode in ["metadata", "falloc", "full"] {
        dir.qemu_img(&format!(
            "create -q -f qcow2 -o preallocation={mode} a.qcow2 8M"
        ));
        for _ in 0..2 {
            dir.same("map --output=json a.qcow2");
            dir.qemu_io("a.qcow2", &["write -P 1 1M 64k", "write -z 2M 64k"]);
        }
        let rows = dir.image("map a.qcow2").lines().count();
        assert_eq!(rows, dir.qemu_img("map a.qcow2").lines().count(), "{mode}");
    }
    dir.qemu_img("create -q -f qcow2 -o extended_l2=on b.qcow2 4M");
    dir.qemu_io("b.qcow2", &["write -P 1 4k 4k", "write -P 2 1M 6k"]);
    dir.same("map --output=json b.qcow2");
    dir.qemu_img("create -q -f qcow2 -o extended_l2=on -b b.qcow2 -F qcow2 c.qcow2 6M");
    dir.qemu_io("c.qcow2", &["write -P 3 64k 2k", "write -P 4 5M 2k"]);
    dir.same("map --output=json c.qcow2");
    dir.image(
        "create -f qcow2 -o extended_l2=on,preallocation=metadata -b b.qcow2 -F qcow2 d.qcow2 6M",
    );
    dir.qemu_img("compare b.qcow2 d.qcow2");
    dir.same("map --output=json d.qcow2");
    qemu_check(&dir.path("d.qcow2"));
}

#[test]
fn converted_overlay_stores_the_difference() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    dir.image("create -f qcow2 base.qcow2 32M");
    dir.qemu_io("base.qcow2", &["write -P 1 0 20M", "write -P 2 25M 1000"]);
    dir.image("create -f qcow2 -b base.qcow2 -F qcow2 mid.qcow2 40M");
    dir.qemu_io("mid.qcow2", &["write -P 3 30M 64k", "write -P 4 36M 64k"]);
    dir.image("create -f qcow2 -b mid.qcow2 -F qcow2 top.qcow2 42M");
    dir.qemu_io(
        "top.qcow2",
        &[
            "write -P 5 1M 1M",
            "write -P 6 5000 100",
            "write -z 3M 2M",
            "write -P 7 41M 512",
        ],
    );
    dir.image("convert -O raw top.qcow2 flat.raw");
    dir.qemu_img("convert -O qcow2 base.qcow2 other.qcow2");
    dir.qemu_io("other.qcow2", &["write -P 9 2M 64k"]);
    for source in ["top.qcow2", "flat.raw"] {
        for base in ["mid.qcow2", "base.qcow2", "other.qcow2"] {
            for options in [
                "",
                "-c ",
                "-o cluster_size=4k ",
                "-o compat=0.10 ",
                "-S 0 -m 1 ",
            ] {
                dir.image(&format!(
                    "convert --force -O qcow2 {options}-b {base} -F qcow2 {source} out.qcow2"
                ));
                qemu_check(&dir.path("out.qcow2"));
                dir.qemu_img(&format!("compare out.qcow2 {source}"));
                // The difference is at most 4 MiB; the base stores 20 MiB.
                let is_small = dir.len("out.qcow2") < 5 << 20;
                let is_all_written = options.starts_with("-S 0");
                assert!(is_small || is_all_written, "{source} {base} {options}");
            }
        }
    }
    // The source itself.
    dir.image("convert --force -O qcow2 -b top.qcow2 top.qcow2 out.qcow2");
    assert!(dir.len("out.qcow2") < 1 << 20);
    dir.qemu_img("compare out.qcow2 top.qcow2");
}

#[test]
fn check_finds_what_qemu_refuses_to_open() {
    requires!(tool("qemu-img"));
    let dir = TestDir::new();
    let change = |name: &str, at: usize, bytes: &[u8]| {
        let mut image = fs::read(dir.path(name)).unwrap();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(dir.path(name), image).unwrap();
    };
    let code = |name: &str| {
        let mut check = command("qemu-img");
        let done = check.arg("check").arg(dir.path(name)).output().unwrap();
        done.status.code()
    };
    // A disk of 1 EiB with the L1 table of 4 GiB.
    dir.image("create -f qcow2 big.qcow2 4G");
    change("big.qcow2", 24, &(1u64 << 60).to_be_bytes());
    assert_eq!(code("big.qcow2"), Some(1));
    dir.image_fails("check big.qcow2", 1, "too big");
    // An entry without the disk's size: its extra data has 8 bytes.
    dir.image("create -f qcow2 short.qcow2 4M");
    dir.qemu_img("snapshot -c a short.qcow2");
    let image = fs::read(dir.path("short.qcow2")).unwrap();
    let table = u64::from_be_bytes(image[64..72].try_into().unwrap()) as usize;
    let id_and_name = image[table + 64..table + 66].to_vec();
    change("short.qcow2", table + 36, &8u32.to_be_bytes());
    change("short.qcow2", table + 48, &id_and_name);
    assert_eq!(code("short.qcow2"), Some(2));
    dir.image_fails("check short.qcow2", 2, "entry 0 is incomplete");
}

#[test]
fn contradicting_options_are_rejected() {
    requires!(tool("qemu-img"));
    let dir = TestDir::new();
    dir.image("create -f qcow2 a.qcow2 1M");
    for (line, words) in [
        ("create -f qcow2 -o size=1M b.qcow2 2M", "given twice"),
        (
            "convert -n -o cluster_size=4k -O qcow2 a.qcow2 a2.qcow2",
            "no effect with -n",
        ),
        (
            "convert -c -o preallocation=metadata -O qcow2 a.qcow2 b.qcow2",
            "cannot be preallocated",
        ),
        ("resize --shrink a.qcow2 0", "more than 0 bytes"),
    ] {
        dir.image_fails(line, 2, words);
    }
    assert!(!dir.path("b.qcow2").exists());
    // Type zlib with the incompatible feature bit for a compression type.
    let mut bytes = fs::read(dir.path("a.qcow2")).unwrap();
    bytes[79] |= 1 << 3;
    fs::write(dir.path("a.qcow2"), bytes).unwrap();
    dir.image_fails("info a.qcow2", 3, "compression type bit");
    let refused = command("qemu-img")
        .arg("info")
        .arg(dir.path("a.qcow2"))
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
}

#[test]
fn preallocation_takes_space_on_tmpfs() {
    let folder = tempfile::TempDir::new_in("/dev/shm");
    let Ok(folder) = folder else {
        report_skip("needs /dev/shm");
        return;
    };
    let path = |name: &str| folder.path().join(name).display().to_string();
    let own = |arguments: &[&str]| {
        let mut folio = std::process::Command::new(env!("CARGO_BIN_EXE_folio"));
        succeed(folio.arg("image").args(arguments));
    };
    let space = |name: &str| {
        let found = fs::metadata(path(name)).unwrap();
        std::os::unix::fs::MetadataExt::blocks(&found) * 512
    };
    for name in ["a.raw", "a.qcow2"] {
        own(&["create", "--preallocation", "falloc", &path(name), "1M"]);
        assert!(space(name) >= 1 << 20, "{name}: {}", space(name));
        own(&["resize", "--preallocation", "falloc", &path(name), "2M"]);
        assert!(space(name) >= 2 << 20, "{name}: {}", space(name));
    }
}

/// Writes bytes into a file of the folder.
fn poke(dir: &TestDir, name: &str, at: u64, bytes: &[u8]) {
    let file = fs::File::options()
        .write(true)
        .open(dir.path(name))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
}

/// Reads a number in a file of the folder.
fn peek(dir: &TestDir, name: &str, at: u64) -> u64 {
    let bytes = fs::read(dir.path(name)).unwrap();
    u64::from_be_bytes(bytes[at as usize..][..8].try_into().unwrap())
}

/// Bytes of a snapshot's entry without names and extra data.
const ENTRY_BYTES: usize = 40;
/// Place of the snapshot table in the header.
const SNAPSHOTS_AT: u64 = 64;

#[test]
fn check_repairs_entries_of_the_snapshot_table() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for (extra_len, what) in [(8u32, "Repairing"), (2048, "Discarding")] {
        let dir = TestDir::new();
        dir.qemu_img("create -q -f qcow2 a 1M");
        dir.qemu_io("a", &["write -P 7 0 64k"]);
        dir.qemu_img("snapshot -c s a");
        dir.qemu_io("a", &["write -P 8 0 64k"]);
        // The entry is stored again, with extra data of another length.
        let at = peek(&dir, "a", SNAPSHOTS_AT);
        let bytes = fs::read(dir.path("a")).unwrap();
        let mut entry = bytes[at as usize..][..ENTRY_BYTES].to_vec();
        entry[36..40].copy_from_slice(&extra_len.to_be_bytes());
        entry.resize(ENTRY_BYTES + extra_len as usize, 0);
        if extra_len > 8 {
            entry[48..56].copy_from_slice(&(1u64 << 20).to_be_bytes());
        }
        entry.extend(b"1s");
        poke(&dir, "a", at, &entry);
        let output = dir.command(&["image", "check", "-r", "all", "a"]).output();
        let output = output.unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && words.contains(what), "{words}");
        dir.qemu_img("check a");
        dir.qemu_img("snapshot -a s a");
        dir.qemu_io("a", &["read -P 7 0 64k"]);
        qemu_check(&dir.path("a"));
    }
}

#[test]
fn check_counts_flags_that_follow_from_refcounts() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    for name in ["a", "b"] {
        dir.qemu_img(&format!("create -q -f qcow2 {name} 1M"));
        dir.qemu_io(name, &["write 0 128k"]);
        // The second entry names the cluster of the first one.
        let l2 = peek(&dir, name, peek(&dir, name, 40)) & !(1 << 63);
        let first = peek(&dir, name, l2);
        poke(&dir, name, l2 + 8, &first.to_be_bytes());
        // An autoclear feature of a later version.
        poke(&dir, name, 88, &(1u64 << 63).to_be_bytes());
    }
    let real = command("qemu-img")
        .args(["check", "-r", "all", "--output=json", "a"])
        .current_dir(dir.folder.path())
        .output()
        .unwrap();
    let own = dir.command(&["image", "check", "-r", "all", "--output=json", "b"]);
    let own = { own }.output().unwrap();
    let [own, real] = [own, real].map(|output| {
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (
            found["corruptions-fixed"].clone(),
            found["leaks-fixed"].clone(),
        )
    });
    assert_eq!(own, real);
    assert_eq!((peek(&dir, "a", 88), peek(&dir, "b", 88)), (0, 0));
    qemu_check(&dir.path("b"));
}
