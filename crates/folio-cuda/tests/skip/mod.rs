//! Reports of tests that did not run, as tests/support makes them.

use std::fs::OpenOptions;
use std::io::Write;

/// Reports, on standard error and in the file that FOLIO_SKIPPED names, that the calling test of
/// `topic` did not run.
pub(crate) fn report(topic: &str, reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{topic}::{test}: {reason}\n");
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("FOLIO_SKIPPED") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the skip is recorded");
    }
}
