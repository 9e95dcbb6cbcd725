//! `bitmap` beside qemu-img's: the same bitmaps with the same bits.

use super::qemu_img::{Pair, words};
use super::support::requires;
use super::support::tools::qemu_check;
use std::process::Command;

impl Pair {
    /// Asserts that an image of both folders has the same bitmaps, by their names, flags and bits.
    /// Each bitmap must read equally in the image that the other program wrote.
    #[track_caller]
    pub(super) fn same_bitmaps(&self, name: &str) {
        qemu_check(&self.path("own", name));
        let [own, real] = ["own", "real"].map(|side| bitmaps(&self.path(side, name)));
        assert_eq!(own, real, "{name}");
    }
}

/// The bitmaps of an image as the format's specification describes them: name, flags,
/// granularity, and the blocks whose bits are set.
fn bitmaps(path: &std::path::Path) -> Vec<(String, u32, u8, Vec<usize>)> {
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize, len: usize| {
        let digits = bytes[at..at + len].iter();
        digits.fold(0usize, |value, byte| value << 8 | usize::from(*byte))
    };
    let (disk, cluster) = (number(24, 8), 1usize << number(20, 4));
    let mut at = number(100, 4);
    let mut found = Vec::new();
    while number(at, 4) != 0 {
        if number(at, 4) == 0x2385_2875 {
            assert_eq!(number(88, 8) & 1, 1, "the autoclear bit");
            let (count, mut entry) = (number(at + 8, 4), number(at + 24, 8));
            for _ in 0..count {
                let (name_len, extra) = (number(entry + 18, 2), number(entry + 20, 4));
                let name = &bytes[entry + 24 + extra..][..name_len];
                let granularity = number(entry + 17, 1);
                let blocks = disk.div_ceil(1 << granularity);
                let (table, entries) = (number(entry, 8), number(entry + 8, 4));
                assert_eq!(entries, blocks.div_ceil(8).div_ceil(cluster));
                let is_set = |block: &usize| {
                    let (piece, bit) = (block / (cluster * 8), block % (cluster * 8));
                    match number(table + piece * 8, 8) {
                        0 => false,
                        1 => true,
                        at => bytes[at + bit / 8] >> (bit % 8) & 1 != 0,
                    }
                };
                found.push((
                    String::from_utf8(name.to_vec()).unwrap(),
                    number(entry + 12, 4) as u32,
                    granularity as u8,
                    (0..blocks).filter(is_set).collect(),
                ));
                entry += (24 + name_len + extra).next_multiple_of(8);
            }
        }
        at = (at + 8 + number(at + 4, 4)).next_multiple_of(8);
    }
    found.sort();
    found
}

#[test]
fn bitmap_actions_match_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in ["cluster_size=64k,extended_l2=on", "cluster_size=512"] {
        let pair = Pair::new();
        let create = format!("create -q -f qcow2 -o {options} a.qcow2 9M");
        pair.both("qemu-img", &words(&create));
        for (line, write) in [
            ("--add a.qcow2 one", "write -P 1 0 1M"),
            ("--add -g 4k --disable a.qcow2 fine", "write -P 2 3M 100k"),
            ("--add -g 512 a.qcow2 finest", "write -P 3 3000k 512"),
            (
                "--add --granularity=1M -f qcow2 a.qcow2 coarse",
                "write -P 4 7M 2M",
            ),
            ("--merge one a.qcow2 fine", "write 8M 64k"),
            ("--merge finest --merge coarse a.qcow2 fine", "write 0 64k"),
            ("--merge fine a.qcow2 coarse", "write 0 64k"),
            ("--disable a.qcow2 one", "write -P 5 5M 64k"),
            ("--enable a.qcow2 one", "write -P 6 6M 64k"),
            ("--clear a.qcow2 finest", "write -P 6 1000k 3k"),
            (
                "--clear --merge fine --disable a.qcow2 coarse",
                "write 0 64k",
            ),
            ("--remove a.qcow2 fine", "write -P 7 4M 64k"),
            ("--add a.qcow2 fine", "write -P 7 2M 64k"),
        ] {
            pair.same(&words(&format!("bitmap {line}")));
            pair.same_bitmaps("a.qcow2");
            pair.both("qemu-io", &["-c", write, "a.qcow2"]);
            pair.same_bitmaps("a.qcow2");
        }
        for name in ["one", "fine", "finest", "coarse"] {
            pair.same(&["bitmap", "--remove", "a.qcow2", name]);
            pair.same_bitmaps("a.qcow2");
        }
        pair.both("qemu-io", &["-c", "write -P 1 0 1M", "a.qcow2"]);
        pair.same_image("a.qcow2");
    }
}

