//! The files that a command creates an image in: other programs' locks, owners and modes, links,
//! device nodes, partitions, loop devices of the kernel, and names with a colon.

use crate::cli::TestDir;
use crate::support::tools::{command, fsck, qemu_check, run, succeed};
use crate::support::{Mounted, requires};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Stdio};

impl TestDir {
    /// Creates a qcow2 image of 2 MiB with some data.
    fn source(&self) {
        self.ok(&["image", "create", "s.qcow2", "2M"]);
        let path = self.path("s.qcow2");
        run(
            "qemu-io",
            ["-c", "write -P 7 1M 64k", path.to_str().unwrap()],
        );
    }

    fn is_equal(&self, first: &str, second: &str) -> bool {
        let compared = command("qemu-img")
            .args(["compare", first, second])
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        compared.status.success()
    }
}

#[test]
fn new_image_never_replaces_a_special_file() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    dir.source();
    run("mkfifo", [dir.path("fifo")]);
    let _socket = std::os::unix::net::UnixListener::bind(dir.path("socket")).unwrap();
    fs::create_dir(dir.path("folder")).unwrap();
    // A test without root uses the machine's node, which it may not replace.
    let mut kinds = vec![
        ("fifo", "a FIFO"),
        ("socket", "a socket"),
        ("folder", "directory"),
    ];
    if rustix::process::geteuid().is_root() {
        run(
            "mknod",
            [
                "-m",
                "666",
                dir.path("null").to_str().unwrap(),
                "c",
                "1",
                "3",
            ],
        );
        kinds.push(("null", "a character device"));
    }
    for (name, words) in kinds {
        let before = fs::symlink_metadata(dir.path(name)).unwrap();
        dir.fails(
            &["image", "convert", "--force", "-O", "raw", "s.qcow2", name],
            3,
            words,
        );
        dir.fails(
            &["image", "create", "--force", "-f", "qcow2", name, "1M"],
            3,
            words,
        );
        dir.fails(&["mkfs", "--force", name], 3, words);
        dir.fails(
            &["cp", "s.qcow2", &format!("{name}:/"), "--create", "16M"],
            1,
            "already exists",
        );
        let after = fs::symlink_metadata(dir.path(name)).unwrap();
        assert_eq!(
            (after.ino(), after.mode()),
            (before.ino(), before.mode()),
            "{name}"
        );
    }
}

#[test]
fn new_image_is_written_through_links() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    dir.source();
    fs::create_dir(dir.path("folder")).unwrap();
    fs::write(dir.path("folder/target"), vec![5; 3 << 20]).unwrap();
    fs::hard_link(dir.path("folder/target"), dir.path("twin")).unwrap();
    symlink("folder/target", dir.path("link")).unwrap();
    symlink("folder/new", dir.path("dangling")).unwrap();
    let inode = |name: &str| fs::symlink_metadata(dir.path(name)).unwrap().ino();
    let (link, target) = (inode("link"), inode("twin"));
    for format in ["raw", "qcow2"] {
        dir.ok(&[
            "image", "convert", "--force", "-O", format, "s.qcow2", "link",
        ]);
        assert!(dir.is_equal("s.qcow2", "twin"), "{format}");
        dir.ok(&["image", "create", "--force", "-f", format, "link", "1M"]);
        dir.ok(&[
            "image", "convert", "--force", "-O", format, "s.qcow2", "twin",
        ]);
        assert_eq!((inode("link"), inode("folder/target")), (link, target));
        dir.ok(&["image", "convert", "-O", format, "s.qcow2", "dangling"]);
        assert!(dir.is_equal("s.qcow2", "folder/new"), "{format}");
        fs::remove_file(dir.path("folder/new")).unwrap();
    }
}

