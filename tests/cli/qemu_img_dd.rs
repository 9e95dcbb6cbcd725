//! `dd` beside qemu-img's.

use super::TestDir;
use super::qemu_img::{Pair, words};
use super::support::requires;

#[test]
fn dd_copies_the_same_part() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at / 7 % 251) as u8).collect();
    pair.file("in.raw", &bytes);
    pair.both("qemu-img", &words("create -q -f qcow2 a.qcow2 3M"));
    pair.both("qemu-io", &["-c", "write -P 7 1M 1M", "a.qcow2"]);
    for line in [
        "if=in.raw of=out.raw",
        "if=in.raw of=out.raw bs=1000 count=3",
        "if=in.raw of=out.raw bs=1000 skip=3",
        "if=in.raw of=out.raw bs=512 skip=3 count=20",
        "if=in.raw of=out.raw bs=1M skip=0 count=20",
        "if=in.raw of=out.raw skip=195",
        "if=in.raw of=out.raw skip=196",
        "if=in.raw of=out.raw skip=1M",
        "if=in.raw of=out.raw count=0",
        "-f raw -O qcow2 if=in.raw of=out.qcow2 bs=1M",
        "-O qcow2 if=in.raw of=out.qcow2 bs=1000 count=1",
        "-U if=a.qcow2 of=out.raw bs=64k skip=10",
        "-f qcow2 -O qcow2 if=a.qcow2 of=out.qcow2 bs=100k skip=9 count=17",
        "if=none of=x if=in.raw of=out.raw",
        "--image-opts if=driver=qcow2,file.filename=a.qcow2 of=out.raw",
    ] {
        pair.same(&words(&format!("dd {line}")));
        let is_qcow2 = line.contains("-O qcow2");
        pair.same_image(if is_qcow2 { "out.qcow2" } else { "out.raw" });
    }
}

#[test]
fn invalid_dd_creates_nothing() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    pair.file("in.raw", &[7; 1024]);
    for line in [
        "dd",
        "dd if=in.raw",
        "dd of=x",
        "dd if=in.raw of=x foo",
        "dd if=in.raw of=x foo=1",
        "dd if=in.raw of=x bs=0",
        "dd if=in.raw of=x bs=3G",
        "dd if=in.raw of=x bs=y",
        "dd if=in.raw of=x count=-1",
        "dd if=none of=x",
        "dd -f qcow2 if=in.raw of=x",
        "dd -f bogus if=in.raw of=x",
        "dd -O bogus if=in.raw of=x",
        "dd -n if=in.raw of=x",
    ] {
        pair.same(&words(line));
        assert!(!pair.path("own", "x").exists(), "{line}");
    }
}

#[test]
fn dd_of_folio_counts_behind_the_skipped_part() {
    let dir = TestDir::new();
    let bytes: Vec<u8> = (0..64u8).flat_map(|byte| [byte; 512]).collect();
    std::fs::write(dir.path("in.raw"), &bytes).unwrap();
    dir.ok(&[
        "image",
        "dd",
        "if=in.raw",
        "of=out.raw",
        "skip=3",
        "count=5",
    ]);
    assert!(std::fs::read(dir.path("out.raw")).unwrap() == bytes[3 * 512..8 * 512]);
    dir.fails(
        &["image", "dd", "if=in.raw", "of=out.raw"],
        1,
        "use --force",
    );
    dir.ok(&["image", "dd", "--force", "if=in.raw", "of=out.raw"]);
    assert!(std::fs::read(dir.path("out.raw")).unwrap() == bytes);
}
