//! The same system calls on ext4 and on a ramfs: results and final contents must be equal.

use super::exercise;
use arbitrary::{Arbitrary, Unstructured};
use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{OpenFlags, Process};
use folio::vfs::{FallocateMode, FileType, MountOptions, RenameFlags, XattrFlags};
use folio::{Errno, Kernel, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

const IMAGE_BYTES: u64 = 8 << 20;
const OPERATIONS_MAX: usize = 100;

/// An index of one of a few names in one of a few directories.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct NameIndex(u8);

#[derive(Debug, Arbitrary)]
enum Operation {
    Create(NameIndex),
    Mkdir(NameIndex),
    Write {
        name: NameIndex,
        offset: u16,
        len: u16,
        byte: u8,
        appends: bool,
    },
    Truncate {
        name: NameIndex,
        size: u32,
    },
    Allocate {
        name: NameIndex,
        offset: u16,
        len: u16,
        mode: u8,
    },
    Unlink(NameIndex),
    Rmdir(NameIndex),
    Rename {
        from: NameIndex,
        to: NameIndex,
        flags: u8,
    },
    Link {
        from: NameIndex,
        to: NameIndex,
    },
    Symlink {
        name: NameIndex,
        len: u16,
    },
    SetXattr {
        name: NameIndex,
        which: u8,
        len: u8,
        flags: u8,
    },
    RemoveXattr {
        name: NameIndex,
        which: u8,
    },
    Chmod {
        name: NameIndex,
        mode: u16,
    },
    Fsync(NameIndex),
    Sync,
    Remount(u8),
}

/// Mount options, with the same visible contents.
const MOUNTS: [&str; 6] = [
    "",
    "nodelalloc",
    "noauto_da_alloc",
    "auto_da_alloc=close",
    "data=journal",
    "data=writeback,sync",
];

impl NameIndex {
    fn path(self, root: &str) -> String {
        let directory = ["", "/d0", "/d1", "/d0/d0"][usize::from(self.0 >> 3) % 4];
        let name = ["d0", "d1", "f0", "f1", "f2", "l0"][usize::from(self.0 & 7) % 6];
        format!("{root}{directory}/{name}")
    }
}

/// Makes the system calls given by `data` on both file systems.
pub fn operations(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let (kernel, process) = exercise::kernel();
    process
        .mkdir("/model", 0o755)
        .expect("a ramfs takes a directory");
    let device = Arc::new(MemoryDevice::new(IMAGE_BYTES));
    let options = FormatOptions {
        uuid: Some(*b"folio-fuzz-image"),
        block_size: Some(1024),
        clock: exercise::CLOCK,
        ..FormatOptions::default()
    };
    ext4::format(&*device, &options).expect("the device can be formatted");
    mount(&kernel, &device, 0);
    let (mut done, mut is_full) = (Vec::new(), false);
    while done.len() < OPERATIONS_MAX && !input.is_empty() {
        let Ok(operation) = Operation::arbitrary(&mut input) else {
            break;
        };
        done.push(operation);
        let operation = &done[done.len() - 1];
        if let Operation::Remount(how) = operation {
            kernel.unmount("/disk").expect("nothing is open");
            mount(&kernel, &device, *how);
            continue;
        }
        let disk = run(&process, "/disk", operation).map_err(|error| error.errno());
        let model = run(&process, "/model", operation).map_err(|error| error.errno());
        // The disk is small; stop when it is full, because the model has no such limit.
        if disk == Err(Errno::NOSPC) {
            is_full = true;
            break;
        }
        assert_eq!(disk, model, "{done:?}");
    }
    for _ in 0..2 {
        let (disk, model) = (tree(&process, "/disk"), tree(&process, "/model"));
        assert!(is_full || disk == model, "{done:?}\n{disk:#?}\n{model:#?}");
        kernel.unmount("/disk").expect("nothing is open");
        mount(&kernel, &device, 0);
    }
    drop(process);
    kernel.unmount("/disk").expect("nothing is open");
}

fn mount(kernel: &Arc<Kernel>, device: &Arc<MemoryDevice>, how: u8) {
    let mut options =
        MountOptions::parse(MOUNTS[usize::from(how) % MOUNTS.len()]).expect("known words");
    options.clock = exercise::CLOCK;
    let device: Arc<dyn Device> = device.clone();
    kernel
        .mount_ext4(device, "/disk", &options)
        .expect("the device can be mounted");
}

/// Opens a file, calls `act` on it, and closes it.
fn with_file(
    process: &Process,
    path: &str,
    flags: OpenFlags,
    act: impl FnOnce(folio::syscall::Fd) -> Result<()>,
) -> Result<()> {
    let fd = process.open(path, flags, 0o644)?;
    let acted = act(fd);
    process.close(fd).and(acted)
}

fn allocate(process: &Process, path: &str, offset: u16, len: u16, mode: u8) -> Result<()> {
    let modes = [
        FallocateMode::Allocate,
        FallocateMode::AllocateKeepSize,
        FallocateMode::PunchHole,
    ];
    let (offset, len) = (u64::from(offset) * 3, u64::from(len));
    with_file(process, path, OpenFlags::RDWR, |fd| {
        process.fallocate(fd, modes[usize::from(mode % 3)], offset, len)
    })
}

fn run(process: &Process, root: &str, operation: &Operation) -> Result<()> {
    let with_file = |name: &NameIndex, flags, act: &dyn Fn(folio::syscall::Fd) -> Result<()>| {
        with_file(process, &name.path(root), flags, act)
    };
    match operation {
        Operation::Create(name) => with_file(name, OpenFlags::CREAT | OpenFlags::RDWR, &|_| Ok(())),
        Operation::Mkdir(name) => process.mkdir(name.path(root), 0o755),
        Operation::Write {
            name,
            offset,
            len,
            byte,
            appends,
        } => {
            let appends = if *appends {
                OpenFlags::APPEND
            } else {
                OpenFlags::empty()
            };
            with_file(name, OpenFlags::RDWR | appends, &|fd| {
                let bytes = vec![*byte; usize::from(*len) % 20_000];
                process
                    .pwrite(fd, &bytes, u64::from(*offset) * 3)
                    .map(|_| ())
            })
        }
        Operation::Truncate { name, size } => {
            process.truncate(name.path(root), u64::from(*size) % (1 << 20))
        }
        Operation::Allocate {
            name,
            offset,
            len,
            mode,
        } => allocate(process, &name.path(root), *offset, *len, *mode),
        Operation::Unlink(name) => process.unlink(name.path(root)),
        Operation::Rmdir(name) => process.rmdir(name.path(root)),
        Operation::Rename { from, to, flags } => {
            let flags = RenameFlags::from_bits_truncate(u32::from(flags % 3));
            let at = folio::syscall::AT_FDCWD;
            process.renameat2(at, from.path(root), at, to.path(root), flags)
        }
        Operation::Link { from, to } => process.link(from.path(root), to.path(root)),
        Operation::Symlink { name, len } => {
            // A dangling target, so that both file systems give the same results.
            process.symlink("x".repeat(1 + usize::from(*len) % 900), name.path(root))
        }
        Operation::SetXattr {
            name,
            which,
            len,
            flags,
        } => {
            let value = vec![*len; usize::from(*len) % 100];
            let flags = XattrFlags::from_bits_truncate(u32::from(flags % 3));
            let attribute = format!("user.{}", which % 4);
            process.lsetxattr(name.path(root), attribute.as_bytes(), &value, flags)
        }
        Operation::RemoveXattr { name, which } => {
            process.lremovexattr(name.path(root), format!("user.{}", which % 4).as_bytes())
        }
        Operation::Chmod { name, mode } => process.chmod(name.path(root), mode & 0o777),
        Operation::Fsync(name) => with_file(name, OpenFlags::RDWR, &|fd| process.fsync(fd)),
        Operation::Sync => process.sync(),
        Operation::Remount(_) => Ok(()),
    }
}

/// Returns one line of facts per name.
fn tree(process: &Process, root: &str) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut waiting = vec![String::new()];
    while let Some(path) = waiting.pop() {
        let dir = process
            .open(format!("{root}{path}/"), OpenFlags::DIRECTORY, 0)
            .expect("it is a directory");
        loop {
            let entries = process
                .getdents(dir, 100)
                .expect("directories can be listed");
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                let name = String::from_utf8(entry.name).expect("names are plain");
                let at = format!("{path}/{name}");
                if matches!(name.as_str(), "." | ".." | "lost+found") {
                    continue;
                }
                let (line, is_directory) = describe(process, &format!("{root}{at}"));
                facts.insert(at.clone(), line);
                if is_directory {
                    waiting.push(at);
                }
            }
        }
        process.close(dir).expect("it is open");
    }
    facts
}

