//! Files that guests boot, unpacked below the target folder.
//!
//! A kernel with its modules, firmware and a boot loader, from Debian's packages. Nothing is
//! installed.

use crate::packages;
use crate::repository;
use crate::run::output;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Depends on the newest kernel.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Firmware, and a boot loader for it.
const PACKAGES: [&str; 2] = ["ovmf", "systemd-boot-efi"];
/// The file of a folder that is complete.
const READY: &str = "ready";

/// Returns the variable with the folder of the files, which are downloaded once.
///
/// # Errors
///
/// The reason why they cannot be had.
pub(crate) fn provide() -> Result<(&'static str, OsString), String> {
    let folder = repository::target_folder().join("guest-files");
    let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
    if !folder.join(READY).exists() {
        download(&folder)?;
        std::fs::write(folder.join(READY), "").map_err(|error| error.to_string())?;
    }
    Ok(("FOLIO_GUEST_FILES", folder.into_os_string()))
}

fn download(folder: &Path) -> Result<(), String> {
    if !packages::has("apt-get") || !packages::has("busybox") {
        return Err("needs apt-get and busybox".to_owned());
    }
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let text = output(Command::new("apt-cache").args(["depends", KERNEL]))?;
    let kernel = kernel_package(&text).ok_or("no kernel is in the package lists")?;
    for package in PACKAGES.into_iter().chain([kernel]) {
        output(
            Command::new("apt-get")
                .args(["-qq", "download", package])
                .current_dir(folder),
        )?;
    }
    for archive in archives(folder) {
        output(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(folder))?;
        let _ = std::fs::remove_file(archive);
    }
    // The package's script makes modules.dep on installation.
    let release = kernel.trim_start_matches("linux-image-");
    let depmod = ["depmod", "-b"];
    output(
        Command::new("busybox")
            .args(depmod)
            .arg(folder)
            .arg(release),
    )?;
    Ok(())
}

/// Reads the name of the kernel's package from the output of apt-cache depends.
fn kernel_package(text: &str) -> Option<&str> {
    let mut names = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-"))
}

fn archives(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_of_the_kernel_is_read_from_depends() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(
            kernel_package(text),
            Some("linux-image-6.1.0-56-cloud-amd64")
        );
        assert_eq!(kernel_package("linux-image-cloud-amd64\n"), None);
    }
}