#[test]
fn bitmap_merges_from_another_image() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    for name in ["a.qcow2", "b.qcow2"] {
        pair.both("qemu-img", &["create", "-q", "-f", "qcow2", name, "9M"]);
        pair.both(
            "qemu-img",
            &["bitmap", "--add", "-g", "32k", name, "changed"],
        );
    }
    pair.both("qemu-io", &["-c", "write 1M 100k", "a.qcow2"]);
    pair.both("qemu-io", &["-c", "write 5M 3M", "b.qcow2"]);
    pair.same(&words(
        "bitmap --merge changed -b b.qcow2 -F qcow2 a.qcow2 changed",
    ));
    pair.same(&words(
        "bitmap --add --merge changed -b b.qcow2 a.qcow2 copy",
    ));
    pair.same_bitmaps("a.qcow2");
    pair.same_bitmaps("b.qcow2");
    // The header's sectors: the bitmaps extension moves behind a backing file's format.
    pair.both(
        "qemu-img",
        &words("create -q -f qcow2 -b a.qcow2 -F qcow2 over.qcow2"),
    );
    pair.same(&words("bitmap --add over.qcow2 first"));
    pair.same(&words("bitmap --add over.qcow2 second"));
    pair.same_bitmaps("over.qcow2");
    pair.same(&["rebase", "-u", "-b", "", "over.qcow2"]);
    pair.same(&words("bitmap --remove over.qcow2 first"));
    pair.same_bitmaps("over.qcow2");
}

#[test]
fn invalid_bitmap_action_changes_nothing() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    for line in [
        "create -q -f qcow2 a.qcow2 9M",
        "bitmap --add a.qcow2 one",
        "bitmap --add a.qcow2 broken",
        "create -q -f qcow2 small.qcow2 1M",
        "bitmap --add small.qcow2 one",
        "create -q -f qcow2 -o compat=0.10 old.qcow2 1M",
        "create -q -f qcow2 zero.qcow2 0",
        "create -q -f raw r.raw 1M",
    ] {
        pair.both("qemu-img", &words(line));
    }
    for side in ["own", "real"] {
        mark_in_use(&pair.path(side, "a.qcow2"), b"broken");
    }
    let before = std::fs::read(pair.path("own", "a.qcow2")).unwrap();
    let long = format!("bitmap --add a.qcow2 {}", "x".repeat(1024));
    for line in [
        "bitmap --add a.qcow2 one",
        "bitmap --add -g 3k a.qcow2 new",
        "bitmap --add -g 256 a.qcow2 new",
        "bitmap --add -g 4G a.qcow2 new",
        "bitmap --remove a.qcow2 none",
        "bitmap --clear a.qcow2 none",
        "bitmap --enable a.qcow2 none",
        "bitmap --disable a.qcow2 none",
        "bitmap --merge none a.qcow2 one",
        "bitmap a.qcow2 one",
        "bitmap --add --remove a.qcow2 one",
        "bitmap -g 4k --clear a.qcow2 one",
        "bitmap -b a.qcow2 --clear a.qcow2 one",
        "bitmap --merge one -F qcow2 a.qcow2 one",
        "bitmap --merge one -F qcow2 -b small.qcow2 a.qcow2 one",
        "bitmap --merge one -F raw -b r.raw a.qcow2 one",
        "bitmap --merge one -b none a.qcow2 one",
        "bitmap --add a.qcow2",
        "bitmap --add a.qcow2 x y",
        "bitmap --add none x",
        "bitmap --add -f raw r.raw x",
        "bitmap --add old.qcow2 x",
        "bitmap --enable a.qcow2 broken",
        "bitmap --clear a.qcow2 broken",
        "bitmap --merge broken a.qcow2 one",
        "bitmap --merge one a.qcow2 broken",
        &long,
    ] {
        pair.same(&words(line));
        assert!(
            std::fs::read(pair.path("own", "a.qcow2")).unwrap() == before,
            "{line}"
        );
    }
    pair.same(&["bitmap", "--add", "a.qcow2", ""]);
    // qemu-img reports success, and loses the bitmap.
    let own = pair.run("own", &words("bitmap --add zero.qcow2 x"));
    assert_eq!(own.status.code(), Some(1));
    pair.same(&words("bitmap --remove a.qcow2 broken"));
    pair.same_bitmaps("a.qcow2");
}

/// Sets the in-use flag of a bitmap's entry, which is 8 bytes before the end of its fixed part.
pub(super) fn mark_in_use(path: &std::path::Path, name: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    let directory = bytes
        .windows(name.len())
        .rposition(|found| found == name)
        .unwrap();
    bytes[directory - 24 + 15] |= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn bitmap_of_folio_has_its_own_exit_codes() {
    requires!(tool("qemu-img"));
    let folder = tempfile::TempDir::new().unwrap();
    let run = |line: &str| {
        let mut folio = Command::new(env!("CARGO_BIN_EXE_folio"));
        folio.current_dir(folder.path()).args(words(line));
        let output = folio.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(run("image create a.qcow2 1M").0, Some(0));
    assert_eq!(
        run("image bitmap --add a.qcow2 one"),
        (Some(0), String::new())
    );
    let (code, printed) = run("image bitmap --add a.qcow2 one");
    assert_eq!(code, Some(3), "{printed}");
    assert!(
        printed.contains("add bitmap \"one\": a.qcow2: "),
        "{printed}"
    );
    assert_eq!(run("image bitmap a.qcow2 one").0, Some(2));
}