fn describe(process: &Process, path: &str) -> (String, bool) {
    let at = folio::syscall::AT_FDCWD;
    let found = process
        .fstatat(at, path, folio::syscall::AtFlags::SYMLINK_NOFOLLOW)
        .expect("listed names exist");
    let mut line = format!(
        "{:?} {:o} links {}",
        found.file_type, found.mode, found.link_count
    );
    let mut names = process.llistxattr(path).expect("attributes can be listed");
    names.sort();
    for name in names {
        let value = process.lgetxattr(path, &name).expect("listed names exist");
        let _ = write!(line, " {}={}", name.escape_ascii(), value.escape_ascii());
    }
    match found.file_type {
        FileType::Symlink => {
            let target = process.readlink(path).expect("links can be read");
            let _ = write!(line, " -> {}", target.escape_ascii());
        }
        FileType::Regular => {
            let fd = process
                .open(path, OpenFlags::empty(), 0)
                .expect("files can be opened");
            let mut bytes = vec![0; found.size_bytes as usize + 1];
            let count = process.pread(fd, &mut bytes, 0).expect("files can be read");
            process.close(fd).expect("it is open");
            let sum = super::base::crc32c(0, &bytes[..count]);
            let _ = write!(
                line,
                " size {} read {count} sum {sum:08x}",
                found.size_bytes
            );
        }
        _ => {}
    }
    (line, found.file_type == FileType::Directory)
}
