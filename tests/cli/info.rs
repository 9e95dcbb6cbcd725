//! `folio info` and `folio debug` beside dumpe2fs, tune2fs, blkid, sfdisk and debugfs, on images
//! made in many ways.

use super::TestDir;
use crate::support::tools::{command, run, succeed, text};
use crate::support::{Mounted, requires};
use std::path::Path;
use std::process::Command;

/// Name, size, and the options of mke2fs.
const IMAGES: &[(&str, &str, &str)] = &[
    ("plain.img", "64M", "-t ext4 -L plain"),
    (
        "upstream.img",
        "64M",
        "-t ext4 -O orphan_file,metadata_csum_seed -M /srv/data",
    ),
    ("old.img", "8M", "-t ext2 -r 0 -I 128"),
    ("ext2.img", "32M", "-t ext2 -b 1024"),
    ("ext3.img", "32M", "-t ext3 -b 2048 -i 8192"),
    ("small.img", "64M", "-t ext4 -b 1024 -O ^has_journal -I 512"),
    (
        "many.img",
        "256M",
        "-t ext4 -O quota,project,mmp,bigalloc,inline_data,casefold,encrypt,fast_commit,ea_inode \
         -E stride=4,stripe_width=16,encoding_flags=strict -e remount-ro",
    ),
    (
        "groups.img",
        "64M",
        "-t ext4 -b 1024 -O meta_bg,^resize_inode,^metadata_csum,uninit_bg,sparse_super2,\
         stable_inodes,verity,^64bit",
    ),
    ("large.img", "512M", "-t ext4 -b 65536"),
    ("journal.img", "16M", "-O journal_dev -b 4096"),
    (
        "reserved.img",
        "64M",
        "-t ext4 -m 20 -N 5000 -g 4096 -b 1024 -O large_dir",
    ),
    ("errors.img", "64M", "-t ext4 -e panic"),
];

/// Values of a superblock after errors, for debugfs.
const ERRORS: [&str; 12] = [
    "error_count 3",
    "first_error_time 20240101",
    "first_error_func first_function",
    "first_error_line 9",
    "first_error_ino 12",
    "first_error_block 77",
    "last_error_time 20250101",
    "last_error_func last_function",
    "last_error_line 8",
    "last_error_ino 13",
    "state 2",
    "kbytes_written 123456789",
];

/// Makes the images.
fn images(dir: &TestDir) {
    for (name, size, options) in IMAGES {
        let options = options.split_whitespace();
        let arguments = ["-q", "-F"].into_iter().chain(options);
        let mut mke2fs = command("mke2fs");
        succeed(mke2fs.args(arguments).arg(dir.path(name)).arg(size));
    }
    let tune = "-c 20 -i 17d -o journal_data,nobarrier -E mount_opts=commit=9 -u 1 -g 2";
    let mut tune2fs = command("tune2fs");
    succeed(tune2fs.args(tune.split(' ')).arg(dir.path("upstream.img")));
    for value in ERRORS {
        let request = format!("set_super_value {value}");
        succeed(
            command("debugfs")
                .args(["-w", "-R", &request])
                .arg(dir.path("errors.img")),
        );
    }
}

/// Returns the lines `name: value` of a superblock, without what depends on the host's users.
fn fields(text: &str) -> Vec<(String, String)> {
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let value = match name {
            "Reserved blocks uid" | "Reserved blocks gid" => value.split(" (").next()?,
            // e2fsprogs 1.47 has no name for it.
            "Journal features" => &value.replace("FEATURE_I5", "journal_fast_commit"),
            _ => value,
        };
        Some((name.to_owned(), value.trim().to_owned()))
    };
    // The block of multiple mount protection follows, indented.
    let lines = text
        .lines()
        .filter(|line| !line.starts_with(' ') && *line != "MMP_block:");
    lines.filter_map(field).collect()
}

