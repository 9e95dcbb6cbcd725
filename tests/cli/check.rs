//! `folio check`: exit codes as e2fsck's, findings as text and as JSON.

use super::Bench;
use std::os::unix::fs::FileExt;

/// Damages the image: the root directory's inode gets one link too many. Its table is where mkfs
/// put it.
fn damage(bench: &Bench) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(bench.path("disk.img"))
        .unwrap();
    let mut word = [0; 4];
    // Blocks of 1 KiB: descriptors start in block 2; the root is the second inode of 256 bytes.
    file.read_exact_at(&mut word, 2048 + 8).unwrap();
    let links_at = u64::from(u32::from_le_bytes(word)) * 1024 + 256 + 0x1A;
    let mut links = [0; 2];
    file.read_exact_at(&mut links, links_at).unwrap();
    file.write_all_at(&(u16::from_le_bytes(links) + 1).to_le_bytes(), links_at)
        .unwrap();
}

#[test]
fn a_clean_image_is_called_clean() {
    let bench = Bench::new();
    bench.ok(&["mkdir", "disk.img:/folder"]);
    let told = bench.ok(&["check", "disk.img"]);
    assert!(told.starts_with("disk.img: clean; "), "{told}");
    assert_eq!(bench.ok(&["check", "--quiet", "disk.img"]), "");
    let json = bench.json(&["check", "--json", "disk.img"]);
    assert_eq!(
        (json["clean"].as_bool(), json["errors"].as_u64()),
        (Some(true), Some(0))
    );
    assert_eq!(
        (
            json["directories"].as_u64(),
            json["findings"].as_array().map(Vec::len)
        ),
        (Some(3), Some(0))
    );
}

#[test]
fn damage_is_told_and_left() {
    let bench = Bench::new();
    damage(&bench);
    let before = std::fs::read(bench.path("disk.img")).unwrap();
    let output = bench.command(&["check", "disk.img"]).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{told}");
    let lines: Vec<&str> = told.lines().collect();
    let expected = [
        "error: inode 2: bad checksum",
        "error: inode 2: links: 4 links, but 3 names",
        "disk.img: 2 errors; run e2fsck -f to mend them; ",
    ];
    assert_eq!(lines.len(), expected.len(), "{told}");
    assert!(
        lines
            .iter()
            .zip(expected)
            .all(|(line, start)| line.starts_with(start)),
        "{told}"
    );
    let output = bench
        .command(&["check", "--json", "--findings", "1", "disk.img"])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(
        (json["errors"].as_u64(), json["findings_untold"].as_u64()),
        (Some(2), Some(1))
    );
    let finding = &json["findings"][0];
    assert_eq!(
        (finding["severity"].as_str(), finding["inode"].as_u64()),
        (Some("error"), Some(2))
    );
    assert!(
        before == std::fs::read(bench.path("disk.img")).unwrap(),
        "the image was written"
    );
}

#[test]
fn what_cannot_be_checked_is_no_finding() {
    let bench = Bench::new();
    std::fs::write(bench.path("none.img"), vec![0; 1 << 20]).unwrap();
    bench.fails(&["check", "none.img"], 8, "no ext4 file system");
    bench.fails(&["check", "missing.img"], 8, "missing.img");
    bench.fails(
        &["check", "disk.img:/folder"],
        16,
        "a whole file system is checked",
    );
    bench.fails(&["check"], 16, "required");
    bench.fails(&["check", "--mend", "disk.img"], 16, "--mend");
    bench.fails(&["mkfs", "--mend"], 2, "--mend");
}
