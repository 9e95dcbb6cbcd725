//! Uses of an image by the host's kernel, which takes no image locks: loop devices, mounts,
//! device-mapper and swap.
//!
//! ```text
//!   regular file --- /sys/block/loop*/loop/backing_file ---> block device
//!                                                               |
//!   /proc/self/mountinfo, holders/, /proc/swaps  <--------------+  and its partitions
//! ```
//!
//! e2fsprogs: lib/ext2fs/ismounted.c.

use crate::base::{Detail, Errno, Error, Result};
use rustix::fs::{Dev, OFlags, major, makedev, minor};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pauses while a loop device that no mount shows is still in use: the kernel detaches it a moment
/// after the unmount, and udev opens it to look for labels.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSES_MAX: usize = 50;

/// A use of a file or block device by the kernel.
#[derive(Debug)]
struct KernelUse {
    /// "/dev/loop0, mounted at /mnt".
    what: String,
    /// How to end it.
    remedy: String,
    /// The kernel may change the file.
    may_write: bool,
    /// The use may end within a moment.
    is_transient: bool,
}

/// Rejects an image that the kernel uses, and warns about one that the kernel may change.
///
/// # Errors
///
/// EBUSY, naming the loop device or the mount, if the image is to be written.
pub(crate) fn check(file: &File, path: &Path, read_only: bool) -> Result<()> {
    let metadata = file.metadata().map_err(|error| Error::io("stat", error))?;
    if !read_only {
        return match lasting_use(&metadata) {
            Some(found) => Err(busy(&found)),
            None => Ok(()),
        };
    }
    if let Some(found) = find(&metadata).filter(|found| found.may_write && !found.is_transient) {
        tracing::warn!(
            "{}: in use by the kernel ({}), which may change it meanwhile: the result may be \
             inconsistent",
            path.display(),
            found.what
        );
    }
    Ok(())
}

/// Explains why the kernel refused to open a block device exclusively.
pub(crate) fn explain_busy(device: &Metadata) -> Error {
    find(device).map_or_else(
        || {
            let why = "another program or the kernel uses the device";
            Error::new(Errno::BUSY, why).about(Detail::ImageInUse)
        },
        |found| busy(&found),
    )
}

fn busy(found: &KernelUse) -> Error {
    let KernelUse { what, remedy, .. } = found;
    let why = format!("the image is in use by the kernel ({what}): {remedy} first");
    Error::new(Errno::BUSY, why).about(Detail::ImageInUse)
}

/// Returns the use of an image, unless it ends within a second.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel does not report when a loop device is free"
)]
fn lasting_use(metadata: &Metadata) -> Option<KernelUse> {
    for _ in 0..PAUSES_MAX {
        if !find(metadata)?.is_transient {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    find(metadata)
}

/// Returns a use of a regular file or block device by the kernel.
fn find(metadata: &Metadata) -> Option<KernelUse> {
    if metadata.file_type().is_block_device() {
        return use_of_device(metadata.rdev());
    }
    loop_devices_of(metadata).find_map(|name| use_by_loop(&name))
}

/// Returns the names of the loop devices whose backing file this is.
fn loop_devices_of(metadata: &Metadata) -> impl Iterator<Item = String> {
    let (device, inode) = (metadata.dev(), metadata.ino());
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    blocks.filter_map(move |entry| {
        let name = entry.file_name().into_string().ok()?;
        let number = name.strip_prefix("loop")?;
        number.parse::<u32>().ok()?;
        let backing = fs::read(entry.path().join("loop/backing_file")).ok()?;
        let backing = OsStr::from_bytes(backing.strip_suffix(b"\n").unwrap_or(&backing));
        let found = fs::metadata(Path::new(backing)).ok()?;
        ((found.dev(), found.ino()) == (device, inode)).then_some(name)
    })
}

/// Returns how a loop device is used; none if no program has it open.
fn use_by_loop(name: &str) -> Option<KernelUse> {
    let attribute = |attribute: &str| {
        let text = fs::read_to_string(format!("/sys/block/{name}/{attribute}"));
        text.map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    let is_read_only = attribute("ro") == "1";
    let number = device_number(&attribute("dev"))?;
    if let Some(found) = use_of_device(number) {
        return Some(KernelUse {
            what: format!("/dev/{name}, {}", found.what),
            may_write: found.may_write && !is_read_only,
            ..found
        });
    }
    // Mounts in other mount namespaces appear only here.
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::EXCL | OFlags::NONBLOCK).bits() as i32)
        .open(format!("/dev/{name}"));
    if opened.is_ok() {
        return None;
    }
    Some(KernelUse {
        what: format!("/dev/{name}"),
        remedy: format!("detach it (losetup -d /dev/{name})"),
        may_write: !is_read_only,
        is_transient: true,
    })
}

/// Returns the use of a block device or of one of its partitions.
fn use_of_device(number: Dev) -> Option<KernelUse> {
    let used = |what: String, remedy: &str, may_write| KernelUse {
        what,
        remedy: remedy.to_owned(),
        may_write,
        is_transient: false,
    };
    let all: Vec<_> = std::iter::once(number)
        .chain(partitions_of(number))
        .collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(mount) = mounts
        .lines()
        .find_map(|line| Mount::of_devices(line, &all))
    {
        let what = format!("mounted at {}", mount.target);
        return Some(used(what, "unmount it", mount.is_writable));
    }
    if let Some(holder) = all.iter().find_map(|number| holder_of(*number)) {
        return Some(used(format!("part of {holder}"), "remove that", true));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut names = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next());
    names
        .any(|name| block_device(Path::new(name)).is_some_and(|number| all.contains(&number)))
        .then(|| used("swap space".to_owned(), "run swapoff", true))
}

fn sysfs(number: Dev) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(number), minor(number)).into()
}