#[test]
fn new_image_on_block_device_matches_qemu_img() {
    requires!(
        root,
        loop_devices,
        tool("qemu-img"),
        tool("qemu-io"),
        tool("losetup")
    );
    let dir = TestDir::new();
    dir.source();
    fs::write(dir.path("disk"), vec![0x5a; 8 << 20]).unwrap();
    let disk = dir.path("disk").into_os_string();
    let device = run("losetup", ["--find".into(), "--show".into(), disk]);
    let number = device.trim().trim_start_matches("/dev/loop").to_owned();
    run(
        "mknod",
        [dir.path("node").to_str().unwrap(), "b", "7", &number],
    );
    for compressed in [&[][..], &["-c"]] {
        let line = ["image", "convert", "-O", "qcow2"].iter().chain(compressed);
        dir.ok(&line
            .chain(&["s.qcow2", "node"])
            .copied()
            .collect::<Vec<_>>());
        qemu_check(&dir.path("node"));
        assert!(dir.is_equal("s.qcow2", "node"));
    }
    dir.fails(
        &["image", "create", "-f", "qcow2", "node", "1G"],
        1,
        "use --force",
    );
    dir.ok(&["image", "create", "--force", "-f", "qcow2", "node", "1G"]);
    qemu_check(&dir.path("node"));
    dir.fails(
        &["image", "create", "--force", "-f", "raw", "node", "9M"],
        3,
        "the device has",
    );
    dir.ok(&["image", "create", "--force", "-f", "raw", "node", "8M"]);
    dir.ok(&["image", "convert", "-O", "raw", "s.qcow2", "node"]);
    let kind = fs::symlink_metadata(dir.path("node")).unwrap().file_type();
    run("losetup", ["--detach", device.trim()]);
    assert!(kind.is_block_device());
    let bytes = fs::read(dir.path("disk")).unwrap();
    assert!(
        bytes[1 << 20..(1 << 20) + 65536]
            .iter()
            .all(|byte| *byte == 7)
    );
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0) && bytes[2 << 20] == 0x5a);
}

#[test]
fn replaced_image_keeps_owner_mode_and_xattrs() {
    requires!(
        root,
        tool("qemu-img"),
        tool("qemu-io"),
        tool("setfacl"),
        tool("getfattr")
    );
    let dir = TestDir::new();
    dir.source();
    let attributes = |name: &str| {
        let found = fs::metadata(dir.path(name)).unwrap();
        let dump = command("getfattr")
            .args(["--absolute-names", "-d", "-m", "-", "-e", "hex"])
            .arg(dir.path(name))
            .output()
            .unwrap();
        let dump = String::from_utf8(dump.stdout).unwrap();
        (found.uid(), found.gid(), found.mode(), dump)
    };
    // New files of the folder inherit an ACL that the old image does not have.
    for (acl, mode) in [(true, 0o640), (false, 0o600)] {
        fs::write(dir.path("old"), "old").unwrap();
        run(
            "chown",
            ["1234:2345".into(), dir.path("old").into_os_string()],
        );
        fs::set_permissions(dir.path("old"), fs::Permissions::from_mode(mode)).unwrap();
        let path = dir.path("old").into_os_string();
        run(
            "setfattr",
            [
                "-n".into(),
                "user.a".into(),
                "-v".into(),
                "b".into(),
                path.clone(),
            ],
        );
        if acl {
            run("setfacl", ["-m".into(), "u:77:rw".into(), path]);
        }
        let folder = dir.folder.path().as_os_str().to_owned();
        run("setfacl", ["-m".into(), "d:u:99:rwx".into(), folder]);
        let (mut inode, want) = (
            fs::metadata(dir.path("old")).unwrap().ino(),
            attributes("old"),
        );
        for line in [
            "convert --force -O raw s.qcow2 old",
            "create --force -f qcow2 old 1M",
        ] {
            dir.ok(&["image"]
                .into_iter()
                .chain(line.split(' '))
                .collect::<Vec<_>>());
            assert_eq!(attributes("old"), want, "{line}");
            let new_inode = fs::metadata(dir.path("old")).unwrap().ino();
            assert_ne!(new_inode, inode, "{line}: written in place");
            inode = new_inode;
        }
        fs::remove_file(dir.path("old")).unwrap();
    }
}

/// A qemu-io process that has an image open for writing.
struct Writer(Child);

impl Writer {
    fn new(path: &Path) -> Self {
        let mut child = command("qemu-io")
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It prints the length once the image is open.
        child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"length\n")
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.as_mut().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(line.contains("MiB"), "{line}");
        Self(child)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn image_in_use_is_not_replaced() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    dir.source();
    fs::copy(dir.path("s.qcow2"), dir.path("vm.qcow2")).unwrap();
    let running = Writer::new(&dir.path("vm.qcow2"));
    let inode = fs::metadata(dir.path("vm.qcow2")).unwrap().ino();
    for line in [
        "create --force -f qcow2 vm.qcow2 8M",
        "create --force -f raw vm.qcow2 8M",
        "convert --force -O qcow2 s.qcow2 vm.qcow2",
        "convert --force -O raw s.qcow2 vm.qcow2",
    ] {
        let words: Vec<_> = ["image"].into_iter().chain(line.split(' ')).collect();
        dir.fails(&words, 3, "in use by another process");
    }
    assert_eq!(fs::metadata(dir.path("vm.qcow2")).unwrap().ino(), inode);
    drop(running);
    assert!(dir.is_equal("s.qcow2", "vm.qcow2"));
}

