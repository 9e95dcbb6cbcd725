//! Rare features: sound images that have them, and damage in them.

use crate::check::images::debugfs;
use crate::check::judge::{folio_check, fsck};
use crate::support::requires;
use crate::support::tools::{command, mke2fs, run};
use folio::block::{self, ImageFormat};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder for images, with some source files for debugfs.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("small"), b"a few bytes\n").unwrap();
        fs::write(folder.path().join("value"), vec![b'v'; 6000]).unwrap();
        // A version and less than the rest of an encryption context.
        fs::write(folder.path().join("context"), [1, 2, 3, 4]).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes an image with mke2fs, then runs commands of debugfs. Capitals in them
    /// are source files.
    fn image(&self, name: &str, options: &[&str], script: &str) -> PathBuf {
        let image = self.path(name);
        mke2fs(
            &image,
            "16M",
            &[&["-b", "1024", "-N", "512"], options].concat(),
        );
        let mut script = script.to_owned();
        for (word, file) in [
            ("SMALL", "small"),
            ("VALUE", "value"),
            ("CONTEXT", "context"),
        ] {
            script = script.replace(word, self.path(file).to_str().unwrap());
        }
        debugfs(&image, self.folder.path(), &script);
        image
    }
}

/// e2fsck finds nothing, and folio check no error.
#[track_caller]
fn assert_sound(image: &Path) {
    let fsck = fsck(image);
    assert!(!fsck.found_damage(), "{image:?}: e2fsck: {}", fsck.output);
    let check = folio_check(image);
    assert!(!check.found_damage(), "{image:?}: {}", check.text());
}

/// e2fsck fails, and folio check has an error with `what` in its text.
#[track_caller]
fn assert_damaged(image: &Path, what: &str) {
    let fsck = fsck(image);
    assert_ne!(fsck.status, Some(0), "{image:?}: e2fsck: {}", fsck.output);
    let check = folio_check(image);
    let text = check.text();
    assert!(
        check.found_damage() && text.contains(what),
        "{image:?}: no {what:?} in {text}"
    );
}

const PLAIN: &str = "^metadata_csum,^64bit,^has_journal";

#[test]
fn sound_images_of_rare_features_are_clean() {
    requires!(
        tool("mke2fs"),
        tool("e2fsck"),
        tool("debugfs"),
        tool("tune2fs")
    );
    let bench = Bench::new();
    assert_sound(&bench.image("quota-orphan-file", &["-O", "quota,orphan_file"], ""));
    let write_value = "write SMALL file\nea_set -f VALUE file user.large\n";
    for options in ["ea_inode,^has_journal", "ea_inode,quota,^metadata_csum"] {
        let image = bench.image(options, &["-O", options], write_value);
        // debugfs leaves quota as it was.
        command("e2fsck").arg("-fy").arg(&image).output().unwrap();
        assert_sound(&image);
    }
    // Lustre stores the owner's inode in the modification time, and charges the owner nothing.
    let features = format!("ea_inode,{PLAIN}");
    let lustre = format!(
        "{write_value}sif <13> mtime @12\nsif <13> generation 0\nsif <12> generation 0\n\
         sif <13> atime @99\nsif <13> ctime @99\nsif <13> version 7\nsif <12> blocks 2\n"
    );
    assert_sound(&bench.image("lustre", &["-O", &features], &lustre));
    fs::write(bench.path("bad"), "2000\n2001\n5000\n").unwrap();
    let bad = bench.path("bad");
    let arguments = ["-O", PLAIN, "-l", bad.to_str().unwrap()];
    assert_sound(&bench.image("bad-blocks", &arguments, "sif <1> blocks 0\n"));
    let image = bench.image("no-uuid", &["-O", PLAIN], "");
    run("tune2fs", ["-U", "clear", image.to_str().unwrap()]);
    assert_sound(&image);
    let hurd = bench.image("hurd", &["-O", "none", "-o", "hurd"], "feature filetype\n");
    assert_sound(&hurd);
    let flags = "set_bg 1 flags 0xc\n";
    assert_sound(&bench.image("group-flags", &["-O", PLAIN], flags));
    let imagic = "feature imagic_inodes\nwrite SMALL file\nsif file flags 0x82000\nunlink file\n";
    assert_sound(&bench.image("imagic", &["-O", PLAIN], imagic));
    let reserved = "sif <9> size 77\nsif <9> links_count 3\n";
    assert_sound(&bench.image("reserved", &["-O", PLAIN], reserved));
}

