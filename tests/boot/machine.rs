//! A virtual machine with a disk, emulated by QEMU, and a terminal on its serial port.

use crate::support::tools::command;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// A guest that prints nothing for so long hangs; a busy host makes it slow. Less than the limit of
/// a test, so that the screen is seen.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Time for the answer to a line, before it is typed again.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Times that a line is typed.
const LINES_MAX: usize = 8;

/// A running machine; it ends when this value drops.
pub(super) struct Machine {
    qemu: Child,
    keyboard: ChildStdin,
    printed: Receiver<Vec<u8>>,
    /// All that was printed.
    screen: String,
    /// Bytes of it that were waited for.
    seen: usize,
}

impl Machine {
    /// Starts a machine without a network, emulated, with these words of QEMU.
    pub(super) fn start<A: AsRef<OsStr>>(words: impl IntoIterator<Item = A>) -> Self {
        let mut qemu = command("qemu-system-x86_64");
        qemu.args(["-accel", "tcg", "-machine", "q35", "-cpu", "max"])
            .args(["-m", "512", "-nodefaults", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio"])
            .args(words);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut qemu = qemu.spawn().unwrap();
        let keyboard = qemu.stdin.take().unwrap();
        let mut output = qemu.stdout.take().unwrap();
        let (send, printed) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buf = vec![0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buf) {
                if send.send(buf[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            qemu,
            keyboard,
            printed,
            screen: String::new(),
            seen: 0,
        }
    }

    /// Waits until the machine prints `text`, after what was waited for before.
    #[track_caller]
    pub(super) fn wait_for(&mut self, text: &str) {
        let is_printed = self.waits_for(text, SILENCE_MAX);
        assert!(is_printed, "{text:?} was not printed: {}", self.screen);
    }

    /// Waits until the machine prints `text`, or nothing for some time; returns whether it did.
    fn waits_for(&mut self, text: &str, silence_max: Duration) -> bool {
        loop {
            if let Some(at) = self.screen[self.seen..].find(text) {
                self.seen += at + text.len();
                return true;
            }
            match self.printed.recv_timeout(silence_max) {
                Ok(bytes) => self.screen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => return false,
            }
        }
    }

    /// Types a line until the machine answers: a terminal drops what is typed while a program
    /// changes its mode.
    #[track_caller]
    pub(super) fn ask(&mut self, line: &str, answer: &str) {
        for _ in 0..LINES_MAX {
            self.enter(line);
            if self.waits_for(answer, ANSWER_MAX) {
                return;
            }
        }
        panic!("no {answer:?} after {line:?}: {}", self.screen);
    }

    /// Types a line.
    pub(super) fn enter(&mut self, line: &str) {
        writeln!(self.keyboard, "{line}").unwrap();
    }

    /// Waits until the machine is off.
    #[track_caller]
    pub(super) fn wait_for_end(mut self) {
        loop {
            match self.printed.recv_timeout(SILENCE_MAX) {
                Ok(bytes) => self.screen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it is not off: {}", self.screen),
            }
        }
        let status = self.qemu.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.screen);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
