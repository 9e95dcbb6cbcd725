//! One run of a command: global options, errors printed as they occur, Ctrl-C.

use crate::exit::{Exit, Failure, Outcome, explain};
use crate::global_options::GlobalOptions;
use crate::nearest::nearest;
use crate::objects::requests_json;
use crate::output::color::{self, FAILURE, paint};
use crate::output::{counters_json, print_json, printable, qemu_json};
use crate::qemu_img::Manners;
use crate::qemu_words;
use crate::system_log;
use crate::trace;
use anstyle::Style;
use folio::base::Clock;
use folio::cache::Counters;
use folio::{Detail, Error, Timespec};
use indicatif::MultiProgress;
use serde::Serialize;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time after which work that cannot be canceled ends at Ctrl-C.
const INTERRUPT_POLL: Duration = Duration::from_millis(50);
/// Page cache of a command without `--cache`, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// The state that all parts of a command share.
pub(crate) struct Session {
    command: &'static str,
    /// The program whose exit codes and messages this run has.
    manners: Manners,
    /// No progress bar, no notes.
    pub(crate) quiet: bool,
    /// Page cache budget of each image, in bytes.
    pub(crate) cache_bytes: u64,
    /// The mount options of `-o`.
    pub(crate) options: Vec<String>,
    /// The area of progress bars; messages are printed around it.
    pub(crate) screen: MultiProgress,
    /// The counters of the page caches of closed images.
    pub(crate) counters: Arc<Mutex<Counters>>,
    /// Whether to print the counters at the end.
    stats: bool,
    /// The JSON to print together with the counters.
    list: Mutex<Option<serde_json::Value>>,
    /// Whether a failure is printed as JSON, too: there is `--json`, and no other output yet.
    fails_in_json: AtomicBool,
    failures: AtomicU64,
    created: AtomicU64,
    /// Images are read without their locks.
    shares_images: AtomicBool,
    interrupted: Arc<AtomicBool>,
    /// Messages go to the system's log, too.
    logs_to_system: Arc<AtomicBool>,
}

impl Session {
    /// Creates a session for the command of this name.
    pub(crate) fn new(command: &'static str, global: &GlobalOptions) -> Self {
        let this = Self::without_signals(command, global);
        for signal in [SIGINT, SIGTERM] {
            // The first signal arms this handler, so the second one ends the program. Without
            // handlers the first one does.
            let _ = signal_hook::flag::register_conditional_shutdown(
                signal,
                130,
                this.interrupted.clone(),
            );
            let _ = signal_hook::flag::register(signal, this.interrupted.clone());
        }
        this
    }

    /// Creates a session for a command that handles signals itself.
    pub(crate) fn without_signals(command: &'static str, global: &GlobalOptions) -> Self {
        let screen = MultiProgress::new();
        // A write beyond the limit of ulimit -f then fails with EFBIG. Without the handler it ends
        // the program.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
        let traced = trace::start(command, global.verbose, global.quiet, &screen);
        let this = Self {
            command,
            manners: Manners::Folio,
            quiet: global.quiet,
            cache_bytes: global.cache.unwrap_or(CACHE_BYTES),
            options: global
                .options
                .iter()
                .map(|word| word.trim().to_owned())
                .collect(),
            screen,
            counters: Arc::default(),
            stats: global.stats,
            list: Mutex::new(None),
            fails_in_json: AtomicBool::new(global.json),
            failures: AtomicU64::new(0),
            created: AtomicU64::new(0),
            shares_images: AtomicBool::new(false),
            interrupted: Arc::new(AtomicBool::new(false)),
            logs_to_system: Arc::default(),
        };
        if let Err(why) = traced {
            // Only the log is affected, so the command continues.
            this.note(why);
        }
        tracing::debug!(command, version = env!("CARGO_PKG_VERSION"), "folio");
        this
    }

    /// Returns the session with the exit codes and messages of another program.
    pub(crate) fn with_manners(self, manners: Manners) -> Self {
        Self { manners, ..self }
    }

    /// Whether this run takes the place of qemu-img.
    pub(crate) fn is_qemu_img(&self) -> bool {
        self.manners == Manners::QemuImg
    }

