//! `folio disk`: partition tables, file systems and contents, judged by sfdisk, sgdisk, fsck.vfat,
//! mtools and e2fsck.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{command, fsck, run, succeed, text};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SPEC: &str = r#"
uuid = "6f3c0a53-7b6f-4d0d-9f5e-2f1d9c34aa01"
size = "200M"

[[partition]]
type = "esp"
label = "esp"
size = "64M"
uuid = "6f3c0a53-7b6f-4d0d-9f5e-2f1d9c34aa02"
attributes = ["required", "no-auto"]
format = "fat32"
source = "boot"
filesystem-label = "EFI"
filesystem-uuid = "1A2B-3C4D"

[[partition]]
type = "swap"
size = "8M"

[[partition]]
type = "linux-root-x86-64"
label = "root fs"
format = "ext4"
source = "root"
filesystem-label = "root"
"#;

/// Creates the trees of [`SPEC`], and the specification.
fn fixture(spec: &str) -> TestDir {
    let dir = TestDir::new();
    fs::create_dir_all(dir.path("boot/EFI/BOOT")).unwrap();
    fs::write(dir.path("boot/EFI/BOOT/BOOTX64.EFI"), vec![0xEF; 300_000]).unwrap();
    fs::write(
        dir.path("boot/a long name with spaces.conf"),
        "title test\n",
    )
    .unwrap();
    fs::create_dir_all(dir.path("root/etc")).unwrap();
    fs::write(dir.path("root/etc/hostname"), "test\n").unwrap();
    fs::write(dir.path("root/large"), vec![7; 3 << 20]).unwrap();
    fs::write(dir.path("spec.toml"), spec).unwrap();
    dir
}

/// Copies a partition to a file of its own.
fn extract(dir: &TestDir, image: &str, start: u64, len: usize, name: &str) {
    let mut bytes = vec![0; len];
    let disk = fs::File::open(dir.path(image)).unwrap();
    disk.read_exact_at(&mut bytes, start).unwrap();
    fs::write(dir.path(name), bytes).unwrap();
}

fn fsck_fat(path: &Path) {
    let output = command("fsck.vfat").arg("-n").arg(path).output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        !said.contains("Dirty") && !said.contains("differ"),
        "{said}"
    );
}

