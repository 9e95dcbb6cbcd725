//! One run of the command: global options, failures told as they come, Ctrl-C.

use crate::exit::{Exit, Failure, Outcome, explain};
use crate::global_options::GlobalOptions;
use crate::nearest::nearest;
use crate::output::color::{self, FAILURE, paint};
use crate::output::{counters_json, print_json, printable};
use crate::trace;
use anstyle::Style;
use folio::base::Clock;
use folio::cache::Counters;
use folio::{Error, Timespec};
use indicatif::MultiProgress;
use serde::Serialize;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What all parts of a command share.
pub(crate) struct Session {
    command: &'static str,
    /// No progress bar, no remarks.
    pub(crate) quiet: bool,
    /// Page cache budget of each image, in bytes.
    pub(crate) cache_bytes: u64,
    /// The words of `-o`.
    pub(crate) options: Vec<String>,
    /// Where the bar is drawn; messages go around it.
    pub(crate) screen: MultiProgress,
    /// What the page caches of images that were closed have done.
    pub(crate) counters: Arc<Mutex<Counters>>,
    /// Whether to tell that at the end.
    stats: bool,
    /// JSON that waits for it.
    list: Mutex<Option<serde_json::Value>>,
    failures: AtomicU64,
    made: AtomicU64,
    interrupted: Arc<AtomicBool>,
}

impl Session {
    /// A session for the command of this name.
    pub(crate) fn new(command: &'static str, global: &GlobalOptions) -> Self {
        let this = Self::without_signals(command, global);
        for signal in [SIGINT, SIGTERM] {
            // Armed by the first signal, so the second ends the program. Without handlers the first
            // one does.
            let _ = signal_hook::flag::register_conditional_shutdown(
                signal,
                130,
                this.interrupted.clone(),
            );
            let _ = signal_hook::flag::register(signal, this.interrupted.clone());
        }
        this
    }

    /// A session for a command that sees to signals itself.
    pub(crate) fn without_signals(command: &'static str, global: &GlobalOptions) -> Self {
        let screen = MultiProgress::new();
        let traced = trace::start(global.verbose, &screen);
        let this = Self {
            command,
            quiet: global.quiet,
            cache_bytes: global.cache,
            options: global
                .options
                .iter()
                .map(|word| word.trim().to_owned())
                .collect(),
            screen,
            counters: Arc::default(),
            stats: global.stats,
            list: Mutex::new(None),
            failures: AtomicU64::new(0),
            made: AtomicU64::new(0),
            interrupted: Arc::new(AtomicBool::new(false)),
        };
        if let Err(why) = traced {
            // Nothing but the telling is wrong, so the command goes on.
            this.note(why);
        }
        tracing::debug!(command, version = env!("CARGO_PKG_VERSION"), "folio");
        this
    }

    /// A failure if `-o` was given to a command that mounts nothing.
    pub(crate) fn refuse_options(&self) -> Outcome {
        match self.options.is_empty() {
            true => Ok(()),
            false => Err(Failure::usage("-o: nothing is mounted here")),
        }
    }

