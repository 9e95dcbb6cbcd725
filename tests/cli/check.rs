//! `folio check`: the exit codes of e2fsck, findings as text and as JSON.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{mke2fs, run, text};
use std::os::unix::fs::FileExt;

/// Damages the image: sets the link count of the root directory one too high. mkfs determines the
/// place of its inode.
fn damage(dir: &TestDir) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(dir.path("disk.img"))
        .unwrap();
    let mut word = [0; 4];
    // Blocks have 1 KiB: group descriptors start in block 2; the root is the second inode of 256
    // bytes.
    file.read_exact_at(&mut word, 2048 + 8).unwrap();
    let links_at = u64::from(u32::from_le_bytes(word)) * 1024 + 256 + 0x1A;
    let mut links = [0; 2];
    file.read_exact_at(&mut links, links_at).unwrap();
    file.write_all_at(&(u16::from_le_bytes(links) ^ 1).to_le_bytes(), links_at)
        .unwrap();
}

#[test]
fn check_of_clean_image_reports_clean() {
    let dir = TestDir::new();
    dir.ok(&["mkdir", "disk.img:/folder"]);
    let printed = dir.ok(&["check", "disk.img"]);
    assert!(printed.starts_with("disk.img: clean; "), "{printed}");
    assert_eq!(dir.ok(&["check", "--quiet", "disk.img"]), "");
    let json = dir.json(&["check", "--json", "disk.img"]);
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
fn check_of_damage_reports_and_repairs_nothing() {
    let dir = TestDir::new();
    damage(&dir);
    let before = std::fs::read(dir.path("disk.img")).unwrap();
    let output = dir.command(&["check", "disk.img"]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(4), "{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    let expected = [
        "error: inode 2: bad checksum",
        "error: inode 2: links: 2 links, but 3 names",
        "disk.img: 2 errors; run folio check --repair; ",
    ];
    assert_eq!(lines.len(), expected.len(), "{printed}");
    assert!(
        lines
            .iter()
            .zip(expected)
            .all(|(line, start)| line.starts_with(start)),
        "{printed}"
    );
    let output = dir
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
        before == std::fs::read(dir.path("disk.img")).unwrap(),
        "the image was written"
    );
}

#[test]
fn uncheckable_image_has_own_exit_code() {
    let dir = TestDir::new();
    std::fs::write(dir.path("none.img"), vec![0; 1 << 20]).unwrap();
    dir.fails(&["check", "none.img"], 8, "no ext4 file system");
    dir.fails(&["check", "missing.img"], 8, "missing.img");
    dir.fails(
        &["check", "disk.img:/folder"],
        16,
        "the check covers a whole file system",
    );
    dir.fails(&["check"], 16, "required");
    dir.fails(&["check", "--mend", "disk.img"], 16, "--mend");
    dir.fails(&["mkfs", "--mend"], 2, "--mend");
}

#[test]
fn repair_writes_saves_and_undoes() {
    let dir = TestDir::new();
    damage(&dir);
    let before = std::fs::read(dir.path("disk.img")).unwrap();
    // The link count is of e2fsck -p, the checksum of the inode is not.
    dir.fails(&["check", "--repair", "disk.img"], 4, "use --yes");
    assert!(before == std::fs::read(dir.path("disk.img")).unwrap());
    assert!(!dir.path("disk.img.undo").exists());
    let output = dir
        .command(&["check", "--repair", "--yes", "disk.img"])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("2 errors repaired") && printed.contains("--undo disk.img.undo disk.img"),
        "{printed}"
    );
    assert!(dir.ok(&["check", "disk.img"]).contains("clean"));
    assert!(dir.ok(&["check", "--repair", "disk.img"]).contains("clean"));
    dir.ok(&["check", "--undo", "disk.img.undo", "disk.img"]);
    assert!(before == std::fs::read(dir.path("disk.img")).unwrap());
    dir.fails(
        &["check", "--repair", "-y", "disk.img"],
        8,
        "move it away or use --undo-file",
    );
    assert!(before == std::fs::read(dir.path("disk.img")).unwrap());
    let json_output = dir
        .command(&[
            "check",
            "--repair",
            "-y",
            "--json",
            "--undo-file",
            "u",
            "disk.img",
        ])
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json_output.stdout).unwrap();
    assert_eq!(json_output.status.code(), Some(1));
    assert_eq!(
        (json["repaired"].as_bool(), json["undo_file"].as_str()),
        (Some(true), Some("u"))
    );
    dir.ok(&["mkdir", "disk.img:/later"]);
    dir.fails(
        &["check", "--undo", "u", "disk.img"],
        8,
        "written after the repair",
    );
    dir.fails(
        &["check", "--undo", "disk.img", "disk.img"],
        8,
        "not an undo file",
    );
}

#[test]
fn repair_of_a_qcow2_is_in_place() {
    let dir = TestDir::new();
    damage(&dir);
    dir.ok(&["image", "convert", "-O", "qcow2", "disk.img", "disk.qcow2"]);
    let output = dir
        .command(&["check", "--repair", "--yes", "disk.qcow2"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(dir.ok(&["check", "disk.qcow2"]).contains("clean"));
    dir.ok(&["image", "check", "disk.qcow2"]);
    dir.ok(&["check", "--undo", "disk.qcow2.undo", "disk.qcow2"]);
    dir.ok(&["image", "compare", "disk.img", "disk.qcow2"]);
}

/// A repair that would be refused is not advised.
#[test]
fn advice_is_what_can_repair_the_image() {
    requires!(tool("mke2fs"), tool("debugfs"));
    let dir = TestDir::new();
    let image = dir.path("disk.img");
    mke2fs(&image, "8M", &["-O", "^extent,^64bit"]);
    std::fs::write(dir.path("f"), vec![7; 9000]).unwrap();
    let write = format!("write {} f", dir.path("f").display());
    let change = |request: &str| {
        let requests = [
            "-w".as_ref(),
            "-R".as_ref(),
            request.as_ref(),
            image.as_os_str(),
        ];
        run("debugfs", requests);
    };
    change(&write);
    change("sif f block[0] 999999");
    let output = dir.command(&["check", "disk.img"]).output().unwrap();
    let printed = text(&output);
    assert!(
        printed.contains("; repair it with e2fsck -fy disk.img; ") && !printed.contains("--repair"),
        "{printed}"
    );
}