#[test]
fn overlay_is_created_on_a_running_image() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = TestDir::new();
    dir.source();
    let running = Writer::new(&dir.path("s.qcow2"));
    dir.ok(&[
        "image",
        "create",
        "-b",
        "s.qcow2",
        "-F",
        "qcow2",
        "top.qcow2",
    ]);
    dir.ok(&["image", "create", "-b", "s.qcow2", "detected.qcow2"]);
    drop(running);
    for name in ["top.qcow2", "detected.qcow2"] {
        assert!(dir.is_equal("s.qcow2", name), "{name}");
    }
}

#[test]
fn image_mounted_by_the_kernel_is_not_written() {
    requires!(root, loop_devices, tool("e2fsck"), tool("qemu-img"));
    let dir = TestDir::new();
    dir.source();
    dir.ok(&[
        "image",
        "create",
        "-b",
        "disk.img",
        "-F",
        "raw",
        "top.qcow2",
    ]);
    let mounted = Mounted::new(&dir.path("disk.img"), "rw");
    let target = mounted.path().display().to_string();
    for line in [
        "mkdir disk.img:/x",
        "mkfs --force disk.img",
        "tune disk.img -L x",
        "resize disk.img 100M",
        "image resize disk.img 100M",
        "image commit top.qcow2",
        "image convert --force -O raw s.qcow2 disk.img",
        "image convert -n s.qcow2 disk.img",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        dir.fails(
            &words,
            3,
            &format!("mounted at {target}): unmount it first"),
        );
    }
    for line in ["ls disk.img", "image info disk.img", "ls top.qcow2"] {
        let words: Vec<_> = line.split(' ').collect();
        let output = dir.command(&words).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && printed.contains(&target),
            "{line}: {printed}"
        );
        let words: Vec<_> = ["--quiet"].into_iter().chain(words).collect();
        dir.ok(&words);
    }
    mounted.unmount();
    dir.ok(&["mkdir", "disk.img:/x"]);
    let mounted = Mounted::new(&dir.path("disk.img"), "ro,noload");
    dir.ok(&["ls", "disk.img"]);
    dir.fails(&["mkdir", "disk.img:/y"], 3, "in use by the kernel");
    mounted.unmount();
    fsck(&dir.path("disk.img"));
}

#[test]
fn mkfs_formats_a_partition() {
    requires!(tool("sfdisk"), tool("e2fsck"));
    let dir = TestDir::new();
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let disk = options.open(dir.path("part.img")).unwrap();
    disk.set_len(64 << 20).unwrap();
    let script = "printf 'label: gpt\\nsize=16MiB\\nsize=32MiB\\n' | sfdisk -q part.img";
    succeed(
        command("sh")
            .args(["-c", script])
            .current_dir(dir.folder.path()),
    );
    let mut before = vec![0; 1 << 20];
    disk.read_exact_at(&mut before, 0).unwrap();
    dir.fails(&["mkfs", "part.img@2", "--size", "64M"], 2, "omit --size");
    // An empty partition is there to be formatted.
    dir.ok(&["mkfs", "part.img@2"]);
    dir.fails(&["mkfs", "part.img@2", "--size", "32M"], 1, "use --force");
    dir.fails(&["mkfs", "--force", "part.img@3"], 3, "no partition 3");
    dir.ok(&["mkfs", "--force", "part.img@2", "-L", "two"]);
    assert!(!dir.path("part.img@2").exists());
    let mut after = vec![0; 1 << 20];
    disk.read_exact_at(&mut after, 0).unwrap();
    assert!(before == after, "the partition table changed");
    dir.ok(&["mkdir", "part.img@2:/x"]);
    let mut bytes = vec![0; 32 << 20];
    disk.read_exact_at(&mut bytes, 17 << 20).unwrap();
    fs::write(dir.path("two.img"), bytes).unwrap();
    fsck(&dir.path("two.img"));
    assert!(dir.ok(&["ls", "two.img"]).contains("x\n"));
    // No file gets the name of a partition.
    for line in [
        "cp part.img none.img@2:/ --create 16M",
        "mkfs none.img@2 --size 16M",
        "image create part.img@2 16M",
        "image convert part.img part.img@2",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        dir.fails(&words, 2, "partition 2");
    }
    // A file system fills its partition, and replaces none.
    let words = ["cp", "two.img", "part.img@2:/", "--create"];
    dir.fails(&[&words[..], &["16M"]].concat(), 2, "without SIZE");
    dir.fails(&[&words[..], &["auto"]].concat(), 1, "not empty");
    for name in ["none.img", "none.img@2", "part.img@2"] {
        assert!(!dir.path(name).exists(), "{name}");
    }
}

