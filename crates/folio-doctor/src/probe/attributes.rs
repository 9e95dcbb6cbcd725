//! The answer to stat(2): from the kernel's memory, or from a server each time.

use super::fact::{Fact, switches};
use crate::text::reason;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Calls of statx(2) in a round.
const CALLS: u64 = 32;
/// The round with the fewest waits counts: a wait for anything else is not caused by attributes.
const ROUNDS: usize = 5;
/// How long attributes are left alone, to see whether they are asked for again.
const WAITS_MS: [u64; 5] = [1, 4, 16, 64, 200];
/// Pause before a round that looks for expired attributes.
const ROUND_PAUSE: Duration = Duration::from_millis(16);
/// Rounds with a wait from which on a server is asked: valid names and attributes expire once.
const ROUNDS_ASKED: usize = 2;
/// How many calls have to wait after such a pause.
const IN_SUCCESSION: u32 = 3;

/// What asking for the attributes of a file again and again did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attributes {
    /// Calls of statx(2) in a round.
    pub calls: u64,
    /// Waits in the round with the fewest.
    pub switches: u64,
    /// Time of a call in that round.
    pub call_ns: u64,
    /// Waits of one call that must not be answered from memory: 0 where no server is involved.
    pub forced_switches: u64,
    /// The longest time that they were trusted without asking.
    pub trusted_ns: Option<u64>,
    /// The shortest time after which they were asked for again, some times in succession.
    pub asked_after_ns: Option<u64>,
}

/// Asks for the attributes of `path`.
pub(super) fn probe(path: &Path) -> Fact<Attributes> {
    let path = std::path::absolute(path).map_err(|error| reason(&error))?;
    stat(&path, AtFlags::empty())?;
    let mut best: Option<(u64, u64)> = None;
    for _ in 0..ROUNDS {
        let (before, start) = (switches()?, Instant::now());
        for _ in 0..CALLS {
            stat(&path, AtFlags::empty())?;
        }
        let call_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX) / CALLS;
        let round = (switches()?.saturating_sub(before), call_ns);
        best = best.into_iter().chain([round]).min();
    }
    let (switches, call_ns) = best.unwrap_or_default();
    let forced_switches = waits(&path, AtFlags::STATX_FORCE_SYNC)?;
    let (trusted_ns, asked_after_ns) = if forced_switches > 0 && switches < CALLS {
        time_to_live(&path)?
    } else {
        (None, None)
    };
    Ok(Attributes {
        calls: CALLS,
        switches,
        call_ns,
        forced_switches,
        trusted_ns,
        asked_after_ns,
    })
}

/// Returns whether a server is asked again and again for the name and the attributes of `path`:
/// some calls wait in more than one round, each after a short pause.
///
/// # Errors
/// If the attributes cannot be read.
pub(crate) fn are_asked_again(path: &Path) -> Fact<bool> {
    // FUSE asks for the target of a symbolic link each time.
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    waits(path, flags | AtFlags::STATX_FORCE_SYNC)?;
    let mut rounds_asked = 0;
    for _ in 0..ROUNDS {
        pause(ROUND_PAUSE);
        for _ in 0..CALLS {
            if waits(path, flags)? > 0 {
                rounds_asked += 1;
                break;
            }
        }
        if rounds_asked == ROUNDS_ASKED {
            return Ok(true);
        }
    }
    Ok(false)
}

fn stat(path: &Path, flags: AtFlags) -> Fact<()> {
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS);
    found
        .map(drop)
        .map_err(|error| format!("statx: {}", reason(&error)))
}

/// How often one call waits.
fn waits(path: &Path, flags: AtFlags) -> Fact<u64> {
    let before = switches()?;
    stat(path, flags)?;
    Ok(switches()?.saturating_sub(before))
}

/// The longest time for which attributes were trusted, and the shortest after which they were
/// requested again.
///
/// The name has a validity of its own, which may expire at any moment, and a call may wait for
/// something else on a busy machine. Only requests in succession are due to the wait.
fn time_to_live(path: &Path) -> Fact<(Option<u64>, Option<u64>)> {
    let (mut trusted, mut asked) = (None, None);
    for wait in WAITS_MS {
        let mut times_asked = 0;
        let mut left_ns = 0;
        for _ in 0..IN_SUCCESSION {
            waits(path, AtFlags::STATX_FORCE_SYNC)?;
            let start = Instant::now();
            pause(Duration::from_millis(wait));
            let is_asked = waits(path, AtFlags::empty())? > 0;
            left_ns = u64::try_from(start.elapsed().as_nanos())
                .unwrap_or(u64::MAX)
                .max(left_ns);
            if !is_asked {
                trusted = trusted.max(Some(left_ns));
                break;
            }
            times_asked += 1;
        }
        if times_asked == IN_SUCCESSION {
            asked = Some(left_ns);
            break;
        }
    }
    Ok((trusted, asked))
}

/// Waits at least so long.
fn pause(time: Duration) {
    let start = Instant::now();
    while let Some(left) = time
        .checked_sub(start.elapsed())
        .filter(|left| !left.is_zero())
    {
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_attributes_come_from_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = probe(file.path()).unwrap();
        assert_eq!((found.switches, found.calls), (0, CALLS));
        assert!(probe(Path::new("/nowhere/at/all")).is_err());
        assert_eq!(are_asked_again(file.path()), Ok(false));
        assert!(are_asked_again(Path::new("/nowhere/at/all")).is_err());
    }
}
