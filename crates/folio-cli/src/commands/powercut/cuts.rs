//! The power cuts of a recording: which ones, and what the check finds after each.

use super::disk::open_disk;
use super::mounted::{How, MountedDisk};
use super::recording::{Recording, lock};
use crate::exit::{Failure, Outcome, explain};
use crate::progress::Progress;
use crate::session::Session;
use crate::user_command::{Finding, Places, check};
use folio::block::{Device, ImageFormat, OverlayDevice};
use folio::testing::PowerCut;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// Where and how a check runs.
pub(super) struct Judge<'a> {
    pub(super) check: &'a str,
    /// Format of the file that stores the disk.
    pub(super) format: ImageFormat,
    /// The check is killed after this time, and has then failed.
    pub(super) limit: Duration,
    pub(super) how: How,
    /// The folder of mounts and of what was acknowledged.
    pub(super) folder: &'a Path,
    /// Whether each thread has mounts of its own, so that the disk is at the same place for all.
    pub(super) has_own_mounts: bool,
    pub(super) session: &'a Session,
}

/// A state in which the check failed.
pub(super) struct FailingCut {
    pub(super) cut: PowerCut,
    /// Number of writes before it, from the start of the program.
    pub(super) write: usize,
    pub(super) reason: String,
}

/// What the check found after all power cuts.
pub(super) struct Judged {
    pub(super) cuts: usize,
    /// In the order of the writes.
    pub(super) failing: Vec<FailingCut>,
}

impl Judge<'_> {
    /// Runs the check after `count` power cuts, which `seed` chooses, on all processors.
    pub(super) fn judge(&self, recording: &Recording, count: usize, seed: u64) -> Outcome<Judged> {
        let cuts = Mutex::new(Cuts::new(recording, count, seed));
        let found = Mutex::new(Vec::new());
        let progress = Progress::new(self.session);
        let work = |number: usize| -> Outcome {
            let place = self.enter(number)?;
            loop {
                self.session.check_interrupt()?;
                let next = lock(&cuts).next();
                let Some(cut) = next else { return Ok(()) };
                let reason = self.reason(recording, &cut, &place)?;
                let mut found = lock(&found);
                found.push(reason.map(|reason| FailingCut {
                    write: recording.write(cut.moment()),
                    cut,
                    reason,
                }));
                let failing = found.iter().flatten().count();
                let done = found.len() as u64;
                progress.steps(done, count as u64, format!("power cuts, {failing} failing"));
            }
        };
        // A failure ends the other threads too.
        let worker = |number| work(number).inspect_err(|_| lock(&cuts).clear());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let judged: Outcome = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|number| scope.spawn(move || worker(number)))
                .collect();
            let mut results = workers.into_iter().map(ScopedJoinHandle::join);
            results.try_for_each(|result| result.unwrap_or_else(|_| Err(panicked())))
        });
        progress.finish();
        judged?;
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let cuts = found.len();
        let mut failing: Vec<_> = found.into_iter().flatten().collect();
        failing.sort_by_key(|failing| failing.write);
        Ok(Judged { cuts, failing })
    }

    /// Returns a state with fewer lost writes that fails too, if one is found in `SHRINK_MAX`
    /// checks.
    pub(super) fn shrink(
        &self,
        recording: &Recording,
        failing: &FailingCut,
    ) -> Outcome<FailingCut> {
        const SHRINK_MAX: usize = 100;
        let place = self.place(0);
        let mut checks = 0;
        let mut fails = |cut: &PowerCut| -> Outcome<Option<String>> {
            checks += 1;
            if checks > SHRINK_MAX {
                return Ok(None);
            }
            self.reason(recording, cut, &place)
        };
        let moments = |cut: &PowerCut| -> Vec<usize> {
            cut.lost().iter().map(|write| write.moment).collect()
        };

        // Writes lost as a whole are simpler than torn ones.
        let whole = failing.cut.losing(&moments(&failing.cut));
        let Some(reason) = fails(&whole)? else {
            return Ok(failing.with(failing.cut.clone(), failing.reason.clone()));
        };
        let mut lost = moments(&whole);
        let mut best = failing.with(whole, reason);
        let mut part = lost.len().div_ceil(2);
        while part > 0 {
            let mut at = 0;
            while at < lost.len() {
                let mut fewer = lost.clone();
                fewer.drain(at..lost.len().min(at + part));
                let cut = best.cut.losing(&fewer);
                match fails(&cut)? {
                    Some(reason) => (best, lost) = (failing.with(cut, reason), fewer),
                    None => at += part,
                }
            }
            part /= 2;
        }
        Ok(best)
    }

    /// Checks the disk as the program left it, after an unmount.
    pub(super) fn reason_without_cut(&self, recording: &Recording) -> Outcome<Option<String>> {
        let file = Arc::new(OverlayDevice::new(recording.disk.device()));
        self.reason_on(file, recording.acked(usize::MAX), &self.place(0))
    }

    fn reason(
        &self,
        recording: &Recording,
        cut: &PowerCut,
        place: &Place,
    ) -> Outcome<Option<String>> {
        let acked = recording.acked(recording.write(cut.moment()));
        self.reason_on(cut.device(), acked, place)
    }

    /// Mounts the disk in a file, and runs the check; returns the reason if it fails.
    pub(super) fn reason_on(
        &self,
        file: Arc<dyn Device>,
        acked: &[u8],
        place: &Place,
    ) -> Outcome<Option<String>> {
        let in_folder = |error| Failure::new(format!("{}: {error}", self.folder.display()));
        std::fs::write(&place.acked, acked).map_err(in_folder)?;
        let opened = open_disk(self.format, file)
            .and_then(|device| MountedDisk::new(device, &place.mount, &self.how));
        let mounted = match opened {
            Ok(mounted) => mounted,
            Err(error) => return Ok(Some(format!("cannot be mounted: {}", explain(&error)))),
        };
        let places = Places {
            mount: Some(&place.mount),
            acked: Some(&place.acked),
        };
        let interrupted = || self.session.is_interrupted();
        let found = check(self.check, places, self.limit, &interrupted);
        let closed = mounted.close();
        match found.map_err(|error| Failure::new(format!("--check: sh: {error}")))? {
            Finding::Interrupted => Err(Failure::interrupted()),
            Finding::Wrong(reason) => Ok(Some(place.general(reason))),
            Finding::Consistent => Ok(closed.map(|()| None)?),
        }
    }

    /// Prepares the calling thread to mount.
    fn enter(&self, number: usize) -> Outcome<Place> {
        if self.has_own_mounts {
            folio_run::unshare_mounts()
                .map_err(|errno| Failure::new(format!("unshare: {errno}")))?;
        }
        let place = self.place(number);
        std::fs::create_dir_all(&place.mount)
            .map_err(|error| Failure::new(format!("{}: {error}", place.mount.display())))?;
        Ok(place)
    }

    /// Returns the places of a thread.
    pub(super) fn place(&self, number: usize) -> Place {
        // Programs write down the place of their files.
        let mount = if self.has_own_mounts || number == 0 {
            "mnt".to_owned()
        } else {
            format!("mnt-{number}")
        };
        Place {
            mount: self.folder.join(mount),
            acked: self.folder.join(format!("acked-{number}")),
        }
    }
}

