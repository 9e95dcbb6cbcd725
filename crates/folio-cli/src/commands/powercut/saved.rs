//! Failing states as folders of the host: a disk as the power cut left it, what was acknowledged,
//! and the check.

use super::cuts::{FailingCut, Judge};
use super::recording::Recording;
use crate::exit::{Exit, Failure, Outcome};
use folio::block::tools::{CopyOptions, copy};
use folio::block::{ImageFormat, OpenOptions, OverlayDevice, create, open};
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
    /// Format of the disk's file.
    format: String,
    /// The words of `-o`.
    pub(super) options: String,
    write: usize,
    reason: String,
}

impl SavedCut {
    /// Returns the format of the disk's file.
    pub(super) fn format(&self) -> Outcome<ImageFormat> {
        Ok(self.format.parse()?)
    }
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
        options: judge.how.options.clone(),
        write: failing.write,
        reason: failing.reason.clone(),
    };
    let save = || -> io::Result<()> {
        let cut = failing.cut.device();
        let disk = create(
            folder.join(file_name(judge.format)),
            ImageFormat::Raw,
            cut.len_bytes(),
        )?;
        copy(&*cut, &*disk, &CopyOptions::default())?;
        fs::write(folder.join(ACKED), recording.acked(failing.write))?;
        let mut file = File::create(folder.join(CUT))?;
        serde_json::to_writer_pretty(&file, &saved)?;
        file.write_all(b"\n")
    };
    save().map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    Ok(folder)
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
pub(super) fn replay(folder: &Path, judge: &Judge<'_>) -> Outcome<Option<String>> {
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
    judge.reason_on(Arc::new(OverlayDevice::new(disk)), &acked, &judge.place(0))
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
