//! Forks on a host file system that clones files.

use super::{assert_qemu_reads, content};
use crate::support::mounted::Mounted;
use crate::support::requires;
use crate::support::tools::{qemu_check, run};
use folio::block::{BackingName, BackingPolicy, CreateOptions, Device, ImageFormat};
use folio::block::{LiveImage, OpenOptions, create, create_with};
use tempfile::TempDir;

#[test]
fn btrfs_clones_the_file() {
    requires!(
        root,
        loop_devices,
        tool("mkfs.btrfs"),
        tool("qemu-img"),
        file_system("btrfs")
    );
    let folder = TempDir::new().unwrap();
    let disk = folder.path().join("btrfs.img");
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(512 << 20)
        .unwrap();
    run(
        "mkfs.btrfs",
        ["-q".as_ref(), "-f".as_ref(), disk.as_os_str()],
    );
    let mount = Mounted::attempt_as("btrfs", &disk, "rw").unwrap();
    let at = |name: &str| mount.path().join(name);
    drop(create(at("base.raw"), ImageFormat::Raw, 1 << 20).unwrap());
    let options = CreateOptions {
        backing: Some(BackingName {
            name: "base.raw".to_owned(),
            format: Some(ImageFormat::Raw),
        }),
        ..CreateOptions::default()
    };
    create_with(at("disk.qcow2"), ImageFormat::Qcow2, 8 << 20, &options).unwrap();
    drop(create(at("disk.raw"), ImageFormat::Raw, 8 << 20).unwrap());
    std::fs::create_dir(at("other")).unwrap();
    for name in ["disk.qcow2", "disk.raw"] {
        let image = LiveImage::open(at(name), &OpenOptions::default()).unwrap();
        image.write_at(&[1; 3 << 20], 77).unwrap();
        for fork in [name.replace("disk", "fork"), format!("other/{name}")] {
            let made = image.fork(at(&fork)).unwrap();
            assert_eq!((made.generation, made.generations), (None, 0));
        }
        image.write_at(&[2; 512], 77).unwrap();
        let mut expected = vec![0; 8 << 20];
        expected[77..77 + (3 << 20)].fill(1);
        assert!(content(&at(&name.replace("disk", "fork"))) == expected);
        if name == "disk.raw" {
            assert!(content(&at("other/disk.raw")) == expected);
            continue;
        }
        // Its backing file is found from the other folder as well.
        let anywhere = OpenOptions {
            backing: BackingPolicy::Anywhere,
            ..OpenOptions::default()
        };
        drop(LiveImage::open(at("other/disk.qcow2"), &anywhere).unwrap());
        assert_qemu_reads(&at("other/disk.qcow2"), &expected);
        qemu_check(&at("fork.qcow2"));
    }
    mount.unmount();
}
