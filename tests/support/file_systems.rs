//! One small tree in every file system that Folio mounts, raw and qcow2, with and without a table
//! of partitions, made by the programs of each format.

use super::tools::{command, run, succeed, to_qcow2};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The file `hello` of each image.
pub const HELLO: &str = "Hello, image!\n";
/// The names in the root of each image, sorted, without lost+found.
pub const NAMES: [&str; 2] = ["folder", "hello"];
/// Where the only partition of a disk starts, in bytes.
const PARTITION_START_BYTES: u64 = 1 << 20;

/// The kinds, each with the command that makes it of the tree `$1` in the file `$2`.
const KINDS: [(&str, &str); 4] = [
    ("ext4", "mke2fs -q -t ext4 -d \"$1\" \"$2\" 16M"),
    (
        "fat",
        "truncate -s 16M \"$2\" && mkfs.vfat \"$2\" && mcopy -s -i \"$2\" \"$1\"/* ::/",
    ),
    ("squashfs", "mksquashfs \"$1\" \"$2\" -quiet -no-progress"),
    ("erofs", "mkfs.erofs \"$2\" \"$1\""),
];

/// Creates the images in `folder`, and returns their paths. Needs mke2fs, mkfs.vfat, mcopy,
/// mksquashfs, mkfs.erofs, sfdisk and qemu-img.
pub fn images(folder: &Path) -> Vec<PathBuf> {
    let tree = folder.join("tree");
    std::fs::create_dir_all(tree.join("folder")).unwrap();
    std::fs::write(tree.join("hello"), HELLO).unwrap();
    let mut made = Vec::new();
    for (kind, words) in KINDS {
        let raw = folder.join(format!("{kind}.img"));
        succeed(command("sh").args(["-c", words, "sh"]).args([&tree, &raw]));
        let disk = folder.join(format!("{kind}-partition.img"));
        make_disk(&raw, &disk);
        for raw in [raw, disk] {
            let qcow2 = raw.with_extension("qcow2");
            to_qcow2(&raw, &qcow2);
            made.extend([raw, qcow2]);
        }
    }
    made
}

/// Makes a disk with a GPT whose only partition has the content of `file_system`.
fn make_disk(file_system: &Path, disk: &Path) {
    let content = std::fs::read(file_system).unwrap();
    let file = File::create(disk).unwrap();
    let end = PARTITION_START_BYTES + content.len() as u64;
    file.set_len(end.next_multiple_of(PARTITION_START_BYTES) + PARTITION_START_BYTES)
        .unwrap();
    let words = "printf 'label: gpt\\nstart=1MiB\\n' | sfdisk -q \"$1\"";
    run(
        "sh",
        [
            "-c".as_ref(),
            words.as_ref(),
            "sh".as_ref(),
            disk.as_os_str(),
        ],
    );
    file.write_all_at(&content, PARTITION_START_BYTES).unwrap();
}
