//! mtools reads what Folio wrote, and Folio reads what mtools wrote.

use super::{WIDTHS, bytes_of, formatted, mounted, names, stored};
use crate::support::requires;
use crate::support::tools::{command, run, succeed};
use folio::block::{Device, MemoryDevice};
use std::path::Path;
use std::sync::Arc;

const NAMES: [&str; 6] = [
    "UPPER.TXT",
    "lower.txt",
    "Mixed.Txt",
    "a long name with spaces.html",
    "archive.tar.gz",
    "another long name with spaces.html",
];

fn content(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(name.len() * 1000).collect()
}

fn mtool(tool: &str, image: &Path, arguments: &[&str]) -> Vec<u8> {
    let mut command = command(tool);
    command.env("MTOOLS_SKIP_CHECK", "0").arg("-i").arg(image);
    succeed(command.args(arguments)).stdout
}

#[test]
fn mtools_reads_our_files() {
    requires!(tool("mtype"), tool("mdir"));
    for (width, len_bytes) in WIDTHS {
        let device = formatted(width, len_bytes);
        let fs = mounted(&device);
        fs.create_dir("/folder").unwrap();
        for name in NAMES {
            fs.write(name, content(name)).unwrap();
            fs.write(format!("/folder/{name}"), name).unwrap();
        }
        fs.close().unwrap();
        let (_dir, image) = stored(&device);
        for name in NAMES {
            let found = mtool("mtype", &image, &[&format!("::{name}")]);
            assert!(found == content(name), "{name}");
            let found = mtool("mtype", &image, &[&format!("::folder/{name}")]);
            assert!(found == name.as_bytes(), "{name}");
        }
        let listed = mtool("mdir", &image, &["-b", "::folder"]);
        let listed = String::from_utf8(listed).unwrap();
        let mut listed: Vec<&str> = listed
            .lines()
            .map(|line| line.strip_prefix("::/folder/").unwrap())
            .collect();
        listed.sort_unstable();
        let mut sorted = NAMES;
        sorted.sort_unstable();
        assert_eq!(listed, sorted);
    }
}

#[test]
fn files_of_mtools_are_read() {
    requires!(tool("mkfs.vfat"), tool("mcopy"), tool("mmd"));
    for (width, len_bytes) in WIDTHS {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(len_bytes));
        let (dir, image) = stored(&device);
        let bits = &width.name()[3..];
        run(
            "mkfs.vfat",
            ["-F".as_ref(), bits.as_ref(), image.as_os_str()],
        );
        mtool("mmd", &image, &["::folder"]);
        for name in NAMES {
            let path = dir.path().join(name);
            std::fs::write(&path, content(name)).unwrap();
            mtool("mcopy", &image, &[path.to_str().unwrap(), "::folder"]);
        }
        device.write_at(&std::fs::read(&image).unwrap(), 0).unwrap();
        let fs = mounted(&device);
        let mut sorted = NAMES;
        sorted.sort_unstable();
        assert_eq!(names(&fs, "/folder"), sorted);
        for name in NAMES {
            assert!(fs.read(format!("/folder/{name}")).unwrap() == content(name));
        }
        // The alias that mtools gave.
        assert!(fs.read("/FOLDER/ALONGN~1.HTM").unwrap() == content(NAMES[3]));
        fs.close().unwrap();
        assert_eq!(bytes_of(&device)[510..512], [0x55, 0xaa]);
    }
}
