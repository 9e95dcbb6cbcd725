//! Rebase and commit of overlays, compared with qemu-img on a copy.

use crate::support::requires;
use crate::support::tools::{command, qemu_check, run, succeed};
use folio::block::tools::{AfterCommit, CommitOptions, OverlayOptions};
use folio::block::{self, BackingName, ImageFormat};
use std::path::Path;
use tempfile::TempDir;

const VARIANTS: [&str; 6] = [
    "compat=1.1",
    "compat=0.10",
    "cluster_size=4k",
    "lazy_refcounts=on",
    "cluster_size=512",
    "extended_l2=on",
];

fn qemu_img(folder: &Path, line: &str) {
    succeed(
        command("qemu-img")
            .args(line.split_whitespace())
            .current_dir(folder),
    );
}

fn write(folder: &Path, name: &str, lines: &[&str]) {
    let path = folder.join(name);
    run(
        "qemu-io",
        lines
            .iter()
            .flat_map(|line| ["-c", line])
            .chain([path.to_str().unwrap()]),
    );
}

fn name_of(name: &str, format: ImageFormat) -> Option<BackingName> {
    Some(BackingName {
        name: name.to_owned(),
        format: Some(format),
    })
}

fn raw(folder: &Path, name: &str) -> Vec<u8> {
    qemu_img(folder, &format!("convert -O raw {name} read.raw"));
    std::fs::read(folder.join("read.raw")).unwrap()
}

fn info(folder: &Path, name: &str) -> serde_json::Value {
    let path = folder.join(name);
    serde_json::from_str(&run(
        "qemu-img",
        ["info", "--output=json", path.to_str().unwrap()],
    ))
    .unwrap()
}

/// Creates two bases that differ in some ranges, and two equal overlays over the first.
fn overlays(options: &str) -> TempDir {
    let scene = TempDir::new().unwrap();
    let folder = scene.path();
    let mut bytes = vec![0; 5 << 20];
    bytes[..3 << 20].fill(1);
    std::fs::write(folder.join("one.raw"), &bytes).unwrap();
    bytes[100_000..200_000].fill(2);
    bytes[1 << 20..(2 << 20) + 77].fill(0);
    bytes[(4 << 20) + 5..(4 << 20) + 10].fill(3);
    bytes.truncate((9 << 19) + 512);
    std::fs::write(folder.join("source.raw"), &bytes).unwrap();
    qemu_img(folder, "convert -f raw -O qcow2 source.raw two.qcow2");
    for name in ["ours.qcow2", "theirs.qcow2"] {
        qemu_img(
            folder,
            &format!("create -q -f qcow2 -o {options} -b one.raw -F raw {name} 6M"),
        );
        write(
            folder,
            name,
            &[
                "write -P 7 1500k 300k",
                "write -P 8 5900k 100k",
                "write -z 2900k 100k",
            ],
        );
    }
    scene
}

#[test]
fn rebase_keeps_the_content() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in VARIANTS {
        let scene = overlays(options);
        let folder = scene.path();
        let before = raw(folder, "ours.qcow2");
        let path = folder.join("ours.qcow2");
        let two = name_of("two.qcow2", ImageFormat::Qcow2);
        block::tools::rebase(&path, two.as_ref(), &OverlayOptions::default()).unwrap();
        qemu_check(&path);
        assert!(raw(folder, "ours.qcow2") == before, "{options}");
        let found = info(folder, "ours.qcow2");
        assert_eq!(
            (
                &found["backing-filename"],
                &found["backing-filename-format"]
            ),
            (&"two.qcow2".into(), &"qcow2".into())
        );
        qemu_img(folder, "rebase -b two.qcow2 -F qcow2 theirs.qcow2");
        // Equal data is not copied: no more space than after qemu-img, plus alignment.
        let used = |name| {
            folio::block::tools::check(
                folder.join(name),
                None,
                block::qcow2::Repair::Nothing,
                &mut |_| {},
            )
            .unwrap()
        };
        let (ours, theirs) = (used("ours.qcow2"), used("theirs.qcow2"));
        assert!(
            ours.allocated_clusters <= theirs.allocated_clusters + 2,
            "{options}: {ours:?} {theirs:?}"
        );
        // To no backing file, then to one whose content must stay hidden.
        block::tools::rebase(&path, None, &OverlayOptions::default()).unwrap();
        qemu_check(&path);
        std::fs::rename(folder.join("two.qcow2"), folder.join("away.qcow2")).unwrap();
        assert!(raw(folder, "ours.qcow2") == before, "{options}");
        assert!(info(folder, "ours.qcow2").get("backing-filename").is_none());
        std::fs::write(folder.join("noise.raw"), vec![0xaa; 6 << 20]).unwrap();
        let noise = name_of("noise.raw", ImageFormat::Raw);
        block::tools::rebase(&path, noise.as_ref(), &OverlayOptions::default()).unwrap();
        qemu_check(&path);
        assert!(raw(folder, "ours.qcow2") == before, "{options}");
    }
}