    /// Fails if `-o` was given to a command that mounts nothing.
    pub(crate) fn refuse_options(&self) -> Outcome {
        if self.options.is_empty() {
            Ok(())
        } else {
            Err(Failure::usage("-o: nothing is mounted here"))
        }
    }

    /// Prints a failure after which the command continues.
    pub(crate) fn fail(&self, message: impl Display) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.print_message(FAILURE, &message.to_string());
    }

    /// Adds to the number of files that a copy created.
    pub(crate) fn count_created(&self, count: u64) {
        self.created.fetch_add(count, Ordering::Relaxed);
    }

    /// Whether there were failures.
    pub(crate) fn has_failures(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0
    }

    /// Whether there were failures and no successes.
    pub(crate) fn has_only_failures(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0 && self.created.load(Ordering::Relaxed) == 0
    }

    /// Opens images for reading without their locks from now on.
    pub(crate) fn share_images(&self) {
        self.shares_images.store(true, Ordering::Relaxed);
    }

    /// Whether images are read without their locks.
    pub(crate) fn shares_images(&self) -> bool {
        self.shares_images.load(Ordering::Relaxed)
    }

    /// Prints the failure of a call on `place`.
    pub(crate) fn fail_at(&self, place: impl Display, error: &Error) {
        self.fail(format_args!("{place}: {}", explain(error)));
    }

    /// Prints a failure on a path of the host.
    pub(crate) fn fail_on(&self, path: &std::path::Path, reason: &str) {
        self.fail(format_args!("{}: {reason}", path.display()));
    }

    /// Prints a note, which is not a failure.
    pub(crate) fn note(&self, message: impl Display) {
        self.print_message(Style::new(), &message.to_string());
    }

    /// Returns a function that prints notes, for objects that outlive a borrow of the session.
    pub(crate) fn note_printer(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let (lead, screen) = (self.message_lead(Style::new()), self.screen.clone());
        let logs_to_system = self.logs_to_system.clone();
        move |message| {
            let line = format!("{lead} {}", printable(message));
            if logs_to_system.load(Ordering::Relaxed) {
                system_log::send(&line);
            }
            screen.suspend(|| eprintln!("{line}"));
        }
    }

    /// Prints a message. Names may come from an image, so terminal control characters are escaped.
    fn print_message(&self, style: Style, message: &str) {
        let lead = self.message_lead(style);
        let message = printable(message);
        if self.logs_to_system.load(Ordering::Relaxed) {
            system_log::send(&format!("{lead} {message}"));
        }
        self.screen.suspend(|| eprintln!("{lead} {message}"));
    }

    /// Sends all later messages to the system's log, too.
    pub(crate) fn log_to_system(&self) {
        self.logs_to_system.store(true, Ordering::Relaxed);
    }

    /// Returns the start of each message: the program and its command.
    fn message_lead(&self, style: Style) -> String {
        let lead = match self.manners {
            Manners::Folio => format!("folio: {}:", self.command),
            Manners::QemuImg => "qemu-img:".to_owned(),
        };
        paint(color::on_stderr(), style, format_args!("{lead}")).to_string()
    }

    /// Whether the user wants a progress bar, and a terminal can show it.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && !color::is_dumb_terminal() && std::io::stderr().is_terminal()
    }

    /// Returns a suggestion for a failure about an unknown mount option.
    fn option_hint(&self, failure: &Failure) -> String {
        if failure.detail() != Some(&Detail::UnknownMountOption) {
            return String::new();
        }
        let known = || {
            let of_mounts = folio_fuse::SessionOptions::OPTION_NAMES
                .into_iter()
                .chain(folio_fuse::ClientOptions::OPTION_NAMES);
            folio::Kernel::mount_words().chain(of_mounts)
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

    /// Returns the flag that Ctrl-C sets, for work that polls it.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        self.interrupted.clone()
    }

    /// Fails if Ctrl-C was pressed.
    pub(crate) fn check_interrupt(&self) -> Outcome {
        if self.is_interrupted() {
            Err(Failure::interrupted())
        } else {
            Ok(())
        }
    }

    /// Runs work that cannot be canceled. At Ctrl-C it calls `clean`, and ends the program.
    #[expect(
        clippy::disallowed_methods,
        reason = "the work has no other end; `clean` removes the image that it makes"
    )]
    pub(crate) fn until_interrupt<T>(
        &self,
        clean: impl FnOnce() + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        let (ended, end) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while end.recv_timeout(INTERRUPT_POLL) == Err(RecvTimeoutError::Timeout) {
                    if self.is_interrupted() {
                        clean();
                        std::process::exit(130);
                    }
                }
            });
            let done = work();
            drop(ended);
            done
        })
    }

    /// Prints JSON; with `--stats` at the end, together with the counters.
    pub(crate) fn print_json(&self, list: &impl Serialize) -> Outcome {
        self.fails_in_json.store(false, Ordering::Relaxed);
        if self.is_qemu_img() {
            let value = serde_json::to_value(list).map_err(std::io::Error::from)?;
            return Ok(std::io::stdout().write_all(qemu_json(&value).as_bytes())?);
        }
        if !self.stats {
            return Ok(print_json(list)?);
        }
        let list = serde_json::to_value(list).map_err(std::io::Error::from)?;
        *self.list.lock().unwrap_or_else(PoisonError::into_inner) = Some(list);
        Ok(())
    }

    /// Prints JSON; with `--stats` the counters go to standard error.
    pub(crate) fn print_json_alone(&self, value: &impl Serialize) -> Outcome {
        self.fails_in_json.store(false, Ordering::Relaxed);
        Ok(print_json(value)?)
    }

    /// Prints one of many values as JSON, in one line.
    pub(crate) fn print_json_line(&self, value: &impl Serialize) -> Outcome {
        self.fails_in_json.store(false, Ordering::Relaxed);
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, value).map_err(std::io::Error::from)?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    }

    fn print_stats(&self) -> Outcome {
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
            Some(list) => {
                let mut stats = counters_json(&counters);
                if let Some(requests) = requests_json() {
                    stats["object_store"] = requests;
                }
                print_json(&json!({ "list": list, "stats": stats }))?;
            }
            None => self.screen.suspend(|| {
                eprint!("{counters}");
                let requests = requests_json();
                for (name, count) in requests.iter().filter_map(Value::as_object).flatten() {
                    eprintln!("object_store_{name} {count}");
                }
            }),
        }
        Ok(())
    }

    /// Prints the failure of `outcome`, and returns the exit code.
    pub(crate) fn exit(&self, outcome: Outcome) -> Exit {
        let printed = self.print_stats();
        if tracing::enabled!(tracing::Level::DEBUG)
            && let Some(calls) = trace::host_calls()
        {
            tracing::debug!("host I/O: {calls}");
        }
        match outcome.and(printed) {
            Err(failure) => {
                let exit = self.manners.exit(failure.exit);
                if !failure.message.is_empty() {
                    let text = match self.manners {
                        Manners::Folio => {
                            format!("{}{}", failure.message, self.option_hint(&failure))
                        }
                        Manners::QemuImg => qemu_words::reword(&failure),
                    };
                    self.print_message(FAILURE, &text);
                    if self.fails_in_json.load(Ordering::Relaxed) && !self.is_qemu_img() {
                        let code = u8::from(exit);
                        // The exit code and the message say the same.
                        let _ = print_json(&json!({ "error": text, "exit_code": code }));
                    }
                }
                exit
            }
            Ok(()) if self.failures.load(Ordering::Relaxed) > 0 => Exit::Failed,
            Ok(()) => Exit::Done,
        }
    }
}

/// Returns the time of `SOURCE_DATE_EPOCH` if it is set, so that output does not depend on the time
/// of the run.
pub(crate) fn fixed_time() -> Option<Timespec> {
    let secs = std::env::var("SOURCE_DATE_EPOCH").ok()?.parse().ok()?;
    Some(Timespec::new(secs, 0))
}

/// Returns the source of timestamps.
pub(crate) fn clock() -> Clock {
    fixed_time().map_or(Clock::System, Clock::Fixed)
}
