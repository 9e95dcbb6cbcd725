//! The choice of the device that holds a file system: the whole disk or one partition.

use super::entry::Partition;
use super::table::partitions;
use super::window::PartitionDevice;
use crate::base::{Errno, Error, Result};
use crate::block::{Device, contents};
use std::fmt::Write as _;
use std::sync::Arc;

/// Whether `device` starts with an ext2, ext3 or ext4 file system, by its magic number.
///
/// # Errors
///
/// The device's errors.
pub fn holds_ext4(device: &dyn Device) -> Result<bool> {
    const MAGIC_OFFSET: u64 = 1024 + 56;
    const MAGIC: [u8; 2] = 0xef53u16.to_le_bytes();
    let mut magic = [0; 2];
    if device.len_bytes() < MAGIC_OFFSET + 2 {
        return Ok(false);
    }
    device.read_at(&mut magic, MAGIC_OFFSET)?;
    Ok(magic == MAGIC)
}

/// Returns the device that holds the file system: partition `number`. Without a number it is the
/// whole disk if that starts with ext4, else the only partition that does, else the only one with
/// squashfs or erofs.
///
/// # Errors
///
/// ENXIO if there is no such partition or no file system, EINVAL if several partitions hold one;
/// the message lists the partitions.
pub fn select(disk: Arc<dyn Device>, number: Option<u32>) -> Result<Arc<dyn Device>> {
    let window = |partition: &Partition| {
        PartitionDevice::new(disk.clone(), partition.start_bytes, partition.len_bytes)
    };
    if let Some(number) = number {
        let found = partitions(&*disk)?;
        let Some(partition) = found.iter().find(|partition| partition.number == number) else {
            return Err(Error::new(
                Errno::NXIO,
                format!("no partition {number}; {}", list(&found)),
            ));
        };
        return Ok(Arc::new(window(partition)?));
    }
    if holds_ext4(&*disk)? {
        return Ok(disk);
    }
    let found = partitions(&*disk)?;
    let mut holders = partitions_where(&found, window, holds_ext4)?;
    if holders.is_empty() {
        holders = partitions_where(&found, window, holds_read_only)?;
    }
    if holders.len() == 1
        && let Some((_, device)) = holders.pop()
    {
        return Ok(Arc::new(device));
    }
    if holders.is_empty() {
        return Err(Error::new(
            Errno::NXIO,
            match contents(&*disk)? {
                Some(name) if found.is_empty() => {
                    format!("no ext4 file system: it holds {name}; the disk has no partitions")
                }
                _ => format!("no ext4 file system; {}", list(&found)),
            },
        ));
    }
    let holders: Vec<_> = holders
        .into_iter()
        .map(|(partition, _)| partition)
        .collect();
    Err(Error::new(
        Errno::INVAL,
        format!(
            "several file systems: select one by its number; {}",
            list(&holders)
        ),
    ))
}

/// Whether the device holds a file system that is made for partitions of the system, read only.
fn holds_read_only(device: &dyn Device) -> Result<bool> {
    Ok(matches!(contents(device)?, Some("squashfs" | "erofs")))
}

/// Returns the partitions whose device fulfills `holds`.
fn partitions_where(
    partitions: &[Partition],
    window: impl Fn(&Partition) -> Result<PartitionDevice>,
    holds: fn(&dyn Device) -> Result<bool>,
) -> Result<Vec<(Partition, PartitionDevice)>> {
    let mut found = Vec::new();
    for partition in partitions {
        let device = window(partition)?;
        if holds(&device)? {
            found.push((partition.clone(), device));
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
