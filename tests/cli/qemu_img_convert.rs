//! `convert` and `commit` beside qemu-img's: several sources, snapshots, damaged images, bitmaps,
//! deeper backing files, and progress on standard output.

use super::qemu_img::{Pair, words};
use super::qemu_img_bitmap::mark_in_use;
use super::support::requires;

#[test]
fn convert_concatenates_its_sources() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.file("odd.raw", &[7; 100_001]);
    pair.file("empty.raw", b"");
    pair.both("qemu-img", &words("create -q -f qcow2 a.qcow2 3M"));
    pair.both("qemu-io", &["-c", "write -P 1 1M 1M", "a.qcow2"]);
    for line in [
        "convert odd.raw odd.raw out.raw",
        "convert -O qcow2 odd.raw a.qcow2 empty.raw odd.raw out.qcow2",
        "convert -c -O qcow2 a.qcow2 odd.raw out.qcow2",
        "convert -O qcow2 -S 0 -W a.qcow2 a.qcow2 out.qcow2",
        "convert -f raw odd.raw a.qcow2 out.raw",
        "convert odd.raw -O qcow2 out.qcow2",
        "convert odd.raw -c a.qcow2 -O qcow2 odd.raw -q out.qcow2",
    ] {
        pair.same(&words(line));
        let name = line.rsplit(' ').next().unwrap();
        pair.same_image(name);
    }
    pair.same(&words(
        "convert -O qcow2 -B a.qcow2 -F qcow2 odd.raw odd.raw x.qcow2",
    ));
    pair.same(&words("convert -O qcow2 odd.raw none.raw x.qcow2"));
    assert!(!pair.path("own", "x.qcow2").exists());
}

#[test]
fn convert_copies_a_snapshot() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.file("base.raw", &[9; 1 << 20]);
    pair.both(
        "qemu-img",
        &words("create -q -f qcow2 -b base.raw -F raw a.qcow2 3M"),
    );
    for (write, tag) in [
        ("write -P 1 1M 1M", "first"),
        ("write -P 2 0 100k", "second"),
    ] {
        pair.both("qemu-io", &["-c", write, "a.qcow2"]);
        pair.both("qemu-img", &["snapshot", "-c", tag, "a.qcow2"]);
    }
    pair.both("qemu-io", &["-c", "write -P 3 0 3M", "a.qcow2"]);
    for choice in [
        "first",
        "2",
        "1",
        "snapshot.name=second",
        "snapshot.id=1",
        "snapshot.id=2,snapshot.name=second",
    ] {
        pair.same(&["convert", "-l", choice, "a.qcow2", "out.raw"]);
        pair.same_image("out.raw");
        pair.same(&[
            "convert",
            "-c",
            "-O",
            "qcow2",
            "-l",
            choice,
            "a.qcow2",
            "out.qcow2",
        ]);
        pair.same_image("out.qcow2");
    }
    // Over the image itself, whose present content differs. qemu-img stores too little here.
    for line in [
        "convert -l first -O raw a.qcow2 want.raw",
        "convert -O qcow2 -l first -B a.qcow2 -F qcow2 a.qcow2 over.qcow2",
        "compare want.raw over.qcow2",
    ] {
        assert!(pair.run("own", &words(line)).status.success(), "{line}");
    }
    pair.both("qemu-img", &words("convert -l first a.qcow2 want.raw"));
    pair.same_image("want.raw");
    for line in [
        "convert -l none a.qcow2 x.raw",
        "convert -l snapshot.id=1,snapshot.name=second a.qcow2 x.raw",
        "convert -l snapshot.bogus=1 a.qcow2 x.raw",
        "convert -l first a.qcow2 a.qcow2 x.raw",
        "convert -l first -f raw base.raw x.raw",
    ] {
        pair.same(&words(line));
        assert!(!pair.path("own", "x.raw").exists(), "{line}");
    }
}

