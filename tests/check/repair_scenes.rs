//! Damages that have one answer each: a table of scenes, each repaired and judged.

use super::images::debugfs;
use super::judge::{Verdict, compare};
use super::repair::{Tally, judge_repair};
use crate::support::requires;
use crate::support::tools::mke2fs;
use std::path::Path;

/// A change of an image's bytes.
#[derive(Clone, Copy)]
enum Bytes {
    /// None.
    Same,
    /// Zeros the magic number of the journal's superblock.
    JournalMagic,
    /// Gives the entry of this name, in the first directory block that has it, this length.
    EntryLen(&'static str, u16),
}

struct Scene {
    name: &'static str,
    /// For mke2fs.
    features: &'static str,
    /// For debugfs.
    script: &'static str,
    bytes: Bytes,
}

/// Block maps, without checksums.
const OLD: &str = "^extent,^metadata_csum";
/// Block maps, with checksums.
const SUMS: &str = "^extent,metadata_csum";
/// Extents, with checksums.
const NEW: &str = "extent,metadata_csum";

const fn scene(name: &'static str, features: &'static str, script: &'static str) -> Scene {
    Scene {
        name,
        features,
        script,
        bytes: Bytes::Same,
    }
}

const SCENES: [Scene; 26] = [
    Scene {
        bytes: Bytes::JournalMagic,
        ..scene("magic of the journal", SUMS, "")
    },
    Scene {
        bytes: Bytes::JournalMagic,
        ..scene(
            "magic of a journal to be replayed",
            OLD,
            "feature needs_recovery",
        )
    },
    scene("journal's inode, with its backup", OLD, "clri <8>"),
    scene(
        "journal's inode, with its backup and extents",
        NEW,
        "clri <8>",
    ),
    scene(
        "journal's inode, without a backup",
        OLD,
        "clri <8>\nssv jnl_backup_type 0",
    ),
    scene(
        "journal's inode, without a backup, with extents",
        NEW,
        "clri <8>\nssv jnl_backup_type 0",
    ),
    scene("place of a block bitmap", OLD, "set_bg 0 block_bitmap 1"),
    scene(
        "place of an inode bitmap",
        SUMS,
        "set_bg 0 inode_bitmap 900000\nset_bg 0 checksum calc",
    ),
    scene("a size below the data", OLD, "sif f0 size 1000"),
    scene(
        "size without large_file",
        "^extent,^metadata_csum,^large_file",
        "sif f0 size 0x180000000",
    ),
    scene("size of a FIFO", OLD, "mknod p p\nsif p size 5"),
    scene("block of attributes outside", OLD, "sif f0 file_acl 999999"),
    scene(
        "block of attributes that is none",
        OLD,
        "sif f0 file_acl 8000",
    ),
    scene("entry of a deleted file", OLD, "clri <12>"),
    scene("links of a file with a name", OLD, "sif f0 links_count 0"),
    scene("directory without a name", OLD, "unlink folder"),
    scene(
        "directory in a deleted one",
        OLD,
        "mkdir folder/sub\nclri folder",
    ),
    scene(
        "no lost+found",
        SUMS,
        "rmdir lost+found\nunlink folder\nunlink f1",
    ),
    scene("mode of a directory", OLD, "sif folder mode 0140755"),
    scene("mode without a type", SUMS, "sif f0 mode 0000644"),
    scene("missing block of a directory", OLD, "punch folder 1 1"),
    scene("a block of two files", OLD, "sif f0 block[2] 1500"),
    scene("all blocks of two files", NEW, "copy_inode <14> <12>"),
    scene("size of a symbolic link", OLD, "sif link size 9"),
    Scene {
        bytes: Bytes::EntryLen("f3", 3),
        ..scene("length of an entry", OLD, "")
    },
    Scene {
        bytes: Bytes::EntryLen("f3", 4000),
        ..scene("length of an entry beyond its block", OLD, "")
    },
];

impl Bytes {
    fn change(self, path: &Path) {
        let mut bytes = std::fs::read(path).expect("the image");
        match self {
            Self::Same => return,
            Self::JournalMagic => {
                let magic = [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
                let at = bytes
                    .chunks(1024)
                    .position(|block| block.starts_with(&magic));
                bytes[at.expect("a journal") * 1024..][..4].fill(0);
            }
            Self::EntryLen(name, len) => {
                // The name's length, the file type of a regular file, the name.
                let entry = [&[name.len() as u8, 1], name.as_bytes()].concat();
                let at = bytes.windows(entry.len()).position(|part| part == entry);
                bytes[at.expect("an entry") - 2..][..2].copy_from_slice(&len.to_le_bytes());
            }
        }
        std::fs::write(path, bytes).expect("the image");
    }
}

fn repair(scene: &Scene, folder: &Path) -> Tally {
    let (path, content) = (folder.join("disk.img"), folder.join("content"));
    std::fs::write(&content, vec![7; 20_000]).expect("a file");
    let features = format!("^resize_inode,^64bit,{}", scene.features);
    mke2fs(&path, "8M", &["-O", &features, "-N", "64", "-b", "1024"]);
    let write = |name: String| format!("write {} {name}\n", content.display());
    let files: String = (0..6).map(|number| write(format!("f{number}"))).collect();
    let more: String = (0..20)
        .map(|number| {
            format!("ln f5 a-name-as-long-as-it-takes-to-fill-some-blocks-of-a-folder-{number}\n")
        })
        .collect();
    let fill = format!(
        "{files}symlink link f0\nmkdir folder\ncd folder\nwrite {} inside\nln /f4 g\n{more}cd /\n",
        content.display()
    );
    debugfs(&path, folder, &fill);
    debugfs(&path, folder, scene.script);
    scene.bytes.change(&path);
    let (verdict, output) = compare(&path);
    assert_eq!(verdict, Verdict::Damaged, "{}: {output}", scene.name);
    let mut tally = Tally::default();
    judge_repair(&path, scene.name, true, &mut tally);
    tally
}

#[test]
fn damage_with_one_answer_is_repaired() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let folder = tempfile::TempDir::new().unwrap();
    let mut failures = Vec::new();
    for scene in &SCENES {
        let tally = repair(scene, folder.path());
        failures.extend(tally.failures);
        failures.extend(tally.refused.iter().map(|text| format!("refused: {text}")));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
