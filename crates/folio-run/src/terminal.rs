//! The user's terminal: in raw mode while its bytes go to the command's terminal and back.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{Builder, Scope};

/// Bytes of one transfer.
const CHUNK_LEN: usize = 16 << 10;

/// Returns whether the command gets a terminal: input and output are one, and this process may use
/// it now.
pub(crate) fn is_wanted() -> bool {
    let stdin = std::io::stdin();
    stdin.is_terminal()
        && std::io::stdout().is_terminal()
        && rustix::termios::tcgetpgrp(&stdin) == Ok(rustix::process::getpgrp())
}

/// The user's terminal in raw mode; in its former mode again when dropped.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    former: Termios,
    /// The command's terminal.
    command: OwnedFd,
}

impl RawTerminal {
    /// Connects the terminal of the command. The user's keys, including those that send signals,
    /// reach that terminal.
    pub(crate) fn new(command: OwnedFd) -> Result<Self, Errno> {
        let former = tcgetattr(std::io::stdin())?;
        let this = Self { former, command };
        this.follow_size();
        let mut raw = this.former.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
        Ok(this)
    }

    /// Gives the command's terminal the size of the user's.
    pub(crate) fn follow_size(&self) {
        if let Ok(size) = tcgetwinsize(std::io::stdin()) {
            // It remains as it is where the kernel refuses.
            let _ = tcsetwinsize(&self.command, size);
        }
    }

    /// Starts the threads that pass bytes on: input until `end` is closed on its other side, output
    /// until no process has the command's terminal open.
    ///
    /// # Errors
    /// EAGAIN if the user's limit of processes is reached.
    pub(crate) fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        end: OwnedFd,
    ) -> io::Result<()> {
        Builder::new().spawn_scoped(scope, move || self.pass_input(&end))?;
        Builder::new().spawn_scoped(scope, || self.pass_output())?;
        Ok(())
    }

    fn pass_input(&self, end: &OwnedFd) {
        let mut bytes = vec![0; CHUNK_LEN];
        let stdin = std::io::stdin();
        loop {
            let mut ready = [
                PollFd::new(&stdin, PollFlags::IN),
                PollFd::new(end, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            if !ready[1].revents().is_empty() {
                return;
            }
            match rustix::io::read(stdin.as_fd(), &mut bytes) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                Ok(0) | Err(_) => return,
                Ok(len) => {
                    if write_all(&self.command, &bytes[..len]).is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn pass_output(&self) {
        let mut bytes = vec![0; CHUNK_LEN];
        loop {
            match rustix::io::read(&self.command, &mut bytes) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                // EIO: closed by all its users.
                Ok(0) | Err(_) => return,
                Ok(len) => {
                    let mut out = std::io::stdout().lock();
                    if out
                        .write_all(&bytes[..len])
                        .and_then(|()| out.flush())
                        .is_err()
                    {
                        return;
                    }
                }
            }
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The terminal may have been closed.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.former);
    }
}

fn write_all(fd: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}
