//! The choice of the device that holds a file system: the whole disk or one partition.

use super::entry::Partition;
use super::table::partitions;
use super::window::PartitionDevice;
use crate::base::{Errno, Error, Result};
use crate::block::{Device, FileSystemKind, contents, foreign_contents, holds_ext4};
use std::fmt::Write as _;
use std::sync::Arc;

/// Returns the device that holds the file system: that of the [`selected`] partition, or the whole
/// disk.
///
/// # Errors
///
/// Those of [`selected`].
pub fn select(disk: Arc<dyn Device>, number: Option<u32>) -> Result<Arc<dyn Device>> {
    match selected(&disk, number)? {
        Some(partition) => Ok(Arc::new(window(&disk, &partition)?)),
        None => Ok(disk),
    }
}

/// Returns the partition that holds the file system: partition `number`. Without a number it is the
/// whole disk, `None`, if that starts with a [`FileSystemKind`], else the only partition with ext4,
/// else the only one with squashfs or erofs, else the FAT in the only partition of the disk.
///
/// # Errors
///
/// ENXIO if there is no such partition or no file system, EINVAL if several partitions hold one;
/// the message lists the partitions.
pub fn selected(disk: &Arc<dyn Device>, number: Option<u32>) -> Result<Option<Partition>> {
    if let Some(number) = number {
        let mut found = partitions(&**disk)?;
        let Some(at) = found.iter().position(|found| found.number == number) else {
            let what = format!("no partition {number}; {}", list(&found));
            return Err(Error::new(Errno::NXIO, what));
        };
        return Ok(Some(found.swap_remove(at)));
    }
    // First: the boot sector of a FAT looks like that of a disk with partitions.
    if FileSystemKind::of(&**disk)?.is_some() {
        return Ok(None);
    }
    let found = partitions(&**disk)?;
    let mut holders = partitions_where(disk, &found, holds_ext4)?;
    if holders.is_empty() {
        holders = partitions_where(disk, &found, holds_read_only)?;
    }
    // Beside other partitions a FAT is the firmware's, not the file system that a user means.
    if holders.is_empty() && found.len() == 1 {
        holders = partitions_where(disk, &found, holds_fat)?;
    }
    match holders.len() {
        0 => Err(Error::new(Errno::NXIO, no_file_system(disk, &found)?)),
        1 => Ok(holders.pop()),
        _ => {
            let list = list(&holders);
            let what = format!("several file systems: select one by number or label; {list}");
            Err(Error::new(Errno::INVAL, what))
        }
    }
}

fn window(disk: &Arc<dyn Device>, partition: &Partition) -> Result<PartitionDevice> {
    PartitionDevice::new(disk.clone(), partition.start_bytes, partition.len_bytes)
}

/// Returns the message about a disk without a file system to select.
fn no_file_system(disk: &Arc<dyn Device>, partitions: &[Partition]) -> Result<String> {
    if partitions.is_empty() {
        return Ok(match contents(&**disk)? {
            Some(name) => {
                let held = foreign_contents(name);
                format!("no ext4 file system: {held}; the disk has no partitions")
            }
            None => "no ext4 file system; the disk has no partitions".to_owned(),
        });
    }
    let mut text = format!("no ext4 file system; {}", list(partitions));
    for partition in partitions {
        if let Some(name) = contents(&window(disk, partition)?)? {
            // Writing to a String does not fail.
            let _ = match partitions {
                [_] => write!(text, "; {}", foreign_contents(name)),
                _ => write!(text, "; partition {} holds {name}", partition.number),
            };
        }
    }
    Ok(text)
}

/// Whether the device holds a file system that is made for partitions of the system, read only.
fn holds_read_only(device: &dyn Device) -> Result<bool> {
    let kind = FileSystemKind::of(device)?;
    Ok(matches!(
        kind,
        Some(FileSystemKind::Squashfs | FileSystemKind::Erofs)
    ))
}

fn holds_fat(device: &dyn Device) -> Result<bool> {
    Ok(FileSystemKind::of(device)? == Some(FileSystemKind::Fat))
}

/// Returns the partitions whose device fulfills `holds`.
fn partitions_where(
    disk: &Arc<dyn Device>,
    partitions: &[Partition],
    holds: fn(&dyn Device) -> Result<bool>,
) -> Result<Vec<Partition>> {
    let mut found = Vec::new();
    for partition in partitions {
        if holds(&window(disk, partition)?)? {
            found.push(partition.clone());
        }
    }
    Ok(found)
}

/// Formats a list: "partitions: 1 (100.0 MiB, EFI system), 2 (1.9 GiB, Linux filesystem)".
pub(super) fn list(partitions: &[Partition]) -> String {
    if partitions.is_empty() {
        return "the disk has no partitions".to_owned();
    }
    let mut text = String::from("partitions:");
    for (index, partition) in partitions.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let mut size = partition.len_bytes as f64 / 1024.0;
        let mut unit = "KiB";
        for larger in ["MiB", "GiB", "TiB"] {
            if size >= 1024.0 {
                (size, unit) = (size / 1024.0, larger);
            }
        }
        let label = match partition.label.as_str() {
            "" => String::new(),
            label => format!(", label {label:?}"),
        };
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "{comma} {} ({size:.1} {unit}, {}{label})",
            partition.number, partition.type_name
        );
    }
    text
}