/// Runs a judge on an image in UTC, and returns its standard output.
#[track_caller]
fn judged(program: &str, arguments: &[&str], image: &Path) -> String {
    let mut judge = command(program);
    let output = succeed(judge.args(arguments).arg(image).env("TZ", "UTC"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn assert_fields_match(dir: &TestDir, name: &str) {
    let printed = dir.ok(&["info", name]);
    let (_, printed) = printed.split_once("\n\n").expect("a file system");
    let ours = fields(printed);
    let dumpe2fs = fields(&judged("dumpe2fs", &["-h"], &dir.path(name)));
    assert_eq!(ours, dumpe2fs, "{name}");
    assert!(ours.len() > 25, "{name}: {printed}");
}

#[test]
fn info_matches_dumpe2fs_and_tune2fs() {
    requires!(
        tool("mke2fs"),
        tool("dumpe2fs"),
        tool("tune2fs"),
        tool("debugfs")
    );
    let dir = TestDir::new();
    images(&dir);
    for (name, ..) in IMAGES {
        assert_fields_match(&dir, name);
        if *name == "journal.img" {
            continue;
        }
        let printed = fields(&dir.ok(&["info", name]));
        for field in fields(&judged("tune2fs", &["-l"], &dir.path(name))) {
            assert!(printed.contains(&field), "{name}: {field:?}");
        }
    }
}

#[test]
fn info_of_folio_image_matches_dumpe2fs() {
    requires!(tool("dumpe2fs"));
    let dir = TestDir::new();
    assert_fields_match(&dir, "disk.img");
}

#[test]
fn info_json_matches_blkid() {
    requires!(
        tool("mke2fs"),
        tool("tune2fs"),
        tool("debugfs"),
        tool("blkid")
    );
    let dir = TestDir::new();
    images(&dir);
    for (name, ..) in IMAGES {
        let json = dir.json(&["info", "--json", name]);
        let json = &json["file_system"];
        let blkid = judged("blkid", &["-p", "-o", "export"], &dir.path(name));
        let mut compared = 0;
        for line in blkid.lines() {
            let (key, value) = line.split_once('=').unwrap();
            let ours = match key {
                "UUID" => json["filesystem_uuid"].as_str().unwrap().to_owned(),
                "LABEL" => json["filesystem_volume_name"].as_str().unwrap().to_owned(),
                "TYPE" => json["type"].as_str().unwrap().to_owned(),
                "BLOCK_SIZE" => json["block_size"].to_string(),
                "VERSION" => format!("{}.0", json["filesystem_revision"]),
                _ => continue,
            };
            assert_eq!(ours, value.replace("\\ ", " "), "{name}: {line}");
            compared += 1;
        }
        assert!(compared >= 4, "{name}: {blkid}");
    }
}

#[test]
fn info_of_qcow2_is_that_of_raw() {
    requires!(tool("mke2fs"), tool("qemu-img"));
    let dir = TestDir::new();
    crate::support::tools::to_qcow2(&dir.path("disk.img"), &dir.path("disk.qcow2"));
    let (raw, qcow2) = (
        dir.json(&["info", "--json", "disk.img"]),
        dir.json(&["info", "--json", "disk.qcow2"]),
    );
    assert_eq!(raw["file_system"], qcow2["file_system"]);
    assert_eq!(
        (&raw["format"], &qcow2["format"]),
        (&"raw".into(), &"qcow2".into())
    );
    assert_eq!(raw["virtual_size"], qcow2["virtual_size"]);
}

#[test]
fn info_of_partitions_matches_sfdisk() {
    requires!(tool("mke2fs"), tool("sfdisk"), tool("blkid"));
    let dir = TestDir::new();
    let scripts = [
        "label: gpt\nsize=20MiB, type=L, name=root\nsize=10MiB, type=U, name=\"boot files\"\n",
        "label: dos\nsize=20MiB, type=83, bootable\nsize=20MiB, type=82\ntype=ef\n",
    ];
    for (name, script) in ["gpt.img", "dos.img"].into_iter().zip(scripts) {
        let file = std::fs::File::create(dir.path(name)).unwrap();
        file.set_len(64 << 20).unwrap();
        std::fs::write(dir.path("script"), script).unwrap();
        let script = std::fs::File::open(dir.path("script")).unwrap();
        let mut sfdisk = command("sfdisk");
        succeed(sfdisk.arg("-q").arg(dir.path(name)).stdin(script));
        let mut mke2fs = command("mke2fs");
        let options = [
            "-q",
            "-F",
            "-t",
            "ext4",
            "-L",
            "inner",
            "-E",
            "offset=1048576",
        ];
        succeed(mke2fs.args(options).arg(dir.path(name)).arg("20M"));
        let json = dir.json(&["info", "--json", name]);
        let table = &json["partition_table"];
        let sfdisk = judged("sfdisk", &["--json"], &dir.path(name));
        let sfdisk: serde_json::Value = serde_json::from_str(&sfdisk).unwrap();
        let sfdisk = &sfdisk["partitiontable"];
        let lower = |value: &serde_json::Value| value.as_str().unwrap_or("").to_lowercase();
        assert_eq!(table["type"], sfdisk["label"]);
        assert_eq!(
            lower(&table["id"]),
            lower(&sfdisk["id"]).trim_start_matches("0x")
        );
        let (ours, theirs) = (
            table["partitions"].as_array().unwrap(),
            sfdisk["partitions"].as_array().unwrap(),
        );
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for (ours, theirs) in ours.iter().zip(theirs) {
            let sectors = |key: &str| theirs[key].as_u64().unwrap() * 512;
            assert_eq!(ours["start"].as_u64(), Some(sectors("start")));
            assert_eq!(ours["size"].as_u64(), Some(sectors("size")));
            assert_eq!(
                lower(&ours["type"]).trim_start_matches("0x"),
                lower(&theirs["type"])
            );
            assert_eq!(lower(&ours["name"]), lower(&theirs["name"]));
            let is_bootable = theirs["bootable"].as_bool().unwrap_or(false);
            assert_eq!(ours["bootable"].as_bool(), Some(is_bootable));
            if !theirs["uuid"].is_null() {
                assert_eq!(lower(&ours["uuid"]), lower(&theirs["uuid"]));
            }
        }
        let options = ["-p", "-O", "1048576", "-o", "value", "-s", "UUID"];
        let uuid = judged("blkid", &options, &dir.path(name));
        assert_eq!(ours[0]["file_system_uuid"], uuid.trim());
        assert_eq!(ours[0]["file_system_label"], "inner");
        assert_eq!(json["file_system"]["filesystem_uuid"], uuid.trim());
        let chosen = dir.json(&["info", "--json", &format!("{name}@1")]);
        assert_eq!(chosen["file_system"], json["file_system"]);
        assert!(
            dir.ok(&["info", &format!("{name}@2")])
                .contains("only zeros")
        );
    }
}

#[test]
fn info_of_other_formats_names_them() {
    let dir = TestDir::new();
    std::fs::write(dir.path("zero.img"), vec![0; 1 << 20]).unwrap();
    let mut xfs = vec![0; 1 << 20];
    xfs[..4].copy_from_slice(b"XFSB");
    std::fs::write(dir.path("xfs.img"), xfs).unwrap();
    let named = |name: &str| dir.json(&["info", "--json", name])["contents"].clone();
    assert_eq!(
        (named("zero.img"), named("xfs.img")),
        ("only zeros".into(), "xfs".into())
    );
    dir.fails(&["info", "nothing.img"], 3, "No such file");
    dir.fails(&["info", "disk.img:/a"], 2, "omit the path");
    dir.fails(&["info", "disk.img@2"], 3, "no partition 2");
}

#[test]
fn info_names_the_width_of_a_fat() {
    requires!(tool("mkfs.fat"));
    let dir = TestDir::new();
    for (width, len_mib) in [("12", 2), ("16", 20), ("32", 40)] {
        let name = format!("fat{width}.img");
        let file = std::fs::File::create(dir.path(&name)).unwrap();
        file.set_len(len_mib << 20).unwrap();
        judged("mkfs.fat", &["-F", width, "-n", "FAT99"], &dir.path(&name));
        let contents = &dir.json(&["info", "--json", &name])["contents"];
        assert_eq!(*contents, format!("fat{width}"));
        let spec = format!("[[partition]]\ntype = 'esp'\nformat = 'raw'\nsource = '{name}'\n");
        std::fs::write(dir.path("spec.toml"), spec).unwrap();
        let disk = format!("disk{width}.img");
        dir.ok(&["disk", "create", &disk, "spec.toml"]);
        let json = dir.json(&["info", "--json", &disk]);
        let partition = &json["partition_table"]["partitions"][0];
        assert_eq!(partition["contents"], format!("fat{width}"));
        let listed = dir.json(&["disk", "list", "--json", &disk]);
        assert_eq!(listed["partitions"][0]["content"], format!("fat{width}"));
    }
    // A damaged one is still a FAT.
    let mut bytes = std::fs::read(dir.path("fat16.img")).unwrap();
    bytes[11..19].fill(0);
    std::fs::write(dir.path("fat16.img"), bytes).unwrap();
    let contents = &dir.json(&["info", "--json", "fat16.img"])["contents"];
    assert_eq!(*contents, "fat");
}

/// A tree with files of several kinds, in `tree`.
fn fill_tree(dir: &TestDir) {
    let tree = dir.path("tree");
    std::fs::create_dir_all(tree.join("folder/inner")).unwrap();
    for index in 1..=40_usize {
        std::fs::write(tree.join(format!("file{index}")), vec![7; index * 1000]).unwrap();
    }
    std::fs::hard_link(tree.join("file3"), tree.join("folder/hard")).unwrap();
    std::os::unix::fs::symlink("short", tree.join("fast")).unwrap();
    std::os::unix::fs::symlink("x".repeat(200), tree.join("slow")).unwrap();
    run("mkfifo", [tree.join("fifo")]);
    let sparse = std::fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    for at in [0, 100_000, 5_000_000, 9_000_000] {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", at).unwrap();
    }
}

/// Returns what debugfs answers, without what Folio leaves out.
fn debugfs(image: &Path, request: &str) -> Vec<String> {
    let mut debugfs = command("debugfs");
    let output = succeed(debugfs.args(["-R", request]).arg(image).env("TZ", "UTC"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    plain_lines(&said)
}

/// Returns the lines that are compared: no empty ones, no obsolete fragments, no values of
/// attributes; paths with one slash.
fn plain_lines(text: &str) -> Vec<String> {
    let is_kept = |line: &&str| {
        let rest = line.trim();
        // debugfs lists an unused entry where it belongs to an index.
        let is_unused = line.starts_with("      0       0 (0)");
        !is_unused && !rest.is_empty() && !rest.starts_with("Fragment:") && !line.starts_with("  ")
    };
    let lines = text
        .lines()
        .filter(is_kept)
        .map(|line| line.trim_end().replace("//", "/"));
    lines
        .map(|line| line.trim_start_matches("(New-style) ").to_owned())
        .collect()
}

/// Asserts that both answer the same; the order of the lines matters unless `is_set`.
#[track_caller]
fn assert_answers_match(dir: &TestDir, name: &str, request: &str, is_set: bool) -> Vec<String> {
    let mut ours = plain_lines(&dir.ok(&["debug", name, request]));
    let mut theirs = debugfs(&dir.path(name), request);
    if is_set {
        ours.sort();
        theirs.sort();
    }
    assert_eq!(ours, theirs, "{name}: {request}");
    ours
}

/// Requests on files of `fill_tree`, and whether the order of lines is left to the program.
const REQUESTS: &[(&str, bool)] = &[
    ("stat <2>", false),
    ("stat <7>", false),
    ("stat <8>", false),
    ("stat /file40", false),
    ("stat /folder", false),
    ("stat /fast", false),
    ("stat /slow", false),
    ("stat /fifo", false),
    ("stat /sparse", false),
    ("blocks /file40", false),
    ("blocks /sparse", false),
    ("blocks <7>", false),
    ("bmap /file40 0", false),
    ("bmap /file40 20", false),
    ("bmap /sparse 2", false),
    ("bmap /sparse 100000", false),
    ("icheck 1 2 300 700 1200 1500 2000 3100 9999999", false),
    ("ncheck 11 12 13 14 15 20 30", true),
    ("ls -l /", false),
    ("ls -l /folder", false),
    ("testb 1", false),
    ("testb 2 2000", false),
    ("testi <1>", false),
    ("testi <11>", false),
    ("testi /sparse", false),
    ("testi <500>", false),
];

#[test]
fn debug_matches_debugfs() {
    requires!(tool("mke2fs"), tool("debugfs"));
    let dir = TestDir::new();
    fill_tree(&dir);
    let sets = [
        "-t ext2 -b 1024",
        "-t ext3 -b 4096",
        "-t ext4 -b 1024",
        "-t ext4 -b 4096 -O inline_data",
        "-t ext4 -b 2048 -O ^has_journal,^metadata_csum,uninit_bg -I 128",
    ];
    for (index, options) in sets.into_iter().enumerate() {
        let name = format!("debug{index}.img");
        let options = options.split(' ').chain(["-q", "-F", "-d"]);
        let mut mke2fs = command("mke2fs");
        mke2fs
            .args(options)
            .arg(dir.path("tree"))
            .arg(dir.path(&name));
        succeed(mke2fs.arg("48M"));
        let mut lines = 0;
        for (request, is_set) in REQUESTS {
            lines += assert_answers_match(&dir, &name, request, *is_set).len();
        }
        assert!(lines > 2000, "{name}: {lines} lines");
    }
}

/// Runs programs in a mount of the kernel: deep extent trees, unwritten extents, attributes,
/// devices, an indexed directory, and a journal with transactions. `copy` is the image as it was
/// before the unmount.
fn fill_by_kernel(image: &Path, copy: &Path) {
    let mounted = Mounted::new(image, "rw");
    let at = |name: &str| mounted.path().join(name);
    let fragments = std::fs::File::create(at("fragments")).unwrap();
    for index in 0..1500 {
        std::os::unix::fs::FileExt::write_all_at(&fragments, &[7; 1024], index * 2048).unwrap();
    }
    fragments.sync_all().unwrap();
    run(
        "fallocate",
        ["-l".into(), "1M".into(), at("unwritten").into_os_string()],
    );
    run(
        "mknod",
        [
            at("null").as_os_str(),
            "c".as_ref(),
            "1".as_ref(),
            "3".as_ref(),
        ],
    );
    run(
        "mknod",
        [
            at("disk").as_os_str(),
            "b".as_ref(),
            "259".as_ref(),
            "70000".as_ref(),
        ],
    );
    std::fs::create_dir(at("many")).unwrap();
    for index in 0..500 {
        std::fs::write(at(&format!("many/name{index}")), "x").unwrap();
    }
    run("sync", ["-f".into(), mounted.path().into_os_string()]);
    for index in 100..200 {
        std::fs::remove_file(at(&format!("many/name{index}"))).unwrap();
    }
    run("sync", ["-f".into(), mounted.path().into_os_string()]);
    std::fs::copy(image, copy).unwrap();
}

#[test]
fn debug_of_kernel_image_matches_debugfs() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("debugfs"),
        tool("dumpe2fs")
    );
    let dir = TestDir::new();
    let (image, copy) = (dir.path("kernel.img"), dir.path("live.img"));
    run(
        "mke2fs",
        "-q -F -t ext4 -b 1024 -O fast_commit,metadata_csum"
            .split(' ')
            .map(Into::into)
            .chain([image.clone().into_os_string(), "64M".into()]),
    );
    fill_by_kernel(&image, &copy);
    let requests = [
        "stat /fragments",
        "blocks /fragments",
        "stat /unwritten",
        "blocks /unwritten",
        "stat /null",
        "stat /disk",
        "stat /many",
        "ls -l /many",
        "bmap /fragments 2000",
        "testb 1 20000",
    ];
    for request in requests {
        assert_answers_match(&dir, "kernel.img", request, false);
    }
    let entries = dir.json(&["debug", "--json", "kernel.img", "ls", "-d", "/many"]);
    let unused = |entry: &&serde_json::Value| entry["inode"] == 0;
    let entries = entries["entries"].as_array().unwrap();
    assert!(entries.iter().filter(unused).count() > 2, "{entries:?}");
    // Fast commits follow the log, which Folio does not list.
    let mut theirs = debugfs(&copy, "logdump");
    let end = theirs
        .iter()
        .position(|line| line.starts_with("*** Fast Commit"));
    theirs.truncate(end.unwrap_or(theirs.len()));
    let ours = plain_lines(&dir.ok(&["debug", "live.img", "logdump"]));
    assert_eq!(ours, theirs);
    assert!(ours.len() > 3, "{ours:?}");
    for name in ["kernel.img", "live.img"] {
        assert_fields_match(&dir, name);
    }
}

/// Runs a command, and asserts that it ends with a success or an error, not a panic.
#[track_caller]
fn assert_no_panic(mut folio: Command) -> bool {
    let output = folio.output().unwrap();
    let code = output.status.code();
    assert!(
        matches!(code, Some(0..=3)) && !text(&output).contains("panicked"),
        "{folio:?}: {code:?}: {}",
        text(&output)
    );
    code == Some(0)
}

#[test]
fn damaged_image_gives_error_without_panic() {
    requires!(tool("mke2fs"));
    let dir = TestDir::new();
    fill_tree(&dir);
    let mut mke2fs = command("mke2fs");
    mke2fs.args([
        "-q",
        "-F",
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "^metadata_csum",
        "-d",
    ]);
    succeed(
        mke2fs
            .args([dir.path("tree"), dir.path("sound.img")])
            .arg("24M"),
    );
    let sound = std::fs::read(dir.path("sound.img")).unwrap();
    // Blocks of superblock, descriptors, the first inode table, the root and the journal.
    let mut random = crate::support::random::Random::new(7);
    let mut failed = 0;
    for round in 0..60 {
        let mut bytes = sound.clone();
        let area = [1024..2048, 2048..4096, 260 * 1024..400 * 1024][round % 3].clone();
        for _ in 0..if area.len() > 4096 { 400 } else { 2 } {
            let at = area.start + random.below(area.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        std::fs::write(dir.path("damaged.img"), bytes).unwrap();
        failed += usize::from(!assert_no_panic(dir.command(&["info", "damaged.img"])));
        let request = [
            "stat <8>",
            "ls -l /",
            "ncheck 12 13",
            "icheck 3000 9999",
            "logdump",
        ];
        let request = ["debug", "damaged.img", request[round % 5]];
        failed += usize::from(!assert_no_panic(dir.command(&request)));
    }
    assert!((5..110).contains(&failed), "{failed} of 120 failed");
}