/// Returns the numbers of a block device's partitions.
fn partitions_of(number: Dev) -> Vec<Dev> {
    let entries = fs::read_dir(sysfs(number)).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.path().join("partition").exists())
        .filter_map(|entry| device_number(&fs::read_to_string(entry.path().join("dev")).ok()?))
        .collect()
}

/// Returns the device of device-mapper or md that is built on a block device.
fn holder_of(number: Dev) -> Option<String> {
    let mut holders = fs::read_dir(sysfs(number).join("holders")).ok()?;
    let kernel_name = holders.next()?.ok()?.file_name().into_string().ok()?;
    let name = fs::read_to_string(format!("/sys/block/{kernel_name}/dm/name"));
    Some(match name {
        Ok(name) => format!("/dev/mapper/{}", name.trim()),
        Err(_) => format!("/dev/{kernel_name}"),
    })
}

/// Parses "7:0".
fn device_number(text: &str) -> Option<Dev> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn block_device(path: &Path) -> Option<Dev> {
    let found = fs::metadata(path).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

/// A mounted file system.
struct Mount {
    target: String,
    is_writable: bool,
}

impl Mount {
    /// Parses a line of mountinfo (proc(5)) if the mount is on one of the devices.
    fn of_devices(line: &str, devices: &[Dev]) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut words = before.split(' ').skip(2);
        let number = device_number(words.next()?);
        let target = words.nth(1)?;
        let mut words = after.split(' ').skip(1);
        let (source, options) = (words.next()?, words.next()?);
        // Some file systems (btrfs) have a number of their own, so the source is compared as well.
        let is_here = number.is_some_and(|number| devices.contains(&number))
            || (source.starts_with('/')
                && block_device(Path::new(source)).is_some_and(|found| devices.contains(&found)));
        is_here.then(|| Self {
            target: target.replace("\\040", " "),
            is_writable: options.split(',').all(|word| word != "ro"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_line_gives_target_and_mode() {
        let devices = [makedev(7, 3)];
        let line =
            "36 35 7:3 / /mnt/a\\040b rw,noatime shared:1 - ext4 /dev/loop3 ro,errors=remount-ro";
        let mount = Mount::of_devices(line, &devices).unwrap();
        assert_eq!(
            (mount.target.as_str(), mount.is_writable),
            ("/mnt/a b", false)
        );
        let other = line.replace("7:3", "7:4").replace("/dev/loop3", "none");
        assert!(Mount::of_devices(&other, &devices).is_none());
        let writable = line.replace(" ro,", " rw,");
        assert!(Mount::of_devices(&writable, &devices).unwrap().is_writable);
        assert!(Mount::of_devices("truncated", &devices).is_none());
    }
}
