//! A file for a report: opened before the work, so that work of minutes is not lost to a path that
//! cannot be written.

use crate::exit::{Failure, Outcome};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file that a report replaces at the end of a command. Without a report it stays as it was.
pub(crate) struct ReportFile {
    path: PathBuf,
    file: File,
    /// Whether it is to be removed, as it was created and is empty.
    is_new: bool,
}

impl ReportFile {
    /// Opens the file, or creates it.
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        let mut options = OpenOptions::new();
        let created = options.write(true).create_new(true).open(path);
        let (opened, is_new) = match created {
            // Terminals, pipes and links are written, not replaced.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).open(path), false)
            }
            created => (created, true),
        };
        Ok(Self {
            path: path.to_owned(),
            file: opened.map_err(|error| failed(path, &error))?,
            is_new,
        })
    }

    /// Replaces the content.
    pub(crate) fn write(mut self, report: &str) -> Outcome {
        self.is_new = false;
        let is_file = self.file.metadata().is_ok_and(|found| found.is_file());
        let emptied = if is_file {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        emptied
            .and_then(|()| self.file.write_all(report.as_bytes()))
            .map_err(|error| failed(&self.path, &error))
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_new {
            // The command has failed, and reports that.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn file_changes_only_if_there_is_a_report() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("report");
        drop(ReportFile::open(&path).unwrap());
        assert!(!path.exists());
        ReportFile::open(&path).unwrap().write("longer").unwrap();
        drop(ReportFile::open(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"longer");
        ReportFile::open(&path).unwrap().write("short").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        assert!(ReportFile::open(&folder.path().join("no/report")).is_err());
    }
}
