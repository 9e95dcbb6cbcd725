//! Faults of chosen calls: `--fault`.

use folio::Errno;
use folio::testing::FaultDevice;
use folio_fuse::{ObservedCall, ObservedKind};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A fault, and the calls of the program that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    effect: Effect,
    pub(super) calls: Calls,
    pub(super) which: Which,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Fails(Errno),
    /// The program is killed with SIGKILL.
    Kill,
}

/// Kinds of calls that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Calls {
    Write,
    Fsync,
    Any,
}

/// Which of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Each one, in a run of its own.
    Each,
    Nth(u64),
    /// This one and all later ones.
    From(u64),
}

const EFFECTS: [(&str, Effect); 3] = [
    ("eio", Effect::Fails(Errno::IO)),
    ("enospc", Effect::Fails(Errno::NOSPC)),
    ("kill", Effect::Kill),
];

const CALLS: [(&str, Calls); 3] = [
    ("write", Calls::Write),
    ("fsync", Calls::Fsync),
    ("any", Calls::Any),
];

impl Calls {
    /// Returns whether a call of this kind is counted.
    pub(super) fn has(self, kind: ObservedKind) -> bool {
        match self {
            Self::Write => kind == ObservedKind::Write,
            Self::Fsync => kind == ObservedKind::Sync,
            Self::Any => true,
        }
    }
}

impl Fault {
    /// Returns the fault of one call alone.
    pub(super) fn nth(self, number: u64) -> Self {
        Self {
            which: Which::Nth(number),
            ..self
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    /// Parses `eio@fsync:3`: the fault, the kind of calls, and the number of the call.
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (effect, calls) = text.split_once('@')?;
            let (calls, which) = calls.split_once(':').unwrap_or((calls, "all"));
            let from = which.strip_suffix("..");
            let number = |digits: &str| digits.parse().ok().filter(|number| *number > 0);
            Some(Self {
                effect: EFFECTS.into_iter().find(|(name, _)| *name == effect)?.1,
                calls: CALLS.into_iter().find(|(name, _)| *name == calls)?.1,
                which: match (which, from) {
                    ("all", _) => Which::Each,
                    (_, Some(from)) => Which::From(number(from)?),
                    (nth, None) => Which::Nth(number(nth)?),
                },
            })
        };
        parse().ok_or_else(|| {
            format!(
                "invalid fault {text:?}: expected eio, enospc or kill, @write, @fsync or @any, \
                 and :N, :N.. or :all (e.g. eio@fsync:3)"
            )
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = EFFECTS.iter().find(|(_, effect)| *effect == self.effect);
        let calls = CALLS.iter().find(|(_, calls)| *calls == self.calls);
        let [effect, calls] = [effect.map(|named| named.0), calls.map(|named| named.0)];
        let [effect, calls] = [effect, calls].map(Option::unwrap_or_default);
        write!(out, "{effect}@{calls}:")?;
        match self.which {
            Which::Each => write!(out, "all"),
            Which::Nth(number) => write!(out, "{number}"),
            Which::From(number) => write!(out, "{number}.."),
        }
    }
}

/// Makes the calls of one run of the program fail.
pub(super) struct Injector {
    fault: Fault,
    /// Below the file system, above the record; none if the calls are those of the disk.
    device: Option<Arc<FaultDevice>>,
    /// The process group of the program, once it has started.
    group: OnceLock<Option<Pid>>,
    /// Number of calls so far.
    seen: AtomicU64,
    has_injected: AtomicBool,
    is_over: AtomicBool,
}

impl Injector {
    pub(super) fn new(fault: Fault, device: Option<Arc<FaultDevice>>) -> Self {
        Self {
            fault,
            device,
            group: OnceLock::new(),
            seen: AtomicU64::new(0),
            has_injected: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    /// Sets the process group of the program, without which no call is served.
    pub(super) fn set_group(&self, group: Option<Pid>) {
        let _ = self.group.set(group);
    }

    /// Ends all faults, as the program has ended; returns whether there was one.
    pub(super) fn end(&self) -> bool {
        self.is_over.store(true, Ordering::Relaxed);
        self.has_injected.load(Ordering::Relaxed)
    }

    /// Serves a call, or makes it fail; returns its errno, and how that is printed.
    pub(super) fn serve(
        &self,
        call: &ObservedCall,
        serve: &mut dyn FnMut(),
    ) -> Option<(Errno, &'static str)> {
        if self.is_over.load(Ordering::Relaxed) || !self.fault.calls.has(call.kind) {
            serve();
            return None;
        }
        let number = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let is_chosen = match self.fault.which {
            Which::Each => false,
            Which::Nth(nth) => number == nth,
            Which::From(from) => number >= from,
        };
        if !is_chosen {
            serve();
            return None;
        }
        self.has_injected.store(true, Ordering::Relaxed);
        let errno = match self.fault.effect {
            Effect::Fails(errno) => errno,
            Effect::Kill => return self.kill(serve),
        };
        if let Some(device) = self
            .device
            .as_ref()
            .filter(|_| call.kind == ObservedKind::Sync)
        {
            fail_sync(device, call, serve);
        }
        Some((errno, if errno == Errno::IO { "EIO" } else { "ENOSPC" }))
    }

    /// Kills the program instead of its call; a call of the disk is served.
    fn kill(&self, serve: &mut dyn FnMut()) -> Option<(Errno, &'static str)> {
        // Without any process there is nothing to do.
        let _ = self
            .group
            .wait()
            .map(|group| kill_process_group(group, Signal::KILL));
        if self.device.is_some() {
            return Some((Errno::INTR, "killed"));
        }
        serve();
        None
    }
}

/// Serves a sync without the writes that it makes.
fn fail_sync(device: &FaultDevice, call: &ObservedCall, serve: &mut dyn FnMut()) {
    let failed = device.failed();
    if let Some(file) = &call.file {
        // Each open file reports the error later.
        let _ = device.lose_writes_in(|| file.write_back());
    }
    if device.failed() > failed {
        // This open file reports it now, and not again.
        serve();
    } else {
        // Without data to write, the commit fails, which aborts the journal: as in Linux.
        device.lose_writes_in(serve);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_parse_and_print() {
        for text in ["eio@fsync:3", "enospc@write:2..", "kill@any:all"] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        let each: Fault = "eio@write".parse().unwrap();
        assert_eq!(each.which, Which::Each);
        assert_eq!(each.nth(7).to_string(), "eio@write:7");
        for text in [
            "eio",
            "eio@read",
            "eperm@write",
            "eio@write:0",
            "eio@write:x",
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
