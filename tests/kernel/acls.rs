//! POSIX ACLs: permissions and inheritance equal those of the kernel's ext4.

use crate::kernel::images::{at, folio};
use crate::support::tools::{command, fsck, mke2fs, run, succeed};
use crate::support::{Mounted, requires};
use folio::base::Owner;
use folio::block::{self, OpenOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::{DeviceNumber, MountOptions, XattrFlags};
use folio::{Kernel, KernelOptions, Process};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const OWNER: Owner = Owner::new(1001, 2001);
const USERS: [User; 8] = [
    User::new(1001, 2009, &[]),
    User::new(1002, 2009, &[]),
    User::new(1003, 2009, &[]),
    User::new(1003, 2001, &[]),
    User::new(1003, 2002, &[]),
    User::new(1003, 2009, &[2001, 2002]),
    User::new(1003, 2009, &[2002, 2003]),
    User::new(1002, 2001, &[2003]),
];
/// ACL entries beyond those of the mode, in setfacl's syntax. The mask is explicit, so that setfacl
/// does not compute it.
const ACLS: [&str; 12] = [
    "",
    "u:1002:rwx,m::rwx",
    "u:1002:---,m::rwx",
    "u:1002:rw-,m::r--",
    "g:2002:rw-,m::rwx",
    "g:2002:---,m::rwx",
    "g:2002:r--,g:2003:-w-,m::rwx",
    "g:2002:r--,g:2003:rw-,m::rw-",
    "u:1003:r-x,g:2002:rwx,m::rwx",
    "u:1002:rwx,g:2002:rwx,m::---",
    "u:1002:rwx,m::r-x",
    "u:1001:---,m::rwx",
];
const MODES: [u32; 5] = [0o640, 0o604, 0o007, 0o750, 0o070];

/// Returns a Folio kernel with the image mounted as `/`.
fn open(image: &Path, read_only: bool) -> Arc<Kernel> {
    let device = block::open(
        image,
        &OpenOptions {
            read_only,
            ..OpenOptions::default()
        },
    )
    .unwrap();
    let kernel = Kernel::new(KernelOptions::default());
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    kernel.mount_ext4(device, "/", &options).unwrap();
    kernel
}

/// A user, also as one of the host.
#[derive(Debug, Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
    /// Supplementary groups.
    groups: &'static [u32],
}

impl User {
    const ROOT: Self = Self::new(0, 0, &[]);

    const fn new(uid: u32, gid: u32, groups: &'static [u32]) -> Self {
        Self { uid, gid, groups }
    }

    fn process(self, kernel: &Arc<Kernel>) -> Process {
        kernel.process(Credentials::user(self.uid, self.gid, self.groups.to_vec()))
    }

    /// Runs a shell script as this user; returns its output.
    fn run(self, script: &str, folder: &Path) -> String {
        let list: Vec<_> = self.groups.iter().map(u32::to_string).collect();
        let groups = if list.is_empty() {
            "--clear-groups".to_owned()
        } else {
            format!("--groups={}", list.join(","))
        };
        let mut shell = command("setpriv");
        shell.args([
            &format!("--reuid={}", self.uid),
            &format!("--regid={}", self.gid),
            &groups,
        ]);
        let output = succeed(shell.args(["sh", "-c", script, "sh"]).arg(folder));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Creates a file and a directory for each ACL and mode.
fn create_acl_files(root: &Path) {
    for (index, acl) in ACLS.iter().enumerate() {
        for mode in MODES {
            for kind in ["file", "folder"] {
                let path = root.join(format!("{index}-{mode:03o}-{kind}"));
                match kind {
                    "file" => fs::write(&path, "x").unwrap(),
                    _ => fs::create_dir(&path).unwrap(),
                }
                chown(&path, Some(OWNER.uid), Some(OWNER.gid)).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                if !acl.is_empty() {
                    run(
                        "setfacl",
                        ["-n".as_ref(), "-m".as_ref(), acl.as_ref(), path.as_os_str()],
                    );
                }
            }
        }
    }
}

/// Returns the lines "name permission" of all access that Folio grants on a read-only mount.
fn access_granted_by_folio(process: &Process) -> String {
    let mut granted = String::new();
    let root = process.open("/", OpenFlags::DIRECTORY, 0).unwrap();
    let mut names: Vec<_> = process
        .getdents(root, 1000)
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    names.sort();
    for name in names.iter().filter(|name| name.contains(&b'-')) {
        let name = String::from_utf8_lossy(name);
        for (letter, bit) in [('r', 4), ('x', 1)] {
            // Twice: from the file system, and from the cache.
            let is_allowed = process.access(&*name, bit).is_ok();
            assert_eq!(is_allowed, process.access(&*name, bit).is_ok());
            if is_allowed {
                granted.push_str(&format!("{name} {letter}\n"));
            }
        }
    }
    // The mount is read-only, so every write is rejected: with EROFS instead of EACCES if the
    // permissions allow it.
    let writable = names
        .iter()
        .filter(|name| name.contains(&b'-'))
        .filter_map(|name| {
            let name = String::from_utf8_lossy(name).into_owned();
            let errno = process.access(&name, 2).unwrap_err().errno();
            (errno == folio::Errno::ROFS).then(|| format!("{name} w\n"))
        });
    granted.extend(writable);
    granted
}

#[test]
fn acl_permissions_equal_the_kernel() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("e2fsck"),
        tool("setfacl"),
        tool("setpriv")
    );
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "32M", &[]);
    let mounted = Mounted::new(&image, "rw,acl");
    fs::set_permissions(mounted.path(), Permissions::from_mode(0o755)).unwrap();
    create_acl_files(&mounted.path());
    let script = r#"cd "$1"; for name in *-*; do
        for want in r w x; do test -$want "$name" && echo "$name $want"; done; done; true"#;
    let want: Vec<_> = USERS
        .iter()
        .map(|user| user.run(script, &mounted.path()))
        .collect();
    mounted.unmount();
    let kernel = open(&image, true);
    for (user, want) in USERS.iter().zip(want) {
        let process = user.process(&kernel);
        let got = access_granted_by_folio(&process);
        let sorted = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&got), sorted(&want), "{user:?}");
        drop(process);
    }
}

