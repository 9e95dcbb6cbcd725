//! FUSE mounts that keep pages and attributes, and such that do not: made for this, and Folio's
//! own.

use super::*;
use crate::mount::FuseMount;
use crate::served::{Keeps, Pages, Served};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(86400);

#[test]
fn what_is_kept_is_cold_once_and_then_has_no_fault() {
    requires!(root, fuse, linux(6, 5));
    let served = Served::new(Keeps {
        pages: Pages::Kept,
        ttl: LONG,
    });
    Told::of(&served.file(), &[]).has(&["cold"]);
    let told = Told::of(&served.file(), &[]);
    told.has(&[]);
    assert!(
        told.chain()[0].starts_with("file-system fuse"),
        "{:?}",
        told.chain()
    );
    assert_eq!(
        told.check("page-cache-bypassed")["numbers"]["switches_per_mib"],
        0.0
    );
}

#[test]
fn a_page_cache_that_is_passed_by_is_seen() {
    requires!(root, fuse, linux(6, 5));
    let served = Served::new(Keeps {
        pages: Pages::PassedBy,
        ttl: LONG,
    });
    for _ in 0..2 {
        let told = Told::of(&served.file(), &[]);
        told.has(&["page-cache-bypassed"]);
        let check = told.check("page-cache-bypassed");
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

/// Warming would not mend that: the next open drops what was warmed.
#[test]
fn pages_that_are_dropped_at_open_are_seen_and_are_not_cold() {
    requires!(root, fuse, linux(6, 5));
    let served = Served::new(Keeps {
        pages: Pages::DroppedAtOpen,
        ttl: LONG,
    });
    for _ in 0..2 {
        let told = Told::of(&served.file(), &[]);
        told.has(&["dropped-at-open"]);
        let numbers = &told.check("dropped-at-open")["numbers"];
        // Another program may take a little of the memory at any moment.
        let resident = numbers["resident_bytes"].as_u64();
        assert!(
            resident.is_some_and(|count| count >= crate::served::LEN / 2),
            "{numbers}"
        );
        assert_eq!(numbers["reopened_bytes"], 0);
        assert_eq!(told.check("page-cache-bypassed")["verdict"], "fine");
    }
}

/// The subtype is what is served, and the server was told where to mount by a relative path that
/// nobody can resolve.
#[test]
fn a_server_is_named_by_its_program() {
    requires!(root, fuse, tool("fuse2fs"), tool("mke2fs"), linux(6, 5));
    let folder = TempDir::new().unwrap();
    mke2fs(&folder.path().join("disk.img"), "16M", &[]);
    let mount = folder.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    let script = format!("cd {} && fuse2fs disk.img mount", folder.path().display());
    run("sh", ["-c", &script]);
    let _unmount = Lazily(mount.clone());
    std::fs::write(mount.join("file"), noise(4 << 20)).unwrap();
    let told = Told::of(&mount.join("file"), &[]);
    assert_eq!(
        told.report["paths"][0]["chain"][0]["server"], "fuse2fs",
        "{:#}",
        told.report
    );
    for check in told
        .checks()
        .into_iter()
        .filter(|check| check["verdict"] == "fault")
    {
        let fix = check["remedies"][0].as_str().unwrap_or_default();
        assert!(
            check["layer"] == "copy" || fix.contains("&& fuse2fs -o "),
            "{check:#}"
        );
    }
}

/// Unmounts when it is dropped.
struct Lazily(PathBuf);

impl Drop for Lazily {
    fn drop(&mut self) {
        let _ = command("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn attributes_that_are_not_trusted_are_seen() {
    requires!(root, fuse, linux(6, 5));
    let served = Served::new(Keeps {
        pages: Pages::Kept,
        ttl: Duration::ZERO,
    });
    Told::of(&served.file(), &[]);
    let told = Told::of(&served.file(), &[]);
    told.has(&["attributes-not-trusted"]);
    let each = &told.check("attributes-not-trusted")["numbers"]["switches_per_stat"];
    assert!(each.as_f64().is_some_and(|count| count >= 1.0), "{each}");
    let neither = Served::new(Keeps {
        pages: Pages::PassedBy,
        ttl: Duration::ZERO,
    });
    Told::of(&neither.file(), &[]).has(&["attributes-not-trusted", "page-cache-bypassed"]);
}

/// How long a time to live is can only be seen by waiting, and a busy machine waits longer: then
/// nothing is claimed.
#[test]
fn a_time_to_live_is_never_taken_for_none() {
    requires!(root, fuse, linux(6, 5));
    for ttl in [20, 1000] {
        let served = Served::new(Keeps {
            pages: Pages::Kept,
            ttl: Duration::from_millis(ttl),
        });
        Told::of(&served.file(), &[]);
        let told = Told::of(&served.file(), &[]);
        let faults = told.faults();
        assert!(
            faults.is_empty() || faults == ["attributes-trusted-briefly"] && ttl == 20,
            "{ttl}: {:#}",
            told.report
        );
    }
}

/// Folio's own mount of a directory, with the words that make it ask each time, and with those that
/// do not.
#[test]
fn folios_own_mounts_are_told_apart() {
    requires!(root, fuse, linux(6, 9));
    let folder = TempDir::new().unwrap();
    written(&folder.path().join("file"), 8 << 20);
    for (words, wanted) in [
        ("ttl=3600s,push=off,passthrough=off", &[][..]),
        // Nothing is believed of what is not cached.
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
        Told::of(&mount.at("file"), &[]);
        let told = Told::of(&mount.at("file"), &[]);
        told.has(wanted);
        // What Folio serves is named as its source.
        let behind = format!("path {}", folder.path().join("file").display());
        assert!(told.chain().contains(&behind), "{:?}", told.chain());
        for check in wanted.iter().map(|cause| told.check(cause)) {
            let fix = check["remedies"][0].as_str().unwrap_or_default();
            assert!(
                fix.contains("&& folio mount --background -o cache=writethrough,ttl=1s /"),
                "{check:#}"
            );
        }
        mount.unmount();
    }
}

#[test]
fn a_mounted_image_is_followed_into_its_file() {
    requires!(root, fuse, tool("mke2fs"), linux(6, 5));
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    mke2fs(&image, "64M", &["-b", "4096"]);
    let mount = FuseMount::new(&image, "rw");
    written(&mount.at("file"), 4 << 20);
    Told::of(&mount.at("file"), &[]);
    let told = Told::of(&mount.at("file"), &[]);
    told.has(&[]);
    assert!(
        told.chain().contains(&format!("path {}", image.display())),
        "{:?}",
        told.chain()
    );
    // Who stores the image does not store the file in it.
    assert_eq!(told.check("no-delayed-allocation")["verdict"], "unknown");
    mount.unmount();
}
