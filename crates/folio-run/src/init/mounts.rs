//! The tree of mounts: taken from the host while its tree is visible, attached in the image after
//! the host's tree is detached.
//!
//! Invariant: an image's symbolic links lead nowhere but into the image, since no other tree exists
//! when they are followed; links of /proc to open files are not followed at all.

use crate::failure::Failure;
use crate::options::{Bind, Network, Options};
use crate::sys::set_mount_attributes;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Device files of the host that programs expect.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Links in /dev.
const LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];
/// Parts of /proc and /sys that concern the whole machine: the superuser's id may be the host's.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
const HIDDEN_FILES: [&str; 5] = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/timer_list",
];
const HIDDEN_DIRECTORIES: [&str; 2] = ["/proc/acpi", "/proc/scsi"];
const HIDDEN_IN_SYS: [&str; 1] = ["/sys/firmware"];

const SAFE: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);
const NO_PRIVILEGES: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
/// Programs write to the node's device, but cannot change the node.
const HOST_DEVICE: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_RDONLY);
/// The list of name servers.
const RESOLVER: &str = "/etc/resolv.conf";
/// Symbolic links that are followed in one path. Linux: `MAXSYMLINKS`.
const LINKS_MAX: usize = 40;
const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// Mounts that come from the host or its kernel, attached nowhere yet.
pub(super) struct Sources {
    proc: Option<OwnedFd>,
    sys: Option<OwnedFd>,
    devices: Vec<(&'static str, OwnedFd)>,
    resolver: Option<OwnedFd>,
    binds: Vec<(Bind, OwnedFd)>,
}

/// What was created in the image so that something could be mounted on it.
#[derive(Debug, Default)]
pub(super) struct Tree {
    created: Vec<(PathBuf, FileType)>,
}

/// Opens all sources, but the paths of `--bind` that the server has opened. The host's tree is the
/// root.
pub(super) fn collect(
    options: &Options,
    opened_binds: Option<Vec<OwnedFd>>,
    note: &dyn Fn(&str),
) -> Result<Sources, Failure> {
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private)
        .map_err(|errno| Failure::of("cannot make mounts private", errno))?;
    let proc = new_mount("proc", &[], SAFE);
    if let Err(errno) = proc {
        let text = crate::failure::describe(errno);
        note(&format!(
            "no /proc inside: {text}; a container hides parts of it here"
        ));
    }
    let binds = match opened_binds {
        Some(binds) => binds,
        None => {
            let binds = options.binds.iter().map(open_bind);
            binds.collect::<Result<_, Failure>>()?
        }
    };
    let devices = DEVICES.iter().filter_map(|name| {
        let mount = clone(&Path::new("/dev").join(name), false).ok()?;
        // A chmod inside would reach the host's node.
        set_attributes(&mount, HOST_DEVICE).ok()?;
        Some((*name, mount))
    });
    let resolver = || {
        let mount = clone(Path::new(RESOLVER), false)?;
        set_attributes(&mount, SAFE.union(MountAttrFlags::MOUNT_ATTR_RDONLY))?;
        Ok::<_, Errno>(mount)
    };
    Ok(Sources {
        proc: proc.ok(),
        sys: sys(options).ok(),
        devices: devices.collect(),
        resolver: (options.network == Network::Host)
            .then(|| resolver().ok())
            .flatten(),
        binds: options.binds.iter().cloned().zip(binds).collect(),
    })
}

/// Copies the mounts at a path of the host.
pub(crate) fn open_bind(bind: &Bind) -> Result<OwnedFd, Failure> {
    let mut flags = NO_PRIVILEGES;
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, bind.read_only);
    clone(&bind.host, true)
        .and_then(|mount| set_attributes(&mount, flags).map(|()| mount))
        .map_err(|errno| Failure::at("--bind", bind.host.display(), errno))
}

/// Returns a read-only /sys: a new one with the namespace's own network, else the host's.
fn sys(options: &Options) -> Result<OwnedFd, Errno> {
    let flags = SAFE.union(MountAttrFlags::MOUNT_ATTR_RDONLY);
    if options.network == Network::None {
        return new_mount("sysfs", &[], flags);
    }
    let mount = clone(Path::new("/sys"), true)?;
    set_attributes(&mount, flags)?;
    Ok(mount)
}

