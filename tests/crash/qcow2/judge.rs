//! The judge of an image after a power cut: reads, checks and continues it with Folio, and compares
//! with QEMU.

use super::disk::Recording;
use crate::crash::content::fill;
use crate::crash::cut::{Cut, Replay, plan};
use crate::crash::judge::dump;
use crate::crash::random::{Random, seed};
use crate::crash::trial::cuts_per_trial;
use crate::support::require::find;
use crate::support::tools::{command, text};
use folio::Errno;
use folio::block::qcow2::{ImageCheck, Repair};
use folio::block::tools::{apply_snapshot_on, check_on};
use folio::block::{Allocation, Device, OverlayDevice, overlay};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One cut in this many is checked and read by QEMU, another has its snapshots checked, and another
/// is written to and checked again.
const EXTRA_CHECK_INTERVAL: usize = 4;
/// Failures shown in full, at most.
const FAILURES_SHOWN_MAX: usize = 3;

/// The result of a trial.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) cuts: usize,
    pub(crate) failures: Vec<String>,
    leaky: usize,
    dirty: usize,
    by_qemu: usize,
    continued: usize,
}

/// Cuts the power; fails if anything was lost.
pub(crate) fn judge(name: &str, recording: &Recording, random: &mut Random) {
    judge_cuts(name, recording, cuts_per_trial(), random);
}

/// Cuts the power at `count` positions; fails if anything was lost.
pub(crate) fn judge_cuts(name: &str, recording: &Recording, count: usize, random: &mut Random) {
    let outcome = cut(name, recording, count, random);
    assert!(
        outcome.failures.is_empty(),
        "{name}: seed {}: {} of {} cuts failed:\n{}",
        seed(),
        outcome.failures.len(),
        outcome.cuts,
        outcome.failures[..outcome.failures.len().min(FAILURES_SHOWN_MAX)].join("\n\n")
    );
}

/// Cuts the power at `count` planned positions.
pub(crate) fn cut(name: &str, recording: &Recording, count: usize, random: &mut Random) -> Outcome {
    let (plain, lossy) = plan(&recording.record, count, random);
    let mut checker = CutChecker {
        name,
        recording,
        has_qemu: find("qemu-img").is_some(),
        outcome: Outcome::default(),
    };
    for cuts in [&plain, &lossy] {
        let mut replay = Replay::new(&recording.before, &recording.record);
        cuts.iter()
            .for_each(|cut| checker.check_cut(&replay.device(*cut), *cut));
    }
    let outcome = checker.outcome;
    println!(
        "{name}: seed {}: {} operations, {} entries; {} cuts in order, {} with losses; {} leaky, {} dirty, checked by \
         QEMU {}, continued {}; {} failures",
        seed(),
        recording
            .parts
            .iter()
            .map(|part| part.starts.len())
            .sum::<usize>(),
        recording.record.len(),
        plain.len(),
        lossy.len(),
        outcome.leaky,
        outcome.dirty,
        outcome.by_qemu,
        outcome.continued,
        outcome.failures.len()
    );
    outcome
}

struct CutChecker<'t> {
    name: &'t str,
    recording: &'t Recording,
    has_qemu: bool,
    outcome: Outcome,
}

