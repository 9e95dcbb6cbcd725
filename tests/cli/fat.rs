//! FAT images: names that ignore case, short aliases, moved directories.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{run, text};

/// Makes an empty FAT32 beside the image of the fixture.
fn fat_image(dir: &TestDir) {
    let image = dir.path("fat.img");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(40 << 20)
        .unwrap();
    run(
        "mkfs.vfat",
        ["-F".as_ref(), "32".as_ref(), image.as_os_str()],
    );
}

fn is_clean(dir: &TestDir) {
    let printed = run(
        "fsck.vfat",
        ["-n".as_ref(), dir.path("fat.img").as_os_str()],
    );
    assert!(!printed.contains("Free cluster summary wrong"), "{printed}");
}

#[test]
fn rename_of_case_keeps_the_file() {
    requires!(tool("mkfs.vfat"), tool("fsck.vfat"));
    let dir = TestDir::new();
    fat_image(&dir);
    std::fs::write(dir.path("a"), "content").unwrap();
    dir.ok(&["-q", "cp", "a", "fat.img:/File.txt"]);
    dir.ok(&["-q", "mkdir", "fat.img:/Folder"]);
    dir.ok(&["-q", "mv", "fat.img:/File.txt", "fat.img:/file.txt"]);
    assert_eq!(dir.ok(&["cat", "fat.img:/FILE.TXT"]), "content");
    assert_eq!(dir.ok(&["ls", "fat.img:/"]), "Folder\nfile.txt\n");
    dir.ok(&["-q", "mv", "fat.img:/Folder", "fat.img:/FOLDER"]);
    assert_eq!(dir.ok(&["ls", "fat.img:/"]), "FOLDER\nfile.txt\n");
    let output = dir.command(&["mv", "fat.img:/Folder", "fat.img:/folder/x"]);
    let output = { output }.output().unwrap();
    assert!(!output.status.success(), "{}", text(&output));
    assert_eq!(dir.ok(&["ls", "fat.img:/"]).lines().count(), 2);
    is_clean(&dir);
}

#[test]
fn copy_to_short_alias_replaces_the_file() {
    requires!(tool("mkfs.vfat"), tool("fsck.vfat"));
    let dir = TestDir::new();
    fat_image(&dir);
    std::fs::write(dir.path("long"), "the content of the long name").unwrap();
    std::fs::write(dir.path("short"), "short").unwrap();
    dir.ok(&["-q", "cp", "long", "fat.img:/longfilename2"]);
    dir.ok(&["-q", "cp", "short", "fat.img:/LONGFI~1"]);
    assert_eq!(dir.ok(&["cat", "fat.img:/longfilename2"]), "short");
    assert_eq!(dir.ok(&["ls", "fat.img:/"]), "longfilename2\n");
    is_clean(&dir);
}

#[test]
fn copy_of_names_equal_but_for_case_fails() {
    requires!(tool("mkfs.vfat"), tool("fsck.vfat"));
    let dir = TestDir::new();
    fat_image(&dir);
    std::fs::create_dir(dir.path("tree")).unwrap();
    for (name, content) in [("Makefile", "one"), ("makefile", "two")] {
        std::fs::write(dir.path("tree").join(name), content).unwrap();
    }
    dir.fails(&["cp", "-r", "tree", "fat.img:/"], 1, "same copy");
    assert_eq!(dir.ok(&["ls", "fat.img:/tree"]).lines().count(), 1);
    is_clean(&dir);
}

#[test]
fn directory_moves_to_another_folder() {
    requires!(tool("mkfs.vfat"), tool("fsck.vfat"));
    let dir = TestDir::new();
    fat_image(&dir);
    for name in ["one", "two", "one/inside"] {
        dir.ok(&["-q", "mkdir", &format!("fat.img:/{name}")]);
    }
    dir.ok(&["-q", "mv", "fat.img:/one/inside", "fat.img:/two"]);
    dir.ok(&["-q", "mv", "fat.img:/two/inside", "fat.img:/two/renamed"]);
    assert_eq!(dir.ok(&["ls", "fat.img:/two"]), "renamed\n");
    is_clean(&dir);
}
