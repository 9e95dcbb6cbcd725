//! Names: case, short aliases, renames, and the inodes that they find.

use super::{WIDTHS, assert_clean, assert_errno, formatted, mounted, names};
use crate::support::requires;
use folio::Errno;
use folio::vfs::RenameFlags;
use std::io::{Read, Seek, SeekFrom, Write};

const LONG: &str = "/longfilename2";
const ALIAS: &str = "/LONGFI~1";

#[test]
fn rename_of_case_changes_the_stored_name() {
    requires!(tool("fsck.vfat"));
    for (width, len_bytes) in WIDTHS {
        let device = formatted(width, len_bytes);
        let fs = mounted(&device);
        fs.write("/FILE.TXT", "content").unwrap();
        let number = fs.metadata("/file.txt").unwrap().attributes().number;
        fs.rename("/FILE.TXT", "/File.txt").unwrap();
        fs.create_dir("/Folder").unwrap();
        fs.rename("/FOLDER", "/folder").unwrap();
        assert_eq!(names(&fs, "/"), ["File.txt", "folder"]);
        assert_eq!(
            fs.metadata("/FILE.TXT").unwrap().attributes().number,
            number
        );
        let flags = RenameFlags::NOREPLACE;
        let at = folio::syscall::AT_FDCWD;
        let process = fs.process();
        process
            .renameat2(at, "/File.txt", at, "/file.TXT", flags)
            .unwrap();
        assert_errno(fs.rename("/folder", "/FOLDER/x"), Errno::INVAL);
        fs.close().unwrap();
        assert_clean(&device);
        let fs = mounted(&device);
        assert_eq!(names(&fs, "/"), ["file.TXT", "folder"]);
        assert_eq!(fs.read("/File.txt").unwrap(), b"content");
    }
}