/// The places of one thread.
pub(super) struct Place {
    pub(super) mount: PathBuf,
    pub(super) acked: PathBuf,
}

impl Place {
    /// Replaces the names of this thread's places, so that equal reasons are counted together.
    fn general(&self, reason: String) -> String {
        let places = [(&self.mount, "$MNT"), (&self.acked, "$ACKED")];
        places.into_iter().fold(reason, |reason, (place, name)| {
            reason.replace(&*place.to_string_lossy(), name)
        })
    }
}

impl FailingCut {
    fn with(&self, cut: PowerCut, reason: String) -> Self {
        Self {
            cut,
            write: self.write,
            reason,
        }
    }
}

fn panicked() -> Failure {
    Failure::new("a thread that checks panicked")
}

/// The states to check, in the order of their moments, each built when its turn comes.
struct Cuts<'a> {
    recording: &'a Recording,
    seed: u64,
    /// Numbers of writes before the cuts, with the number of states of each.
    plan: VecDeque<(usize, usize)>,
    ready: VecDeque<PowerCut>,
    /// States that earlier moments did not have.
    owed: usize,
}

impl<'a> Cuts<'a> {
    fn new(recording: &'a Recording, count: usize, seed: u64) -> Self {
        Self {
            recording,
            seed,
            plan: plan(recording.writes + 1, count),
            ready: VecDeque::new(),
            owed: 0,
        }
    }

    fn clear(&mut self) {
        self.plan.clear();
        self.ready.clear();
    }

    fn next(&mut self) -> Option<PowerCut> {
        while self.ready.is_empty() {
            let (write, count) = self.plan.pop_front()?;
            let moment = self.recording.moment(write);
            let seed = self
                .seed
                .wrapping_mul(0x9e37_79b9)
                .wrapping_add(write as u64);
            let wanted = count + self.owed;
            let cuts = self.recording.disk.power_cuts_at(moment, wanted, seed);
            self.owed = wanted - cuts.len();
            self.ready.extend(cuts);
        }
        self.ready.pop_front()
    }
}

/// Spreads `count` states over `moments` moments, the first and the last included.
fn plan(moments: usize, count: usize) -> VecDeque<(usize, usize)> {
    let mut plan: VecDeque<(usize, usize)> = VecDeque::new();
    for number in 0..count {
        let moment = match count {
            1 => moments - 1,
            _ => number * (moments - 1) / (count - 1),
        };
        match plan.back_mut() {
            Some((last, states)) if *last == moment => *states += 1,
            _ => plan.push_back((moment, 1)),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_spread_over_all_moments() {
        assert_eq!(Vec::from(plan(3, 3)), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(Vec::from(plan(101, 3)), [(0, 1), (50, 1), (100, 1)]);
        assert_eq!(Vec::from(plan(1, 4)), [(0, 4)]);
        assert_eq!(Vec::from(plan(7, 1)), [(6, 1)]);
        let plan = plan(1000, 5000);
        assert_eq!(plan.iter().map(|(_, states)| states).sum::<usize>(), 5000);
        assert_eq!(plan.len(), 1000);
    }
}
