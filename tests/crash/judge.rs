//! The judge: mounts a device after a power cut, reads all of it, and compares it with the model.

use crate::crash::content::{ReplacedState, Step};
use crate::crash::names::{Fact, NamespaceModel};
use crate::crash::program::{ROOT, for_data, full, inode_attributes, kernel};
use folio::block::{Device, MemoryDevice};
use folio::ext4::{self, CheckOptions};
use folio::syscall::{OpenFlags, Process};
use folio::vfs::MountOptions;
use folio::{Kernel, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Name prefix of files that are only replaced as a whole.
pub(crate) const REPLACED_PREFIX: &str = "kept-";

/// States of files that are only replaced as a whole, counted over all cuts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReplacedCounts {
    pub(crate) versions: usize,
    pub(crate) empty: usize,
    pub(crate) zero_filled: usize,
    pub(crate) torn: usize,
}

impl ReplacedCounts {
    /// Returns the number of damaged files.
    pub(crate) fn lost(&self) -> usize {
        self.empty + self.zero_filled + self.torn
    }
}

/// Mounts and checks devices one after the other.
pub(crate) struct Judge {
    kernel: Arc<Kernel>,
    process: Process,
    mount: MountOptions,
    pub(crate) replaced: ReplacedCounts,
    /// A description of the last damaged file.
    pub(crate) damaged: String,
}

/// A regular file: inode number, path, bytes.
type Found = (u64, String, Vec<u8>);

/// The contents of a mounted file system.
#[derive(Default)]
struct Observed {
    facts: BTreeSet<Fact>,
    hash: u64,
    files: Vec<Found>,
}

impl Observed {
    fn add(&mut self, fact: Fact) {
        let hash = fact.hash();
        // An inode with two names is read twice but is one fact.
        if self.facts.insert(fact) {
            self.hash ^= hash;
        }
    }
}

impl Judge {
    /// Creates a judge that mounts with these options.
    pub(crate) fn new(mount: MountOptions) -> Self {
        let (kernel, process) = kernel(16 << 20, false);
        Self {
            kernel,
            process,
            mount,
            replaced: ReplacedCounts::default(),
            damaged: String::new(),
        }
    }

    /// Mounts `device` after a cut at `recorded` entries, compares it with the models and unmounts.
    /// Returns a description of the first error.
    pub(crate) fn judge(
        &mut self,
        device: &Arc<dyn Device>,
        programs: &[NamespaceModel],
        recorded: usize,
    ) -> std::result::Result<(), String> {
        let mounted = self.kernel.mount_ext4(device.clone(), ROOT, &self.mount);
        mounted.map_err(|error| format!("mount: {error}"))?;
        let mut there = programs.iter().filter(|names| names.since <= recorded);
        let compared = there.try_for_each(|names| match observe(&self.process, &names.base) {
            Ok(observed) => self.compare(&observed, names, recorded),
            Err(error) => Err(format!("reading: {error}")),
        });
        let unmounted = self
            .kernel
            .unmount(ROOT)
            .map_err(|error| format!("unmount: {error}"));
        compared
            .and(unmounted)
            .and_then(|()| is_clean(&**device))
            .and_then(|()| is_sound(device))
    }

    fn compare(
        &mut self,
        observed: &Observed,
        names: &NamespaceModel,
        recorded: usize,
    ) -> std::result::Result<(), String> {
        let steps = names.states_like(observed.hash, recorded);
        let Some(first) = steps.first() else {
            return Err(names.difference(&observed.facts, recorded));
        };
        let begun = names.begun(recorded);
        let mut wrong = None;
        // Two states may have equal facts but different files, if an inode number was reused.
        for step in &steps {
            match files_are_fine(observed, names, recorded, begun, *step) {
                Ok(()) => {
                    self.count_replaced(observed, names, recorded, begun, *step);
                    return Ok(());
                }
                Err(error) => wrong = wrong.or(Some(error)),
            }
        }
        let what = names.what(*first);
        Err(format!(
            "names as after operation {first} ({what}), but {}",
            wrong.unwrap_or_default()
        ))
    }

    fn count_replaced(
        &mut self,
        observed: &Observed,
        names: &NamespaceModel,
        recorded: usize,
        begun: Step,
        step: Step,
    ) {
        for (number, path, bytes) in &observed.files {
            let is_kept = path
                .rsplit('/')
                .next()
                .is_some_and(|name| name.starts_with(REPLACED_PREFIX));
            let Some(node) = names.node_of(*number, step).filter(|_| is_kept) else {
                continue;
            };
            let content = &names.inodes[node].content;
            let whole = content.replaced_state(bytes, recorded, begun);
            if whole != ReplacedState::Version {
                let (len, history) = (bytes.len(), names.history(node, recorded));
                self.damaged = format!(
                    "{path}: {whole:?}, {len} bytes, {}\n{history}",
                    names.what(step)
                );
            }
            let count = match whole {
                ReplacedState::Version => &mut self.replaced.versions,
                ReplacedState::Empty => &mut self.replaced.empty,
                ReplacedState::ZeroFilled => &mut self.replaced.zero_filled,
                ReplacedState::Torn => &mut self.replaced.torn,
            };
            *count += 1;
        }
    }
}