#[test]
fn damage_in_rare_features_is_reported() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let bench = Bench::new();
    let encrypt = format!("encrypt,{PLAIN}");
    let encrypt = ["-O", encrypt.as_str()];
    let no_context = "write SMALL file\nsif file flags 0x80800\n";
    assert_damaged(
        &bench.image("no-context", &encrypt, no_context),
        "no encryption context",
    );
    let bad_context = "write SMALL file\nsif file flags 0x80800\nea_set -f CONTEXT file user.c\n";
    let image = bench.image("bad-context", &encrypt, bad_context);
    rename_attribute(&image);
    assert_damaged(&image, "invalid encryption context");
    let short_name = "mkdir folder\nwrite SMALL folder/short\nsif folder flags 0x80800\n";
    let image = bench.image("short-name", &encrypt, short_name);
    assert_damaged(&image, "fewer than 16");
    assert_damaged(&image, "which is not encrypted");
    let present = "feature orphan_present\n";
    assert_damaged(
        &bench.image("orphan-present", &["-O", "orphan_file"], present),
        "orphan file is empty",
    );
    let external = "feature has_journal\nssv journal_inum 0\nssv journal_dev 0x1234\n\
                    ssv journal_uuid 11111111-2222-3333-4444-555555555555\n";
    assert_damaged(
        &bench.image("external", &["-O", PLAIN], external),
        "on another device",
    );
    let folded = format!("casefold,{PLAIN}");
    let options = ["-O", folded.as_str(), "-E", "encoding_flags=strict"];
    let script = "mkdir folder\nsif folder flags 0x40080000\nwrite SMALL folder/XQZX\n";
    let image = bench.image("folded", &options, script);
    replace(&image, b"XQZX", b"X\xff\xfeX");
    assert_damaged(&image, "not valid UTF-8");
    let mmp = format!("mmp,{PLAIN}");
    let image = bench.image("mmp", &["-O", &mmp], "");
    replace(
        &image,
        &0xFF4D_4D50_u32.to_le_bytes(),
        &0xE24D_4D50_u32.to_le_bytes(),
    );
    assert_damaged(&image, "e2fsck runs on a host");
}

/// Replaces the only occurrence of `old` in a file.
fn replace(image: &Path, old: &[u8], new: &[u8]) {
    let bytes = fs::read(image).unwrap();
    let found: Vec<_> = (0..bytes.len() - old.len())
        .filter(|at| bytes[*at..].starts_with(old))
        .collect();
    assert_eq!(found.len(), 1, "{old:?}");
    let file = File::options().write(true).open(image).unwrap();
    file.write_all_at(new, found[0] as u64).unwrap();
}

/// Makes the encryption context of the attribute `user.c`: only the prefix's number differs.
fn rename_attribute(image: &Path) {
    // Name length 1, name index 1, the place of the value in the inode's last bytes.
    replace(image, &[1, 1, 88, 0], &[1, 9, 88, 0]);
}

#[test]
fn zeroed_superblock_is_checked_by_a_backup() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let bench = Bench::new();
    for (name, options) in [
        ("1k", &["-O", "metadata_csum"][..]),
        ("small-groups", &["-g", "1024", "-O", "^metadata_csum"]),
        ("clusters", &["-O", "bigalloc", "-C", "2048", "-g", "2048"]),
    ] {
        let image = bench.image(name, options, "");
        let sound = folio_check(&image);
        assert!(!sound.found_damage(), "{name}: {}", sound.text());
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[0; 16], 1024 + 88).unwrap();
        assert_damaged_primary(&image, name);
        if name == "1k" {
            file.write_all_at(&[0; 1024], 1024).unwrap();
            assert_damaged_primary(&image, name);
        }
    }
}

#[track_caller]
fn assert_damaged_primary(image: &Path, name: &str) {
    let text = folio_check(image).text();
    assert!(
        text.contains("checking with the backup in block"),
        "{name}: {text}"
    );
}

/// The file of a qcow2 was cut short: the tables name clusters beyond its end.
#[test]
fn qcow2_cut_short_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.qcow2");
    let device = block::create(&path, ImageFormat::Qcow2, 64 << 20).unwrap();
    ext4::format(&*device, &FormatOptions::default()).unwrap();
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).unwrap();
    kernel
        .mount_ext4(device, "/disk", &MountOptions::default())
        .unwrap();
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY;
    let fd = process.open("/disk/file", flags, 0o644).unwrap();
    process.write(fd, &vec![7; 8 << 20]).unwrap();
    process.close(fd).unwrap();
    drop(process);
    kernel.unmount("/disk").unwrap();
    drop(kernel);
    let sound = folio_check(&path);
    assert!(!sound.found_damage(), "{}", sound.text());
    let file = File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - (3 << 20)).unwrap();
    let check = folio_check(&path);
    let text = check.text();
    assert!(
        check.found_damage() && text.contains("blocks in use are missing from the image"),
        "{text}"
    );
}