#[test]
fn short_alias_finds_the_same_inode() {
    requires!(tool("fsck.vfat"));
    let (width, len_bytes) = WIDTHS[2];
    let device = formatted(width, len_bytes);
    let fs = mounted(&device);
    // Known to be absent before the alias exists.
    assert!(!fs.exists(ALIAS).unwrap());
    fs.write(LONG, "long").unwrap();
    let number = |path: &str| fs.metadata(path).unwrap().attributes().number;
    assert_eq!(number(ALIAS), number(LONG));
    fs.write(ALIAS, "through the alias").unwrap();
    assert_eq!(fs.read(LONG).unwrap(), b"through the alias");
    assert_eq!(names(&fs, "/"), ["longfilename2"]);
    assert_errno(fs.create_dir(ALIAS), Errno::EXIST);
    fs.write("/other", "other").unwrap();
    fs.rename("/other", ALIAS).unwrap();
    assert_eq!(fs.read(LONG).unwrap(), b"other");
    assert_eq!(names(&fs, "/"), ["longfilename2"]);
    fs.remove_file(ALIAS).unwrap();
    assert!(!fs.exists(LONG).unwrap());
    fs.create_dir("/long directory name").unwrap();
    fs.write("/LONGDI~1/a", "a").unwrap();
    fs.remove_file("/long directory name/a").unwrap();
    assert!(!fs.exists("/LONGDI~1/a").unwrap());
    assert_errno(
        fs.rename("/LONGDI~1", "/long directory name/b"),
        Errno::INVAL,
    );
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn moved_directory_knows_its_parent() {
    requires!(tool("fsck.vfat"));
    for (width, len_bytes) in WIDTHS {
        let device = formatted(width, len_bytes);
        let fs = mounted(&device);
        fs.create_dir_all("/one/inside/below").unwrap();
        fs.create_dir("/two").unwrap();
        fs.rename("/one/inside", "/two/moved").unwrap();
        fs.rename("/two", "/one/two").unwrap();
        fs.rename("/one/two/moved/below", "/below").unwrap();
        assert_eq!(names(&fs, "/"), ["below", "one"]);
        let number = |path: &str| fs.metadata(path).unwrap().attributes().number;
        assert_eq!(number("/one/two/moved/.."), number("/one/two"));
        fs.close().unwrap();
        // It checks `..`.
        assert_clean(&device);
    }
}

#[test]
fn unlinked_file_is_usable_until_closed() {
    requires!(tool("fsck.vfat"));
    let (width, len_bytes) = WIDTHS[0];
    let device = formatted(width, len_bytes);
    let fs = mounted(&device);
    let free = fs.statistics("/").unwrap().blocks_free;
    fs.write("/file", "content").unwrap();
    let mut file = fs
        .open_options()
        .read(true)
        .write(true)
        .open("/file")
        .unwrap();
    fs.remove_file("/file").unwrap();
    // Takes the slot of the removed one.
    fs.write("/file", "another").unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    assert_eq!((&content[..7], content.len()), (&b"content"[..], 100_007));
    let numbers = [
        file.metadata().unwrap().attributes().number,
        fs.metadata("/file").unwrap().attributes().number,
    ];
    assert_ne!(numbers[0], numbers[1]);
    drop(file);
    assert_eq!(fs.read("/file").unwrap(), b"another");
    fs.remove_file("/file").unwrap();
    assert_eq!(fs.statistics("/").unwrap().blocks_free, free);
    fs.close().unwrap();
    assert_clean(&device);
}

#[test]
fn inode_number_stays_after_renames() {
    let (width, len_bytes) = WIDTHS[1];
    let device = formatted(width, len_bytes);
    let fs = mounted(&device);
    let number = |path: &str| fs.metadata(path).unwrap().attributes().number;
    fs.write("/a", "a").unwrap();
    fs.write("/b", "b").unwrap();
    let (first, second) = (number("/a"), number("/b"));
    fs.rename("/a", "/a longer name than before").unwrap();
    fs.write("/a", "new").unwrap();
    assert_eq!(number("/a longer name than before"), first);
    assert!(![first, second].contains(&number("/a")));
    fs.rename("/a longer name than before", "/b").unwrap();
    assert_eq!(number("/b"), first);
    assert_eq!(fs.read("/b").unwrap(), b"a");
    for entry in fs.read_dir("/").unwrap() {
        let entry = entry.unwrap();
        let listed = entry.metadata().unwrap().attributes().number;
        assert_eq!(listed, number(entry.path().to_str().unwrap()));
    }
}

#[test]
fn names_that_fat_cannot_store_are_refused() {
    let (width, len_bytes) = WIDTHS[0];
    let fs = mounted(&formatted(width, len_bytes));
    for name in [
        "/a:b", "/a?", "/a*", "/a|b", "/a\"", "/<", "/a\u{1}", "/space ", "/...",
    ] {
        assert_errno(fs.write(name, ""), Errno::INVAL);
    }
    // Dots at the end do not count.
    fs.write("/dots...", "dots").unwrap();
    assert_eq!(fs.read("/DOTS").unwrap(), b"dots");
    assert_eq!(names(&fs, "/"), ["dots"]);
    let longest = "\u{e4}".repeat(127);
    fs.write(format!("/{longest}"), "").unwrap();
    assert_eq!(names(&fs, "/").len(), 2);
}

#[test]
fn eight_hundred_alike_names_have_own_aliases() {
    requires!(tool("fsck.vfat"));
    let (width, len_bytes) = WIDTHS[2];
    let device = formatted(width, len_bytes);
    let fs = mounted(&device);
    fs.create_dir("/many").unwrap();
    for number in 0..800 {
        let name = format!("/many/a name like all others {number}.text");
        fs.write(name, number.to_string()).unwrap();
    }
    assert_eq!(fs.read("/many/ANAMEL~1.TEX").unwrap(), b"0");
    fs.close().unwrap();
    assert_clean(&device);
    assert_eq!(names(&mounted(&device), "/many").len(), 800);
}