#[test]
fn rename_changes_only_the_name() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in VARIANTS {
        let scene = overlays(options);
        let folder = scene.path();
        let path = folder.join("ours.qcow2");
        let long = format!("{}two.qcow2", "./".repeat(200));
        for name in ["two.qcow2", "nowhere/at-all.qcow2", &long, "", "one.raw"] {
            let format = if name.ends_with("raw") {
                ImageFormat::Raw
            } else {
                ImageFormat::Qcow2
            };
            let backing = (!name.is_empty()).then(|| name_of(name, format)).flatten();
            let renamed =
                block::tools::rename_backing(&path, backing.as_ref(), &OverlayOptions::default());
            if options == "cluster_size=512" && name == long {
                assert_eq!(renamed.unwrap_err().errno(), folio::Errno::INVAL);
                continue;
            }
            renamed.unwrap();
            let found = info(folder, "ours.qcow2");
            assert_eq!(
                found["backing-filename"].as_str().unwrap_or(""),
                name,
                "{options}"
            );
            assert_eq!(
                found["format-specific"],
                info(folder, "theirs.qcow2")["format-specific"]
            );
            // This check opens no backing file.
            let report =
                block::tools::check(&path, None, block::qcow2::Repair::Nothing, &mut |_| {})
                    .unwrap();
            assert_eq!((report.leaks, report.corruptions), (0, 0));
        }
        qemu_img(folder, "compare ours.qcow2 theirs.qcow2");
    }
    let scene = overlays("compat=1.1");
    let path = scene.path().join("one.raw");
    let error = block::tools::rename_backing(&path, None, &OverlayOptions::default()).unwrap_err();
    assert!(error.to_string().contains("no backing file"), "{error}");
}

#[test]
fn rename_keeps_bitmaps_and_feature_names() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let scene = overlays("compat=1.1");
    let folder = scene.path();
    qemu_img(folder, "bitmap --add ours.qcow2 one");
    let before = info(folder, "ours.qcow2");
    let two = name_of("two.qcow2", ImageFormat::Qcow2);
    block::tools::rename_backing(
        folder.join("ours.qcow2"),
        two.as_ref(),
        &OverlayOptions::default(),
    )
    .unwrap();
    assert_eq!(
        info(folder, "ours.qcow2")["format-specific"],
        before["format-specific"]
    );
    qemu_check(&folder.join("ours.qcow2"));
}

fn after(then: AfterCommit) -> CommitOptions {
    let mut options = CommitOptions::default();
    options.then = then;
    options
}

#[test]
fn commit_matches_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for options in VARIANTS {
        let scene = overlays(options);
        let folder = scene.path();
        let want = raw(folder, "ours.qcow2");
        let path = folder.join("ours.qcow2");
        // First kept, then emptied: the second commit writes nothing new.
        block::tools::commit(&path, &after(AfterCommit::Keep), &OverlayOptions::default()).unwrap();
        let base = std::fs::read(folder.join("one.raw")).unwrap();
        assert!(base == want, "{options}: the backing file has grown, too");
        let kept =
            block::tools::check(&path, None, block::qcow2::Repair::Nothing, &mut |_| {}).unwrap();
        assert!(kept.allocated_clusters > 0);
        block::tools::commit(
            &path,
            &after(AfterCommit::Empty),
            &OverlayOptions::default(),
        )
        .unwrap();
        qemu_check(&path);
        let empty =
            block::tools::check(&path, None, block::qcow2::Repair::Nothing, &mut |_| {}).unwrap();
        assert_eq!((empty.allocated_clusters, empty.leaks), (0, 0));
        let map = run("qemu-img", ["map", "--output=json", path.to_str().unwrap()]);
        assert!(
            !map.contains("\"depth\": 0, \"present\": true"),
            "{options}: it holds nothing: {map}"
        );
        assert!(raw(folder, "ours.qcow2") == want);
        assert!(std::fs::read(folder.join("one.raw")).unwrap() == want);
    }
}

#[test]
fn commit_into_the_middle_of_a_chain() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let scene = overlays("cluster_size=4k");
    let folder = scene.path();
    qemu_img(
        folder,
        "create -q -f qcow2 -b ours.qcow2 -F qcow2 top.qcow2 8M",
    );
    write(
        folder,
        "top.qcow2",
        &[
            "write -P 5 0 100k",
            "write -P 6 7M 100k",
            "write -z 1600k 64k",
        ],
    );
    let want = raw(folder, "top.qcow2");
    let below = std::fs::read(folder.join("one.raw")).unwrap();
    block::tools::commit(
        folder.join("top.qcow2"),
        &after(AfterCommit::Empty),
        &OverlayOptions::default(),
    )
    .unwrap();
    for name in ["top.qcow2", "ours.qcow2"] {
        qemu_check(&folder.join(name));
        assert!(raw(folder, name) == want, "{name}");
    }
    assert!(std::fs::read(folder.join("one.raw")).unwrap() == below);
}

#[test]
fn invalid_rebase_and_commit_are_rejected() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let scene = overlays("compat=1.1");
    let folder = scene.path();
    let path = folder.join("ours.qcow2");
    let before = std::fs::read(&path).unwrap();
    let options = OverlayOptions::default();
    let said = |done: folio::Result<()>| done.unwrap_err().to_string();
    let itself = name_of("ours.qcow2", ImageFormat::Qcow2);
    assert!(said(block::tools::rebase(&path, itself.as_ref(), &options)).contains("in use"));
    let outside = name_of("../elsewhere.raw", ImageFormat::Raw);
    assert!(block::tools::rebase(&path, outside.as_ref(), &options).is_err());
    let long = name_of(&"x".repeat(1024), ImageFormat::Raw);
    assert!(
        said(block::tools::rename_backing(&path, long.as_ref(), &options)).contains("does not fit")
    );
    assert!(
        said(block::tools::commit(
            folder.join("two.qcow2"),
            &after(AfterCommit::Keep),
            &options
        ))
        .contains("no backing file")
    );
    let canceled = OverlayOptions {
        is_canceled: &|| true,
        ..OverlayOptions::default()
    };
    let error = block::tools::rebase(&path, None, &canceled).unwrap_err();
    assert_eq!(error.errno(), folio::Errno::INTR);
    assert!(
        std::fs::read(&path).unwrap() == before,
        "nothing was changed"
    );
    qemu_img(folder, "snapshot -c one ours.qcow2");
    assert!(said(block::tools::rebase(&path, None, &options)).contains("snapshots"));
}