fn files_are_fine(
    observed: &Observed,
    names: &NamespaceModel,
    recorded: usize,
    begun: Step,
    step: Step,
) -> std::result::Result<(), String> {
    for (number, path, bytes) in &observed.files {
        let node = names.node_of(*number, step);
        let node = node.ok_or_else(|| format!("{path}: inode {number} was not in use"))?;
        let fine = names.inodes[node].content.allows(bytes, recorded, begun);
        fine.map_err(|error| {
            let history = names.history(node, recorded);
            format!("{path} (inode {number}): {error}\n{history}")
        })?;
    }
    Ok(())
}

/// Reads all files below a directory.
fn observe(process: &Process, base: &str) -> Result<Observed> {
    let mut observed = Observed::default();
    let root = process.stat(base)?;
    let up = process.stat(full(base, ".."))?.number.0;
    let up = if base == ROOT { root.number.0 } else { up };
    let mut waiting = vec![(String::new(), root.number.0, up)];
    observed.add(Fact::Inode(
        root.number.0,
        inode_attributes(process, base, &root)?,
    ));
    while let Some((path, number, parent)) = waiting.pop() {
        let fd = process.open(full(base, &path), OpenFlags::DIRECTORY, 0)?;
        loop {
            let entries = process.getdents(fd, 256)?;
            if entries.is_empty() {
                break;
            }
            for entry in entries {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if name == "." || name == ".." {
                    // Added as facts only if they are wrong; then no state has them.
                    if entry.number != if name == "." { number } else { parent } && number != parent
                    {
                        observed.add(Fact::Entry(number, name, entry.number));
                    }
                    continue;
                }
                let at = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}/{name}")
                };
                let found = process
                    .lstat(full(base, &at))
                    .map_err(|error| error.at(at.clone()))?;
                let attributes = inode_attributes(process, &full(base, &at), &found)
                    .map_err(|error| error.at(at.clone()))?;
                observed.add(Fact::Entry(number, name, entry.number));
                match attributes.kind {
                    'd' => waiting.push((at, found.number.0, number)),
                    'f' => observed.files.push((
                        found.number.0,
                        at.clone(),
                        read(process, &full(base, &at))?,
                    )),
                    _ => {}
                }
                observed.add(Fact::Inode(found.number.0, attributes));
            }
        }
        process.close(fd)?;
    }
    Ok(observed)
}

fn read(process: &Process, path: &str) -> Result<Vec<u8>> {
    let fd = process.open(path, OpenFlags::empty(), 0)?;
    let mut bytes = vec![0; process.fstat(fd)?.size_bytes as usize];
    let mut done = 0;
    while done < bytes.len() {
        match process
            .pread(fd, &mut bytes[done..], done as u64)
            .map_err(|error| error.at(path.to_owned()))?
        {
            0 => break,
            count => done += count,
        }
    }
    process.close(fd)?;
    Ok(bytes)
}

/// Checks that the superblock is clean: no recovery, no orphans.
fn is_clean(device: &dyn Device) -> std::result::Result<(), String> {
    let mut superblock = [0; 1024];
    device
        .read_at(&mut superblock, 1024)
        .map_err(|error| error.to_string())?;
    let word = |at: usize| {
        u32::from_le_bytes([
            superblock[at],
            superblock[at + 1],
            superblock[at + 2],
            superblock[at + 3],
        ])
    };
    let (state, incompat, orphan, ro_compat) =
        (word(0x3a) & 0xffff, word(0x60), word(0xe8), word(0x64));
    if state == 1 && incompat & 4 == 0 && orphan == 0 && ro_compat & 0x1_0000 == 0 {
        return Ok(());
    }
    Err(format!(
        "not clean after unmount: state {state}, incompat {incompat:#x}, first orphan {orphan}, ro_compat {ro_compat:#x}"
    ))
}

/// Checks that `folio check` finds nothing.
fn is_sound(device: &Arc<dyn Device>) -> std::result::Result<(), String> {
    let mut findings = Vec::new();
    let checked = ext4::check(device, &CheckOptions::default(), &mut findings);
    checked.map_err(|error| format!("folio check: {error}"))?;
    let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
    if findings.is_empty() {
        Ok(())
    } else {
        Err(format!("folio check:\n{}", findings.join("\n")))
    }
}

/// Writes a device to a file, for e2fsck.
pub(crate) fn dump(device: &dyn Device, path: &std::path::Path) {
    use std::os::unix::fs::FileExt;
    let _ = std::fs::remove_file(path);
    let file = std::fs::File::create(path).unwrap();
    file.set_len(device.len_bytes()).unwrap();
    for_data(device, |at, bytes| file.write_all_at(bytes, at).unwrap());
}

/// Loads a file as a device in memory.
pub(crate) fn load(path: &std::path::Path) -> Arc<dyn Device> {
    let bytes = std::fs::read(path).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    for (index, part) in bytes.chunks(64 << 10).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            device.write_at(part, (index as u64) << 16).unwrap();
        }
    }
    Arc::new(device)
}
