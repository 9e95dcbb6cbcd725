//! Whole trees through a remote mount, and two clients of one share.

use crate::remote::mount::RemoteMount;
use crate::remote::{Bench, Shared, wait_until};
use crate::support::tools::{fsck, run};
use crate::support::{report_skip, requires};
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

/// A tree of the sources of this project, copied in, compared, taken out and compared again.
fn a_tree_survives(listen: &str, bench: &Bench, words: &[&str]) {
    let shared = Shared::new(&bench.image, listen, words);
    let mount = RemoteMount::new(&shared.address, words);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let there = mount.at("tree");
    run("cp", ["-a", source, there.to_str().unwrap()]);
    run("diff", ["-r", source, there.to_str().unwrap()]);
    mount.unmount();
    // Nothing of it is in the first mount's memory.
    let mount = RemoteMount::new(&shared.address, words);
    run("diff", ["-r", source, mount.at("tree").to_str().unwrap()]);
    let back = bench.folder.path().join("back");
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
    fsck(&bench.image);
}

#[test]
fn trees_survive_a_unix_socket() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let bench = Bench::new();
    a_tree_survives(&bench.socket(), &bench, &[]);
}

#[test]
fn trees_survive_tcp_with_a_key() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let bench = Bench::new();
    let key = bench.key("key", "a key of more than sixteen bytes\n");
    a_tree_survives("tcp:0", &bench, &["--key-file", &key]);
}

#[test]
fn trees_survive_vsock() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    if !std::path::Path::new("/dev/vsock").exists() {
        return report_skip("needs /dev/vsock");
    }
    let bench = Bench::new();
    let listen = format!("vsock:{}", 50_000 + std::process::id() % 10_000);
    let shared = Shared::new(&bench.image, &listen, &[]);
    // This machine as it calls itself (vsock(7), VMADDR_CID_LOCAL).
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
    fsck(&bench.image);
}

#[test]
fn large_files_and_sparse_ones_survive() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let bench = Bench::new();
    let shared = bench.share();
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
    fsck(&bench.image);
}

#[test]
fn what_one_client_changes_the_other_sees() {
    requires!(root, fuse, tool("mke2fs"));
    let bench = Bench::new();
    let shared = bench.share();
    let (one, two) = (
        RemoteMount::new(&shared.address, &[]),
        RemoteMount::new(&shared.address, &[]),
    );
    // Names that were not there, contents and attributes that were cached, names that are gone.
    assert!(!two.at("file").exists());
    fs::write(one.at("file"), "first").unwrap();
    wait_until("the file is there", || two.at("file").exists());
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
    wait_until("the old name is gone", || !two.at("file").exists());
    wait_until("the new name is there", || two.at("other").exists());
    let mut names: Vec<_> = fs::read_dir(two.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["lost+found", "other"]);
    fs::remove_file(two.at("other")).unwrap();
    wait_until("the file is gone", || !one.at("other").exists());
    one.unmount();
    two.unmount();
    shared.stop();
}
