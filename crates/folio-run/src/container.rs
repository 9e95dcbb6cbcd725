//! The server's side: clones the namespaces, maps ids, serves the mount, returns the exit status.

use crate::channel::{Channel, Message};
use crate::failure::{Failure, describe};
use crate::id_map::{self, IdMap};
use crate::init::{self, open_bind};
use crate::options::{Network, Options, Root};
use crate::status::{FORWARDED, exit_code};
use crate::sys::{Fork, clone_process, set_mount_attributes};
use crate::terminal::{self, RawTerminal};
use folio_fuse::DeviceSession;
use rustix::fs::{FsWord, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use signal_hook::consts::SIGWINCH;
use signal_hook::iterator::Signals;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::Builder;

/// The type of the file system of pipes without a name. Linux: linux/magic.h.
const PIPEFS_MAGIC: FsWord = 0x5049_5045;

/// New namespaces whose first process waits for its mount. Its processes are killed when this is
/// dropped.
#[derive(Debug)]
pub struct Container {
    init: Option<Pid>,
    channel: Channel,
    ids: IdMap,
    /// For the user.
    notes: Vec<String>,
}

impl Container {
    /// Creates the namespaces, for [checked](Options::check) options. The calling process must have
    /// no other thread.
    ///
    /// # Errors
    /// A kernel that permits no user namespaces, or a second thread.
    pub fn start(options: &Options) -> Result<Self, Failure> {
        let wants_terminal = terminal::is_wanted();
        let cannot = |errno| Failure::of("cannot create a channel", errno);
        let (ours, theirs) = Channel::pair().map_err(cannot)?;
        let mut namespaces = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWCGROUP
            | libc::CLONE_NEWUTS;
        if options.network == Network::None {
            namespaces |= libc::CLONE_NEWNET;
        }
        match clone_process(namespaces).map_err(explain_clone)? {
            Fork::Child => {
                drop(ours);
                init::run(options, theirs, wants_terminal)
            }
            Fork::Parent(init) => {
                drop(theirs);
                let mut this = Self {
                    init: Some(init),
                    channel: ours,
                    ids: IdMap::Own,
                    notes: Vec::new(),
                };
                this.ids = id_map::write(init, options.root != Root::Image)?;
                this.send(&Message::Mapped)?;
                if let IdMap::Unused(_) = this.ids {
                    this.send_binds(options, init)?;
                }
                Ok(this)
            }
        }
    }

    /// Returns why only the superuser's ids exist inside, if so. Files of other owners then must be
    /// presented as the superuser's.
    pub fn single_id_reason(&self) -> Option<&str> {
        match &self.ids {
            IdMap::Single(reason) => Some(reason),
            IdMap::Own | IdMap::Subordinate | IdMap::Unused(_) => None,
        }
    }

    /// Opens the paths of `--bind` for a namespace with ids of its own. Owners appear inside as
    /// they are outside.
    fn send_binds(&mut self, options: &Options, init: Pid) -> Result<(), Failure> {
        let namespace = || {
            let path = format!("/proc/{}/ns/user", init.as_raw_nonzero());
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        };
        let namespace = namespace().map_err(|errno| Failure::of("user namespace", errno))?;
        for bind in &options.binds {
            let mount = open_bind(bind)?;
            if let Err(errno) = set_mount_attributes(mount.as_fd(), 0, Some(namespace.as_fd())) {
                self.notes.push(format!(
                    "--bind {}: all files appear as those of 65534, since its file system cannot \
                     map owners: {}",
                    bind.host.display(),
                    describe(errno)
                ));
            }
            self.send(&Message::Bind(mount))?;
        }
        Ok(())
    }

    /// Waits for the device of the FUSE mount, which is to be served for [`Container::run`].
    ///
    /// # Errors
    /// Those of mounting it.
    pub fn device(&mut self) -> Result<OwnedFd, Failure> {
        match self.receive(&|_| ())? {
            Message::Device(device) => Ok(device),
            message => Err(Failure::new(format!("unexpected message {message:?}"))),
        }
    }

    /// Serves the mount, runs the command, and returns its exit code: its own, or 128 and the
    /// number of the signal that ended it. On return all processes of the namespaces have ended,
    /// all data is with the file system, and the kernel has removed the mount. Notes for the user
    /// go to `note`.
    ///
    /// # Errors
    /// A command that was not started, or a mount that failed.
    pub fn run(
        mut self,
        session: DeviceSession,
        note: &(dyn Fn(&str) + Sync),
    ) -> Result<u8, Failure> {
        if let IdMap::Unused(first) = self.ids {
            give_pipes(first);
        }
        self.notes.drain(..).for_each(|text| note(&text));
        let cannot = |error| Failure::new(format!("cannot handle signals: {error}"));
        let mut signals = Signals::new(FORWARDED.iter().chain(&[SIGWINCH])).map_err(cannot)?;
        let handle = signals.handle();
        let pipe = pipe_with(PipeFlags::CLOEXEC);
        let (input_end, end) = pipe.map_err(|errno| Failure::of("cannot create a pipe", errno))?;
        let thread = |error| Failure::new(format!("cannot start a thread: {error}"));
        std::thread::scope(|scope| {
            let served = Builder::new().spawn_scoped(scope, || session.serve());
            let served = served.map_err(thread)?;
            let terminal = self.start_command(note);
            let exit = match &terminal {
                Err(failure) => Err(failure.clone()),
                Ok(terminal) => std::thread::scope(|scope| {
                    let init = self.init;
                    let forward = move || forward(&mut signals, init, terminal.as_ref());
                    let started = Builder::new().spawn_scoped(scope, forward).map(drop);
                    let started = started.and_then(|()| match terminal {
                        Some(terminal) => terminal.start(scope, input_end),
                        None => Ok(()),
                    });
                    let exit = match started {
                        Ok(()) => self.wait(),
                        Err(error) => {
                            self.kill();
                            Err(thread(error))
                        }
                    };
                    handle.close();
                    drop(end);
                    exit
                }),
            };
            // In the normal mode before a message is printed.
            drop(terminal);
            self.kill();
            let served = served.join();
            let exit = exit?;
            match served {
                Ok(Ok(())) => Ok(exit),
                Ok(Err(error)) => Err(Failure::new(error.to_string())),
                Err(_) => Err(Failure::new("the server of the mount panicked")),
            }
        })
    }

    /// Lets init use the mount, and waits until the command runs.
    fn start_command(&mut self, note: &dyn Fn(&str)) -> Result<Option<RawTerminal>, Failure> {
        self.send(&Message::Serving)?;
        let mut terminal = None;
        loop {
            match self.receive(note)? {
                Message::Terminal(command) => {
                    let raw = RawTerminal::new(command);
                    terminal = Some(raw.map_err(|errno| Failure::of("terminal", errno))?);
                }
                Message::Started => return Ok(terminal),
                message => return Err(Failure::new(format!("unexpected message {message:?}"))),
            }
        }
    }

    fn send(&self, message: &Message) -> Result<(), Failure> {
        let sent = self.channel.send(message);
        sent.map_err(|_| Failure::new("the first process of the namespace ended early"))
    }

    /// Receives a message other than notes and failures.
    fn receive(&mut self, note: &dyn Fn(&str)) -> Result<Message, Failure> {
        loop {
            let received = self.channel.receive();
            match received.map_err(|errno| Failure::of("channel to the namespace", errno))? {
                Some(Message::Note(text)) => note(&text),
                Some(Message::Failed(failure)) => return Err(failure),
                Some(message) => return Ok(message),
                None => {
                    let ended = self.wait()?;
                    return Err(Failure::new(format!(
                        "the first process of the namespace ended early, with {ended}"
                    )));
                }
            }
        }
    }

    /// Waits for the end of all processes of the namespace.
    fn wait(&mut self) -> Result<u8, Failure> {
        let Some(init) = self.init.take() else {
            return Ok(Failure::NOT_STARTED);
        };
        let exit = wait(init).map_err(|errno| Failure::of("waitpid", errno))?;
        // All its users have ended, so this does not wait.
        while let Ok(Some(message)) = self.channel.receive() {
            if let Message::Failed(failure) = message {
                return Err(failure);
            }
        }
        Ok(exit)
    }

    fn kill(&mut self) {
        if let Some(init) = self.init.take() {
            // Both fail only if it has ended.
            let _ = kill_process(init, Signal::KILL);
            let _ = wait(init);
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes the namespace's superuser the owner of the pipes among the standard streams, which
/// programs open again as /dev/stdout. A file of the host keeps its owner.
fn give_pipes(first_id: u32) {
    let (user, group) = (Uid::from_raw(first_id), Gid::from_raw(first_id));
    for stream in [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ] {
        if rustix::fs::fstatfs(stream).is_ok_and(|stat| stat.f_type == PIPEFS_MAGIC) {
            // The open stream works nevertheless.
            let _ = rustix::fs::fchown(stream, Some(user), Some(group));
        }
    }
}

fn wait(init: Pid) -> Result<u8, Errno> {
    let ended = rustix::io::retry_on_intr(|| waitpid(Some(init), WaitOptions::empty()))?;
    Ok(ended.map_or(Failure::NOT_STARTED, |(_, status)| {
        exit_code(status.exit_status(), status.terminating_signal())
    }))
}

/// Passes signals to the first process, which passes them to the command.
fn forward(signals: &mut Signals, init: Option<Pid>, terminal: Option<&RawTerminal>) {
    for signal in signals.forever() {
        if signal == SIGWINCH {
            if let Some(terminal) = terminal {
                terminal.follow_size();
            }
        } else if let (Some(init), Some(signal)) = (init, Signal::from_named_raw(signal)) {
            // It may have ended.
            let _ = kill_process(init, signal);
        }
    }
}

fn explain_clone(errno: Errno) -> Failure {
    let hint = match errno {
        Errno::PERM | Errno::ACCESS => {
            "; the kernel refuses user namespaces here: see \
             kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns \
             of sysctl(8), and the seccomp profile of a container"
        }
        Errno::NOSPC | Errno::USERS => "; see user.max_user_namespaces of sysctl(8)",
        Errno::INVAL => "; the kernel was built without user namespaces (CONFIG_USER_NS)",
        _ => "",
    };
    let mut failure = Failure::of("cannot create namespaces", errno);
    failure.message.push_str(hint);
    failure.of_machine(errno)
}
