//! File contents: a byte pattern that identifies file, operation and offset, and the contents
//! allowed after a power cut.

use crate::crash::random::mix;
use std::ops::Range;
use std::sync::Arc;

/// Number of an operation in its workload.
pub(crate) type Step = usize;

/// Fills `buf` with the pattern of one write at `offset` of the file. No byte is zero.
pub(crate) fn fill(buf: &mut [u8], file: usize, step: Step, offset: u64) {
    let key = mix((file as u64) << 32 ^ step as u64);
    let mut at = 0;
    while at < buf.len() {
        let position = offset + at as u64;
        let word = (mix(key ^ (position / 8)) | 0x0101_0101_0101_0101).to_le_bytes();
        let from = (position % 8) as usize;
        let count = (8 - from).min(buf.len() - at);
        buf[at..at + count].copy_from_slice(&word[from..from + count]);
        at += count;
    }
}

fn byte(file: usize, step: Step, offset: u64) -> u8 {
    let mut one = [0];
    fill(&mut one, file, step, offset);
    one[0]
}

/// The effect of an operation on a file's bytes.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// Pattern bytes of the operation.
    Write(Range<u64>),
    /// Zeros.
    Zero(Range<u64>),
    /// A new size; zeros after the old end if the file grows.
    Truncate(u64),
    /// Earlier contents.
    Restore(Arc<Vec<u8>>),
}

#[derive(Debug, Clone)]
struct Change {
    step: Step,
    effect: Effect,
    size_after: u64,
}

/// A sync, from which on the content must survive.
#[derive(Debug, Clone)]
struct Promise {
    /// Length of the record when the sync returned.
    recorded: usize,
    step: Step,
    content: Arc<Vec<u8>>,
}

/// A complete version of a file that is replaced as a whole.
#[derive(Debug, Clone)]
struct Version {
    step: Step,
    content: Arc<Vec<u8>>,
}

/// The model of one file's contents over time.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContentModel {
    file: usize,
    now: Arc<Vec<u8>>,
    changes: Vec<Change>,
    promises: Vec<Promise>,
    versions: Vec<Version>,
}

/// The state after a power cut of a file that is only replaced as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplacedState {
    /// One of its versions.
    Version,
    /// Empty.
    Empty,
    /// Some bytes are zeros.
    ZeroFilled,
    /// Bytes of several versions, or an incomplete version.
    Torn,
}

impl ContentModel {
    /// Creates the model of an empty file with this number.
    pub(crate) fn new(file: usize) -> Self {
        Self {
            file,
            ..Self::default()
        }
    }

    /// Returns the current contents.
    pub(crate) fn now(&self) -> &[u8] {
        &self.now
    }

    /// Records an operation.
    pub(crate) fn change(&mut self, step: Step, effect: Effect) {
        let now = Arc::make_mut(&mut self.now);
        match &effect {
            Effect::Write(range) => {
                now.resize(now.len().max(range.end as usize), 0);
                fill(
                    &mut now[range.start as usize..range.end as usize],
                    self.file,
                    step,
                    range.start,
                );
            }
            Effect::Zero(range) => {
                let end = now.len().min(range.end as usize);
                now[end.min(range.start as usize)..end].fill(0);
            }
            Effect::Truncate(size) => now.resize(*size as usize, 0),
            Effect::Restore(bytes) => now.clone_from(bytes),
        }
        self.changes.push(Change {
            step,
            effect,
            size_after: self.now.len() as u64,
        });
    }

    /// Records that fsync(2) or sync(2) returned when the record had `recorded` entries.
    pub(crate) fn promise(&mut self, step: Step, recorded: usize) {
        let last = self.promises.last().map_or(0, |promise| promise.step);
        let has_changed = self.changes.last().is_some_and(|change| change.step > last);
        if has_changed || self.promises.is_empty() {
            self.promises.push(Promise {
                recorded,
                step,
                content: self.now.clone(),
            });
        }
    }

    /// Records that the current contents are a complete version.
    pub(crate) fn version(&mut self, step: Step) {
        self.versions.push(Version {
            step,
            content: self.now.clone(),
        });
    }

