//! tmpfs, overlays and bind mounts: what is below is seen, and none of them is a fault.

use super::*;
use crate::support::report_skip;

#[test]
fn tmpfs_has_no_fault() {
    requires!(root, tool("mount"), linux(6, 5));
    let mounted = HostMount::new(&["-t", "tmpfs", "-o", "size=64M", "tmpfs"].map(OsStr::new));
    written(&mounted.at("file"), 8 << 20);
    let told = Told::of(&mounted.at("file"), &["--write-probe"]);
    told.has(&[]);
    assert_eq!(told.chain(), ["file-system tmpfs", "memory "]);
    assert_eq!(told.check("flush-on-truncate")["verdict"], "fine");
}

fn overlay(lower: &Path, folder: &Path) -> HostMount {
    for name in ["upper", "work"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    let at = |name: &str| folder.join(name).display().to_string();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        at("upper"),
        at("work")
    );
    HostMount::new(&["-t", "overlay", "-o", &options, "overlay"].map(OsStr::new))
}

#[test]
fn an_overlay_is_followed_to_the_layer_that_has_the_file() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("mount"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw,noauto_da_alloc");
    let lower = mounted.path().join("lower");
    std::fs::create_dir(&lower).unwrap();
    written(&lower.join("below"), 8 << 20);
    let merged = overlay(&lower, &mounted.path());
    written(&merged.at("above"), 8 << 20);
    let told = Told::of(&merged.at("below"), &["--write-probe"]);
    told.has(&[]);
    let chain = told.chain();
    assert_eq!(
        chain[..3],
        [
            "file-system overlay".to_owned(),
            format!("path {}", lower.join("below").display()),
            "file-system ext4".to_owned()
        ]
    );
    assert!(chain[3].starts_with("disk loop"), "{chain:?}");
    let told = Told::of(&merged.at("above"), &[]);
    told.has(&[]);
    assert_eq!(
        told.chain()[1],
        format!("path {}", mounted.path().join("upper/above").display())
    );
    drop(merged);
    mounted.unmount();
}

#[test]
fn a_flush_at_close_and_at_rename_is_seen_through_an_overlay() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("mount"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let lower = mounted.path().join("lower");
    std::fs::create_dir(&lower).unwrap();
    let merged = overlay(&lower, &mounted.path());
    Told::of(merged.folder.path(), &["--write-probe"])
        .has(&["flush-on-truncate", "flush-on-rename"]);
    drop(merged);
    mounted.unmount();
}

/// What was evicted is not told through an overlay, but what comes back is counted.
#[test]
fn a_cache_that_is_too_small_is_seen_through_an_overlay() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("mount"),
        linux(6, 5)
    );
    let Some(group) = Group::new(32 << 20) else {
        return report_skip("needs control groups that limit memory");
    };
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let lower = mounted.path().join("lower");
    std::fs::create_dir(&lower).unwrap();
    written(&lower.join("file"), 96 << 20);
    let merged = overlay(&lower, &mounted.path());
    assert_eq!(
        Told::of(&merged.at("file"), &[]).check("evicted")["verdict"],
        "unknown"
    );
    let below = std::fs::File::open(lower.join("file")).unwrap();
    rustix::fs::fadvise(&below, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    read_twice(&group, &merged.at("file"));
    let told = Told::of(&merged.at("file"), &[]);
    assert!(told.faults().contains(&"evicted"), "{:#}", told.report);
    assert_eq!(told.check("evicted")["certainty"], "hint");
    drop((merged, below));
    mounted.unmount();
}

#[test]
fn a_bind_mount_is_the_file_system_it_shows() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("mount"),
        linux(6, 5)
    );
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw,noauto_da_alloc");
    let inside = mounted.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    written(&inside.join("file"), 4 << 20);
    let bound = HostMount::new(&["--bind".as_ref(), inside.as_os_str()]);
    let told = Told::of(&bound.at("file"), &["--write-probe"]);
    told.has(&[]);
    assert_eq!(told.report["paths"][0]["chain"][0]["root"], "/inside");
    assert!(
        told.chain()[1].starts_with("disk loop"),
        "{:?}",
        told.chain()
    );
    drop(bound);
    mounted.unmount();
}
