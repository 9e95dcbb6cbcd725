//! The rewrite probe: how a file system treats a file that is truncated, written again and closed,
//! tried on an unnamed file.

use super::fact::Fact;
use super::rename::{self, Rename};
use super::written_state::{LEN, State, TRIES};
use crate::text::reason;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// Places where small writes are timed.
const PLACES: u64 = 12;
/// Bytes of such a write.
const SMALL: usize = 4096;

/// The effect of a write, as the file system and the page cache report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// Each try.
    pub tries: Vec<Try>,
    /// Each try of a rename over another file.
    pub renames: Fact<Vec<Rename>>,
    /// What first writes cost, at each place.
    pub first_writes: Fact<Vec<FirstWrites>>,
}

/// Times of writes of 4 KiB with fdatasync(2), one right after another: load on the machine slows
/// all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstWrites {
    /// Into a hole.
    pub hole_ns: u64,
    /// Into a reserved and unwritten extent; `None` if the file system cannot reserve.
    pub unwritten_ns: Option<u64>,
    /// Over written blocks.
    pub written_ns: u64,
}

/// One try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Try {
    /// A new file, written and still open.
    pub fresh: State,
    /// The same, closed.
    pub fresh_closed: State,
    /// Truncated, written again and closed.
    pub rewritten_closed: State,
}

/// Writes into an unnamed file in `folder`. The kernel frees it with the last descriptor, however
/// the process ends.
pub(super) fn probe(folder: &Path) -> Fact<Rewrite> {
    let failed = |error: io::Error| {
        format!(
            "no temporary file can be written in {}: {}",
            folder.display(),
            reason(&error)
        )
    };
    let tries = (0..TRIES)
        .map(|_| once(folder))
        .collect::<io::Result<Vec<_>>>()
        .map_err(failed)?;
    let renames = rename::probe(folder);
    let first_writes = first_writes(folder).map_err(|error| reason(&error));
    Ok(Rewrite {
        tries,
        renames,
        first_writes,
    })
}

fn once(folder: &Path) -> io::Result<Try> {
    let data = vec![0x5a; LEN];
    // O_TMPFILE, or a name that is removed at once.
    let held = tempfile::tempfile_in(folder)?;
    let writer = reopen(&held, OFlags::empty())?;
    writer.write_all_at(&data, 0)?;
    let fresh = State::of(&held);
    drop(writer);
    let fresh_closed = State::of(&held);
    let writer = reopen(&held, OFlags::TRUNC)?;
    writer.write_all_at(&data, 0)?;
    drop(writer);
    Ok(Try {
        fresh,
        fresh_closed,
        rewritten_closed: State::of(&held),
    })
}

/// Another open file of the same inode: what happens at close(2) happens at each one's.
fn reopen(file: &File, flags: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(File::from(rustix::fs::open(
        path,
        OFlags::WRONLY | OFlags::CLOEXEC | flags,
        Mode::empty(),
    )?))
}

/// Times writes of 4 KiB, each synced: into a hole, over the same, and into reserved space.
fn first_writes(folder: &Path) -> io::Result<Vec<FirstWrites>> {
    // Far apart, so that each needs a place of its own.
    const STRIDE: u64 = 256 << 10;
    let file = tempfile::tempfile_in(folder)?;
    let reserved = PLACES * STRIDE;
    file.set_len(reserved)?;
    let can_reserve =
        rustix::fs::fallocate(&file, FallocateFlags::empty(), reserved, reserved).is_ok();
    file.sync_all()?;
    let write = |at: u64| -> io::Result<u64> {
        let start = Instant::now();
        file.write_all_at(&[0x5a; SMALL], at)?;
        file.sync_data()?;
        Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    };
    let at_place = |number: u64| -> io::Result<FirstWrites> {
        let at = number * STRIDE;
        let unwritten = || can_reserve.then(|| write(reserved + at)).transpose();
        Ok(FirstWrites {
            hole_ns: write(at)?,
            written_ns: write(at)?,
            unwritten_ns: unwritten()?,
        })
    };
    (0..PLACES).map(at_place).collect()
}

/// What was just written, the same after something harmless, and after what may flush it.
pub(crate) type Flush<'a> = [&'a State; 3];

/// Whether a place on the device is looked for only later; none where that cannot be seen.
fn delays_allocation<'a>(fresh: impl Iterator<Item = &'a State> + Clone) -> Option<bool> {
    fresh.clone().find(|state| state.blocks.is_ok())?;
    let has_place = |state: &&State| {
        state
            .blocks
            .as_ref()
            .is_ok_and(|found| found.mapped_bytes() > 0)
    };
    Some(fresh.clone().filter(has_place).count() * 2 <= fresh.count())
}

/// Whether it started to be written by the last step alone.
pub(crate) fn is_flush([fresh, left, done]: &Flush<'_>) -> bool {
    fresh.waits() != Some(false) && left.waits() == Some(true) && done.waits() == Some(false)
}

