//! Failing states as folders of the host: a disk as the power cut left it, what was acknowledged,
//! and the check.

use super::cuts::{FailingCut, Judge};
use super::recording::Recording;
use crate::exit::{Exit, Failure, Outcome};
use folio::Error;
use folio::block::tools::{CopyOptions, copy};
use folio::block::{Device, ImageFormat, MemoryDevice, OpenOptions, OverlayDevice, create, open};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ACKED: &str = "acked";
const CUT: &str = "cut.json";

/// What is needed to run a check again.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedCut {
    pub(super) check: String,
    /// Format of the disk's file; older folders have raw ones alone.
    #[serde(default = "raw")]
    format: String,
    /// Size in bytes to which a qcow2 file may grow while the check runs.
    #[serde(default)]
    room_bytes: u64,
    /// The words of `-o`.
    pub(super) options: String,
    write: usize,
    reason: String,
}

impl SavedCut {
    /// Returns the format of the disk's file.
    pub(super) fn format(&self) -> Outcome<ImageFormat> {
        self.format.parse().map_err(|error: Error| {
            let text = format!("--replay: {CUT}: format: {error}");
            Failure::usage(text)
        })
    }
}

/// Returns the format of the disks that older versions have saved.
fn raw() -> String {
    ImageFormat::Raw.to_string()
}

/// Returns the name of the disk's file.
fn file_name(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Qcow2 => "disk.qcow2",
        _ => "disk.img",
    }
}

/// Saves a failing state in a new folder of `parent`; returns the folder.
pub(super) fn save(
    parent: &Path,
    judge: &Judge<'_>,
    recording: &Recording,
    failing: &FailingCut,
) -> Outcome<PathBuf> {
    let folder = new_folder(parent, failing.write)?;
    let saved = SavedCut {
        check: judge.check.to_owned(),
        format: judge.format.to_string(),
        room_bytes: failing.cut.device().len_bytes(),
        options: judge.how.options.clone(),
        write: failing.write,
        reason: failing.reason.clone(),
    };
    let save = || -> io::Result<()> {
        let disk = folder.join(file_name(judge.format));
        save_disk(&*failing.cut.device(), recording.file_bytes, &disk)?;
        fs::write(folder.join(ACKED), recording.acked(failing.write))?;
        let mut file = File::create(folder.join(CUT))?;
        serde_json::to_writer_pretty(&file, &saved)?;
        file.write_all(b"\n")
    };
    save().map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    Ok(folder)
}

/// Copies the first `len_bytes` of a device, which are all that it has, to a new file.
fn save_disk(device: &dyn Device, len_bytes: u64, path: &Path) -> folio::Result<()> {
    const PART_BYTES: u64 = 64 << 10;
    let file = create(path, ImageFormat::Raw, len_bytes)?;
    if len_bytes == device.len_bytes() {
        return copy(device, &*file, &CopyOptions::default()).map(drop);
    }
    let mut bytes = vec![0; PART_BYTES as usize];
    for offset in (0..len_bytes).step_by(bytes.len()) {
        let part = &mut bytes[..PART_BYTES.min(len_bytes - offset) as usize];
        device.read_at(part, offset)?;
        if part.iter().any(|byte| *byte != 0) {
            file.write_at(part, offset)?;
        }
    }
    file.flush()
}

/// Creates the folder cut-N, or cut-N-2 and so on: what is saved there may be all that is left of a
/// failure.
fn new_folder(parent: &Path, write: usize) -> Outcome<PathBuf> {
    let failure = |path: &Path, error: io::Error| {
        Err(Failure::new(format!("--save {}: {error}", path.display())))
    };
    if let Err(error) = fs::create_dir_all(parent) {
        return failure(parent, error);
    }
    for number in 1.. {
        let name = match number {
            1 => format!("cut-{write}"),
            _ => format!("cut-{write}-{number}"),
        };
        let folder = parent.join(name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return failure(&folder, error),
        }
    }
    unreachable!("a name is free")
}

/// Reads what [`save`] has written.
pub(super) fn load(folder: &Path) -> Outcome<SavedCut> {
    let path = folder.join(CUT);
    let read = || -> io::Result<SavedCut> { Ok(serde_json::from_slice(&fs::read(&path)?)?) };
    read().map_err(|error| {
        let text = format!(
            "--replay {}: {error}; expected a folder that folio powercut saved",
            path.display()
        );
        Failure::exiting(Exit::Usage, text)
    })
}

/// Runs the check of a saved state again, on a copy in memory; returns the reason if it fails.
pub(super) fn replay(
    folder: &Path,
    saved: &SavedCut,
    judge: &Judge<'_>,
) -> Outcome<Option<String>> {
    let read_only = OpenOptions {
        read_only: true,
        // The file as it is.
        format: Some(ImageFormat::Raw),
        ..OpenOptions::default()
    };
    let disk = open(folder.join(file_name(judge.format)), &read_only).map_err(Failure::image)?;
    let acked = folder.join(ACKED);
    let acked =
        fs::read(&acked).map_err(|error| Failure::new(format!("{}: {error}", acked.display())))?;
    let disk: Arc<dyn Device> = if saved.room_bytes > disk.len_bytes() {
        let with_room = MemoryDevice::new(saved.room_bytes);
        copy(&*disk, &with_room, &CopyOptions::default())?;
        Arc::new(with_room)
    } else {
        Arc::new(OverlayDevice::new(disk))
    };
    judge.reason_on(disk, &acked, &judge.place(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_states_replace_no_other() {
        let parent = tempfile::tempdir().unwrap();
        let folders = [(); 3].map(|()| new_folder(&parent.path().join("new"), 7).unwrap());
        let names = folders.map(|folder| folder.file_name().unwrap().to_owned());
        assert_eq!(names, ["cut-7", "cut-7-2", "cut-7-3"]);
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(new_folder(&file, 7).is_err());
    }
}
