//! FUSE mounts with and without cached pages and attributes: a test server, and Folio's own mounts.

use super::*;
use crate::mount::FuseMount;
use crate::served::{Keeps, Pages, Served};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(86400);

#[test]
fn kept_pages_are_cold_once_then_have_no_fault() {
    requires!(root, fuse, linux(6, 5));
    let served = Served::new(Keeps {
        pages: Pages::Kept,
        ttl: LONG,
    });
    DoctorRun::of(&served.file(), &[]).notes("cold");
    let outcome = DoctorRun::of(&served.file(), &[]);
    outcome.has(&[]);
    assert!(
        outcome.chain()[0].starts_with("file-system fuse"),
        "{:?}",
        outcome.chain()
    );
    assert_eq!(
        outcome.check("page-cache-bypassed")["numbers"]["switches_per_mib"],
        0.0
    );
}

#[test]
fn direct_io_mount_bypasses_page_cache() {
    requires!(root, fuse, linux(6, 5));
    let served = Served::new(Keeps {
        pages: Pages::Bypassed,
        ttl: LONG,
    });
    for _ in 0..2 {
        let outcome = DoctorRun::of(&served.file(), &[]);
        outcome.has(&["page-cache-bypassed"]);
        let check = outcome.check("page-cache-bypassed");
        assert_eq!(
            (&check["certainty"], &check["numbers"]["resident_bytes"]),
            (&"certain".into(), &0.into())
        );
        assert!(
            check["numbers"]["switches_per_mib"]
                .as_f64()
                .is_some_and(|count| count >= 1.0),
            "{check:#}"
        );
    }
}

/// Warming would not help: the next open drops the warmed pages.
#[test]
fn pages_dropped_at_open_are_not_cold() {
    requires!(root, fuse, linux(6, 5));
    let served = Served::new(Keeps {
        pages: Pages::DroppedAtOpen,
        ttl: LONG,
    });
    for _ in 0..2 {
        let outcome = DoctorRun::of(&served.file(), &[]);
        outcome.has(&["dropped-at-open"]);
        let numbers = &outcome.check("dropped-at-open")["numbers"];
        // Another program may take a little of the memory at any moment.
        let resident = numbers["resident_bytes"].as_u64();
        assert!(
            resident.is_some_and(|count| count >= crate::served::LEN / 2),
            "{numbers}"
        );
        assert_eq!(numbers["reopened_bytes"], 0);
        assert_eq!(outcome.check("page-cache-bypassed")["verdict"], "fine");
    }
}

/// The subtype describes what is served. The mount point in the server's arguments is a relative
/// path that cannot be resolved.
#[test]
fn fuse_server_is_named_by_its_program() {
    requires!(root, fuse, tool("fuse2fs"), tool("mke2fs"), linux(6, 5));
    let folder = TempDir::new().unwrap();
    mke2fs(&folder.path().join("disk.img"), "16M", &[]);
    // Not "mount": commands of other tests have that word, too.
    let mount = folder.path().join("fuse2fs-target");
    std::fs::create_dir(&mount).unwrap();
    let script = format!(
        "cd {} && fuse2fs disk.img fuse2fs-target",
        folder.path().display()
    );
    run("sh", ["-c", &script]);
    let _unmount = Lazily(mount.clone());
    std::fs::write(mount.join("file"), noise(4 << 20)).unwrap();
    let outcome = DoctorRun::of(&mount.join("file"), &[]);
    assert_eq!(
        outcome.report["paths"][0]["chain"][0]["server"], "fuse2fs",
        "{:#}",
        outcome.report
    );
    // The server has no option to have attributes trusted. The source was relative to the
    // folder in which it was started.
    let fault = outcome.check("attributes-not-trusted");
    let fix = fault["remedies"][0].as_str().unwrap_or_default();
    assert!(fix.contains("&& folio mount --background /"), "{fault:#}");
    apply(fix);
    let file = mount.join("file");
    assert_eq!(std::fs::read(&file).unwrap().len(), 4 << 20);
    let cured = DoctorRun::of(&file, &[]);
    let cured = cured.check("attributes-not-trusted");
    assert_eq!(cured["verdict"], "fine", "{cured:#}");
    let image = format!("path {}", folder.path().join("disk.img").display());
    assert!(outcome.chain().contains(&image), "{:?}", outcome.chain());
}

