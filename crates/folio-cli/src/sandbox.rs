//! The confinement of servers: what a server does not need after its start, it gives up, so that
//! damaged bytes that take it over reach the served image or directory alone.
//!
//! ```text
//!   begin     Landlock: the folders in which this thread, and those it starts, may create, remove
//!     |       and (for a directory) open files. Older threads would keep their rights, so it comes
//!     v       before the source is opened
//!   close     seccomp: system calls that no thread of the process needs while it serves. An image
//!             is served from open descriptors, so opening files is among them
//! ```
//!
//! Calls are refused with EPERM, and not allowed one by one: a call that a later C library makes
//! on its own must not end a server. A kernel without Landlock or seccomp serves without them.
//! Linux: landlock(7), seccomp(2).

use crate::image_path::ImagePath;
use crate::objects::is_url;
use crate::source::Source;
use clap::Args;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError,
};
use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The option of all servers.
#[derive(Args, Clone, Copy)]
pub(crate) struct SandboxArgs {
    /// Do not confine the server: by default it gives up all rights that it does not need to serve
    #[arg(long)]
    no_sandbox: bool,
}

/// What a server opens while it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Nothing: an image is open.
    Image,
    /// Files below a directory of the host.
    Directory(PathBuf),
    /// Images that orders of `folio ctl` create, wherever they are.
    Forks,
    /// Connections to an object store, and its local cache.
    ObjectStore,
}

impl Reach {
    /// Returns that of a server of `source`.
    pub(crate) fn of(source: &Source) -> Self {
        match source {
            Source::Directory(path) => Self::Directory(path.clone()),
            Source::Image(place) => Self::of_image(place),
        }
    }

    /// Returns that of a server of an image.
    pub(crate) fn of_image(place: &ImagePath) -> Self {
        if is_url(place.image.as_os_str()) {
            Self::ObjectStore
        } else {
            Self::Image
        }
    }

    /// Returns that of a server which orders of `folio ctl` reach, if `has_orders`.
    pub(crate) fn with_forks(self, has_orders: bool) -> Self {
        match self {
            Self::Image if has_orders => Self::Forks,
            reach => reach,
        }
    }
}

/// Files that a server opens beside its source.
#[derive(Clone, Copy, Default)]
pub(crate) struct Places<'a> {
    /// The sockets on which it listens.
    pub(crate) sockets: &'a [&'a Path],
    /// `--key-file`.
    pub(crate) key_file: Option<&'a Path>,
    /// `--ready-fd`.
    pub(crate) ready_fd: Option<u32>,
}

/// The confinement of a server, complete once closed.
pub(crate) struct Sandbox {
    /// `None` with `--no-sandbox`.
    reach: Option<Reach>,
}

/// The interface whose rights are given up where the kernel has them: that of Linux 6.12.
const INTERFACE: ABI = ABI::V6;

impl Places<'_> {
    /// Returns the rights in the folders of the sockets: to create them, and to remove them at the
    /// end.
    fn of_sockets(&self) -> impl Iterator<Item = Option<PathBeneath<PathFd>>> {
        self.sockets.iter().map(|socket| {
            let parent = socket.parent()?;
            let is_here = parent.as_os_str().is_empty();
            let folder = if is_here { Path::new(".") } else { parent };
            rule(Some(folder), AccessFs::MakeSock | AccessFs::RemoveFile)
        })
    }
}

impl Sandbox {
    /// Returns the confinement of a server of an image on a mount. Its mount needs rights that
    /// Landlock takes from all it confines (landlock(7): the topology of mounts), so there are
    /// limits to system calls alone.
    pub(crate) fn of_mount(args: SandboxArgs, reach: Reach) -> Self {
        let is_directory = matches!(reach, Reach::Directory(_));
        let reach = (!is_directory && !args.no_sandbox).then_some(reach);
        Self { reach }
    }

    /// Whether programs can be started no more once it is closed.
    pub(crate) fn is_on(&self) -> bool {
        self.reach.is_some()
    }

    /// Confines the calling thread, and those that it starts, to the source and `places`. It comes
    /// before the first other thread.
    pub(crate) fn begin(args: SandboxArgs, reach: Reach, places: Places<'_>) -> Self {
        if args.no_sandbox {
            return Self { reach: None };
        }
        folio::cache::inspect_machine();
        let limited = match &reach {
            Reach::Image => limit_changes(places),
            Reach::Directory(path) => limit_files(path, places),
            Reach::Forks | Reach::ObjectStore => Ok(()),
        };
        if let Err(error) = limited {
            tracing::info!(%error, "no Landlock: the server's files are not limited");
        }
        Self { reach: Some(reach) }
    }