    /// Tells a failure after which the command goes on.
    pub(crate) fn fail(&self, message: impl Display) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.say(FAILURE, &message.to_string());
    }

    /// Counts things that a copy made.
    pub(crate) fn count_made(&self, count: u64) {
        self.made.fetch_add(count, Ordering::Relaxed);
    }

    /// Whether there were failures and nothing else.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0 && self.made.load(Ordering::Relaxed) == 0
    }

    /// Tells a failed call about `place`.
    pub(crate) fn fail_at(&self, place: impl Display, error: &Error) {
        self.fail(format_args!("{place}: {}", explain(error)));
    }

    /// Tells what could not be done with a path of the host.
    pub(crate) fn fail_on(&self, path: &std::path::Path, reason: &str) {
        self.fail(format_args!("{}: {reason}", path.display()));
    }

    /// Tells something that is no failure.
    pub(crate) fn note(&self, message: impl Display) {
        self.say(Style::new(), &message.to_string());
    }

    /// Names may come from an image, so what a terminal would take for a command is told as what it
    /// is.
    fn say(&self, style: Style, message: &str) {
        let lead = paint(
            color::on_stderr(),
            style,
            format_args!("folio: {}:", self.command),
        );
        self.screen
            .suspend(|| eprintln!("{lead} {}", printable(message)));
    }

    /// Whether a bar that moves is wanted, and can be drawn.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && !color::is_dumb_terminal() && std::io::stderr().is_terminal()
    }

    /// For a failure about a mount option: the word that was perhaps meant.
    fn option_hint(&self, message: &str) -> String {
        if !message.contains("unknown mount option") {
            return String::new();
        }
        let known = || {
            let of_mounts = folio_fuse::SessionOptions::OPTION_NAMES
                .into_iter()
                .chain(folio_fuse::ClientOptions::OPTION_NAMES);
            folio::kernel::mount_words().chain(of_mounts)
        };
        let names = self
            .options
            .iter()
            .map(|word| word.split('=').next().unwrap_or(word));
        let wrong = names.filter(|name| known().all(|word| word != *name));
        let meant: Vec<_> = wrong.filter_map(|name| nearest(name, known())).collect();
        if meant.is_empty() {
            String::new()
        } else {
            format!("; did you mean {}?", meant.join(" and "))
        }
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Set when Ctrl-C is pressed, for work that looks for it itself.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        self.interrupted.clone()
    }

    /// Ends the command here if Ctrl-C was pressed.
    pub(crate) fn check_interrupt(&self) -> Outcome {
        if self.is_interrupted() {
            Err(Failure::interrupted())
        } else {
            Ok(())
        }
    }

    /// Prints what a command lists as JSON; with `--stats` at the end, beside them.
    pub(crate) fn print_json(&self, list: &impl Serialize) -> Outcome {
        if !self.stats {
            return Ok(print_json(list)?);
        }
        let list = serde_json::to_value(list).map_err(std::io::Error::from)?;
        *self.list.lock().unwrap_or_else(PoisonError::into_inner) = Some(list);
        Ok(())
    }

    /// Prints one of many values as JSON, in a line.
    pub(crate) fn print_json_line(&self, value: &impl Serialize) -> Outcome {
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, value).map_err(std::io::Error::from)?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    }

    fn tell_stats(&self) -> Outcome {
        if !self.stats {
            return Ok(());
        }
        let counters = *self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        match self
            .list
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            Some(list) => print_json(&json!({ "list": list, "stats": counters_json(&counters) }))?,
            None => self.screen.suspend(|| eprint!("{counters}")),
        }
        Ok(())
    }

    /// How the command ended, its failure told.
    pub(crate) fn exit(&self, outcome: Outcome) -> Exit {
        let told = self.tell_stats();
        if tracing::enabled!(tracing::Level::DEBUG)
            && let Some(calls) = trace::host_calls()
        {
            tracing::debug!("calls of the host: {calls}");
        }
        match outcome.and(told) {
            Err(failure) => {
                if !failure.message.is_empty() {
                    let hint = self.option_hint(&failure.message);
                    self.say(FAILURE, &format!("{}{hint}", failure.message));
                }
                failure.exit
            }
            Ok(()) if self.failures.load(Ordering::Relaxed) > 0 => Exit::Failed,
            Ok(()) => Exit::Done,
        }
    }
}

/// The instant of `SOURCE_DATE_EPOCH` if it is set: what is written must not depend on when.
pub(crate) fn fixed_time() -> Option<Timespec> {
    let secs = std::env::var("SOURCE_DATE_EPOCH").ok()?.parse().ok()?;
    Some(Timespec::new(secs, 0))
}

/// Where timestamps come from.
pub(crate) fn clock() -> Clock {
    fixed_time().map_or(Clock::System, Clock::Fixed)
}
