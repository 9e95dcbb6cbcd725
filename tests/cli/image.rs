//! `folio image` beside `qemu-img`: the same arguments give the same output.

use crate::cli::TestDir;
use crate::support::requires;
use crate::support::tools::{command, qemu_check, succeed, text};
use serde_json::Value;
use std::os::unix::fs::FileExt;

impl TestDir {
    pub(super) fn qemu_img(&self, line: &str) -> String {
        text(&succeed(
            command("qemu-img")
                .args(line.split(' '))
                .current_dir(self.folder.path()),
        ))
    }

    /// Asserts that both programs print the same for the same arguments.
    #[track_caller]
    pub(super) fn same(&self, line: &str) {
        let ours = self.ok(&["image"]
            .into_iter()
            .chain(line.split(' '))
            .collect::<Vec<_>>());
        let theirs = self.qemu_img(line);
        match serde_json::from_str::<Value>(&theirs) {
            Ok(theirs) => assert_eq!(
                serde_json::from_str::<Value>(&ours).unwrap(),
                theirs,
                "{line}"
            ),
            Err(_) => assert_eq!(ours, theirs, "{line}"),
        }
    }

    pub(super) fn image(&self, line: &str) -> String {
        self.ok(&["image"]
            .into_iter()
            .chain(line.split(' '))
            .collect::<Vec<_>>())
    }

    #[track_caller]
    pub(super) fn image_fails(&self, line: &str, code: i32, words: &str) {
        self.fails(
            &["image"]
                .into_iter()
                .chain(line.split(' '))
                .collect::<Vec<_>>(),
            code,
            words,
        );
    }
}

/// Creates a raw base, an overlay on it, and an overlay on that.
fn chain(dir: &TestDir) {
    let base = std::fs::File::create(dir.path("base.raw")).unwrap();
    base.set_len(1 << 20).unwrap();
    base.write_all_at(&[7; 5000], 200_000).unwrap();
    dir.image("create -f qcow2 -b base.raw -F raw middle.qcow2 2M");
    let io = |words: &[&str], image: &str| {
        succeed(command("qemu-io").args(words).arg(dir.path(image)));
    };
    io(
        &[
            "-c",
            "write -z 128k 128k",
            "-c",
            "write -P 5 1M 64k",
            "-c",
            "write -z 1280k 64k",
        ],
        "middle.qcow2",
    );
    dir.image("create -f qcow2 -b middle.qcow2 top.qcow2 3M");
    io(&["-c", "write -P 6 512k 64k"], "top.qcow2");
}

#[test]
fn info_and_map_match_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    chain(&dir);
    dir.image("convert -c -O qcow2 top.qcow2 packed.qcow2");
    dir.image("create -f qcow2 -o compat=0.10,cluster_size=4k old.qcow2 10M");
    dir.image("create -f qcow2 -o refcount_bits=8,lazy_refcounts=on,compression_type=zstd new.qcow2 1500M");
    for image in [
        "base.raw",
        "middle.qcow2",
        "top.qcow2",
        "packed.qcow2",
        "old.qcow2",
        "new.qcow2",
    ] {
        dir.same(&format!("info {image}"));
        dir.same(&format!("info --output=json {image}"));
        dir.same(&format!("info --output=json --backing-chain {image}"));
        dir.same(&format!("info --backing-chain {image}"));
        dir.same(&format!("map --output=json {image}"));
        if image != "packed.qcow2" {
            dir.same(&format!("map {image}"));
        }
    }
    dir.image_fails("map packed.qcow2", 1, "compressed clusters");
    assert_eq!(
        dir.image("map --json top.qcow2"),
        dir.image("map --output=json top.qcow2")
    );
}

#[test]
fn compare_matches_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    chain(&dir);
    dir.image("convert -O qcow2 top.qcow2 same.qcow2");
    dir.image("convert -O qcow2 -o cluster_size=4k top.qcow2 other.qcow2");
    succeed(
        command("qemu-io")
            .args(["-c", "write -P 9 2000k 3k"])
            .arg(dir.path("other.qcow2")),
    );
    for line in [
        "same.qcow2 top.qcow2",
        "top.qcow2 other.qcow2",
        "base.raw top.qcow2",
        "-s base.raw top.qcow2",
    ] {
        let theirs = command("qemu-img")
            .arg("compare")
            .args(line.split(' '))
            .current_dir(dir.folder.path())
            .output();
        let words: Vec<_> = ["image", "compare"]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        let ours = dir.command(&words).output().unwrap();
        let theirs = theirs.unwrap();
        assert_eq!(
            (ours.status.code(), text(&ours)),
            (theirs.status.code(), text(&theirs)),
            "{line}"
        );
    }
    dir.image_fails("compare top.qcow2 nothing.qcow2", 2, "nothing.qcow2");
}

