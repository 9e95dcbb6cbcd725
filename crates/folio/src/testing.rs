//! Scratch file systems that lose power on command, for tests of storage software.
//!
//! ```text
//!   program ---> Fs ---> ext4 ---> RecordDevice ---> MemoryDevice
//!                                       |
//!                    W W F W W W F W W  | now         W write, F flush
//!                                  ^^^^^ each of these survives a power cut, or is lost, or is torn
//!                        PowerCut: one such state, as a disk of its own
//! ```
//!
//! A test runs its program on the file system, asks for the states that a power cut may leave, and
//! checks in each of them that nothing is lost that was reported as stored. A write and a rename
//! without fsync(2) in between, on a file system without the protection of `auto_da_alloc`:
//!
//! ```
//! use folio::testing::PowerCutDisk;
//!
//! # fn main() -> std::io::Result<()> {
//! let disk = PowerCutDisk::new(64 << 20)?;
//! let fs = disk.image().options("noauto_da_alloc")?.mount()?;
//! fs.write("/config", "old")?;
//! fs.sync()?;
//!
//! fs.write("/config.new", "new")?;
//! fs.rename("/config.new", "/config")?;
//! // Another program calls fsync(2), which commits the rename, too.
//! let other = fs.create("/other")?;
//! other.sync_all()?;
//!
//! let mut lost = 0;
//! for cut in disk.power_cuts(100, 1) {
//!     let after = cut.image().mount()?;
//!     let content = after.read_to_string("/config")?;
//!     lost += usize::from(content != "old" && content != "new");
//! }
//! assert!(lost > 0, "the file is empty after a power cut");
//! # Ok(())
//! # }
//! ```
//!
//! With `fs.open("/config.new")?.sync_all()?` before the rename, `lost` is 0.
//!
//! Neighbors: test programs above; the facade and `block` below. Linux: dm-log-writes.

pub use crate::block::wrappers::{
    DiskCounters, DiskModel, FaultDevice, FaultKind, FaultWhen, RecordDevice, Recorded,
    SalvageDevice, SalvageReport, SlowDevice,
};

use crate::base::Result;
use crate::base::lock::Mutex;
use crate::block::{Device, MemoryDevice, OverlayDevice};
use crate::facade::Image;
use crate::kernel::{FormatOptions, format_ext4};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a disk writes as a whole.
const SECTOR_BYTES: usize = 512;
/// Combinations of this many writes are tried completely.
const COMPLETE_MAX: usize = 10;

/// A disk in memory that records every write and flush.
pub struct PowerCutDisk {
    record: Arc<RecordDevice>,
    /// The disk before the first recorded call.
    before: MemoryDevice,
    /// The disk after a number of recorded calls: the state of the last flush that was asked for.
    flushed: Mutex<(usize, MemoryDevice)>,
}

/// A state that a power cut may leave. It is built when it is used.
#[derive(Clone)]
pub struct PowerCut {
    /// The disk as of the last flush before the cut.
    flushed: Arc<MemoryDevice>,
    /// The later writes.
    pending: Arc<[Recorded]>,
    /// Number of recorded calls before them.
    flushed_len: usize,
    choice: Choice,
}

impl PowerCutDisk {
    /// Creates a disk of `size_bytes` with an empty ext4 file system.
    ///
    /// # Errors
    ///
    /// EINVAL for a size that is too small.
    pub fn new(size_bytes: u64) -> Result<Self> {
        let disk = Self::unformatted(size_bytes);
        format_ext4(&*disk.record, &FormatOptions::default())?;
        Ok(disk)
    }

    /// Creates a disk of `size_bytes` that reads as zeros, for a file system or a program of the
    /// caller's own: see [`PowerCutDisk::device`].
    pub fn unformatted(size_bytes: u64) -> Self {
        Self::from_content(MemoryDevice::new(size_bytes))
    }

    /// Creates a disk with the content of `before`, such as a copy of an image.
    pub fn from_content(before: MemoryDevice) -> Self {
        Self {
            record: Arc::new(RecordDevice::new(Arc::new(before.snapshot()))),
            flushed: Mutex::new((0, before.snapshot())),
            before,
        }
    }

