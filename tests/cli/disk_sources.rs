//! Partitions that are filled from archives and container images.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{fsck, run, succeed};
use std::fs;

const SPEC: &str = r#"
[[partition]]
type = "esp"
label = "esp"
format = "fat32"
source = "boot.tar.gz"

[[partition]]
type = "linux"
label = "packed"
format = "ext4"
source = "root.tar.zst"

[[partition]]
type = "linux"
label = "container"
size = "auto+4M"
format = "ext4"
source = "oci:layout:app"

[[partition]]
type = "linux"
label = "archived"
size = "24M"
format = "ext4"
source = "oci-archive:layout.tar:app"

[[partition]]
type = "linux"
label = "bytes"
format = "raw"
source = "bytes"
"#;

/// Creates the sources of [`SPEC`] in the folder `spec`.
fn fixture() -> TestDir {
    let dir = TestDir::new();
    let folder = dir.path("spec");
    fs::create_dir_all(folder.join("boot/EFI/BOOT")).unwrap();
    fs::write(folder.join("boot/EFI/BOOT/BOOTX64.EFI"), [0xEF; 100_000]).unwrap();
    let tar = |archive: &str, tree: &str| {
        let (archive, tree) = (folder.join(archive), folder.join(tree));
        let words = ["-C".as_ref(), tree.as_os_str(), "-caf".as_ref()];
        run(
            "tar",
            words.into_iter().chain([archive.as_os_str(), ".".as_ref()]),
        );
    };
    tar("boot.tar.gz", "boot");
    dir.ok(&["mkdir", "disk.img:/etc"]);
    dir.ok(&["chown", "1000:2000", "disk.img:/etc"]);
    let mut write = dir.command(&["write", "disk.img:/etc/hostname"]);
    fs::write(dir.path("hostname"), "test\n").unwrap();
    succeed(write.stdin(fs::File::open(dir.path("hostname")).unwrap()));
    dir.ok(&["tar", "-cf", "spec/root.tar.zst", "disk.img"]);
    dir.ok(&["cp", "-a", "disk.img:/", "oci:spec/layout:app"]);
    tar("layout.tar", "layout");
    fs::write(folder.join("bytes"), [7; 5000]).unwrap();
    fs::write(folder.join("spec.toml"), SPEC).unwrap();
    dir
}

#[test]
fn partitions_are_filled_from_any_source() {
    requires!(tool("sgdisk"), tool("e2fsck"));
    let dir = fixture();
    dir.ok(&["disk", "create", "new.img", "spec/spec.toml"]);
    let verified = run("sgdisk", ["-v".as_ref(), dir.path("new.img").as_os_str()]);
    assert!(verified.contains("No problems found"), "{verified}");
    let listed = dir.ok(&["disk", "list", "new.img", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let disk = fs::read(dir.path("new.img")).unwrap();
    for label in ["packed", "container", "archived"] {
        let place = |path: &str| format!("new.img@{label}:{path}");
        assert_eq!(dir.ok(&["cat", &place("/etc/hostname")]), "test\n");
        let owner = dir.ok(&["stat", "--json", &place("/etc")]);
        let owner: serde_json::Value = serde_json::from_str(&owner).unwrap();
        let owner = owner.to_string();
        assert!(
            owner.contains("\"uid\":1000") && owner.contains("\"gid\":2000"),
            "{owner}"
        );
        let partitions = listed["partitions"].as_array().unwrap();
        let found = partitions.iter().find(|one| one["label"] == label).unwrap();
        let bytes = |key: &str| found[key].as_u64().unwrap() as usize;
        let start = bytes("start_bytes");
        let copy = dir.path(label);
        fs::write(&copy, &disk[start..start + bytes("len_bytes")]).unwrap();
        fsck(&copy);
    }
    let kernel = dir.ok(&["stat", "new.img@esp:/EFI/BOOT/BOOTX64.EFI"]);
    assert!(kernel.contains("100000"), "{kernel}");
    assert!(disk.windows(5000).any(|bytes| bytes == [7; 5000]));
}

#[test]
fn added_partition_takes_a_container_image() {
    requires!(tool("sgdisk"));
    let dir = fixture();
    dir.ok(&["disk", "create", "new.qcow2", "spec/spec.toml"]);
    dir.ok(&["image", "resize", "new.qcow2", "512M"]);
    let add = ["-q", "disk", "add", "new.qcow2", "--type", "linux"];
    let content = [
        "-L",
        "more",
        "--format",
        "ext4",
        "--source",
        "oci:spec/layout:app",
    ];
    dir.ok(&[&add[..], &content, &["--size", "auto"]].concat());
    assert_eq!(dir.ok(&["cat", "new.qcow2@more:/etc/hostname"]), "test\n");
}

#[test]
fn unusable_source_writes_nothing() {
    let dir = fixture();
    for (content, word) in [
        ("format = 'ext4'\nsource = 'bytes'", "not a tar archive"),
        ("format = 'ext4'\nsource = 'oci:none:app'", "none"),
        (
            "format = 'ext4'\nsource = 'oci:layout:other'",
            "no image with the tag other",
        ),
        (
            "format = 'raw'\nsource = 'oci:layout:app'",
            "format \"raw\" needs",
        ),
        ("source = 'root.tar.zst'", "a source needs a format"),
        (
            "format = 'ext4'\nsource = 'root.tar.zst'\nplatform = 'linux/arm64'",
            "platform needs a container image",
        ),
        (
            "format = 'ext4'\nsource = 'oci:layout:app'\nplatform = 'arm64'",
            "invalid platform",
        ),
    ] {
        let spec = format!("[[partition]]\ntype = 'linux'\n{content}\n");
        fs::write(dir.path("spec/spec.toml"), spec).unwrap();
        let create = dir
            .command(&["disk", "create", "new.img", "spec/spec.toml"])
            .output();
        let create = create.unwrap();
        let said = String::from_utf8_lossy(&create.stderr);
        assert!(
            !create.status.success() && said.contains(word),
            "{content}: {said}"
        );
        assert!(!dir.path("new.img").exists(), "{content}");
    }
}