    /// Checks whether `found` is allowed after a power cut when the record had `recorded` entries
    /// and operations up to `begun` had begun. Returns a description of the first error.
    pub(crate) fn allows(&self, found: &[u8], recorded: usize, begun: Step) -> Result<(), String> {
        let promise = self
            .promises
            .iter()
            .rev()
            .find(|promise| promise.recorded <= recorded);
        let (since, base) =
            promise.map_or((0, &[][..]), |promise| (promise.step, &promise.content[..]));
        let later: Vec<&Change> = self
            .changes
            .iter()
            .filter(|change| change.step > since && change.step <= begun)
            .collect();
        let (mut least, mut most) = (base.len() as u64, base.len() as u64);
        for change in &later {
            least = least.min(change.size_after);
            most = most.max(change.size_after);
        }
        let size = found.len() as u64;
        if !(least..=most).contains(&size) {
            return Err(format!(
                "{size} bytes long, expected {least} to {most} since the sync in operation {since}"
            ));
        }
        const PART: usize = 512;
        for (part, bytes) in found.chunks(PART).enumerate() {
            let start = part * PART;
            if base.get(start..start + bytes.len()) == Some(bytes) {
                continue;
            }
            self.allows_part(bytes, start as u64, base, &later)?;
        }
        Ok(())
    }

    /// Returns the operation of the last sync, and some changes before and all after it.
    pub(crate) fn history(&self, recorded: usize, begun: Step) -> (Step, Vec<Step>) {
        let promise = self
            .promises
            .iter()
            .rev()
            .find(|promise| promise.recorded <= recorded);
        let since = promise.map_or(0, |promise| promise.step);
        let steps = self
            .changes
            .iter()
            .map(|change| change.step)
            .filter(|step| *step <= begun);
        let steps: Vec<Step> = steps.collect();
        let first = steps
            .partition_point(|step| *step <= since)
            .saturating_sub(5);
        (since, steps[first..].to_vec())
    }

    fn allows_part(
        &self,
        bytes: &[u8],
        start: u64,
        base: &[u8],
        later: &[&Change],
    ) -> Result<(), String> {
        let mut is_fine = vec![false; bytes.len()];
        for (at, byte) in bytes.iter().enumerate() {
            // After the old end, zeros are allowed for bytes not written yet.
            is_fine[at] = *byte == base.get(start as usize + at).copied().unwrap_or(0);
        }
        let mut pattern = vec![0; bytes.len()];
        for change in later {
            let range = match &change.effect {
                Effect::Write(range) | Effect::Zero(range) => range.clone(),
                Effect::Truncate(size) => *size..u64::MAX,
                Effect::Restore(_) => 0..u64::MAX,
            };
            let from = range.start.clamp(start, start + bytes.len() as u64) - start;
            let to = range.end.clamp(start, start + bytes.len() as u64) - start;
            let within = from as usize..to as usize;
            pattern[within.clone()].fill(0);
            match &change.effect {
                Effect::Write(_) if from < to => {
                    fill(
                        &mut pattern[within.clone()],
                        self.file,
                        change.step,
                        start + from,
                    );
                }
                Effect::Restore(all) => {
                    let there = all.get(start as usize..).unwrap_or_default();
                    let count = there.len().min(bytes.len());
                    pattern[..count].copy_from_slice(&there[..count]);
                }
                _ => {}
            }
            for at in within {
                is_fine[at] |= bytes[at] == pattern[at];
            }
        }
        match is_fine.iter().position(|is_fine| !is_fine) {
            None => Ok(()),
            Some(at) => Err(format!(
                "at {}: {}",
                start + at as u64,
                self.describe(bytes, at, start)
            )),
        }
    }

    /// Describes an unexpected byte by its possible origin.
    fn describe(&self, bytes: &[u8], at: usize, start: u64) -> String {
        let found = &bytes[at..bytes.len().min(at + 8)];
        if found.iter().all(|byte| *byte == 0) {
            return "zeros that no operation wrote".to_owned();
        }
        let is_of = |step: &Step| {
            found
                .iter()
                .enumerate()
                .all(|(n, b)| *b == byte(self.file, *step, start + (at + n) as u64))
        };
        let step = self.changes.iter().map(|change| change.step).find(is_of);
        match step {
            Some(step) => format!("bytes of operation {step}, not allowed here"),
            None => format!("bytes that are not of this file: {found:02x?}"),
        }
    }