/// Makes the image the root, and attaches the sources in it.
pub(super) fn build(
    tree: &mut Tree,
    image: &OwnedFd,
    sources: Sources,
    options: &Options,
    note: &dyn Fn(&str),
) -> Result<(), Failure> {
    enter(image).map_err(|errno| Failure::of("cannot make the image the root", errno))?;
    let Sources {
        proc,
        sys,
        devices,
        resolver,
        binds,
    } = sources;
    let missing = |path: &str, errno: Errno| {
        let text = crate::failure::describe(errno);
        note(&format!("no {path} inside: {text}"));
    };
    if let Some(proc) = proc {
        match tree.attach(&proc, Path::new("/proc")) {
            Ok(()) => protect_proc(),
            Err(errno) => missing("/proc", errno),
        }
    }
    if let Some(sys) = sys {
        match tree.attach(&sys, Path::new("/sys")) {
            Ok(()) => hide(&HIDDEN_IN_SYS),
            Err(errno) => missing("/sys", errno),
        }
    }
    match tmpfs("0755").and_then(|dev| tree.attach(&dev, Path::new("/dev"))) {
        Ok(()) => {
            fill_dev(tree, &devices).map_err(|errno| Failure::at("cannot make", "/dev", errno))?
        }
        Err(errno) => missing("/dev", errno),
    }
    if let Err(errno) = tmpfs("1777").and_then(|tmp| tree.attach(&tmp, Path::new("/tmp"))) {
        missing("/tmp", errno);
    }
    if let Some(resolver) = resolver {
        let attached =
            link_target(Path::new(RESOLVER)).and_then(|target| tree.attach(&resolver, &target));
        attached.unwrap_or_else(|errno| missing("/etc/resolv.conf of the host", errno));
    }
    for (bind, mount) in binds {
        tree.attach(&mount, &bind.inside).map_err(|errno| {
            let hint = if options.read_only {
                "; --read-only creates no folder for it"
            } else {
                ""
            };
            let mut failure = Failure::at("--bind: cannot mount on", bind.inside.display(), errno);
            failure.message.push_str(hint);
            failure
        })?;
    }
    Ok(())
}

/// Attaches the image at a directory of the host's own tree.
pub(super) fn attach_at(image: &OwnedFd, target: &Path, sources: Sources) -> Result<(), Failure> {
    let attach = |mount: &OwnedFd, target: &Path| {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
        rustix::mount::move_mount(mount.as_fd(), "", CWD, target, flags)
    };
    let refused = |why: &str| Err(Failure::new(format!("--at {}: {why}", target.display())));
    let found = target.canonicalize();
    match &found {
        Ok(path) if path == Path::new("/") || path.starts_with("/proc") => {
            return refused("choose another directory");
        }
        Ok(path) if !path.is_dir() => return refused("not a directory"),
        _ => {}
    }
    let current = std::env::current_dir();
    attach(image, target).map_err(|errno| {
        let mut failure = Failure::at("--at", target.display(), errno);
        if errno == Errno::NOENT {
            failure.message.push_str("; create the directory first");
        }
        failure
    })?;
    if let Ok(current) = current {
        // It may be the target, or below.
        let _ = rustix::process::chdir(&current);
    }
    if let Some(proc) = sources.proc {
        // Else programs see the host's processes.
        let _ = attach(&proc, Path::new("/proc"));
    }
    Ok(())
}

