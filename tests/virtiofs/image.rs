//! An ext4 image in a guest.

use crate::support::guest::{Guest, Run};
use crate::support::tools::{command, fsck, mke2fs, succeed, text};
use crate::support::two_sides::{self, HEAD, LIMIT, with_attributes};
use crate::support::{report_skip, requires};
use crate::virtiofs::{SharedSource, probe};
use std::fs::File;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Bytes of the large file.
const BIG_LEN: usize = 24_000_000;

/// Mounts the guest's share.
pub(crate) const MOUNT: &str = "mount -t virtiofs share /mnt || fail mount\ncd /mnt\n";

/// Runs a script in a guest with a share, which must succeed; `None` on a machine without guests.
#[track_caller]
fn in_guest(socket: &Path, script: &str, extend: impl FnOnce(Guest) -> Guest) -> Option<Run> {
    let guest = match Guest::new() {
        Ok(guest) => extend(guest.share("share", socket)),
        Err(reason) => {
            report_skip(&reason);
            return None;
        }
    };
    Some(two_sides::run(
        guest,
        &format!("{MOUNT}{script}"),
        Path::new(""),
    ))
}

/// Every kind of operation once, each result checked again after the kernel has dropped its caches.
const OPERATIONS: &str = r#"
echo hello > file; same contents "$(cat file)" hello
same size "$(stat -c %s file)" 6
chmod 4751 file; chown 12:34 file; chmod 4751 file
touch -d '2001-02-03 04:05:06' file
same attributes "$(stat -c '%a %u %g %Y' file)" "4751 12 34 981173106"
ln file hard; same links "$(stat -c %h file)" 2
ln -s file soft; same link "$(readlink soft)" file; same 'through the link' "$(cat soft)" hello
mkfifo fifo; [ -p fifo ] || fail fifo
mknod null c 1 3; same device "$(stat -c %t:%T null)" 1:3
mkdir dir dir/sub; mv file dir/sub/moved; same moved "$(cat dir/sub/moved)" hello
rmdir dir 2>/dev/null && fail 'rmdir of a full folder'
rm hard soft fifo null; [ -e hard ] && fail 'still there'
echo more >> dir/sub/moved; same appended "$(cat dir/sub/moved | tr '\n' ' ')" "hello more "
: > dir/sub/moved; same emptied "$(stat -c %s dir/sub/moved)" 0

# A file without names lives until it is closed.
echo kept > gone; exec 3< gone; rm gone; same 'without names' "$(cat <&3)" kept; exec 3<&-

# Space: reserved, holes, cut.
fallocate -l 1048576 room; same reserved "$(stat -c '%s %b' room)" "1048576 2048"
dd if=/dev/zero of=sparse bs=1 count=1 seek=99999999 2>/dev/null
same sparse "$(stat -c %s sparse)" 100000000; [ $(stat -c %b sparse) -lt 64 ] || fail 'holes are stored'
truncate -s 5000 sparse; same truncated "$(stat -c %s sparse)" 5000

# Many names, with and without their attributes.
mkdir many; for n in $(seq 300); do echo $n > many/$n; done
same listed "$(ls many | wc -l)" 300
same found "$(find many -type f | wc -l)" 300
echo 3 > /proc/sys/vm/drop_caches
same 'found again' "$(ls -l many | grep -c '^-rw')" 300
same 'read again' "$(cat many/* | wc -l)" 300
rm -r many; [ -e many ] && fail 'many is still there'

# A program runs from the mount.
cp /bin/busybox dir/busybox; dir/busybox true || fail 'a program does not run'
echo 3 > /proc/sys/vm/drop_caches; same run "$(dir/busybox echo ran)" ran
rm dir/busybox

# Extended attributes.
setfattr -n user.color -v blue dir; same xattr "$(getfattr --only-values -n user.color dir)" blue
setfattr -x user.color dir; getfattr -n user.color dir 2>/dev/null && fail 'xattr is still there'
setfattr -n user.kept -v yes dir

# Bytes, both ways.
same 'host to guest' "$(sha256sum < big)" "$(cat big.sum)"
dd if=big bs=70000 2>/dev/null | cat > copy; sync copy
same 'guest to guest' "$(sha256sum < copy)" "$(cat big.sum)"
echo 3 > /proc/sys/vm/drop_caches; same 'read back' "$(sha256sum < copy)" "$(cat big.sum)"
df . | grep -q share || fail df
sync; cd /; umount /mnt || fail umount
mount -t virtiofs share /mnt || fail 'mount again'
same 'after a mount' "$(cat /mnt/dir/sub/moved; stat -c %s /mnt/copy)" 24000000
"#;