    /// Returns the state of a file that is only replaced as a whole; versions older than the last
    /// sync count as `Torn`.
    pub(crate) fn replaced_state(
        &self,
        found: &[u8],
        recorded: usize,
        begun: Step,
    ) -> ReplacedState {
        let promise = self
            .promises
            .iter()
            .rev()
            .find(|promise| promise.recorded <= recorded);
        let since = promise.map_or(0, |promise| promise.step);
        // The synced version is the last one before the sync.
        let first = self
            .versions
            .iter()
            .rposition(|version| version.step <= since)
            .unwrap_or(0);
        let mut fine = self.versions[first..]
            .iter()
            .filter(|version| version.step <= begun);
        if fine.any(|version| version.content[..] == *found) {
            ReplacedState::Version
        } else if found.is_empty() {
            ReplacedState::Empty
        } else if found.contains(&0) {
            ReplacedState::ZeroFilled
        } else {
            ReplacedState::Torn
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> ContentModel {
        let mut content = ContentModel::new(7);
        content.change(1, Effect::Write(0..5000));
        content.promise(2, 10);
        content.change(3, Effect::Write(1000..2000));
        content.change(4, Effect::Truncate(1500));
        content.change(5, Effect::Write(1400..6000));
        content
    }

    #[test]
    fn synced_bytes_are_required_and_later_allowed() {
        let content = file();
        let mut old = vec![0; 5000];
        fill(&mut old, 7, 1, 0);
        content.allows(&old, 10, 5).unwrap();
        content.allows(&old, 10, 2).unwrap();
        let mut mixed = old.clone();
        fill(&mut mixed[1000..1500], 7, 3, 1000);
        fill(&mut mixed[4096..], 7, 5, 4096);
        content.allows(&mixed, 10, 5).unwrap();
        assert!(
            content
                .allows(&mixed, 10, 3)
                .unwrap_err()
                .contains("bytes of operation 5")
        );
        content.allows(content.now(), 10, 5).unwrap();
        content.allows(&content.now()[..1500], 10, 5).unwrap();
        assert!(
            content
                .allows(&old[..1499], 10, 5)
                .unwrap_err()
                .contains("1499 bytes long")
        );
    }

    #[test]
    fn lost_and_foreign_bytes_are_reported() {
        let content = file();
        let mut found = vec![0; 5000];
        fill(&mut found, 7, 1, 0);
        found[700..708].fill(0);
        assert!(content.allows(&found, 10, 5).unwrap_err().contains("zeros"));
        fill(&mut found[700..708], 6, 1, 700);
        assert!(
            content
                .allows(&found, 10, 5)
                .unwrap_err()
                .contains("not of this file")
        );
        // Before any sync the file may be empty, and zeros are allowed for bytes not written yet.
        content.allows(&[], 9, 1).unwrap();
        content.allows(&[0; 100], 9, 1).unwrap();
    }

    #[test]
    fn replaced_file_states_are_distinguished() {
        let mut content = ContentModel::new(1);
        for step in [1, 3, 5] {
            content.change(step, Effect::Truncate(0));
            content.change(step, Effect::Write(0..9000));
            content.version(step);
            if step == 3 {
                content.promise(4, 20);
            }
        }
        let version = |step| {
            let mut bytes = vec![0; 9000];
            fill(&mut bytes, 1, step, 0);
            bytes
        };
        assert_eq!(
            content.replaced_state(&version(5), 30, 6),
            ReplacedState::Version
        );
        assert_eq!(
            content.replaced_state(&version(3), 30, 6),
            ReplacedState::Version
        );
        assert_eq!(
            content.replaced_state(&version(1), 30, 6),
            ReplacedState::Torn
        );
        assert_eq!(
            content.replaced_state(&version(1), 10, 6),
            ReplacedState::Version
        );
        assert_eq!(content.replaced_state(&[], 30, 6), ReplacedState::Empty);
        assert_eq!(
            content.replaced_state(&[0; 9000], 30, 6),
            ReplacedState::ZeroFilled
        );
        assert_eq!(
            content.replaced_state(&version(5)[..8000], 30, 6),
            ReplacedState::Torn
        );
    }
}
