//! The first process of the namespaces: builds the tree, starts the command, reaps all processes.
//!
//! ```text
//!   run --> mounts.rs    the tree: the image, /proc, /dev, /sys, paths of the host
//!       --> terminal.rs  a terminal of the namespace
//!       --> program.rs   user, working directory, search, execve
//!             --> system_calls.rs   the filter of the command's system calls
//!       --> reap         until the command has ended
//! ```
//!
//! It was cloned from the server without execve(2), and has one thread. Its failures and notes go
//! to the server, which prints them.

mod mounts;
mod passwd;
mod program;
mod system_calls;

pub(crate) use mounts::open_bind;

use crate::channel::{Channel, Message};
use crate::failure::Failure;
use crate::options::{Network, Options, Root};
use crate::status::{FORWARDED, exit_code};
use crate::sys::{self, Fork};
use folio_fuse::{DetachedMount, MountAttributes};
use mounts::Tree;
use program::Terminal;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Gid, Pid, Signal, Uid, WaitOptions, kill_process, kill_process_group,
    set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::fd::{AsFd, OwnedFd};

/// Runs the first process to its end, and that of the namespace.
#[expect(
    clippy::disallowed_methods,
    reason = "the process is a clone: nothing of its parent is to be closed here"
)]
pub(crate) fn run(options: &Options, channel: Channel, wants_terminal: bool) -> ! {
    let mut tree = Tree::default();
    let ended = start(options, &channel, wants_terminal, &mut tree)
        .and_then(|(command, signals)| reap(command, signals));
    tree.remove_created();
    let exit = ended.unwrap_or_else(|failure| {
        let exit = failure.exit;
        // The server may have ended.
        let _ = channel.send(&Message::Failed(failure));
        exit
    });
    std::process::exit(exit.into())
}

/// Builds the tree and starts the command.
fn start(
    options: &Options,
    channel: &Channel,
    wants_terminal: bool,
    tree: &mut Tree,
) -> Result<(Pid, Signals), Failure> {
    let lost = |errno| Failure::of("channel to the server", errno);
    // Before the server may end unseen.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(lost)?;
    expect(channel, |message| matches!(message, Message::Mapped))?;
    let umask = rustix::process::umask(Mode::empty());
    if let Some(name) = &options.hostname {
        let named = rustix::system::sethostname(name.as_bytes());
        named.map_err(|errno| Failure::at("cannot set the host name", name, errno))?;
    }
    if options.network == Network::None {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
        // Without it only programs that use the interface fail.
        let _ = socket.and_then(|socket| sys::activate_loopback(socket.as_fd()));
    }
    let note = |text: &str| {
        // The server may have ended.
        let _ = channel.send(&Message::Note(text.to_owned()));
    };
    let sources = mounts::collect(options, receive_binds(options, channel)?, &note)?;
    let image = mount_image(options, channel)?;
    match &options.root {
        Root::Image => mounts::build(tree, &image, sources, options, &note)?,
        Root::At(target) => mounts::attach_at(&image, target, sources)?,
    }
    drop(image);
    let terminal = if wants_terminal {
        let (controlling, terminal) = open_terminal(options)?;
        channel
            .send(&Message::Terminal(controlling))
            .map_err(lost)?;
        Some(terminal)
    } else {
        None
    };
    if options.root != Root::Image {
        rustix::process::umask(umask);
    }
    let command = start_command(options, terminal)?;
    let signals = Signals::new(FORWARDED.iter().chain(&[SIGCHLD]))
        .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    channel.send(&Message::Started).map_err(lost)?;
    Ok((command, signals))
}

/// Waits for a message of the server.
fn expect(channel: &Channel, is_expected: impl Fn(&Message) -> bool) -> Result<(), Failure> {
    match channel.receive() {
        Ok(Some(message)) if is_expected(&message) => Ok(()),
        Ok(_) | Err(_) => Err(Failure::new("the server ended early")),
    }
}

/// Returns the mounts that the server has opened for `--bind`; `None` if this process may open
/// them: its ids are the same outside.
fn receive_binds(options: &Options, channel: &Channel) -> Result<Option<Vec<OwnedFd>>, Failure> {
    if is_superuser() {
        return Ok(None);
    }
    let receive = |_| match channel.receive() {
        Ok(Some(Message::Bind(mount))) => Ok(mount),
        Ok(_) | Err(_) => Err(Failure::new("the server ended early")),
    };
    options
        .binds
        .iter()
        .map(receive)
        .collect::<Result<_, _>>()
        .map(Some)
}

fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
}