#[test]
fn convert_creates_complete_image_or_none() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    chain(&dir);
    for options in [
        "",
        "-c ",
        "-c -o compression_type=zstd ",
        "--sparse never ",
        "-m 3 -W -p ",
        "-t writeback ",
    ] {
        dir.image(&format!("convert -O qcow2 {options}top.qcow2 out.qcow2"));
        qemu_check(&dir.path("out.qcow2"));
        dir.qemu_img("compare out.qcow2 top.qcow2");
        std::fs::remove_file(dir.path("out.qcow2")).unwrap();
    }
    dir.image_fails(
        "convert -c top.qcow2 out.raw",
        2,
        "compression requires a qcow2 target",
    );
    std::fs::write(dir.path("out.raw"), "mine").unwrap();
    dir.image_fails("convert top.qcow2 out.raw", 1, "use --force to replace it");
    // The last L2 table of the source is invalid.
    let packed = dir.path("broken.qcow2");
    dir.image("convert -c -O qcow2 top.qcow2 broken.qcow2");
    let file = std::fs::File::options().write(true).open(&packed).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&[0xff; 65536], len - 65536).unwrap();
    dir.image_fails(
        "convert --force broken.qcow2 out.raw",
        3,
        ": broken.qcow2: qcow2: ",
    );
    assert_eq!(std::fs::read(dir.path("out.raw")).unwrap(), b"mine");
    dir.image_fails(
        "convert broken.qcow2 none.raw",
        3,
        ": broken.qcow2: qcow2: ",
    );
    assert!(!dir.path("none.raw").exists());
    let left: Vec<_> = std::fs::read_dir(dir.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().contains(".folio-")),
        "{left:?}"
    );
    dir.image("convert --force top.qcow2 out.raw");
    dir.qemu_img("compare -f raw -F qcow2 out.raw top.qcow2");
    // Overwrites an existing file, whatever it contains.
    std::fs::write(dir.path("used.raw"), vec![3; 4 << 20]).unwrap();
    dir.image("convert -n top.qcow2 used.raw");
    let used = std::fs::read(dir.path("used.raw")).unwrap();
    assert!(used[..3 << 20] == std::fs::read(dir.path("out.raw")).unwrap() && used[3 << 20] == 3);
    std::fs::write(dir.path("small.raw"), vec![3; 1 << 20]).unwrap();
    dir.image_fails(
        "convert -n top.qcow2 small.raw",
        3,
        "the target has 1048576 bytes",
    );
}

#[test]
fn backing_file_elsewhere_needs_permission() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("inner")).unwrap();
    std::fs::write(dir.path("base.raw"), vec![1; 1 << 20]).unwrap();
    dir.image("create -f qcow2 -b ../base.raw -F raw inner/top.qcow2");
    dir.image_fails("convert inner/top.qcow2 out.raw", 3, "--backing allow");
    dir.image_fails(
        "convert --backing deny inner/top.qcow2 out.raw",
        3,
        "not allowed",
    );
    dir.image_fails(
        "convert --backing dir=inner inner/top.qcow2 out.raw",
        3,
        "is outside the folder",
    );
    for policy in ["allow", "dir=."] {
        dir.image(&format!(
            "convert --force --backing {policy} inner/top.qcow2 out.raw"
        ));
        assert!(std::fs::read(dir.path("out.raw")).unwrap() == vec![1; 1 << 20]);
    }
    dir.image_fails(
        "create -f qcow2 -b base.raw -F raw -o preallocation=full x.qcow2",
        2,
        "needs extended L2 entries",
    );
    dir.image_fails("create -o cluster_size=4k x.raw 1M", 2, "cluster_size");
    dir.image_fails(
        "create -f qcow2 -o nonsense=1 x.qcow2 1M",
        2,
        "unknown option; expected one of",
    );
    dir.image_fails("create -f qcow2 x.qcow2", 2, "missing SIZE");
    assert!(!dir.path("x.qcow2").exists());
}
