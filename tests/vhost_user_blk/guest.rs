//! A Linux guest with a served disk: it makes a file system, fills it, discards, and reads it back.

use super::BlockServer;
use crate::support::guest::Guest;
use crate::support::require::find;
use crate::support::tools::{command, fsck, order, qemu_check, run, succeed};
use crate::support::{report_skip, requires};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(400);

const SCRIPT: &str = "\
set -e
cat /sys/block/vda/size; cat /sys/block/vda/serial; echo; cat /sys/block/vda/queue/write_cache
ls /sys/block/vda/mq | wc -l
/bin/mke2fs -q -t ext4 /dev/vda
mount -t ext4 -o discard /dev/vda /mnt
for n in 1 2 3 4; do (for k in 1 2 3 4 5; do dd if=/dev/urandom of=/mnt/$n.$k bs=64k count=16 2>/dev/null; done) & done
wait
cat /mnt/*.* | md5sum > /mnt/sums
rm /mnt/4.*
sync
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount -t ext4 /dev/vda /mnt
ls /mnt | wc -l
md5sum /mnt/[123].* > /mnt/list
sync
md5sum -c /mnt/list | grep -c OK
umount /mnt
";

/// Returns a guest with four processors and the disk at `socket`; or what is missing.
pub(super) fn guest(socket: &Path, memory_mib: u32) -> Result<Guest, String> {
    let socket = socket.display();
    let guest = Guest::new()?
        .size(memory_mib, 4)
        .module("virtio_blk")?
        .device(
            "-chardev",
            &format!("socket,id=disk,path={socket},reconnect=1"),
        );
    Ok(guest.device("-device", "vhost-user-blk-pci,chardev=disk,num-queues=4"))
}

/// Adds ext4 and mke2fs to a guest.
fn with_ext4(guest: Guest) -> Result<Guest, String> {
    guest.module("ext4")?.program(Path::new("/sbin/mke2fs"))
}

#[test]
fn linux_guest_uses_a_served_qcow2() {
    requires!(tool("qemu-img"), tool("mke2fs"), tool("e2fsck"));
    let folder = TempDir::new().unwrap();
    let [image, raw] = ["disk.qcow2", "disk.raw"].map(|name| folder.path().join(name));
    run(
        "qemu-img",
        [
            "create",
            "-q",
            "-f",
            "qcow2",
            image.to_str().unwrap(),
            "256M",
        ],
    );
    let server = BlockServer::new(&[&image], &["--serial", "folio-disk"]);
    assert_eq!(server.ready["disks"][0]["serial"], "folio-disk");
    let guest = match guest(&server.sockets[0], 384).and_then(with_ext4) {
        Ok(guest) => guest,
        Err(reason) => return report_skip(&reason),
    };
    let ran = guest.run(SCRIPT, LIMIT, |_| {}).unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.explain());
    let lines = &ran.lines;
    assert_eq!(
        lines[..4],
        ["524288", "folio-disk", "write back", "4"],
        "{lines:?}"
    );
    // The files that are left with the list of sums and lost+found, and those that are intact.
    for expected in ["17", "15"] {
        assert!(lines.iter().any(|line| line == expected), "{lines:?}");
    }
    server.stop();
    qemu_check(&image);
    let names = [&image, &raw].map(|path| path.to_str().unwrap());
    run("qemu-img", ["convert", "-O", "raw", names[0], names[1]]);
    fsck(&raw);
}

/// Writes 32 MiB past the guest's cache while the server is killed, and compares them afterwards;
/// then waits for a larger disk.
const KILLED: &str = "\
set -e
dd if=/dev/urandom of=/tmp/data bs=1M count=32 2>/dev/null
echo @kill
for n in 0 1 2 3; do dd if=/tmp/data of=/dev/vda bs=64k skip=$((n * 128)) seek=$((n * 128)) count=128 oflag=direct 2>/dev/null & done
wait
echo 3 > /proc/sys/vm/drop_caches
dd if=/dev/vda bs=1M count=32 iflag=direct 2>/dev/null | cmp - /tmp/data
echo same
echo @resize
n=0; until [ $(cat /sys/block/vda/size) = 786432 ]; do sleep 1; n=$((n + 1)); [ $n -lt 100 ]; done
";

#[test]
fn linux_guest_outlives_a_killed_server() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let [image, control] = ["disk.qcow2", "control"].map(|name| folder.path().join(name));
    let name = image.to_str().unwrap();
    run("qemu-img", ["create", "-q", "-f", "qcow2", name, "256M"]);
    let words = ["--control", control.to_str().unwrap()];
    let mut server = Some(BlockServer::new(&[&image], &words));
    let socket = image.with_extension("sock");
    let guest = match guest(&socket, 384) {
        Ok(guest) => guest,
        Err(reason) => return report_skip(&reason),
    };
    let ran = guest.run(KILLED, LIMIT, |line| match line {
        "@kill" => {
            server.take().unwrap().kill();
            server = Some(BlockServer::new(&[&image], &words));
        }
        "@resize" => {
            let resize = ["ctl", words[1], "resize", "384M"];
            run(env!("CARGO_BIN_EXE_folio"), resize);
        }
        _ => {}
    });
    let ran = ran.unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.explain());
    assert!(
        ran.lines.iter().any(|line| line == "same"),
        "{:?}",
        ran.lines
    );
    server.take().unwrap().stop();
    qemu_check(&image);
}

/// Starts a program of the disk, with the disk as its root.
const STARTED: &str = "\
set -e
mount -t ext4 /dev/vda /mnt
chroot /mnt /busybox sh -c '/busybox cat /mark; /busybox ls /many | /busybox wc -l'
umount /mnt
";

#[test]
fn linux_guest_starts_from_a_fork_of_a_mount() {
    requires!(root, fuse, tool("qemu-img"), tool("busybox"));
    const FOLIO: &str = env!("CARGO_BIN_EXE_folio");
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let [image, target, control, fork] = ["disk.qcow2", "mount", "control", "fork.qcow2"].map(path);
    let guest = match guest(&fork.with_extension("sock"), 384).and_then(with_ext4) {
        Ok(guest) => guest,
        Err(reason) => return report_skip(&reason),
    };
    fs::create_dir(&target).unwrap();
    succeed(command(FOLIO).args(["mkfs", "--size", "64M"]).arg(&image));
    let mut mount = command(FOLIO);
    mount
        .args(["mount", "--background", "--control"])
        .arg(&control);
    succeed(mount.arg("-o").arg("exec").arg(&image).arg(&target));
    fs::copy(find("busybox").unwrap(), target.join("busybox")).unwrap();
    fs::create_dir(target.join("many")).unwrap();
    for name in 0..300 {
        fs::write(target.join(format!("many/{name}")), "data").unwrap();
    }
    fs::write(target.join("mark"), "from the fork\n").unwrap();
    let forked = order(FOLIO, &control, &["fork", fork.to_str().unwrap()]);
    // Of the mount alone.
    fs::write(target.join("mark"), "later\n").unwrap();
    succeed(command("umount").arg(&target));
    forked.unwrap();
    let server = BlockServer::new(&[&fork], &[]);
    let ran = guest.run(STARTED, LIMIT, |_| {}).unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.explain());
    assert_eq!(ran.lines[..2], ["from the fork", "300"], "{:?}", ran.lines);
    server.stop();
    qemu_check(&fork);
}