    /// Returns the disk, for a program that writes to it without a file system.
    pub fn device(&self) -> Arc<dyn Device> {
        self.record.clone()
    }

    /// Returns the disk as an image to be mounted.
    pub fn image(&self) -> Image {
        Image::device(self.device())
    }

    /// Returns the current moment, for [`PowerCutDisk::power_cuts_at`]: the number of writes and
    /// flushes so far.
    pub fn now(&self) -> usize {
        self.record.recorded_len()
    }

    /// Returns states that a power cut now may leave, at most `limit`.
    ///
    /// Every write before the last flush is there. Of the later ones any combination may be: all
    /// combinations up to 10 writes, else none, all, every prefix, every single one lost or kept,
    /// and combinations that `seed` chooses. Some writes are torn at sectors of 512 bytes. The
    /// program may go on meanwhile.
    pub fn power_cuts(&self, limit: usize, seed: u64) -> Vec<PowerCut> {
        self.power_cuts_at(self.now(), limit, seed)
    }

    /// As [`PowerCutDisk::power_cuts`], at an earlier moment. A test that asks for all moments of a
    /// program finds what a single one hides.
    pub fn power_cuts_at(&self, moment: usize, limit: usize, seed: u64) -> Vec<PowerCut> {
        let flushed_len = self.record.flushed_len(moment);
        let pending: Arc<[Recorded]> = self.record.recorded_in(flushed_len..moment).into();
        let flushed = self.state_after(flushed_len);
        choices(pending.len(), limit, &mut Random(seed))
            .into_iter()
            .map(|choice| PowerCut {
                flushed: flushed.clone(),
                pending: pending.clone(),
                flushed_len,
                choice,
            })
            .collect()
    }

    /// Returns the disk after the first `len` recorded calls. The states of several moments share
    /// what did not change in between.
    fn state_after(&self, len: usize) -> Arc<MemoryDevice> {
        let mut flushed = self.flushed.lock();
        if flushed.0 > len {
            *flushed = (0, self.before.snapshot());
        }
        for entry in self.record.recorded_in(flushed.0..len) {
            // Memory accepts whatever the recorded device accepted.
            let _: Result<()> = entry.replay(&flushed.1);
        }
        flushed.0 = len;
        Arc::new(flushed.1.snapshot())
    }
}

impl PowerCut {
    /// Returns the disk in this state as an image. What is changed on one such image changes no
    /// other.
    pub fn image(&self) -> Image {
        Image::device(self.device())
    }

    /// Returns the disk in this state.
    pub fn device(&self) -> Arc<dyn Device> {
        let device = OverlayDevice::new(self.flushed.clone());
        for (entry, survival) in self.survivals() {
            match (entry, survival) {
                (_, Survival::None) => {}
                // Memory accepts whatever the recorded device accepted.
                (entry, Survival::All) => _ = entry.replay(&device),
                (Recorded::Write { offset, bytes }, Survival::Sectors(parts)) => {
                    for part in parts {
                        let at = offset + part.start as u64;
                        let _: Result<()> = device.write_at(&bytes[part], at);
                    }
                }
                // Other calls are not torn.
                (_, Survival::Sectors(_)) => {}
            }
        }
        Arc::new(device)
    }

    /// Returns the moment of the cut: the number of writes and flushes before it.
    pub fn moment(&self) -> usize {
        self.flushed_len + self.pending.len()
    }

