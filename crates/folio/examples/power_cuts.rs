//! Cut the power at every write of a workload and check what is left:
//! `cargo run --example power_cuts`.
//!
//! The workload replaces a configuration file as editors and databases do: write a new file, sync
//! it, rename it over the old one. At any moment the file must be the old or the new one.

use folio::block::{Device, MemoryDevice};
use folio::testing::{RecordDevice, Recorded};
use folio::{Fs, Image};
use std::error::Error;
use std::io::{self, Write};
use std::sync::Arc;

const DISK_BYTES: u64 = 16 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let disk = Arc::new(MemoryDevice::new(DISK_BYTES));
    let fs = Image::create_on(disk.clone()).mount()?;
    fs.write("/config", "old")?;
    fs.close()?;
    let before = copy_of(&disk)?;

    let recorder = Arc::new(RecordDevice::new(disk));
    let fs = Image::device(recorder.clone()).mount()?;
    replace(&fs, "/config", "new")?;
    fs.close()?;

    let record = recorder.recorded();
    let (mut old, mut new) = (0, 0);
    for cut in 0..=record.len() {
        match after_power_cut(&before, &record[..cut])?.as_str() {
            "old" => old += 1,
            "new" => new += 1,
            other => return Err(format!("cut {cut}: the file is {other:?}").into()),
        }
    }
    println!(
        "{} power cuts: {old} times the old file, {new} times the new",
        old + new
    );
    Ok(())
}

/// Replaces a file so that a reader, also one after a power cut, finds the old or the new content.
fn replace(fs: &Fs, path: &str, content: &str) -> io::Result<()> {
    let temporary = format!("{path}.tmp");
    let mut file = fs.create(&temporary)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs.rename(temporary, path)?;
    fs.sync()
}

/// Returns the content of the file on a disk that lost power after the writes in `record`. The
/// mount replays the journal.
fn after_power_cut(before: &MemoryDevice, record: &[Recorded]) -> Result<String, Box<dyn Error>> {
    let disk = Arc::new(copy_of(before)?);
    for entry in record {
        entry.replay(&*disk)?;
    }
    let fs = Image::device(disk).mount()?;
    Ok(fs.read_to_string("/config")?)
}

fn copy_of(disk: &MemoryDevice) -> folio::Result<MemoryDevice> {
    let copy = MemoryDevice::new(DISK_BYTES);
    let mut bytes = vec![0; DISK_BYTES as usize];
    disk.read_at(&mut bytes, 0)?;
    copy.write_at(&bytes, 0)?;
    Ok(copy)
}
