//! Judges what a power cut left of an image: by Folio, which reads it and goes on with it, and by QEMU.

use super::disk::Past;
use crate::content::fill;
use crate::cut::{Cut, Replay, plan};
use crate::judge::dump;
use crate::random::Random;
use crate::support::require::find;
use crate::support::tools::{command, text};
use crate::trial::{cuts_per_trial, seed};
use folio::block::{Allocation, Device, OverlayDevice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of so many cuts one is read by QEMU, with its snapshots, and another is written on and checked again.
const ONE_OF: usize = 4;
/// Failures told in full.
const TOLD_MAX: usize = 3;

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) cuts: usize,
    pub(crate) failures: Vec<String>,
    checked: usize,
    leaky: usize,
    read: usize,
    went_on: usize,
}

/// Cuts the power, and fails if anything was lost.
pub(crate) fn judge(name: &str, past: &Past, random: &mut Random) {
    let outcome = cut(name, past, random);
    assert!(
        outcome.failures.is_empty(),
        "{name}: seed {}: {} of {} cuts went wrong:\n{}",
        seed(),
        outcome.failures.len(),
        outcome.cuts,
        outcome.failures[..outcome.failures.len().min(TOLD_MAX)].join("\n\n")
    );
}

/// Cuts the power.
pub(crate) fn cut(name: &str, past: &Past, random: &mut Random) -> Outcome {
    let (plain, lossy) = plan(&past.record, cuts_per_trial(), random);
    let mut court = Court { name, past, has_qemu: find("qemu-img").is_some(), outcome: Outcome::default() };
    for cuts in [&plain, &lossy] {
        let mut replay = Replay::new(&past.before, &past.record);
        cuts.iter().for_each(|cut| court.hear(&replay.device(*cut), *cut));
    }
    let outcome = court.outcome;
    println!(
        "{name}: seed {}: {} operations, {} entries; {} cuts in order, {} with losses; qemu-img check {}, of which {} \
         leaky, read by QEMU {}, went on {}; {} failures",
        seed(),
        past.steps(),
        past.record.len(),
        plain.len(),
        lossy.len(),
        outcome.checked,
        outcome.leaky,
        outcome.read,
        outcome.went_on,
        outcome.failures.len()
    );
    outcome
}

struct Court<'t> {
    name: &'t str,
    past: &'t Past,
    has_qemu: bool,
    outcome: Outcome,
}

impl Court<'_> {
    fn hear(&mut self, device: &Arc<dyn Device>, cut: Cut) {
        let turn = self.outcome.cuts % ONE_OF;
        self.outcome.cuts += 1;
        let path = self.past.source.folder.path().join("cut.qcow2");
        let verdict = self.judge(device, cut, turn, &path);
        if let Err(error) = verdict {
            if let Some(folder) = std::env::var_os("FOLIO_CRASH_KEEP").map(PathBuf::from) {
                dump(&**device, &path);
                std::fs::copy(&path, folder.join(format!("{}-{}.qcow2", self.name, self.outcome.cuts)))
                    .unwrap();
            }
            self.outcome.failures.push(format!("{cut}: {error}"));
        }
    }

    fn judge(&mut self, device: &Arc<dyn Device>, cut: Cut, turn: usize, path: &Path) -> Result<(), String> {
        let found = self.read(device)?;
        let begun = self.past.begun(cut.recorded);
        self.past.content.allows(&found, cut.recorded, begun).map_err(|error| {
            let story = self.past.content.story(cut.recorded, begun);
            format!("{error}; promised in operation {}, changed in {:?}", story.0, story.1)
        })?;
        if self.has_qemu {
            dump(&**device, path);
            self.check(path)?;
            if turn == 0 {
                self.read_by_qemu(path, &found)?;
            }
        }
        if turn == ONE_OF / 2 { self.go_on(device, found, cut.seed, path) } else { Ok(()) }
    }

    /// Reads the whole disk, and compares what is told of its holes.
    fn read(&self, device: &Arc<dyn Device>) -> Result<Vec<u8>, String> {
        let told = |error: folio::Error| error.to_string();
        let opened = self.past.source.open(device.clone()).map_err(told)?;
        let mut found = vec![0xaa; opened.len_bytes() as usize];
        opened.read_at(&mut found, 0).map_err(told)?;
        let mut at = 0;
        while at < found.len() {
            let (kind, count) = opened.allocation(at as u64, (found.len() - at) as u64).map_err(told)?;
            let bytes = &found[at..at + count as usize];
            if kind != Allocation::Data && bytes.iter().any(|byte| *byte != 0) {
                return Err(format!("{kind:?} at {at} reads as data"));
            }
            at += count as usize;
        }
        Ok(found)
    }

    /// `qemu-img check` finds leaks at worst.
    fn check(&mut self, path: &Path) -> Result<(), String> {
        const LEAKS: i32 = 3;
        self.outcome.checked += 1;
        let output = command("qemu-img").args(["check", "-f", "qcow2"]).arg(path).output().unwrap();
        let status = output.status.code();
        self.outcome.leaky += usize::from(status == Some(LEAKS));
        let is_fine = matches!(status, Some(0 | LEAKS));
        if is_fine { Ok(()) } else { Err(format!("qemu-img check: {}\n{}", output.status, text(&output))) }
    }

    /// QEMU reads the same, and the snapshots are what they were.
    fn read_by_qemu(&mut self, path: &Path, found: &[u8]) -> Result<(), String> {
        self.outcome.read += 1;
        let raw = path.with_extension("raw");
        let convert = |options: &[&str]| {
            let mut qemu = command("qemu-img");
            qemu.args(["convert", "-f", "qcow2", "-O", "raw"]).args(options).arg(path).arg(&raw);
            let output = qemu.output().unwrap();
            if !output.status.success() {
                return Err(text(&output));
            }
            std::fs::read(&raw).map_err(|error| error.to_string())
        };
        if convert(&[])? != found {
            return Err("QEMU reads something else".to_owned());
        }
        for (name, bytes) in &self.past.source.snapshots {
            if convert(&["-l", name])? != *bytes {
                return Err(format!("snapshot {name} has changed"));
            }
        }
        Ok(())
    }

    /// The image is written on, and stays sound.
    fn go_on(
        &mut self,
        device: &Arc<dyn Device>,
        mut found: Vec<u8>,
        seed: u64,
        path: &Path,
    ) -> Result<(), String> {
        self.outcome.went_on += 1;
        let told = |error: folio::Error| format!("writing on: {error}");
        let layer: Arc<dyn Device> = Arc::new(OverlayDevice::new(device.clone()));
        let opened = self.past.source.open(layer.clone()).map_err(told)?;
        let mut random = Random::new(seed);
        for step in 0..12 {
            let offset = random.below(found.len());
            let count = (1 + random.below(20_000)).min(found.len() - offset);
            let bytes = &mut found[offset..offset + count];
            if random.percent(30) {
                bytes.fill(0);
                opened.write_zeroes(offset as u64, count as u64).map_err(told)?;
            } else {
                fill(bytes, 1, step, offset as u64);
                opened.write_at(bytes, offset as u64).map_err(told)?;
            }
            if random.percent(20) {
                opened.flush().map_err(told)?;
            }
        }
        opened.flush().map_err(told)?;
        drop(opened);
        if self.read(&layer)? != found {
            return Err("written on, it reads wrong".to_owned());
        }
        if self.has_qemu {
            dump(&*layer, path);
            self.check(path).map_err(|error| format!("written on: {error}"))?;
        }
        Ok(())
    }
}