/// New inodes in a directory with a default ACL, by name: mode and both ACLs.
type NewInodes = BTreeMap<String, (u16, Option<Vec<u8>>, Option<Vec<u8>>)>;

const DEFAULTS: [&str; 5] = [
    "",
    "u::rwx,g::r-x,o::---",
    "u::rwx,u:1002:rwx,g::r-x,m::rwx,o::r-x",
    "u::rw-,g::r--,g:2002:rwx,m::r-x,o::---",
    "u::r-x,u:1002:-w-,g::rwx,m::-w-,o::rwx",
];
const UMASKS: [u16; 2] = [0o022, 0o077];

#[test]
fn inherited_acls_equal_the_kernel() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("e2fsck"),
        tool("setfacl")
    );
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    mke2fs(&image, "32M", &[]);
    let mounted = Mounted::new(&image, "rw,acl");
    for (index, acl) in DEFAULTS.iter().enumerate() {
        for side in ["kernel", "folio"] {
            let path = mounted.path().join(format!("{side}-{index}"));
            fs::create_dir(&path).unwrap();
            if !acl.is_empty() {
                run(
                    "setfacl",
                    ["-n", "-d", "-m", acl]
                        .map(AsRef::as_ref)
                        .into_iter()
                        .chain([path.as_os_str()]),
                );
            }
        }
        let script = r#"cd "$1"; for mask in 022 077; do umask $mask; mkdir d$mask; : > f$mask; mkfifo -m 666 p$mask;
            mkdir d$mask/in; ln -s x l$mask; done"#;
        User::ROOT.run(script, &mounted.path().join(format!("kernel-{index}")));
    }
    mounted.unmount();
    let kernel = open(&image, false);
    let root = User::ROOT.process(&kernel);
    for (index, acl) in DEFAULTS.iter().enumerate() {
        for mask in UMASKS {
            let at = |name: &str| format!("/folio-{index}/{name}{mask:03o}");
            root.umask(mask);
            root.mkdir(at("d"), 0o777).unwrap();
            let fd = root
                .open(at("f"), OpenFlags::CREAT | OpenFlags::WRONLY, 0o666)
                .unwrap();
            root.close(fd).unwrap();
            // mkfifo -m changes the mode afterwards.
            root.mknodat(
                folio::syscall::AT_FDCWD,
                at("p"),
                folio::vfs::FileType::Fifo,
                0o666,
                DeviceNumber::default(),
            )
            .unwrap();
            root.chmod(at("p"), 0o666).unwrap();
            root.mkdir(format!("{}/in", at("d")), 0o777).unwrap();
            root.symlink("x", at("l")).unwrap();
        }
        let [want, got] =
            ["kernel", "folio"].map(|side| new_inodes(&root, &format!("/{side}-{index}")));
        assert_eq!(want.len(), 10);
        assert_eq!(got, want, "default ACL {:?}", acl);
    }
    check_chmod_and_setgid(&kernel, &root);
    drop(root);
    kernel.unmount("/").unwrap();
    fsck(&image);
}

/// Returns the inodes below a folder.
fn new_inodes(process: &Process, folder: &str) -> NewInodes {
    let mut out = NewInodes::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        let fd = process.open(&*at, OpenFlags::DIRECTORY, 0).unwrap();
        for entry in process.getdents(fd, 100).unwrap() {
            let name = String::from_utf8(entry.name).unwrap();
            if name == "." || name == ".." {
                continue;
            }
            let path = format!("{at}/{name}");
            let mode = process.lstat(&*path).unwrap().mode;
            let acl = |name: &[u8]| process.lgetxattr(&*path, name).ok();
            let acls = (
                acl(b"system.posix_acl_access"),
                acl(b"system.posix_acl_default"),
            );
            if entry.file_type == Some(folio::vfs::FileType::Directory) {
                open.push(path.clone());
            }
            out.insert(path[folder.len()..].to_owned(), (mode, acls.0, acls.1));
        }
        process.close(fd).unwrap();
    }
    out
}