/// Creates an image with a large file and its checksum.
fn image(folder: &TempDir) -> PathBuf {
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let mut seed = 1_u32;
    let mut byte = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let bytes: Vec<u8> = (0..BIG_LEN).map(|_| byte()).collect();
    std::fs::write(tree.join("big"), bytes).unwrap();
    let sum = succeed(command("sha256sum").stdin(File::open(tree.join("big")).unwrap()));
    std::fs::write(tree.join("big.sum"), sum.stdout).unwrap();
    let image = folder.path().join("disk.img");
    mke2fs(&image, "128M", &["-d", tree.to_str().unwrap()]);
    image
}

#[test]
fn guest_image_operations_survive_remount() {
    requires!(
        tool("mke2fs"),
        tool("debugfs"),
        tool("setfattr"),
        tool("getfattr"),
        tool("sha256sum")
    );
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let shared = SharedSource::new(&image, &[]);
    if in_guest(&shared.socket, OPERATIONS, with_attributes).is_none() {
        return;
    }
    shared.stop();
    fsck(&image);
    let copy = folder.path().join("copy");
    debugfs(&image, &format!("dump copy {}", copy.display()));
    assert!(std::fs::read(copy).unwrap() == std::fs::read(folder.path().join("tree/big")).unwrap());
    assert!(debugfs(&image, "ea_get dir user.kept").contains("yes"));
}

/// The guest's kernel keeps the locks, and sends `FUSE_TMPFILE` for unnamed files.
#[test]
fn guest_locks_and_unnamed_files_work() {
    requires!(root, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    let (asked, words) = (probe::ASKED, probe::WORDS);
    let script = format!(
        "{asked}='locks /mnt/file' {name} {words} || fail locks
        {asked}='unnamed /mnt' {name} {words} || fail 'a file without a name'"
    );
    let directory = folder.path().join("directory");
    std::fs::create_dir(&directory).unwrap();
    let image = folder.path().join("disk.img");
    mke2fs(&image, "64M", &[]);
    // With FUSE_OPEN, and without.
    for (source, options) in [(&image, "rw"), (&directory, "rw"), (&directory, "ttl=1s")] {
        let shared = SharedSource::new(source, &["-o", options]);
        let probing = |guest: Guest| {
            guest
                .size(512, 1)
                .program(&program)
                .expect("the program and its libraries")
        };
        if in_guest(&shared.socket, &script, probing).is_none() {
            return;
        }
        shared.stop();
    }
    fsck(&image);
}

#[test]
fn next_guest_sees_data_and_read_only_refuses() {
    requires!(tool("mke2fs"), tool("sha256sum"));
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let shared = SharedSource::new(&image, &["--queues", "2", "-o", "cache=none"]);
    // It powers off with an open file and without an unmount.
    let first = "echo first > left; exec 4> open; echo open >&4; sync; poweroff -f; sleep 60";
    let guest = match Guest::new() {
        Ok(guest) => guest.share("share", &shared.socket),
        Err(reason) => return report_skip(&reason),
    };
    let run = guest
        .run(&format!("{HEAD}{MOUNT}{first}"), LIMIT, |_| {})
        .expect("the guest starts");
    assert_eq!(run.status, None, "{}", run.lines.join("\n"));
    let second = "same left \"$(cat left)\" first; same open \"$(cat open)\" open
        same sum \"$(sha256sum < big)\" \"$(cat big.sum)\"; rm open";
    in_guest(&shared.socket, second, |guest| guest).unwrap();
    shared.stop();
    let shared = SharedSource::new(&image, &["--read-only", "--once"]);
    let third =
        "same left \"$(cat left)\" first; rm left 2>/dev/null && fail 'rm of what is read-only'
        echo 2>/dev/null > new && fail 'a new file in what is read-only'; exit 0";
    in_guest(&shared.socket, third, |guest| guest).unwrap();
    let mut shared = shared;
    let (status, stderr) = shared.ended();
    assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
    fsck(&image);
}

#[test]
fn rebooted_guest_sees_synced_data() {
    requires!(tool("mke2fs"), tool("sha256sum"));
    let folder = TempDir::new().unwrap();
    let image = image(&folder);
    let shared = SharedSource::new(&image, &[]);
    // In the first run files are open and being written; in the second all synced data must exist.
    let script = "if [ ! -e second ]; then
          echo synced > second; exec 4> open; echo open >&4; sync
          (while :; do cat big > copy; done) & sleep 1; reboot -f; sleep 60
        fi
        same synced \"$(cat second)\" synced; same open \"$(cat open)\" open
        same sum \"$(sha256sum < big)\" \"$(cat big.sum)\"; rm open copy second";
    if in_guest(&shared.socket, script, Guest::may_reboot).is_some() {
        shared.stop();
        fsck(&image);
    }
}

fn debugfs(image: &Path, request: &str) -> String {
    text(&succeed(
        command("debugfs").arg("-R").arg(request).arg(image),
    ))
}