    /// Returns the writes that are lost, wholly or in part, in their order.
    pub fn lost(&self) -> Vec<LostWrite<'_>> {
        let writes = self.survivals().enumerate();
        let lost = writes.filter(|(_, (_, survival))| *survival != Survival::All);
        lost.map(|(at, (entry, survival))| LostWrite {
            moment: self.flushed_len + at,
            entry,
            is_torn: matches!(survival, Survival::Sectors(_)),
        })
        .collect()
    }

    /// Returns a state at the same moment in which exactly the writes of these moments are lost,
    /// each as a whole: a test that found a fault looks for the fewest that show it.
    #[must_use]
    pub fn losing(&self, moments: &[usize]) -> Self {
        let at = moments.iter().map(|moment| moment - self.flushed_len);
        Self {
            choice: Choice::Lost(at.collect()),
            ..self.clone()
        }
    }

    /// Returns each write since the last flush with what is left of it.
    fn survivals(&self) -> impl Iterator<Item = (&Recorded, Survival)> {
        let mut random = match self.choice {
            Choice::Random(seed) | Choice::Torn(seed) => Random(seed),
            _ => Random(0),
        };
        let entries = self.pending.iter().enumerate();
        entries.map(move |(at, entry)| {
            let is_kept = match &self.choice {
                Choice::Mask(mask) => mask >> at & 1 == 1,
                Choice::Prefix(end) => at < *end,
                Choice::AllBut(lost) => at != *lost,
                Choice::Only(kept) => at == *kept,
                Choice::Lost(lost) => !lost.contains(&at),
                Choice::Random(_) => random.bit(),
                Choice::Torn(_) => return (entry, tear(entry, &mut random)),
            };
            let survival = if is_kept {
                Survival::All
            } else {
                Survival::None
            };
            (entry, survival)
        })
    }
}

/// A write that a power cut loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostWrite<'a> {
    /// The number of writes and flushes before it.
    pub moment: usize,
    /// The write.
    pub entry: &'a Recorded,
    /// Whether a part of it survives.
    pub is_torn: bool,
}

/// What a power cut leaves of a write.
#[derive(Debug, PartialEq, Eq)]
enum Survival {
    All,
    None,
    /// These parts of its bytes.
    Sectors(Vec<Range<usize>>),
}

/// Keeps each sector of a write by chance, and any other call by chance.
fn tear(entry: &Recorded, random: &mut Random) -> Survival {
    let Recorded::Write { offset, bytes } = entry else {
        return if random.bit() {
            Survival::All
        } else {
            Survival::None
        };
    };
    let (mut at, mut kept, mut is_whole) = (0, Vec::new(), true);
    while at < bytes.len() {
        let start = offset + at as u64;
        let left = SECTOR_BYTES - (start % SECTOR_BYTES as u64) as usize;
        let end = bytes.len().min(at + left);
        if random.bit() {
            kept.push(at..end);
        } else {
            is_whole = false;
        }
        at = end;
    }
    match kept.is_empty() {
        _ if is_whole => Survival::All,
        true => Survival::None,
        false => Survival::Sectors(kept),
    }
}

impl fmt::Display for PowerCut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "power cut at moment {}: {} of {} writes since the last flush survive{}",
            self.moment(),
            self.pending.len() - self.lost().len(),
            self.pending.len(),
            if matches!(self.choice, Choice::Torn(_)) {
                " as a whole"
            } else {
                ""
            }
        )
    }
}

/// Which of the writes since the last flush survive.
#[derive(Clone)]
enum Choice {
    /// Those of the bits.
    Mask(usize),
    /// Those before this one.
    Prefix(usize),
    AllBut(usize),
    Only(usize),
    /// All but these.
    Lost(Arc<[usize]>),
    /// By chance, with this seed.
    Random(u64),
    /// Each sector of each write by chance.
    Torn(u64),
}

/// Chooses at most `limit` of the combinations of `count` writes.
fn choices(count: usize, limit: usize, random: &mut Random) -> Vec<Choice> {
    let mut all = Vec::new();
    if count <= COMPLETE_MAX {
        all.extend((0..1usize << count).map(Choice::Mask));
    } else {
        all.extend((0..=count).map(Choice::Prefix));
        all.extend((0..count).map(Choice::AllBut));
        all.extend((0..count).map(Choice::Only));
        while all.len() < limit / 2 {
            all.push(Choice::Random(random.next()));
        }
    }
    if count > 0 {
        // As many torn ones, as far as the limit allows.
        let torn = all.len().min(limit.saturating_sub(all.len()));
        all.extend((0..torn).map(|_| Choice::Torn(random.next())));
    }
    // All kinds have a part in a small limit.
    if all.len() > limit {
        for at in 0..limit {
            let other = at + random.below(all.len() - at);
            all.swap(at, other);
        }
        all.truncate(limit);
    }
    all
}