/// Checks that chmod(2) updates the cached ACL, and that a new ACL clears setgid for a caller
/// outside of the group.
fn check_chmod_and_setgid(kernel: &Arc<Kernel>, root: &Process) {
    let fd = root
        .open("/f", OpenFlags::CREAT | OpenFlags::WRONLY, 0o600)
        .unwrap();
    root.close(fd).unwrap();
    root.chown("/f", Some(1001), Some(2001)).unwrap();
    // u::rw- u:1002:rw- g::r-- m::rw- o::---
    let entries: [(u16, u16, u32); 5] = [
        (1, 6, u32::MAX),
        (2, 6, 1002),
        (4, 4, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let acl = entries.iter().fold(
        2_u32.to_le_bytes().to_vec(),
        |mut bytes, (tag, permissions, id)| {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes
        },
    );
    let named = User::new(1002, 9, &[]).process(kernel);
    assert!(named.access("/f", 4).is_err());
    root.setxattr("/f", b"system.posix_acl_access", &acl, XattrFlags::empty())
        .unwrap();
    assert!(named.access("/f", 6).is_ok());
    assert_eq!(root.stat("/f").unwrap().mode, 0o660);
    root.chmod("/f", 0o2640).unwrap();
    assert!(named.access("/f", 4).is_ok() && named.access("/f", 2).is_err());
    let owner = User::new(1001, 9, &[]).process(kernel);
    owner
        .setxattr("/f", b"system.posix_acl_access", &acl, XattrFlags::empty())
        .unwrap();
    assert_eq!(root.stat("/f").unwrap().mode, 0o660, "setgid is still set");
    root.removexattr("/f", b"system.posix_acl_access").unwrap();
    assert!(named.access("/f", 4).is_err());
}

/// Returns modes and ACLs of all files below a folder, as getfacl prints them.
fn printed_acls(folder: &Path) -> String {
    let script = "find . | LC_ALL=C sort | while read -r file; do
        stat -c '%A %n' \"$file\"; getfacl -cn \"$file\"; done";
    let output = succeed(command("sh").args(["-ec", script]).current_dir(folder));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn unpacked_acls_equal_those_of_gnu_tar() {
    requires!(root, loop_devices, tool("tar"), tool("setfacl"));
    let scratch = TempDir::new().unwrap();
    let [disk, image, archive] =
        ["disk.img", "image.img", "a.tar"].map(|name| scratch.path().join(name));
    mke2fs(&disk, "16M", &[]);
    let mounted = Mounted::new(&disk, "acl");
    let tree = mounted.path().join("tree");
    fs::create_dir(&tree).unwrap();
    // Files without an ACL, in directories that have or get a default ACL.
    let script = "umask 022; mkdir -p acl/none/acl none
        for folder in . none acl acl/none acl/none/acl; do cd \"$1/$folder\"
            echo x > file; mkfifo fifo; mknod null c 1 3; mkdir folder setgid
            chmod 640 file; chmod 2770 setgid; echo y > own; setfacl -m u:9:rw own; done
        cd \"$1\"; ln file acl/hard
        setfacl -d -m u:1002:rwx,g:2002:r-x . acl; setfacl -d -m u:1003:r-x acl/none/acl";
    let sh = ["-ec", script, "sh"];
    succeed(command("sh").args(sh).arg(&tree).current_dir(&tree));
    let listed = "find . | LC_ALL=C sort \"$2\" | tar --acls --no-recursion -T - -cf \"$1\"";
    for order in ["-f", "-r"] {
        let sh = ["-ec", listed, "sh"];
        let mut pack = command("sh");
        succeed(pack.args(sh).arg(&archive).arg(order).current_dir(&tree));
        let theirs = mounted.path().join(format!("theirs{order}"));
        fs::create_dir(&theirs).unwrap();
        let mut extract = command("tar");
        extract.args(["--acls", "-xpf"]).arg(&archive);
        succeed(extract.arg("-C").arg(&theirs));
        let want = printed_acls(&theirs);
        assert_eq!(want, printed_acls(&tree));
        let mut unpack = folio(["tar", "--create", "16M", "-xf"]);
        succeed(unpack.arg(&archive).arg(at(&image, "/")));
        let ours = Mounted::new(&image, "acl");
        // mke2fs makes it.
        let lost = ours.path().join("lost+found");
        fs::remove_dir(lost).unwrap();
        assert_eq!(printed_acls(&ours.path()), want, "sort {order}");
        ours.unmount();
        fs::remove_file(&image).unwrap();
    }
}