/// Becomes the superuser of the namespace, where the calling user has no id in it, and shields this
/// process from those inside.
fn become_superuser() -> Result<(), Failure> {
    let change = || {
        if !is_superuser() {
            let (user, group) = (Uid::ROOT, Gid::ROOT);
            set_thread_groups(&[])?;
            set_thread_res_gid(group, group, group)?;
            set_thread_res_uid(user, user, user)?;
            // A change of ids cleared it.
            set_parent_process_death_signal(Some(Signal::KILL))?;
        }
        // Processes inside can neither read this process's memory nor use its descriptors or
        // program.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)
    };
    change().map_err(|errno| Failure::of("cannot become the superuser of the namespace", errno))
}

/// Mounts the image, and waits until it is served. Returns as the superuser of the namespace.
fn mount_image(options: &Options, channel: &Channel) -> Result<OwnedFd, Failure> {
    let attributes = MountAttributes {
        source: options.source.clone(),
        // All users of the namespace, and no other user of the host.
        allow_other: true,
        read_only: options.read_only,
        no_devices: true,
        ..MountAttributes::default()
    };
    let mounted = DetachedMount::new(&attributes, true);
    let mounted = mounted.map_err(|error| explain_fuse(&error))?;
    // Not before: the namespace's superuser may have no access to the host's files, as /dev/fuse.
    // Not later: a server that has ended is noticed below.
    become_superuser()?;
    channel
        .send(&Message::Device(mounted.device))
        .map_err(|errno| Failure::of("channel to the server", errno))?;
    expect(channel, |message| matches!(message, Message::Serving))?;
    Ok(mounted.mount)
}

fn explain_fuse(error: &folio::Error) -> Failure {
    let hint = match error.errno() {
        folio::Errno::ACCESS => "; the device must be readable and writable: chmod 666 /dev/fuse",
        folio::Errno::NOENT | folio::Errno::NODEV | folio::Errno::NXIO => {
            "; load the module fuse (modprobe fuse), or give the container the device"
        }
        folio::Errno::PERM => {
            "; the kernel gives no privileges in user namespaces here: see \
             kernel.apparmor_restrict_unprivileged_userns of sysctl(8)"
        }
        _ => "",
    };
    let errno = Errno::from_raw_os_error(error.errno().raw_os_error());
    Failure::new(format!("{error}{hint}")).of_machine(errno)
}

/// Opens a terminal; returns its controlling side, and the command's.
fn open_terminal(options: &Options) -> Result<(OwnedFd, OwnedFd), Failure> {
    let path = match options.root {
        Root::Image => "/dev/pts/ptmx",
        Root::At(_) => "/dev/ptmx",
    };
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = || {
        let controlling = rustix::fs::open(path, flags, Mode::empty())?;
        unlockpt(&controlling)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = ioctl_tiocgptpeer(&controlling, flags)?;
        Ok((controlling, terminal))
    };
    open().map_err(|errno| Failure::at("cannot open a terminal", path, errno))
}

/// Starts the command, and waits until it runs.
fn start_command(options: &Options, terminal: Option<OwnedFd>) -> Result<Pid, Failure> {
    let cannot = |errno| Failure::of("cannot start a process", errno);
    // Closed by execve(2).
    let (result, report) = pipe_with(PipeFlags::CLOEXEC).map_err(cannot)?;
    match sys::fork().map_err(cannot)? {
        Fork::Child => {
            drop(result);
            program::run(options, terminal.map(Terminal), &report)
        }
        Fork::Parent(command) => {
            drop((report, terminal));
            match program::read_failure(result) {
                None => Ok(command),
                Some(failure) => Err(failure),
            }
        }
    }
}

/// Reaps all processes until the command has ended; returns its exit code. The end of this
/// process kills the rest.
fn reap(command: Pid, mut signals: Signals) -> Result<u8, Failure> {
    // The command may have ended before the signals were handled.
    let mut signal = SIGCHLD;
    loop {
        if signal != SIGCHLD {
            forward(command, signal);
        }
        // Several ends may cause one signal.
        while let Some((id, status)) = next_ended()? {
            if id == command {
                return Ok(exit_code(status.exit_status(), status.terminating_signal()));
            }
        }
        signal = signals.forever().next().unwrap_or(SIGCHLD);
    }
}

fn next_ended() -> Result<Option<(Pid, rustix::process::WaitStatus)>, Failure> {
    match rustix::process::wait(WaitOptions::NOHANG) {
        Err(Errno::INTR) => Ok(None),
        ended => ended.map_err(|errno| Failure::of("waitpid", errno)),
    }
}

/// Passes a signal on: those that a terminal sends go to the command's whole group, as there.
fn forward(command: Pid, signal: i32) {
    let Some(named) = Signal::from_named_raw(signal) else {
        return;
    };
    // It may have ended.
    let _ = if [SIGHUP, SIGINT, SIGQUIT].contains(&signal) {
        kill_process_group(command, named)
    } else {
        kill_process(command, named)
    };
    if [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal) {
        // A stopped process gets the signal once it goes on.
        let _ = kill_process(command, Signal::CONT);
    }
}
