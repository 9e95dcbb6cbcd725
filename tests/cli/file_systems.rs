//! Every file system that Folio mounts, read by the command and by [`folio::Image`].

use super::TestDir;
use crate::support::file_systems::{HELLO, NAMES, images};
use crate::support::requires;
use folio::Image;

#[test]
fn each_file_system_is_read_by_each_face() {
    requires!(
        tool("mke2fs"),
        tool("mkfs.vfat"),
        tool("mcopy"),
        tool("mksquashfs"),
        tool("mkfs.erofs"),
        tool("sfdisk"),
        tool("qemu-img")
    );
    let dir = TestDir::new();
    for image in images(&dir.path("")) {
        let name = image.file_name().unwrap().to_str().unwrap();
        let listed = dir.ok(&["ls", name]);
        let listed: Vec<_> = listed
            .lines()
            .filter(|name| *name != "lost+found")
            .collect();
        assert_eq!(listed, NAMES, "{name}");
        assert_eq!(dir.ok(&["cat", &format!("{name}:/hello")]), HELLO, "{name}");

        let fs = Image::file(&image).read_only().mount().unwrap();
        let entries = fs.read_dir("/").unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
            .filter(|name| name != "lost+found")
            .collect();
        names.sort();
        assert_eq!(names, NAMES, "{name}");
        assert_eq!(fs.read_to_string("/hello").unwrap(), HELLO, "{name}");
    }
}