    /// Refuses the system calls that serving does not need, for all threads of the process.
    pub(crate) fn close(&self) {
        let Some(reach) = &self.reach else { return };
        match filter(reach).and_then(|filter| seccompiler::apply_filter_all_threads(&filter)) {
            Ok(()) => tracing::info!(?reach, "confined"),
            Err(error) => {
                tracing::info!(%error, "no seccomp: the server's system calls are not limited");
            }
        }
    }
}

/// Permits changes of directories for sockets alone. Files open as before: an image has a chain of
/// backing files that is not known yet.
fn limit_changes(places: Places<'_>) -> Result<(), RulesetError> {
    let contents = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    restrict(
        AccessFs::from_write(INTERFACE) & !contents,
        places.of_sockets(),
    )
}

/// Permits the files below `folder`, what the process asks the kernel about itself, and sockets.
fn limit_files(folder: &Path, places: Places<'_>) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(INTERFACE);
    let read_only = AccessFs::ReadFile | AccessFs::ReadDir;
    let ready = places
        .ready_fd
        .map(|fd| PathBuf::from(format!("/dev/fd/{fd}")));
    let rules = [
        rule(Some(folder), all),
        rule(places.key_file, AccessFs::ReadFile.into()),
        rule(ready.as_deref(), AccessFs::WriteFile.into()),
        rule(Some(Path::new("/proc/self")), read_only),
        rule(Some(Path::new("/dev/null")), AccessFs::from_file(INTERFACE)),
    ];
    restrict(all, rules.into_iter().chain(places.of_sockets()))
}

/// Returns the right to a path; `None` without one that exists.
fn rule(path: Option<&Path>, rights: BitFlags<AccessFs>) -> Option<PathBeneath<PathFd>> {
    Some(PathBeneath::new(PathFd::new(path?).ok()?, rights))
}

/// Gives up `rights` but for those of `rules`.
fn restrict(
    rights: BitFlags<AccessFs>,
    rules: impl IntoIterator<Item = Option<PathBeneath<PathFd>>>,
) -> Result<(), RulesetError> {
    let rules = rules.into_iter().flatten().map(Ok::<_, RulesetError>);
    Ruleset::default()
        // Without this right, of Linux 5.19, no file could move between directories.
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::Refer)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(rights)?
        .create()?
        .add_rules(rules)?
        .restrict_self()
        .map(drop)
}

/// Programs, other processes, and parts of the kernel that no server uses.
const NEVER: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    // No filter sees what a ring does. Those of FUSE exist already, and do nothing else.
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_kill,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_tkill,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Names of files. An image needs none while it is served; unlink(2) stays, for a server's socket
/// and the record of a mount.
const FILES: &[c_long] = &[
    libc::SYS_chdir,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_inotify_add_watch,
    libc::SYS_linkat,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_memfd_secret,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_removexattr,
    libc::SYS_renameat2,
    libc::SYS_setxattr,
    libc::SYS_symlinkat,
    libc::SYS_truncate,
];

/// The same by calls that only the oldest machines have.
#[cfg(target_arch = "x86_64")]
const OLD_FILES: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_creat,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_open,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_rmdir,
    libc::SYS_symlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_FILES: &[c_long] = &[];

fn filter(reach: &Reach) -> Result<BpfProgram, seccompiler::Error> {
    let mut refused = vec![NEVER];
    if *reach == Reach::Image {
        refused.extend([FILES, OLD_FILES]);
    }
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = refused
        .into_iter()
        .flatten()
        // A rule without conditions.
        .map(|call| (*call, Vec::new()))
        .collect();
    let process = u64::from(std::process::id());
    // abort(3) sends itself a signal.
    rules.insert(
        libc::SYS_tgkill,
        vec![argument(0, SeccompCmpOp::Ne, process)?],
    );
    // They write into the terminal what its shell then reads.
    let injects = [libc::TIOCSTI, libc::TIOCLINUX];
    let injects = injects.map(|request| argument(1, SeccompCmpOp::Eq, request));
    rules.insert(
        libc::SYS_ioctl,
        injects.into_iter().collect::<Result<_, _>>()?,
    );
    if *reach != Reach::ObjectStore {
        // Messages to a log or a service manager need no connection.
        rules.insert(libc::SYS_connect, Vec::new());
        let local = libc::AF_UNIX as u64;
        rules.insert(
            libc::SYS_socket,
            vec![argument(0, SeccompCmpOp::Ne, local)?],
        );
    }
    let refusal = SeccompAction::Errno(libc::EPERM as u32);
    let machine = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refusal, machine)?.try_into()?)
}

/// A rule about the lower half of one argument.
fn argument(
    place: u8,
    compared: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::Error> {
    let condition = SeccompCondition::new(place, SeccompCmpArgLen::Dword, compared, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}