/// Makes `image` the root directory, and detaches the former root.
fn enter(image: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(image.as_fd(), "", CWD, "/tmp", flags)
        .or_else(|_| rustix::mount::move_mount(image.as_fd(), "", CWD, "/", flags))?;
    rustix::process::fchdir(image)?;
    // The former root is then mounted on the new one: pivot_root(2), section Notes.
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

fn fill_dev(tree: &mut Tree, devices: &[(&str, OwnedFd)]) -> Result<(), Errno> {
    for (name, device) in devices {
        tree.attach(device, &Path::new("/dev").join(name))?;
    }
    for (link, target) in LINKS {
        rustix::fs::symlink(target, link)?;
    }
    // Group 5 is tty everywhere, and does not exist where one id is mapped.
    let options = [("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")];
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let terminals =
        new_mount("devpts", &options, flags).or_else(|_| new_mount("devpts", &options[..2], flags));
    tree.attach(&terminals?, Path::new("/dev/pts"))?;
    tree.attach(&tmpfs("1777")?, Path::new("/dev/shm"))?;
    if let Ok(queues) = new_mount("mqueue", &[], SAFE) {
        tree.attach(&queues, Path::new("/dev/mqueue"))?;
    }
    Ok(())
}

/// Makes the parts of /proc read-only or empty that concern the whole machine.
fn protect_proc() {
    for path in READ_ONLY {
        // Not every kernel has each of them.
        if let Ok(mount) = clone(Path::new(path), true)
            && set_attributes(&mount, SAFE.union(MountAttrFlags::MOUNT_ATTR_RDONLY)).is_ok()
            && let Ok(target) = open_path(Path::new(path))
        {
            let _ = attach_to(&mount, &target);
        }
    }
    hide(&HIDDEN_FILES);
    hide(&HIDDEN_DIRECTORIES);
}

/// Mounts an empty directory or file on each of `paths` that exists.
fn hide(paths: &[&str]) {
    for path in paths {
        let Ok(target) = open_path(Path::new(path)) else {
            continue;
        };
        let is_directory =
            rustix::fs::fstat(&target).is_ok_and(|stat| file_type(&stat) == FileType::Directory);
        let flags = SAFE.union(MountAttrFlags::MOUNT_ATTR_RDONLY);
        let empty = new_mount("tmpfs", &[("mode", "0555")], MountAttrFlags::empty());
        let _ = empty.and_then(|empty| {
            let mount = if is_directory {
                empty
            } else {
                let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                drop(rustix::fs::openat(&empty, "empty", create, Mode::RUSR)?);
                open_tree(&empty, "empty", false)?
            };
            set_attributes(&mount, flags)?;
            attach_to(&mount, &target)
        });
    }
}

impl Tree {
    /// Attaches a mount at `path`, an absolute path of the image. Creates what is missing.
    fn attach(&mut self, mount: &OwnedFd, path: &Path) -> Result<(), Errno> {
        let kind = file_type(&rustix::fs::fstat(mount)?);
        let target = match open_path(path) {
            Err(Errno::NOENT) => {
                self.create(path, kind)?;
                open_path(path)?
            }
            target => target?,
        };
        let target_kind = file_type(&rustix::fs::fstat(&target)?);
        let is_directory = kind == FileType::Directory;
        if is_directory == (target_kind == FileType::Directory) {
            attach_to(mount, &target)
        } else if is_directory {
            Err(Errno::NOTDIR)
        } else {
            Err(Errno::ISDIR)
        }
    }

    /// Creates an empty directory, or an empty file for other kinds, and the folders above it.
    fn create(&mut self, path: &Path, kind: FileType) -> Result<(), Errno> {
        let mut at = PathBuf::from("/");
        let names = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let mut names = names.peekable();
        while let Some(name) = names.next() {
            let above = open_path(&at)?;
            at.push(name);
            let is_last = names.peek().is_none();
            let created = if !is_last || kind == FileType::Directory {
                rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755))
            } else {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(&above, name, flags, Mode::from_raw_mode(0o644)).map(drop)
            };
            match created {
                Ok(()) => {
                    let kind = if is_last { kind } else { FileType::Directory };
                    self.created.push((at.clone(), kind));
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Removes what was created, as far as it is still empty.
    pub(super) fn remove_created(&mut self) {
        // A tree in memory ends by itself.
        let is_in = |path: &Path, folder| path.starts_with(folder) && path != Path::new(folder);
        let is_kept = |path: &Path| !is_in(path, "/dev") && !is_in(path, "/tmp");
        let created = std::mem::take(&mut self.created);
        for (path, kind) in created.into_iter().rev().filter(|(path, _)| is_kept(path)) {
            // None, if it is a folder above; two, if --bind names /proc or /sys.
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            while rustix::mount::unmount(&path, flags).is_ok() {}
            let flags = match kind {
                FileType::Directory => AtFlags::REMOVEDIR,
                _ => AtFlags::empty(),
            };
            let is_empty = kind == FileType::Directory
                || rustix::fs::lstat(&path).is_ok_and(|stat| stat.st_size == 0);
            if is_empty {
                // The command may have put files there.
                let _ = rustix::fs::unlinkat(CWD, &path, flags);
            }
        }
    }
}

fn tmpfs(mode: &str) -> Result<OwnedFd, Errno> {
    new_mount("tmpfs", &[("mode", mode)], NO_PRIVILEGES)
}

/// Mounts a file system of the kernel.
fn new_mount(
    name: &str,
    options: &[(&str, &str)],
    flags: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    // The source in /proc/mounts. Not all types have one.
    let _ = rustix::mount::fsconfig_set_string(context.as_fd(), "source", name);
    rustix::mount::fsconfig_create(context.as_fd())?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Copies the mounts at `path`, with those below it if `recursive`.
fn clone(path: &Path, recursive: bool) -> Result<OwnedFd, Errno> {
    open_tree(&CWD, path, recursive)
}

fn open_tree(
    directory: &impl AsFd,
    path: impl rustix::path::Arg,
    recursive: bool,
) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    rustix::mount::open_tree(directory.as_fd(), path, flags)
}

fn set_attributes(mount: &OwnedFd, flags: MountAttrFlags) -> Result<(), Errno> {
    set_mount_attributes(mount.as_fd(), flags.bits().into(), None)
}

/// Opens a path of the image, whose symbolic links lead into the image.
fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let relative = path.as_os_str().as_bytes();
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(&root, relative, flags, Mode::empty(), RESOLVE)
}

/// Returns the path of the image to which the symbolic link `path` leads, also if no file is there:
/// services create their files under /run. Any other path leads to itself.
fn link_target(path: &Path) -> Result<PathBuf, Errno> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(path);
        };
        let target =
            open_path(folder).and_then(|folder| rustix::fs::readlinkat(&folder, name, Vec::new()));
        let Ok(target) = target else {
            return Ok(path);
        };
        let mut resolved = folder.to_owned();
        for component in Path::new(OsStr::from_bytes(target.as_bytes())).components() {
            match component {
                Component::RootDir => resolved = PathBuf::from("/"),
                Component::ParentDir => drop(resolved.pop()),
                Component::Normal(name) => resolved.push(name),
                Component::CurDir | Component::Prefix(_) => {}
            }
        }
        path = resolved;
    }
    Err(Errno::LOOP)
}

fn attach_to(mount: &OwnedFd, target: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount.as_fd(), "", target.as_fd(), "", flags)
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