/// Unmounts when it is dropped.
struct Lazily(PathBuf);

impl Drop for Lazily {
    fn drop(&mut self) {
        let _ = command("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn zero_attribute_timeout_is_a_fault() {
    requires!(root, fuse, linux(6, 5));
    let served = Served::new(Keeps {
        pages: Pages::Kept,
        ttl: Duration::ZERO,
    });
    DoctorRun::of(&served.file(), &[]);
    let outcome = DoctorRun::of(&served.file(), &[]);
    outcome.has(&["attributes-not-trusted"]);
    let each = &outcome.check("attributes-not-trusted")["numbers"]["switches_per_stat"];
    assert!(each.as_f64().is_some_and(|count| count >= 1.0), "{each}");
    let neither = Served::new(Keeps {
        pages: Pages::Bypassed,
        ttl: Duration::ZERO,
    });
    DoctorRun::of(&neither.file(), &[]).has(&["attributes-not-trusted", "page-cache-bypassed"]);
}

/// The probe measures a timeout by waiting, and a busy machine waits longer. In that case the
/// report has no fault.
#[test]
fn short_attribute_timeout_is_not_zero() {
    requires!(root, fuse, linux(6, 5));
    for ttl in [20, 1000] {
        let served = Served::new(Keeps {
            pages: Pages::Kept,
            ttl: Duration::from_millis(ttl),
        });
        DoctorRun::of(&served.file(), &[]);
        let outcome = DoctorRun::of(&served.file(), &[]);
        let faults = outcome.faults();
        assert!(
            faults.is_empty() || faults == ["attributes-trusted-briefly"] && ttl == 20,
            "{ttl}: {:#}",
            outcome.report
        );
    }
}

/// Folio's own mount of a directory, with and without options that send each request to the server.
#[test]
fn folio_mount_faults_follow_cache_options() {
    requires!(root, fuse, linux(6, 9));
    let folder = TempDir::new().unwrap();
    written(&folder.path().join("file"), 8 << 20);
    for (words, wanted) in [
        ("ttl=3600s,push=off,passthrough=off", &[][..]),
        // Attributes of uncached files are never valid without a request.
        (
            "ttl=3600s,push=off,cache=none",
            &["attributes-not-trusted", "page-cache-bypassed"],
        ),
        (
            "ttl=0,push=off,passthrough=off",
            &["attributes-not-trusted"],
        ),
        ("ttl=3600s,push=off,passthrough=on", &[]),
    ] {
        let mount = FuseMount::new(folder.path(), words);
        DoctorRun::of(&mount.at("file"), &[]);
        let outcome = DoctorRun::of(&mount.at("file"), &[]);
        outcome.has(wanted);
        // The chain names the served file as the source of Folio's mount.
        let behind = format!("path {}", folder.path().join("file").display());
        assert!(outcome.chain().contains(&behind), "{:?}", outcome.chain());
        for check in wanted.iter().map(|cause| outcome.check(cause)) {
            let fix = check["remedies"][0].as_str().unwrap_or_default();
            assert!(
                fix.contains("&& folio mount --background -o cache=writethrough,ttl=1s /"),
                "{check:#}"
            );
        }
        if let Some(cause) = wanted.last() {
            apply(outcome.check(cause)["remedies"][0].as_str().unwrap());
            let _again = Lazily(mount.at(""));
            DoctorRun::of(&mount.at("file"), &[]);
            DoctorRun::of(&mount.at("file"), &[]).has(&[]);
            continue;
        }
        mount.unmount();
    }
}

#[test]
fn mounted_image_chain_reaches_image_file() {
    requires!(root, fuse, tool("mke2fs"), linux(6, 5));
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    mke2fs(&image, "64M", &["-b", "4096"]);
    let mount = FuseMount::new(&image, "rw");
    written(&mount.at("file"), 4 << 20);
    DoctorRun::of(&mount.at("file"), &[]);
    let outcome = DoctorRun::of(&mount.at("file"), &[]);
    outcome.has(&[]);
    assert!(
        outcome
            .chain()
            .contains(&format!("path {}", image.display())),
        "{:?}",
        outcome.chain()
    );
    // The file system that stores the image does not allocate the blocks of the file inside.
    assert_eq!(outcome.check("no-delayed-allocation")["verdict"], "unknown");
    mount.unmount();
}
