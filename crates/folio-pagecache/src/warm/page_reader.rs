//! Reads of files into the page cache that copy no bytes.
//!
//! sendfile(2) to /dev/null reads a file as read(2) does, with the same readahead, and passes the
//! pages on instead of copying them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};

/// Brings bytes of files into memory.
pub(super) struct PageReader {
    /// /dev/null, if it is what it should be.
    null: Option<File>,
}

impl PageReader {
    /// Opens /dev/null.
    pub(super) fn new() -> Self {
        let opened = File::options().write(true).open("/dev/null").ok();
        // In a broken root the name may lead to a file, which would grow.
        let is_device = |file: &File| {
            let found = file.metadata();
            found.is_ok_and(|found| found.file_type().is_char_device())
        };
        Self {
            null: opened.filter(is_device),
        }
    }

    /// Brings up to `len_bytes` bytes from `at` on into memory, and waits for them. Returns how
    /// many; 0 at the end of the file.
    ///
    /// # Errors
    ///
    /// Those of read(2).
    pub(super) fn read(&self, file: &File, at: u64, len_bytes: u64) -> io::Result<u64> {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        if let Some(null) = &self.null
            && let Ok(count) = rustix::fs::sendfile(null, file, Some(&mut at.clone()), len)
        {
            return Ok(count as u64);
        }
        // Not every file system has splice_read; and this call reports why a read fails.
        let mut buf = vec![0; len];
        Ok(file.read_at(&mut buf, at)? as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ends_at_the_end_of_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        let readers = [PageReader::new(), PageReader { null: None }];
        assert!(readers[0].null.is_some());
        for reader in readers {
            let read = |at| reader.read(&file, at, 8192).unwrap();
            assert_eq!([read(0), read(8192), read(10_000)], [8192, 1808, 0]);
        }
    }
}
