//! Repetition of a command every few seconds, until Ctrl-C or for a number of times.

use crate::exit::Outcome;
use crate::session::Session;
use clap::Args;
use std::io::{IsTerminal, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The interval of checks for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);

/// Options of commands that can repeat.
#[derive(Args)]
pub(super) struct Watch {
    /// Repeat after so many seconds, or a time such as 500ms, until Ctrl-C; with --json, each round
    /// is one line
    #[arg(long, value_name = "SECONDS", value_parser = crate::value_parsers::interval)]
    watch: Option<Duration>,
    /// Stop after this many rounds
    #[arg(long, value_name = "TIMES", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

impl Watch {
    /// Whether the command repeats.
    pub(super) fn is_on(&self) -> bool {
        self.watch.is_some()
    }

    /// Runs `once` as often as requested, with the number of earlier rounds.
    pub(super) fn repeat(
        &self,
        session: &Session,
        mut once: impl FnMut(u64) -> Outcome,
    ) -> Outcome {
        let mut done = 0;
        loop {
            let start = Instant::now();
            once(done)?;
            done += 1;
            let Some(every) = self.watch else {
                return session.check_interrupt();
            };
            if self.count == Some(done) || !wait(start + every, session) {
                return Ok(());
            }
        }
    }
}

/// Waits until `then`; returns false if Ctrl-C was pressed, which ends a watch.
fn wait(then: Instant, session: &Session) -> bool {
    let (_sender, never) = mpsc::channel::<()>();
    while !session.is_interrupted() {
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        let _ = never.recv_timeout(left.min(TICK));
    }
    false
}

/// Clears the terminal, if there is one, for a table that replaces the previous one.
pub(super) fn clear(out: &mut impl Write) -> std::io::Result<()> {
    if std::io::stdout().is_terminal() {
        write!(out, "\x1b[H\x1b[2J\x1b[3J")
    } else {
        Ok(())
    }
}