impl CutChecker<'_> {
    fn check_cut(&mut self, device: &Arc<dyn Device>, cut: Cut) {
        let turn = self.outcome.cuts % EXTRA_CHECK_INTERVAL;
        self.outcome.cuts += 1;
        if let Err(error) = self.judge(device, cut, turn) {
            if let Some(folder) = std::env::var_os("FOLIO_CRASH_KEEP").map(PathBuf::from) {
                dump(
                    &**device,
                    &folder.join(format!("{}-{}.qcow2", self.name, self.outcome.cuts)),
                );
            }
            self.outcome.failures.push(format!("{cut}: {error}"));
        }
    }

    fn judge(&mut self, device: &Arc<dyn Device>, cut: Cut, turn: usize) -> Result<(), String> {
        let is_dirty = has_dirty_bit(&**device);
        let found = if is_dirty {
            self.read(&sealed(device))
        } else {
            self.read(device)
        }?;
        let mut rest = &found[..];
        for part in &self.recording.parts {
            let (begun, own) = (part.begun(cut.recorded), part.content.now().len());
            let bytes = if self.recording.parts.len() == 1 {
                rest
            } else {
                &rest[..own]
            };
            rest = &rest[bytes.len()..];
            part.content
                .allows(bytes, cut.recorded, begun)
                .map_err(|error| {
                    let history = part.content.history(cut.recorded, begun);
                    format!(
                        "{error}; synced in operation {}, changed in {:?}",
                        history.0, history.1
                    )
                })?;
        }
        self.outcome.dirty += usize::from(is_dirty);
        if !is_dirty {
            let report = sound(device, Repair::Nothing)?;
            self.outcome.leaky += usize::from(report.leaks > 0);
        }
        if turn == 0 && self.has_qemu {
            self.by_qemu(device, is_dirty, cut.recorded, &found)?;
        }
        if turn == 1 {
            self.snapshots(device, cut.recorded)?;
        }
        if turn != EXTRA_CHECK_INTERVAL / 2 {
            return Ok(());
        }
        // With or without a repair before.
        let layer = overlay(device.clone());
        if cut.seed.is_multiple_of(2) {
            let report = sound(&layer, Repair::All)?;
            if report.leaks > 0 || has_dirty_bit(&*layer) || self.read(&layer)? != found {
                return Err(format!("after repair: {report:?}"));
            }
        }
        self.continue_writing(&layer, found, cut.seed)
    }

    /// Reads the whole disk, and checks that reported holes are zeros.
    fn read(&self, device: &Arc<dyn Device>) -> Result<Vec<u8>, String> {
        let text = |error: folio::Error| error.to_string();
        let opened = self.recording.source.open(device.clone()).map_err(text)?;
        let mut found = vec![0xaa; opened.len_bytes() as usize];
        opened.read_at(&mut found, 0).map_err(text)?;
        let mut at = 0;
        while at < found.len() {
            let (kind, count) = opened
                .allocation(at as u64, (found.len() - at) as u64)
                .map_err(text)?;
            let bytes = &found[at..at + count as usize];
            if kind != Allocation::Data && bytes.iter().any(|byte| *byte != 0) {
                return Err(format!("{kind:?} at {at} has nonzero bytes"));
            }
            at += count as usize;
        }
        Ok(found)
    }

    /// Checks with `qemu-img check` that clusters leak at most, after a repair of the refcounts of
    /// a dirty image. QEMU must read the same bytes and snapshots.
    fn by_qemu(
        &mut self,
        device: &Arc<dyn Device>,
        is_dirty: bool,
        recorded: usize,
        found: &[u8],
    ) -> Result<(), String> {
        self.outcome.by_qemu += 1;
        let path = self.path();
        dump(&**device, &path);
        if is_dirty {
            qemu_check(&path, &["-r", "all"])?;
        }
        qemu_check(&path, &[])?;
        let raw = path.with_extension("raw");
        let convert = |options: &[&str]| {
            let mut qemu = command("qemu-img");
            qemu.args(["convert", "-f", "qcow2", "-O", "raw"])
                .args(options)
                .arg(&path)
                .arg(&raw);
            let output = qemu.output().unwrap();
            if !output.status.success() {
                return Err(text(&output));
            }
            std::fs::read(&raw).map_err(|error| error.to_string())
        };
        if convert(&[])? != found {
            return Err("QEMU reads different bytes".to_owned());
        }
        for snapshot in self
            .recording
            .snapshots
            .iter()
            .filter(|snapshot| snapshot.is_due(recorded))
        {
            if convert(&["-l", &snapshot.name])? != *snapshot.bytes {
                return Err(format!("snapshot {} has changed", snapshot.name));
            }
        }
        Ok(())
    }

    /// Checks that required snapshots can be applied, and that all snapshots are unchanged.
    fn snapshots(&self, device: &Arc<dyn Device>, recorded: usize) -> Result<(), String> {
        for snapshot in &self.recording.snapshots {
            let name = &snapshot.name;
            let layer = overlay(device.clone());
            match apply_snapshot_on(layer.clone(), name) {
                Ok(()) if self.read(&layer)? == *snapshot.bytes => {
                    sound(&layer, Repair::Nothing)?;
                }
                Ok(()) => return Err(format!("snapshot {name} has changed")),
                Err(error) if error.errno() == Errno::NOENT && !snapshot.is_due(recorded) => {}
                Err(error) => return Err(format!("snapshot {name}: {error}")),
            }
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.recording.source.folder.path().join("cut.qcow2")
    }

    /// Continues writing to the image and checks it.
    fn continue_writing(
        &mut self,
        layer: &Arc<dyn Device>,
        mut found: Vec<u8>,
        seed: u64,
    ) -> Result<(), String> {
        self.outcome.continued += 1;
        let text = |error: folio::Error| format!("continued writes: {error}");
        let opened = self.recording.source.open(layer.clone()).map_err(text)?;
        let mut random = Random::new(seed);
        for step in 0..12 {
            let offset = random.below(found.len());
            let count = (1 + random.below(20_000)).min(found.len() - offset);
            let bytes = &mut found[offset..offset + count];
            if random.percent(30) {
                bytes.fill(0);
                opened
                    .write_zeroes(offset as u64, count as u64)
                    .map_err(text)?;
            } else {
                fill(bytes, 1, step, offset as u64);
                opened.write_at(bytes, offset as u64).map_err(text)?;
            }
            if random.percent(20) {
                opened.flush().map_err(text)?;
            }
        }
        opened.flush().map_err(text)?;
        drop(opened);
        if self.read(layer)? != found {
            return Err("continued writes: the disk reads wrong".to_owned());
        }
        sound(layer, Repair::Nothing).map_err(|error| format!("continued writes: {error}"))?;
        if self.has_qemu && random.percent(25) {
            dump(&**layer, &self.path());
            qemu_check(&self.path(), &[]).map_err(|error| format!("continued writes: {error}"))?;
        }
        Ok(())
    }
}