#[test]
fn specified_disk_satisfies_all_judges() {
    requires!(
        tool("sfdisk"),
        tool("sgdisk"),
        tool("fsck.vfat"),
        tool("mcopy"),
        tool("e2fsck")
    );
    let dir = fixture(SPEC);
    dir.ok(&["disk", "create", "new.img", "spec.toml"]);
    let image = dir.path("new.img");
    let verified = run("sfdisk", ["-V".as_ref(), image.as_os_str()]);
    assert!(verified.contains("No errors detected"), "{verified}");
    let verified = run("sgdisk", ["-v".as_ref(), image.as_os_str()]);
    assert!(verified.contains("No problems found"), "{verified}");
    let listed = run("sfdisk", ["-J".as_ref(), image.as_os_str()]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let table = &listed["partitiontable"];
    assert_eq!(table["id"], "6F3C0A53-7B6F-4D0D-9F5E-2F1D9C34AA01");
    let parts = table["partitions"].as_array().unwrap();
    let of = |at: usize, key: &str| parts[at][key].clone();
    assert_eq!(of(0, "start"), 2048);
    assert_eq!(of(0, "size"), 131_072);
    assert_eq!(of(0, "name"), "esp");
    assert_eq!(of(0, "type"), "C12A7328-F81F-11D2-BA4B-00A0C93EC93B");
    assert_eq!(of(0, "attrs"), "RequiredPartition GUID:63");
    assert_eq!(of(2, "name"), "root fs");
    let end = of(2, "start").as_u64().unwrap() + of(2, "size").as_u64().unwrap();
    assert!((200 << 11) - end < 64, "the last partition ends at {end}");

    extract(&dir, "new.img", 1 << 20, 64 << 20, "esp.img");
    fsck_fat(&dir.path("esp.img"));
    let listed = succeed(
        command("mdir")
            .args(["-b", "-/", "-i"])
            .arg(dir.path("esp.img")),
    );
    let listed = text(&listed);
    assert!(listed.contains("/EFI/BOOT/BOOTX64.EFI"), "{listed}");
    assert!(listed.contains("a long name with spaces.conf"), "{listed}");
    succeed(
        command("mcopy")
            .arg("-i")
            .arg(dir.path("esp.img"))
            .arg("::/EFI/BOOT/BOOTX64.EFI")
            .arg(dir.path("copied")),
    );
    assert!(fs::read(dir.path("copied")).unwrap() == vec![0xEF; 300_000]);
    let start = of(2, "start").as_u64().unwrap() * 512;
    let len = of(2, "size").as_u64().unwrap() * 512;
    extract(&dir, "new.img", start, len as usize, "root.img");
    fsck(&dir.path("root.img"));
    assert_eq!(dir.ok(&["cat", "new.img@root fs:/etc/hostname"]), "test\n");
    assert_eq!(dir.ok(&["cat", "new.img@3:/etc/hostname"]), "test\n");
}

#[test]
fn same_specification_gives_the_same_bytes() {
    let spec = SPEC.replace("uuid =", "#").replace("filesystem-#", "#");
    let dir = fixture(&spec);
    for name in ["a.img", "b.img", "a.qcow2", "b.qcow2"] {
        let mut create = dir.command(&["disk", "create", name, "spec.toml"]);
        succeed(create.env("SOURCE_DATE_EPOCH", "1700000000"));
    }
    let same = |a: &str, b: &str| fs::read(dir.path(a)).unwrap() == fs::read(dir.path(b)).unwrap();
    assert!(same("a.img", "b.img") && same("a.qcow2", "b.qcow2"));
    dir.ok(&["image", "compare", "a.img", "a.qcow2"]);
}

#[test]
fn files_in_a_fat_partition_can_be_changed() {
    requires!(tool("fsck.vfat"));
    let dir = fixture(SPEC);
    dir.ok(&["disk", "create", "new.qcow2", "spec.toml"]);
    fs::write(dir.path("kernel"), vec![0x4B; 5 << 20]).unwrap();
    dir.ok(&["cp", "kernel", "new.qcow2@1:/EFI/kernel.efi"]);
    dir.ok(&["mkdir", "-p", "new.qcow2@esp:/loader/entries"]);
    dir.ok(&[
        "cp",
        "root/etc/hostname",
        "new.qcow2@esp:/loader/entries/1.conf",
    ]);
    dir.ok(&[
        "mv",
        "new.qcow2@1:/loader/entries/1.conf",
        "new.qcow2@1:/loader/second.conf",
    ]);
    dir.ok(&["rm", "new.qcow2@1:/EFI/BOOT/BOOTX64.EFI"]);
    dir.ok(&["truncate", "-s", "2M", "new.qcow2@1:/EFI/kernel.efi"]);
    let found = dir.ok(&["find", "new.qcow2@1:/"]);
    let inside = |line| str::strip_prefix(line, "new.qcow2@1:").unwrap();
    let mut names: Vec<_> = found.lines().map(inside).collect();
    names.sort_unstable();
    let want = [
        "/",
        "/EFI",
        "/EFI/BOOT",
        "/EFI/kernel.efi",
        "/a long name with spaces.conf",
        "/loader",
        "/loader/entries",
        "/loader/second.conf",
    ];
    assert_eq!(names, want);
    assert_eq!(
        dir.ok(&["cat", "new.qcow2@1:/LOADER/second.conf"]),
        "test\n"
    );
    dir.ok(&["cp", "-r", "new.qcow2@1:/EFI", "back"]);
    assert!(fs::read(dir.path("back/kernel.efi")).unwrap() == vec![0x4B; 2 << 20]);
    dir.ok(&["image", "convert", "-O", "raw", "new.qcow2", "disk.raw"]);
    extract(&dir, "disk.raw", 1 << 20, 64 << 20, "esp.img");
    fsck_fat(&dir.path("esp.img"));
}

#[test]
fn disk_grows_by_added_partitions() {
    requires!(tool("sfdisk"), tool("sgdisk"), tool("e2fsck"));
    let dir = fixture(
        "table = 'mbr'\nuuid = '0x1a2b3c4d'\n[[partition]]\ntype = 'linux'\nsize = 'auto+1M'\nformat = 'ext4'\nsource = 'root'\nbootable = true\n",
    );
    dir.ok(&["disk", "create", "new.img", "spec.toml"]);
    let script = run("sfdisk", ["-d".as_ref(), dir.path("new.img").as_os_str()]);
    assert!(
        script.contains("label-id: 0x1a2b3c4d") && script.contains("bootable"),
        "{script}"
    );
    dir.ok(&["image", "resize", "-f", "raw", "new.img", "64M"]);
    dir.ok(&[
        "-q", "disk", "add", "new.img", "--type", "linux", "--size", "20M", "--format", "ext4",
        "--source", "root",
    ]);
    dir.ok(&["-q", "disk", "add", "new.img", "--type", "swap"]);
    let listed = dir.ok(&["disk", "list", "new.img", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["partitions"].as_array().unwrap().len(), 3);
    assert_eq!(listed["partitions"][1]["content"], "ext4");
    assert_eq!(dir.ok(&["cat", "new.img@2:/etc/hostname"]), "test\n");
    let verified = run("sfdisk", ["-V".as_ref(), dir.path("new.img").as_os_str()]);
    assert!(verified.contains("No errors detected"), "{verified}");
    dir.fails(
        &["disk", "add", "new.img", "--type", "linux"],
        1,
        "no free space",
    );

    let dir = fixture("[[partition]]\ntype = 'linux'\nlabel = 'a'\nsize = '4M'\n");
    dir.ok(&["disk", "create", "new.img", "spec.toml"]);
    dir.ok(&["image", "resize", "-f", "raw", "new.img", "40M"]);
    dir.ok(&[
        "-q", "disk", "add", "new.img", "--type", "linux", "-L", "b", "--format", "ext4",
    ]);
    dir.ok(&["mkdir", "new.img@b:/x"]);
    let verified = run("sgdisk", ["-v".as_ref(), dir.path("new.img").as_os_str()]);
    assert!(verified.contains("No problems found"), "{verified}");
}

#[test]
fn grown_partition_satisfies_all_judges() {
    requires!(tool("sfdisk"), tool("sgdisk"), tool("e2fsck"));
    for (table, judge, sound) in [
        ("gpt", ["sgdisk", "-v"], "No problems found"),
        ("mbr", ["sfdisk", "-V"], "No errors detected"),
    ] {
        let spec = SPEC.replacen("uuid", &format!("table = '{table}'\n# uuid"), 1);
        let dir = fixture(&spec.replace("linux-root-x86-64", "linux"));
        dir.ok(&["disk", "create", "new.img", "spec.toml"]);
        let said = dir.ok(&["disk", "grow", "new.img"]);
        assert!(said.contains("no free space behind it"), "{said}");
        dir.ok(&["image", "resize", "-f", "raw", "new.img", "400M"]);
        let grown = dir.ok(&["disk", "grow", "new.img@3", "--json"]);
        let grown: serde_json::Value = serde_json::from_str(&grown).unwrap();
        let (old, new) = (&grown["old_len_bytes"], &grown["new_len_bytes"]);
        let added = new.as_u64().unwrap() - old.as_u64().unwrap();
        assert!(added.abs_diff(200 << 20) < 64 << 10, "{grown}");
        let file_system = &grown["file_system"];
        let block_size = file_system["block_size"].as_u64().unwrap();
        let blocks = file_system["new"]["blocks"].as_u64().unwrap();
        assert_eq!(blocks * block_size, new.as_u64().unwrap(), "{grown}");
        let verified = run(
            judge[0],
            [judge[1].as_ref(), dir.path("new.img").as_os_str()],
        );
        assert!(verified.contains(sound), "{verified}");
        let len = new.as_u64().unwrap() as usize;
        extract(&dir, "new.img", 73 << 20, len, "root.img");
        fsck(&dir.path("root.img"));
        assert_eq!(dir.ok(&["cat", "new.img@3:/etc/hostname"]), "test\n");
        // The FAT before it has no room.
        let said = dir.ok(&["disk", "grow", "new.img@1"]);
        assert!(
            said.contains("no free space behind it") && said.contains("no ext4"),
            "{said}"
        );
    }
}

#[test]
fn extended_partition_is_not_overwritten() {
    requires!(tool("sfdisk"));
    let dir = TestDir::new();
    let image = dir.path("disk.img");
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let script = dir.path("script");
    fs::write(
        &script,
        "label: dos\nstart=2048, size=8192, type=83\nstart=16384, size=65536, type=5\nstart=20480, size=8192, type=83\n",
    )
    .unwrap();
    let script = fs::File::open(&script).unwrap();
    succeed(command("sfdisk").arg("-q").arg(&image).stdin(script));
    dir.fails(
        &[
            "disk", "add", "disk.img", "--type", "linux", "--start", "39M", "--size", "2M",
        ],
        3,
        "not free sectors of 512 of partition 2",
    );
    dir.fails(
        &["disk", "grow", "disk.img@9"],
        3,
        "no partition 9; partitions: 1 ",
    );
    let said = dir.ok(&["disk", "grow", "disk.img@1"]);
    assert!(said.contains("4.0M before, 7.0M now"), "{said}");
    // Free space is behind the extended partition, and inside it.
    let added = dir.ok(&["disk", "add", "disk.img", "--type", "linux", "--size", "1M"]);
    assert!(
        added.contains("disk.img@3: 1.0M from byte 41943040"),
        "{added}"
    );
    let verified = run("sfdisk", ["-V".as_ref(), image.as_os_str()]);
    assert!(verified.contains("No errors detected"), "{verified}");
}

#[test]
fn swap_area_is_recognized_by_its_tools() {
    requires!(tool("blkid"), tool("swaplabel"));
    const UUID: &str = "0b7d2f2c-9a52-4a57-8d1b-0f3c5c1c7e11";
    let dir = fixture(&format!(
        "[[partition]]\ntype = 'swap'\nsize = '8M'\nformat = 'swap'\n\
         filesystem-label = 'exchange'\nfilesystem-uuid = '{UUID}'\n"
    ));
    dir.ok(&["disk", "create", "new.img", "spec.toml"]);
    extract(&dir, "new.img", 1 << 20, 8 << 20, "swap.img");
    let said = run("blkid", ["-p".as_ref(), dir.path("swap.img").as_os_str()]);
    for word in [UUID, "LABEL=\"exchange\"", "VERSION=\"1\"", "TYPE=\"swap\""] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let said = run("swaplabel", [dir.path("swap.img")]);
    assert!(said.contains(UUID) && said.contains("exchange"), "{said}");
    let listed = dir.ok(&["disk", "list", "new.img", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["partitions"][0]["content"], "swap");
}

#[test]
fn wrong_specification_writes_nothing() {
    let dir = fixture(SPEC);
    for (spec, word) in [
        ("sise = '1G'", "sise"),
        (
            "[[partition]]\ntype = 'linus'\nsize = '1M'",
            "linux-root-x86-64",
        ),
        (
            "size = '4M'\n[[partition]]\ntype = 'linux'\nsize = '9M'",
            "partition 1",
        ),
        ("[[partition]]\ntype = 'linux'", "needs a size"),
        (
            "[[partition]]\ntype = 'esp'\nsize = '1M'\nformat = 'fat32'",
            "too few for a FAT32",
        ),
        (
            "[[partition]]\ntype = 'linux'\nformat = 'ext4'\nsource = 'none'",
            "none",
        ),
        (
            "[[partition]]\ntype = 'swap'\nsize = '16K'\nformat = 'swap'",
            "needs 40 KiB",
        ),
        (
            "[[partition]]\ntype = 'swap'\nformat = 'swap'",
            "needs a size",
        ),
        (
            "[[partition]]\ntype = 'swap'\nsize = '1M'\nformat = 'swap'\nsource = 'root'",
            "a source needs a format",
        ),
        (
            "[[partition]]\ntype = 'swap'\nsize = '1M'\nformat = 'swap'\nfilesystem-label = 'a label of 20 bytes.'",
            "at most 16 bytes",
        ),
        (
            "[[partition]]\ntype = 'linux'\nsize = '1M'\nattributes = ['x']",
            "grow-file-system",
        ),
    ] {
        fs::write(dir.path("spec.toml"), spec).unwrap();
        let output = dir
            .command(&["disk", "create", "new.img", "spec.toml"])
            .output()
            .unwrap();
        let said = text(&output);
        assert!(
            !output.status.success() && said.contains(word),
            "{spec}: {said}"
        );
        assert!(!dir.path("new.img").exists(), "{spec}");
    }
}

#[test]
fn kernel_reads_all_partitions() {
    requires!(root, loop_devices, tool("losetup"));
    let dir = fixture(SPEC);
    dir.ok(&["disk", "create", "new.img", "spec.toml"]);
    let image = dir.path("new.img");
    for (start, kind, file, want) in [
        (
            1 << 20,
            "vfat",
            "a long name with spaces.conf",
            "title test\n",
        ),
        (73 << 20, "ext4", "etc/hostname", "test\n"),
    ] {
        let folder = dir.path(kind);
        fs::create_dir(&folder).unwrap();
        let options = format!("loop,ro,offset={start}");
        let mounted = command("mount")
            .args(["-t", kind, "-o", &options])
            .arg(&image)
            .arg(&folder)
            .output()
            .unwrap();
        if kind == "vfat" && !mounted.status.success() {
            // This kernel has no vfat.
            continue;
        }
        assert!(mounted.status.success(), "{}", text(&mounted));
        let found = fs::read_to_string(folder.join(file));
        run("umount", [folder.as_os_str()]);
        assert_eq!(found.unwrap(), want);
    }
}

#[test]
fn specification_sets_owners_and_modes() {
    requires!(tool("e2fsck"));
    let spec = r#"
[[partition]]
type = "linux"
format = "ext4"
source = "root"
chown = "web:7"
chmod = "go-rwx"
manifest = "devices"
"#;
    let dir = fixture(spec);
    fs::write(dir.path("root/etc/passwd"), "web:x:33:33::/:/bin/sh\n").unwrap();
    let table = "/dev d 755 0 0 - - - - -\n/dev/tty c 660 0 5 4 0 0 1 400\n";
    fs::write(dir.path("devices"), table).unwrap();
    dir.ok(&["disk", "create", "new.img", "spec.toml"]);
    dir.ok(&["mkfs", "other.img", "--size", "64M"]);
    let owner = |image: &str| {
        let found = dir.json(&["stat", "--json", &format!("{image}:/etc/hostname")]);
        let of = |key: &str| found[0][key].to_string();
        [of("uid"), of("gid"), of("mode")].join(" ")
    };
    assert_eq!(owner("new.img"), "33 7 \"0600\"");
    assert_eq!(dir.ok(&["ls", "new.img:/dev"]).lines().count(), 400);
    dir.ok(&["image", "resize", "new.img", "+64M"]);
    let words = ["--format", "ext4", "--source", "root", "--size", "auto"];
    let owned = [
        "--chown",
        "web:9",
        "--chmod",
        "600",
        "--manifest",
        "devices",
    ];
    let add = ["-q", "disk", "add", "new.img", "--type", "linux"];
    dir.ok(&[&add[..], &words, &owned].concat());
    assert_eq!(owner("new.img@2"), "33 9 \"0600\"");
    dir.ok(&["check", "--quiet", "new.img@2"]);
    // Only ext4 has owners.
    let words = ["--format", "fat16", "--size", "16M", "--chown", "1"];
    dir.fails(&[&add[..], &words].concat(), 2, "need format ext4");
    fs::write(dir.path("spec.toml"), spec.replace("go-rwx", "what")).unwrap();
    dir.fails(
        &["disk", "create", "x.img", "spec.toml"],
        2,
        "partition 1: invalid mode",
    );
}

#[test]
fn failed_addition_leaves_the_table_as_it_was() {
    let dir = fixture("size = '64M'");
    dir.ok(&["disk", "create", "new.img", "spec.toml"]);
    let listed = dir.ok(&["disk", "list", "new.img"]);
    dir.ok(&["cp", "-a", "root/.", "tree.img:/", "--create", "auto"]);
    dir.ok(&["tar", "-cf", "root.tar", "tree.img"]);
    let whole = fs::read(dir.path("root.tar")).unwrap();
    fs::write(dir.path("cut.tar"), &whole[..whole.len() / 2]).unwrap();
    let add = |source: &'static str, size: &'static str| {
        let add = ["disk", "add", "new.img", "--type", "linux"];
        let words = ["--format", "ext4", "--source", source, "--size", size];
        [&add[..], &words].concat()
    };
    dir.fails(&add("cut.tar", "16M"), 1, "cut.tar");
    assert_eq!(dir.ok(&["disk", "list", "new.img"]), listed);
    dir.fails(&add("root.tar", "2M"), 1, "--size");
    assert_eq!(dir.ok(&["disk", "list", "new.img"]), listed);
    dir.ok(&[&["-q"], &add("root.tar", "16M")[..]].concat());
    assert_eq!(dir.ok(&["cat", "new.img@1:/etc/hostname"]), "test\n");
}

#[test]
fn files_are_copied_between_partitions() {
    requires!(tool("e2fsck"));
    let dir = fixture(SPEC);
    for image in ["new.img", "new.qcow2"] {
        dir.ok(&["disk", "create", image, "spec.toml"]);
        let at = |place: &str| format!("{image}@{place}");
        let efi = at("esp:/EFI/BOOT/BOOTX64.EFI");
        dir.ok(&["cp", &efi, &at("3:/kernel")]);
        assert_eq!(
            dir.ok(&["cat", &at("3:/kernel")]).len(),
            dir.ok(&["cat", &efi]).len()
        );
        dir.ok(&["cp", &at("3:/etc/*"), &at("1:/EFI")]);
        assert_eq!(dir.ok(&["cat", &at("esp:/EFI/hostname")]), "test\n");
        dir.ok(&[
            "diff",
            &at("1:/EFI/hostname"),
            "root/etc/hostname",
            "--no-owners",
        ]);
        dir.ok(&["check", "--quiet", &at("3")]);
        // Two names of one partition.
        let copy = ["cp", "-r", &at("root fs:/etc"), &at("3:/etc/below")];
        dir.fails(&copy, 1, "cannot copy a directory into itself");
        dir.ok(&["cp", &format!("{image}:/kernel"), &at("3:/twice")]);
        dir.ok(&["cp", &at("3:/twice"), &format!("{image}:/thrice")]);
        dir.ok(&["cp", &at("esp:/EFI/hostname"), &at("1:/again")]);
        assert_eq!(dir.ok(&["cat", &at("esp:/again")]), "test\n");
        dir.ok(&["check", "--quiet", &at("3")]);
    }
}

#[test]
fn empty_partition_is_formatted_for_a_copy() {
    requires!(tool("e2fsck"));
    let spec = "[[partition]]\ntype = 'linux'\nsize = '48M'\n\
        [[partition]]\ntype = 'linux'\nsize = '4M'\n\
        [[partition]]\ntype = 'linux'\nsize = '48M'\n";
    let dir = fixture(spec);
    dir.ok(&["disk", "create", "new.qcow2", "spec.toml"]);
    let copy = |place: &'static str| ["cp", "-a", "root/.", place, "--create"];
    dir.ok(&copy("new.qcow2@1:/srv/"));
    assert_eq!(dir.ok(&["cat", "new.qcow2@1:/srv/etc/hostname"]), "test\n");
    dir.ok(&["check", "--quiet", "new.qcow2@1"]);
    dir.fails(&copy("new.qcow2@1:/"), 1, "new.qcow2@1: not empty");
    let sized = [&copy("new.qcow2@3:/")[..], &["16M"]].concat();
    dir.fails(&sized, 2, "fills the partition");
    // A partition that is too small is empty again.
    fs::write(dir.path("root/large"), vec![7; 5 << 20]).unwrap();
    dir.fails(&copy("new.qcow2@2:/"), 1, "");
    fs::remove_file(dir.path("root/large")).unwrap();
    dir.ok(&copy("new.qcow2@2:/"));
    // From another partition, and from an archive.
    dir.ok(&["tar", "-cf", "root.tar", "new.qcow2@1:/srv"]);
    let words = [
        "cp",
        "-a",
        "new.qcow2@1:/srv/.",
        "new.qcow2@3:/",
        "--create",
    ];
    dir.ok(&words);
    assert_eq!(dir.ok(&["cat", "new.qcow2@3:/etc/hostname"]), "test\n");
    dir.ok(&["check", "--quiet", "new.qcow2@3"]);
    dir.ok(&["disk", "create", "more.img", "spec.toml"]);
    dir.ok(&["tar", "-xf", "root.tar", "more.img@3:/", "--create"]);
    assert_eq!(dir.ok(&["cat", "more.img@3:/etc/hostname"]), "test\n");
}

#[test]
fn partition_is_converted_to_an_image() {
    let dir = fixture(SPEC);
    dir.ok(&["disk", "create", "new.qcow2", "spec.toml"]);
    dir.ok(&[
        "image",
        "convert",
        "new.qcow2@root fs",
        "root.qcow2",
        "-O",
        "qcow2",
    ]);
    dir.ok(&["check", "--quiet", "root.qcow2"]);
    assert_eq!(dir.ok(&["cat", "root.qcow2:/etc/hostname"]), "test\n");
    let convert = ["image", "convert", "new.qcow2@9", "none.img"];
    dir.fails(&convert, 3, "no partition 9");
}