/// The generator splitmix64: the same seed gives the same states.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn bit(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;
    use std::collections::HashSet;
    use std::io;

    /// Writes a configuration with the steps that `is_synced` chooses, and counts the states after
    /// a power cut at any moment in which it is neither the old nor the new one.
    fn replace(options: &str, is_synced: bool) -> io::Result<usize> {
        let disk = PowerCutDisk::new(16 << 20)?;
        let fs = disk.image().options(options)?.mount()?;
        replace_on(&disk, &fs, is_synced)
    }

    fn replace_on(disk: &PowerCutDisk, fs: &crate::Fs, is_synced: bool) -> io::Result<usize> {
        fs.write("/config", "old")?;
        fs.sync()?;
        let start = disk.now();
        fs.write("/config.new", "new")?;
        if is_synced {
            fs.open_options()
                .write(true)
                .open("/config.new")?
                .sync_all()?;
        }
        fs.rename("/config.new", "/config")?;
        fs.create("/other")?.sync_all()?;
        let mut wrong = 0;
        for moment in start..=disk.now() {
            for cut in disk.power_cuts_at(moment, 60, moment as u64) {
                let after = cut.image().mount()?;
                let content = after.read_to_string("/config")?;
                wrong += usize::from(content != "old" && content != "new");
            }
        }
        Ok(wrong)
    }

    #[test]
    fn remount_changes_auto_da_alloc() {
        let remount = |words: &[&str]| {
            let disk = PowerCutDisk::new(16 << 20).unwrap();
            let fs = disk.image().mount().unwrap();
            for word in words {
                fs.kernel().remount("/", word).unwrap();
            }
            replace_on(&disk, &fs, false).unwrap()
        };
        assert!(remount(&["noauto_da_alloc"]) > 0);
        // An option that is as it was changes nothing.
        let back = ["noauto_da_alloc", "auto_da_alloc", "commit=5", "rw"];
        assert_eq!(remount(&back), 0);
        let disk = PowerCutDisk::new(16 << 20).unwrap();
        let fs = disk.image().mount().unwrap();
        let refused = |word| fs.kernel().remount("/", word).unwrap_err().errno();
        assert_eq!(refused("commit=30"), Errno::OPNOTSUPP);
        assert_eq!(refused("data=journal"), Errno::OPNOTSUPP);
        assert_eq!(refused("nonsense"), Errno::INVAL);
    }

    #[test]
    fn rename_without_fsync_is_found() {
        assert!(replace("noauto_da_alloc", false).unwrap() > 0);
        assert_eq!(replace("noauto_da_alloc", true).unwrap(), 0);
        assert_eq!(replace("", false).unwrap(), 0);
    }

    #[test]
    fn states_are_all_combinations_and_torn_writes() {
        let disk = PowerCutDisk::unformatted(4096);
        let device = disk.device();
        device.write_at(&[1; 512], 0).unwrap();
        device.flush().unwrap();
        device.write_at(&[2; 512], 512).unwrap();
        device.write_at(&[3; 1024], 1024).unwrap();
        let contents = |limit| -> Vec<Vec<u8>> {
            let cuts = disk.power_cuts(limit, 5);
            let read = cuts.iter().map(|cut| {
                let mut bytes = vec![0; 4096];
                cut.device().read_at(&mut bytes, 0).unwrap();
                bytes.into_iter().step_by(512).take(4).collect()
            });
            read.collect()
        };
        assert_eq!(
            contents(4).iter().collect::<HashSet<_>>(),
            HashSet::from([
                &vec![1, 0, 0, 0],
                &vec![1, 2, 0, 0],
                &vec![1, 0, 3, 3],
                &vec![1, 2, 3, 3]
            ])
        );
        let all = contents(100);
        assert!(all.len() == 8 && all.iter().all(|state| state[0] == 1));
        assert_eq!(contents(3).len(), 3);
    }

    #[test]
    fn lost_writes_are_named_and_chosen() {
        let disk = PowerCutDisk::unformatted(1 << 20);
        let device = disk.device();
        device.write_at(&[1; 512], 0).unwrap();
        device.flush().unwrap();
        for number in 2..5_u8 {
            let offset = u64::from(number) << 12;
            device.write_at(&[number; 4096], offset).unwrap();
        }
        let some = disk.power_cuts(1, 1).remove(0).losing(&[2, 4]);
        let moments = |cut: &PowerCut| -> Vec<usize> {
            cut.lost().iter().map(|write| write.moment).collect()
        };
        assert_eq!((some.moment(), moments(&some)), (5, vec![2, 4]));
        let mut bytes = [0; 3];
        for (byte, number) in bytes.iter_mut().zip(2..) {
            let mut read = [0];
            some.device().read_at(&mut read, number << 12).unwrap();
            *byte = read[0];
        }
        assert_eq!(bytes, [0, 3, 0]);
        // Each state is described by its losses: without torn writes it is built from them alone.
        for cut in disk.power_cuts(1000, 7) {
            let lost = cut.lost();
            if lost.iter().all(|write| !write.is_torn) {
                let (mut want, mut got) = (vec![0; 1 << 20], vec![0; 1 << 20]);
                cut.device().read_at(&mut want, 0).unwrap();
                let same = cut.losing(&moments(&cut));
                same.device().read_at(&mut got, 0).unwrap();
                assert!(want == got, "{cut}");
            }
        }
    }

    #[test]
    fn disk_begins_with_the_content_given() {
        let content = MemoryDevice::new(4096);
        content.write_at(&[7; 512], 0).unwrap();
        let disk = PowerCutDisk::from_content(content);
        disk.device().write_at(&[8; 512], 0).unwrap();
        disk.device().flush().unwrap();
        let first = |moment| {
            let mut byte = [0];
            let cut = disk.power_cuts_at(moment, 1, 1).remove(0);
            cut.device().read_at(&mut byte, 0).unwrap();
            byte[0]
        };
        // Backwards too: the states start over.
        assert_eq!((first(0), first(2), first(0)), (7, 8, 7));
    }

    #[test]
    fn states_of_many_writes_take_little_memory() {
        let disk = PowerCutDisk::unformatted(256 << 20);
        let device = disk.device();
        for at in 0..40_000 {
            device.write_at(&[1; 4096], at * 4096).unwrap();
        }
        let choices = choices(40_000, 1000, &mut Random(1));
        assert!(choices.capacity() * size_of::<Choice>() < 4 << 20);
        for cuts in [disk.power_cuts(3, 1), disk.power_cuts(1000, 1)] {
            // All share one disk and one list of writes.
            let owners = Arc::strong_count(&cuts[0].pending);
            assert_eq!(
                (owners, Arc::strong_count(&cuts[0].flushed)),
                (cuts.len(), cuts.len())
            );
        }
    }

    #[test]
    fn states_of_moments_share_what_is_equal() {
        let disk = PowerCutDisk::unformatted(1 << 20);
        let device = disk.device();
        let first_bytes = |moment| {
            let cut = disk.power_cuts_at(moment, 1, 1).remove(0);
            let mut bytes = [0; 2];
            cut.device().read_at(&mut bytes[..1], 0).unwrap();
            cut.device().read_at(&mut bytes[1..], 1 << 19).unwrap();
            (bytes, cut)
        };
        for number in 1..=3 {
            device.write_at(&[number], 0).unwrap();
            device.write_at(&[number], 1 << 19).unwrap();
            device.flush().unwrap();
        }
        let (third, kept) = first_bytes(9);
        // A moment before the last one asked for, and one between two flushes.
        assert_eq!((third, first_bytes(3).0), ([3, 3], [1, 1]));
        assert_eq!(first_bytes(6).0, [2, 2]);
        assert_eq!(first_bytes(9).0, [3, 3]);
        let mut byte = [0];
        kept.device().read_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [3]);
    }

    #[test]
    fn states_of_many_writes_keep_to_the_limit() {
        let disk = PowerCutDisk::unformatted(1 << 20);
        for at in 0..100 {
            disk.device().write_at(&[1; 4096], at * 4096).unwrap();
        }
        for limit in [0, 1, 10, 1000] {
            assert_eq!(disk.power_cuts(limit, 1).len(), limit);
        }
        let cut = disk.power_cuts(1, 1).remove(0);
        assert!(cut.to_string().contains("of 100 writes"), "{cut}");
    }
}