#[cfg(not(feature = "object-store"))]
#[test]
fn url_without_object_storage_names_the_feature() {
    let dir = TestDir::new();
    for line in [
        "ls s3://bucket/disk.qcow2:/",
        "image map https://host/x",
        "image convert -O raw gs://bucket/disk new.img",
        "cp -r s3://bucket/disk.qcow2:/etc etc",
        "cp disk.img s3://bucket/disk.img",
        "mount s3://bucket/disk.qcow2 mnt",
        "serve nbd az://box/disk --port 0",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        dir.fails(
            &words,
            2,
            "cargo install --path crates/folio-cli --features full",
        );
    }
}

#[test]
fn protocol_of_qemu_names_no_image() {
    let dir = TestDir::new();
    let count = || fs::read_dir(dir.folder.path()).unwrap().count();
    let files = count();
    for line in [
        "image convert -O raw disk.img nbd:localhost:1",
        "image convert -O raw nbd:localhost:1 new.img",
        "image create ssh://host/x 1M",
        "image info blkdebug::disk.img",
        "image create -b nbd:localhost:1 -F raw top.qcow2 1M",
        "mkfs nbd:localhost:1 --size 16M",
        "ls nbd:localhost:1",
        "serve nbd nbd:localhost:1 --port 0",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        dir.fails(&words, 2, "protocol of QEMU");
    }
    assert_eq!(count(), files);
    dir.ok(&["image", "create", "./nbd:localhost:1", "1M"]);
    assert!(dir.path("nbd:localhost:1").exists());
}

#[test]
fn colon_may_be_part_of_an_image_path() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("run-10:23")).unwrap();
    fs::write(dir.path("f"), "text").unwrap();
    dir.ok(&["cp", "f", "run-10:23/x.img:/f", "--create", "16M"]);
    assert_eq!(dir.ok(&["cat", "run-10:23/x.img:/f"]), "text");
    dir.ok(&["cp", "run-10:23/x.img:/f", "back"]);
    assert_eq!(fs::read(dir.path("back")).unwrap(), b"text");
    dir.ok(&["mkdir", "run-10:23/x.img:/a:"]);
    dir.ok(&["cp", "f", "run-10:23/x.img:/a:/b"]);
    assert_eq!(dir.ok(&["ls", "run-10:23/x.img:/a:"]), "b\n");
    let offered = dir.ok(&["completions", "bash", "run-10:23/x.img:/a"]);
    assert_eq!(offered, "run-10:23/x.img:/a:/\n");
}

#[test]
fn build_time_is_the_latest_time_in_a_build() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("tree")).unwrap();
    for (name, time) in [("old", "@900000000"), ("new", "@1100000000")] {
        fs::write(dir.path("tree").join(name), "x").unwrap();
        symlink(name, dir.path("tree").join(format!("{name}-link"))).unwrap();
        for name in [name.to_owned(), format!("{name}-link")] {
            let path = dir.path("tree").join(name).into_os_string();
            run("touch", ["-h".into(), "-d".into(), time.into(), path]);
        }
    }
    let mut command = dir.command(&["cp", "-a", "tree", "new.img:/", "--create", "16M"]);
    succeed(command.env("SOURCE_DATE_EPOCH", "1000000000"));
    for (name, want) in [
        ("old", "1998-07-09T16:00:00.000000000Z"),
        ("old-link", "1998-07-09T16:00:00.000000000Z"),
        ("new", "2001-09-09T01:46:40.000000000Z"),
        ("new-link", "2001-09-09T01:46:40.000000000Z"),
        ("", "2001-09-09T01:46:40.000000000Z"),
    ] {
        let stat = dir.json(&["stat", "--json", &format!("new.img:/tree/{name}")]);
        assert_eq!(stat[0]["modified"], want, "{name}: {stat}");
    }
}
