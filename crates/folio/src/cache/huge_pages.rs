//! The moment at which the host is asked for huge pages.
//!
//! On a machine of its own, at once: one fault gives 2 MiB. A virtual machine may report its free
//! memory to its host, which takes it back in pieces as large as a huge page. Then each new huge
//! page is one that the host must provide again, which takes longer than the write to the disk that
//! it is for; small pages were mostly in use before. There the advice comes once the memory was
//! touched: the kernel then joins small pages in the background.
//!
//! Linux: mm/page_reporting.c, drivers/virtio/virtio_balloon.c. Virtual I/O Device (VIRTIO) 1.2,
//! 5.5.3, `VIRTIO_BALLOON_F_PAGE_REPORTING`.

use std::path::Path;
use std::sync::OnceLock;

/// The devices of the balloon driver.
const BALLOONS: &str = "/sys/bus/virtio/drivers/virtio_balloon";
/// Number of the feature.
const PAGE_REPORTING: usize = 5;

/// Reads what the page cache has to know of the machine, which it otherwise does at its first use.
/// A program that gives up its access to `/sys` calls it before.
pub fn inspect_machine() {
    HugePages::of_this_machine();
}

/// When memory is advised to use huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HugePages {
    AtFirstTouch,
    /// Once small pages are there.
    Later,
}

impl HugePages {
    /// Returns the better moment for this machine.
    pub(super) fn of_this_machine() -> Self {
        static FOUND: OnceLock<HugePages> = OnceLock::new();
        *FOUND.get_or_init(|| {
            if reports_free_pages(Path::new(BALLOONS)) {
                Self::Later
            } else {
                Self::AtFirstTouch
            }
        })
    }
}

/// Whether a device in `balloons` has agreed to report free memory to the host. Its file `features`
/// has a character for each feature.
fn reports_free_pages(balloons: &Path) -> bool {
    let Ok(devices) = std::fs::read_dir(balloons) else {
        return false;
    };
    devices.flatten().any(|device| {
        std::fs::read(device.path().join("features"))
            .is_ok_and(|features| features.get(PAGE_REPORTING) == Some(&b'1'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reporting_balloons_count() {
        let folder = tempfile::tempdir().unwrap();
        let balloons = folder.path().join("virtio_balloon");
        assert!(!reports_free_pages(&balloons), "no driver");
        for (name, features, is_found) in [
            ("virtio0", "0110000010", false),
            ("virtio1", "01", false),
            ("virtio2", "0110010010", true),
        ] {
            let device = balloons.join(name);
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("features"), features).unwrap();
            assert_eq!(reports_free_pages(&balloons), is_found, "{name}");
        }
    }
}
