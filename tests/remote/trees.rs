//! Whole trees through a remote mount, and two clients of one share.

use crate::remote::mount::RemoteMount;
use crate::remote::{ImageFolder, ShareServer, wait_until};
use crate::support::tools::{fsck, run};
use crate::support::{report_skip, requires};
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Copies this project's sources in, compares them, copies them out and compares again.
fn copy_tree_both_ways(listen: &str, files: &ImageFolder, words: &[&str]) {
    let shared = ShareServer::new(&files.image, listen, words);
    let mount = RemoteMount::new(&shared.address, words);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let there = mount.at("tree");
    run("cp", ["-a", source, there.to_str().unwrap()]);
    run("diff", ["-r", source, there.to_str().unwrap()]);
    mount.unmount();
    // A new mount has cached nothing.
    let mount = RemoteMount::new(&shared.address, words);
    run("diff", ["-r", source, mount.at("tree").to_str().unwrap()]);
    let back = files.folder.path().join("back");
    run(
        "cp",
        [
            "-a",
            mount.at("tree").to_str().unwrap(),
            back.to_str().unwrap(),
        ],
    );
    run("diff", ["-r", source, back.to_str().unwrap()]);
    run("rm", ["-r", mount.at("tree").to_str().unwrap()]);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1, "lost+found");
    mount.unmount();
    shared.stop();
    fsck(&files.image);
}

#[test]
fn tree_copies_over_unix_are_identical() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let files = ImageFolder::new();
    copy_tree_both_ways(&files.socket(), &files, &[]);
}

#[test]
fn tree_copies_over_tcp_are_identical() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let files = ImageFolder::new();
    let key = files.key("key", "a key of more than sixteen bytes\n");
    copy_tree_both_ways("tcp:0", &files, &["--key-file", &key]);
}

#[test]
fn tree_copies_over_vsock_are_identical() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    if !std::path::Path::new("/dev/vsock").exists() {
        return report_skip("needs /dev/vsock");
    }
    let files = ImageFolder::new();
    let listen = format!("vsock:{}", 50_000 + std::process::id() % 10_000);
    let shared = ShareServer::new(&files.image, &listen, &[]);
    // The local context id (vsock(7), VMADDR_CID_LOCAL).
    let here = shared.address.replace("vsock:", "vsock:1:");
    let Some(mount) = RemoteMount::try_new(&here, &[]) else {
        shared.stop();
        return report_skip("needs a loopback for vsock (module vsock_loopback)");
    };
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    run("cp", ["-a", source, mount.at("tree").to_str().unwrap()]);
    run("diff", ["-r", source, mount.at("tree").to_str().unwrap()]);
    mount.unmount();
    shared.stop();
    fsck(&files.image);
}

#[test]
fn large_sparse_file_is_identical() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let files = ImageFolder::new();
    let shared = files.share();
    let mount = RemoteMount::new(&shared.address, &[]);
    let bytes: Vec<u8> = (0..12 << 20)
        .map(|number: u32| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut file = fs::File::create_new(mount.at("large")).unwrap();
    file.write_all(&bytes).unwrap();
    file.write_all_at(b"end", 1 << 33).unwrap();
    file.sync_all().unwrap();
    let found = file.metadata().unwrap();
    assert!(
        found.len() == (1 << 33) + 3 && found.blocks() < 30 << 11,
        "{found:?}"
    );
    mount.unmount_after(file);
    let mount = RemoteMount::new(&shared.address, &[]);
    let mut file = fs::File::open(mount.at("large")).unwrap();
    let mut back = vec![0; bytes.len()];
    file.read_exact(&mut back).unwrap();
    assert!(back == bytes);
    file.seek(std::io::SeekFrom::Start(1 << 33)).unwrap();
    back.clear();
    file.read_to_end(&mut back).unwrap();
    assert_eq!(back, b"end");
    mount.unmount_after(file);
    shared.stop();
    fsck(&files.image);
}

#[test]
fn change_by_one_client_is_seen_by_another() {
    requires!(root, fuse, tool("mke2fs"));
    let files = ImageFolder::new();
    let shared = files.share();
    let (one, two) = (
        RemoteMount::new(&shared.address, &[]),
        RemoteMount::new(&shared.address, &[]),
    );
    // Negative names, cached contents and attributes, removed names.
    assert!(!two.at("file").exists());
    fs::write(one.at("file"), "first").unwrap();
    wait_until("the file exists", || two.at("file").exists());
    wait_until("it has its contents", || {
        fs::read_to_string(two.at("file")).unwrap() == "first"
    });
    for round in 0..20 {
        let text = format!("round {round}: {}", "x".repeat(round * 300));
        fs::write(one.at("file"), &text).unwrap();
        wait_until("the contents are new", || {
            fs::read_to_string(two.at("file")).unwrap() == text
        });
    }
    fs::rename(one.at("file"), one.at("other")).unwrap();
    wait_until("the old name is removed", || !two.at("file").exists());
    wait_until("the new name exists", || two.at("other").exists());
    let mut names: Vec<_> = fs::read_dir(two.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["lost+found", "other"]);
    fs::remove_file(two.at("other")).unwrap();
    wait_until("the file is removed", || !one.at("other").exists());
    one.unmount();
    two.unmount();
    shared.stop();
}
