//! tmpfs, overlays and bind mounts: the chain shows the layers below, and none of them is a fault.

use super::*;
use crate::support::report_skip;

#[test]
fn tmpfs_has_no_fault() {
    requires!(root, tool("mount"), linux(6, 5));
    let mounted = HostMount::new(&["-t", "tmpfs", "-o", "size=64M", "tmpfs"].map(OsStr::new));
    written(&mounted.at("file"), 8 << 20);
    let outcome = DoctorRun::of(&mounted.at("file"), &["--write-probe"]);
    outcome.has(&[]);
    assert_eq!(outcome.chain(), ["file-system tmpfs", "memory "]);
    assert_eq!(outcome.check("flush-on-truncate")["verdict"], "fine");
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
fn overlay_chain_reaches_layer_with_file() {
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
    let outcome = DoctorRun::of(&merged.at("below"), &["--write-probe"]);
    outcome.has(&[]);
    let chain = outcome.chain();
    assert_eq!(
        chain[..3],
        [
            "file-system overlay".to_owned(),
            format!("path {}", lower.join("below").display()),
            "file-system ext4".to_owned()
        ]
    );
    assert!(chain[3].starts_with("disk loop"), "{chain:?}");
    let outcome = DoctorRun::of(&merged.at("above"), &[]);
    outcome.has(&[]);
    assert_eq!(
        outcome.chain()[1],
        format!("path {}", mounted.path().join("upper/above").display())
    );
    drop(merged);
    mounted.unmount();
}

#[test]
fn overlay_on_ext4_flushes_at_close_and_rename() {
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
    DoctorRun::of(merged.folder.path(), &["--write-probe"])
        .has(&["flush-on-truncate", "flush-on-rename"]);
    drop(merged);
    mounted.unmount();
}

/// The kernel does not report evictions through an overlay, but it counts refaults.
#[test]
fn overlay_file_larger_than_memory_is_evicted() {
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
        DoctorRun::of(&merged.at("file"), &[]).check("evicted")["verdict"],
        "unknown"
    );
    let below = std::fs::File::open(lower.join("file")).unwrap();
    rustix::fs::fadvise(&below, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let reader = GroupReader::start(&group, &merged.at("file"));
    let outcome = DoctorRun::of(&merged.at("file"), &[]);
    assert!(
        outcome.faults().contains(&"evicted"),
        "{:#}",
        outcome.report
    );
    assert_eq!(outcome.check("evicted")["certainty"], "hint");
    drop((reader, merged, below));
    mounted.unmount();
}

#[test]
fn bind_mount_reports_its_root() {
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
    let outcome = DoctorRun::of(&bound.at("file"), &["--write-probe"]);
    outcome.has(&[]);
    assert_eq!(outcome.report["paths"][0]["chain"][0]["root"], "/inside");
    assert!(
        outcome.chain()[1].starts_with("disk loop"),
        "{:?}",
        outcome.chain()
    );
    drop(bound);
    mounted.unmount();
}

/// Backing files are counted, with what they store and what of it is in memory; the flat copy has
/// none.
#[test]
fn backing_chain_is_noted_with_its_files() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let image = |number: i32| folder.path().join(format!("b{number}.qcow2"));
    let base = folder.path().join("base.raw");
    written(&base, 8 << 20);
    let as_text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut below = (as_text(&base), "raw");
    for number in 0..3 {
        let (path, (backing, format)) = (as_text(&image(number)), below);
        let words = [
            "create", "-q", "-f", "qcow2", "-b", &backing, "-F", format, &path,
        ];
        run("qemu-img", words);
        below = (path, "qcow2");
    }
    let top = image(2);
    let outcome = DoctorRun::of(&top, &[]);
    let check = outcome.check("backing-chain");
    assert_eq!(check["verdict"], "note", "{check}");
    assert_eq!(check["numbers"]["backing_files"], 3);
    let stored = check["numbers"]["backing_stored_bytes"].as_u64().unwrap();
    assert!(stored >= 8 << 20, "{check}");
    let remedies = check["remedies"].as_array().unwrap();
    apply(remedies.last().unwrap().as_str().unwrap());
    let flat = DoctorRun::of(&folder.path().join("b2-flat.qcow2"), &[]);
    assert!(
        flat.checks()
            .iter()
            .all(|check| check["cause"] != "backing-chain")
    );
    let shown = text(&doctor([&top]));
    assert!(shown.contains("base.raw: 8 MiB stored"), "{shown}");
}