/// Whether the last step starts the writing, and the one before does not; none where that cannot be
/// seen.
fn flushes(tries: &[Flush<'_>]) -> Option<bool> {
    let delays = delays_allocation(tries.iter().map(|[fresh, ..]| *fresh));
    if delays == Some(false) {
        // Blocks are allocated at the write already, and show nothing more later.
        return Some(false);
    }
    let agree = |is: &dyn Fn(&Flush<'_>) -> bool| {
        let count = tries.iter().filter(|one| is(one)).count();
        // Dirty pages alone may be written by chance at any moment: all tries but one have to
        // agree.
        if delays.is_some() {
            count * 2 > tries.len()
        } else {
            count + 1 >= tries.len()
        }
    };
    // Written through, or unknown.
    if delays.is_none() && !tries.iter().all(|[fresh, ..]| fresh.waits() == Some(true)) {
        return None;
    }
    if agree(&is_flush) {
        return Some(true);
    }
    agree(&|[_, _, done]| done.waits() == Some(true)).then_some(false)
}

impl Rewrite {
    /// Whether a place on the device is looked for only later; none where that cannot be seen.
    pub(crate) fn delays_allocation(&self) -> Option<bool> {
        delays_allocation(self.tries.iter().map(|one| &one.fresh))
    }

    /// The tries of truncation.
    pub(crate) fn at_close(&self) -> Vec<Flush<'_>> {
        self.tries
            .iter()
            .map(|one| [&one.fresh, &one.fresh_closed, &one.rewritten_closed])
            .collect()
    }

    /// Whether closing a file that was truncated and written again starts writing it, and closing a
    /// new one does not; none where that cannot be seen.
    pub(crate) fn flushes_at_close(&self) -> Option<bool> {
        flushes(&self.at_close())
    }
}

/// The tries of a rename.
pub(crate) fn at_rename(tries: &[Rename]) -> Vec<Flush<'_>> {
    tries
        .iter()
        .map(|one| [&one.fresh, &one.moved, &one.replaced])
        .collect()
}

/// Whether renaming a written file over another starts writing it, and renaming it to a free name
/// does not; none where that cannot be seen.
pub(crate) fn flushes_at_rename(tries: &[Rename]) -> Option<bool> {
    flushes(&at_rename(tries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::blocks::Blocks;

    fn state(delayed: u64, dirty_bytes: Option<u64>) -> State {
        let size_bytes = LEN as u64;
        let blocks = Blocks {
            size_bytes,
            delayed_bytes: delayed,
            is_complete: true,
            ..Blocks::default()
        };
        State {
            blocks: Ok(blocks),
            dirty_bytes,
            writeback_bytes: None,
        }
    }

    fn all(one: &Try) -> Rewrite {
        let renames = Err(String::new());
        Rewrite {
            tries: vec![one.clone(); 3],
            renames,
            first_writes: Err(String::new()),
        }
    }

    const ALL: u64 = LEN as u64;

    #[test]
    fn a_place_found_at_close_is_a_flush() {
        let mut one = Try {
            fresh: state(ALL, None),
            fresh_closed: state(ALL, None),
            rewritten_closed: state(0, None),
        };
        let found = all(&one);
        assert_eq!(
            (found.delays_allocation(), found.flushes_at_close()),
            (Some(true), Some(true))
        );
        one.rewritten_closed = state(ALL, None);
        assert_eq!(all(&one).flushes_at_close(), Some(false));
        let mut some = all(&one);
        some.tries[0].rewritten_closed = state(0, None);
        assert_eq!(
            some.flushes_at_close(),
            Some(false),
            "writeback by chance in one of three"
        );
    }

    #[test]
    fn allocation_at_write_is_neither_delayed_nor_flush() {
        let one = Try {
            fresh: state(0, None),
            fresh_closed: state(0, None),
            rewritten_closed: state(0, None),
        };
        let found = all(&one);
        assert_eq!(
            (found.delays_allocation(), found.flushes_at_close()),
            (Some(false), Some(false))
        );
    }

    #[test]
    fn dirty_pages_count_where_extents_are_unknown() {
        let blind = |dirty| State {
            blocks: Err("no FIEMAP".into()),
            dirty_bytes: dirty,
            writeback_bytes: None,
        };
        let one = Try {
            fresh: blind(Some(ALL)),
            fresh_closed: blind(Some(ALL)),
            rewritten_closed: blind(Some(0)),
        };
        assert_eq!(
            (all(&one).delays_allocation(), all(&one).flushes_at_close()),
            (None, Some(true))
        );
        let none = Try {
            fresh: blind(None),
            fresh_closed: blind(None),
            rewritten_closed: blind(None),
        };
        assert_eq!(all(&none).flushes_at_close(), None);
        // Written through: a new file is not dirty either.
        let through = Try {
            fresh: blind(Some(0)),
            ..one
        };
        assert_eq!(all(&through).flushes_at_close(), None);
    }

    /// As on btrfs: FIEMAP has no extent until the write has ended.
    #[test]
    fn pages_in_writeback_without_extents_are_a_flush() {
        let (waiting, written) = (state(ALL, Some(ALL)), state(ALL, Some(0)));
        let rename = Rename {
            fresh: waiting.clone(),
            moved: waiting.clone(),
            replaced: written.clone(),
            move_ns: 1,
            replace_ns: 1,
        };
        assert_eq!(flushes_at_rename(&vec![rename.clone(); 5]), Some(true));
        assert_eq!(
            flushes_at_rename(&vec![
                Rename {
                    replaced: waiting.clone(),
                    ..rename.clone()
                };
                5
            ]),
            Some(false)
        );
        // Written by chance before the rename: nothing was seen.
        assert_eq!(
            flushes_at_rename(&vec![
                Rename {
                    moved: written,
                    ..rename
                };
                5
            ]),
            None
        );
        assert_eq!(waiting.describe(), "1 MiB without a place, 1 MiB dirty");
    }

    #[test]
    fn nothing_is_left_behind() {
        let folder = tempfile::TempDir::new().unwrap();
        let found = probe(folder.path()).unwrap();
        assert_eq!(found.tries.len(), TRIES);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(probe(&folder.path().join("missing")).is_err());
    }
}