#[test]
fn salvage_copies_zeros_for_unreadable_data() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    let bytes: Vec<u8> = (0..400_000u32).map(|at| (at / 64 % 251) as u8).collect();
    pair.file("plain.raw", &bytes);
    pair.both("qemu-img", &words("convert -c -O qcow2 plain.raw a.qcow2"));
    for side in ["own", "real"] {
        // The third compressed cluster, by its L2 entry.
        let path = pair.path(side, "a.qcow2");
        let mut image = std::fs::read(&path).unwrap();
        let number = |image: &[u8], at: usize| {
            u64::from_be_bytes(image[at..at + 8].try_into().unwrap()) as usize
        };
        let l2 = number(&image, number(&image, 40)) & 0x00ff_ffff_ffff_fe00;
        let host = number(&image, l2 + 16) & ((1 << 54) - 1);
        image[host..host + 64].fill(0xff);
        std::fs::write(path, image).unwrap();
    }
    pair.same(&words("convert -O raw a.qcow2 out.raw"));
    pair.same(&words("convert --salvage -O raw a.qcow2 out.raw"));
    pair.same(&words("convert -q --salvage -O qcow2 a.qcow2 out.qcow2"));
    for name in ["out.raw", "out.qcow2"] {
        pair.same_image(name);
    }
    let saved = std::fs::read(pair.path("own", "out.raw")).unwrap();
    assert!(saved[2 << 16..3 << 16].iter().all(|byte| *byte == 0));
    assert!(saved[3 << 16..400_000] == bytes[3 << 16..]);
    pair.same(&words("convert --salvage -C -O raw a.qcow2 out.raw"));
}

#[test]
fn convert_options_are_those_of_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.file("a.raw", &[5; 200_000]);
    pair.both("qemu-img", &words("create -q -f raw zeros.raw 200192"));
    for line in [
        "convert -r 1G -O raw a.raw out.raw",
        "convert -r 0 -c -O qcow2 a.raw out.qcow2",
        "convert -n --target-is-zero -O raw a.raw zeros.raw",
        "convert --target-is-zero -O raw a.raw out.raw",
        "convert -r x -O raw a.raw out.raw",
        "convert -C -S 4k -O raw a.raw out.raw",
        "convert -c -C -O qcow2 a.raw out.qcow2",
        "convert --skip-broken-bitmaps -O qcow2 a.raw out.qcow2",
        "convert --bitmaps -O qcow2 a.raw out.qcow2",
        "convert --bitmaps -O raw out.qcow2 x.raw",
    ] {
        pair.same(&words(line));
    }
    for name in ["out.raw", "out.qcow2", "zeros.raw"] {
        pair.same_image(name);
    }
    // qemu-img prints the error, and ends with 0.
    let line = "convert -n --target-is-zero -B a.raw -F raw -O qcow2 a.raw out.qcow2";
    assert_eq!(pair.run("own", &words(line)).status.code(), Some(1));
}

#[test]
fn convert_copies_bitmaps() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    for line in [
        "create -q -f qcow2 a.qcow2 9M",
        "bitmap --add a.qcow2 enabled",
        "bitmap --add -g 4k a.qcow2 fine",
        "bitmap --add a.qcow2 broken",
    ] {
        pair.both("qemu-img", &words(line));
    }
    pair.both(
        "qemu-io",
        &["-c", "write 1M 1M", "-c", "write 8M 1k", "a.qcow2"],
    );
    pair.both("qemu-img", &words("bitmap --disable a.qcow2 fine"));
    for side in ["own", "real"] {
        mark_in_use(&pair.path(side, "a.qcow2"), b"broken");
    }
    pair.same(&words("convert --bitmaps -O qcow2 a.qcow2 x.qcow2"));
    assert!(!pair.path("own", "x.qcow2").exists());
    pair.same(&words(
        "convert --bitmaps --skip-broken-bitmaps -O qcow2 a.qcow2 b.qcow2",
    ));
    pair.same_image("b.qcow2");
    pair.same_bitmaps("b.qcow2");
    pair.same(&words(
        "convert -c --bitmaps -O qcow2 -o cluster_size=4k b.qcow2 c.qcow2",
    ));
    pair.same_image("c.qcow2");
    pair.same_bitmaps("c.qcow2");
    for line in [
        "convert --bitmaps -O qcow2 -o compat=0.10 b.qcow2 x.qcow2",
        "convert --bitmaps -O qcow2 b.qcow2 b.qcow2 x.qcow2",
        "convert -n --bitmaps -O qcow2 b.qcow2 c.qcow2",
    ] {
        pair.same(&words(line));
    }
}