/// Returns the device as read-only.
fn sealed(device: &Arc<dyn Device>) -> Arc<dyn Device> {
    Arc::new(OverlayDevice::new(device.clone()).sealed())
}

/// Returns whether the header marks the refcounts as stale.
pub(super) fn has_dirty_bit(device: &dyn Device) -> bool {
    let (mut version, mut features) = ([0; 8], [0; 8]);
    device.read_at(&mut version, 0).unwrap();
    device.read_at(&mut features, 72).unwrap();
    version[7] >= 3 && features[7] & 1 != 0
}

/// Checks with Folio that clusters leak at most, after the repair.
fn sound(device: &Arc<dyn Device>, repair: Repair) -> Result<ImageCheck, String> {
    let mut findings = Vec::new();
    let checked = check_on(device.clone(), repair, &mut |finding| {
        findings.push(finding.to_string())
    });
    let report = checked.map_err(|error| format!("check: {error}"))?;
    if report.corruptions + report.check_errors == 0 {
        return Ok(report);
    }
    findings.truncate(20);
    Err(format!(
        "check, repair {repair:?}: {report:?}\n{}",
        findings.join("\n")
    ))
}

/// Checks with `qemu-img check` that clusters leak at most.
pub(super) fn qemu_check(path: &Path, options: &[&str]) -> Result<(), String> {
    const LEAKS: i32 = 3;
    let output = command("qemu-img")
        .args(["check", "-f", "qcow2"])
        .args(options)
        .arg(path)
        .output()
        .unwrap();
    let is_fine = matches!(output.status.code(), Some(0 | LEAKS));
    if is_fine {
        Ok(())
    } else {
        Err(format!(
            "qemu-img check: {}\n{}",
            output.status,
            text(&output)
        ))
    }
}