/// A chain of three images, with data in each.
fn chain(pair: &Pair) {
    pair.file("base.raw", &[1; 1 << 20]);
    for (line, name, write) in [
        (
            "create -q -f qcow2 -b base.raw -F raw low.qcow2 2M",
            "low.qcow2",
            "write -P 2 100k 300k",
        ),
        (
            "create -q -f qcow2 -b low.qcow2 -F qcow2 mid.qcow2 1M",
            "mid.qcow2",
            "write -z 200k 64k",
        ),
        (
            "create -q -f qcow2 -b mid.qcow2 -F qcow2 top.qcow2 3M",
            "top.qcow2",
            "write -P 4 2M 1k",
        ),
    ] {
        pair.both("qemu-img", &words(line));
        pair.both("qemu-io", &["-c", write, name]);
    }
}

#[test]
fn commit_writes_into_a_deeper_base() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for (line, changed) in [
        ("commit -b low.qcow2 top.qcow2", "low.qcow2"),
        ("commit -b base.raw -r 1G top.qcow2", "base.raw"),
        ("commit -b mid.qcow2 -d top.qcow2", "mid.qcow2"),
        ("commit -d top.qcow2", "mid.qcow2"),
        ("commit top.qcow2", "mid.qcow2"),
        ("commit -q -r 0 mid.qcow2", "low.qcow2"),
    ] {
        let pair = Pair::new();
        chain(&pair);
        pair.same(&words(line));
        for name in [changed, "top.qcow2"] {
            pair.same_image(name);
        }
        // Both keep the committed images, or both empty them.
        let entries = ["own", "real"].map(|side| {
            let output = pair.run(side, &["map", "--output=json", "top.qcow2"]);
            let map: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let is_own =
                |entry: &&serde_json::Value| entry["depth"] == 0 && entry["present"] == true;
            map.as_array().unwrap().iter().filter(is_own).count()
        });
        assert_eq!(entries[0], entries[1], "{line}");
    }
}

#[test]
fn commit_rejects_a_base_outside_the_chain() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    chain(&pair);
    pair.file("other.raw", &[1; 1 << 20]);
    for line in [
        "commit -b none top.qcow2",
        "commit -b top.qcow2 top.qcow2",
        "commit -b other.raw top.qcow2",
        "commit -b base.raw base.raw",
        "commit -r x top.qcow2",
    ] {
        let before = std::fs::read(pair.path("own", "top.qcow2")).unwrap();
        pair.same(&words(line));
        assert!(std::fs::read(pair.path("own", "top.qcow2")).unwrap() == before);
    }
}

#[test]
fn progress_has_the_form_of_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.file("base.raw", &[1; 5 << 20]);
    pair.both(
        "qemu-img",
        &words("create -q -f qcow2 -b base.raw -F raw a.qcow2"),
    );
    pair.both("qemu-io", &["-c", "write -P 2 0 3M", "a.qcow2"]);
    for line in [
        "convert -p -O raw a.qcow2 out.raw",
        "convert -p -c -O qcow2 a.qcow2 out.qcow2",
        "compare -p a.qcow2 out.raw",
        "commit -p a.qcow2",
        "rebase -p -b out.raw -F raw a.qcow2",
    ] {
        // The percentages depend on the size of a step; the first, the last and the rest do not.
        let shapes = ["own", "real"].map(|side| {
            let output = pair.run(side, &words(line));
            assert!(output.status.success(), "{line}: {output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            let (mut percents, mut rest) = (Vec::new(), Vec::new());
            for part in text.split('\r') {
                match part
                    .strip_prefix("    (")
                    .and_then(|part| part.strip_suffix("/100%)"))
                {
                    Some(percent) => {
                        assert_eq!(percent.split_once('.').unwrap().1.len(), 2, "{text:?}");
                        percents.push(percent.parse::<f64>().unwrap());
                    }
                    None => rest.push(part.to_owned()),
                }
            }
            assert!(percents.is_sorted(), "{side}: {text:?}");
            (percents[0], percents.last().copied(), rest)
        });
        assert_eq!(shapes[0], shapes[1], "{line}");
        assert_eq!((shapes[0].0, shapes[0].1), (0.0, Some(100.0)), "{line}");
    }
    let quiet = pair.run("own", &words("convert -q -p -O raw a.qcow2 out.raw"));
    assert!(quiet.stdout.is_empty());
}
