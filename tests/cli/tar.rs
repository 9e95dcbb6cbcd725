//! `folio tar`: GNU tar and bsdtar write what it reads, and read what it writes.

use super::TestDir;
use crate::support::mounted::Mounted;
use crate::support::requires;
use crate::support::terminal::converse;
use crate::support::tools::{command, fsck, run, succeed, text};
use folio_tree::{Compression, Encoder, Entry, EntryKind, tar};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Stdio};

/// The options of GNU tar with which an archive has everything.
const ALL: [&str; 3] = ["--acls", "--xattrs", "--xattrs-include=*"];

/// Creates a tree with every kind of file that a tar archive can hold.
fn full_tree(root: &Path) {
    super::plain_tree(root);
    let name = "n".repeat(250);
    let deep = root.join(&name).join(&name);
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join(&name), "deep").unwrap();
    std::fs::hard_link(deep.join(&name), root.join("far")).unwrap();
    symlink(name.repeat(3), root.join("long link")).unwrap();
    File::create(root.join("hole"))
        .unwrap()
        .set_len(3 << 20)
        .unwrap();
    let script = "mknod chr c 5 300; mknod blk b 259 70000
        setfattr -n user.line -v 'x
y=z' far; setfattr -n trusted.bytes -v 0x00ff0a folder
        setfacl -m u:1000:rw big; setfacl -d -m g:7:rx folder/empty
        chmod 4755 big; chown 1234:5678 folder fifo; chown -h 4000000000:3000000 link
        touch -d '2020-02-02 02:02:02.123456789' folder; touch -h -d '2001-01-01 01:01:01.5' link
        touch -d 2300-01-01 folder/empty";
    succeed(command("sh").args(["-ec", script]).current_dir(root));
}

/// Asserts that GNU tar finds no difference between an archive and the tree in an image.
fn compare(dir: &TestDir, archive: &str, image: &str, options: &[&str]) {
    let mounted = Mounted::new(&dir.path(image), "ro");
    let mut tar = command("tar");
    tar.arg("--compare")
        .arg("-f")
        .arg(dir.path(archive))
        .args(options);
    let compared = tar.arg("-C").arg(mounted.path()).output().unwrap();
    assert!(
        compared.status.success(),
        "{}",
        String::from_utf8_lossy(&compared.stdout)
    );
}

fn gnu_tar(dir: &TestDir, archive: &str, tree: &str, options: &[&str]) {
    let archive = dir.path(archive);
    let mut tar = command("tar");
    tar.args(["-S", "-c", "-f"])
        .arg(archive)
        .args(options)
        .arg("-C")
        .arg(dir.path(tree));
    succeed(tar.arg("."));
}

#[test]
fn gnu_tar_archives_become_equal_trees() {
    requires!(
        root,
        loop_devices,
        tool("tar"),
        tool("setfacl"),
        tool("setfattr")
    );
    let dir = TestDir::new();
    full_tree(&dir.path("tree"));
    for (archive, options) in [
        ("gnu.tar.gz", &["--format=gnu", "-z"][..]),
        ("old.tar.bz2", &["--format=oldgnu", "-j"]),
        ("0.0.tar", &["--format=pax", "--sparse-version=0.0"]),
        (
            "0.1.tar.zst",
            &["--format=pax", "--sparse-version=0.1", "--zstd"],
        ),
        (
            "1.0.tar.xz",
            &["--format=pax", "--sparse-version=1.0", "-J"],
        ),
    ] {
        let has_all = options[0] == "--format=pax";
        let all = if has_all { &ALL[..] } else { &[] };
        gnu_tar(&dir, archive, "tree", &[options, all].concat());
        let image = format!("{archive}.img");
        let place = format!("{image}:/");
        dir.ok(&["tar", "-xf", archive, &place, "--create", "64M"]);
        fsck(&dir.path(&image));
        compare(&dir, archive, &image, all);
        let mounted = Mounted::new(&dir.path(&image), "ro");
        let sparse = std::fs::metadata(mounted.path().join("sparse")).unwrap();
        assert!(sparse.blocks() <= 8, "{archive}: {}", sparse.blocks());
    }
}

#[test]
fn packed_tree_is_equal_for_gnu_tar_and_bsdtar() {
    requires!(
        root,
        loop_devices,
        tool("tar"),
        tool("bsdtar"),
        tool("setfacl"),
        tool("setfattr")
    );
    let dir = TestDir::new();
    full_tree(&dir.path("tree"));
    // libarchive 3.6 misreads fractions of seconds before 1970, and sockets are in no archive.
    run(
        "touch",
        [
            "-d".into(),
            "1969-01-01 UTC".into(),
            dir.path("tree/folder/file").into_os_string(),
        ],
    );
    gnu_tar(
        &dir,
        "gnu.tar",
        "tree",
        &[&["--format=pax"][..], &ALL].concat(),
    );
    dir.ok(&["cp", "-aT", "tree", "disk.img:/tree"]);
    dir.ok(&["tar", "-cf", "back.tar.zst", "disk.img:/tree"]);
    for (program, options) in [
        ("tar", &["--acls", "--xattrs", "--xattrs-include=*"][..]),
        ("bsdtar", &["--acls", "--xattrs"]),
    ] {
        let out = dir.path(program);
        std::fs::create_dir(&out).unwrap();
        let mut extract = command(program);
        extract
            .args(["-x", "-p", "-f"])
            .arg(dir.path("back.tar.zst"));
        succeed(extract.args(options).arg("-C").arg(&out));
        let mut tar = command("tar");
        tar.args(ALL)
            .arg("--compare")
            .arg("-f")
            .arg(dir.path("gnu.tar"));
        succeed(tar.arg("-C").arg(&out));
    }
}

#[test]
fn packed_archive_is_reproducible() {
    requires!(tool("tar"));
    let dir = TestDir::new();
    super::plain_tree(&dir.path("tree"));
    dir.ok(&["cp", "-a", "tree", "disk.img:/"]);
    let pack = |image: &str| {
        let mut command = dir.command(&["tar", "-c", image]);
        command.env("SOURCE_DATE_EPOCH", "1000000000");
        let output = command.output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let first = pack("disk.img:/tree");
    dir.ok(&["mkfs", "other.img", "--size", "80M"]);
    dir.ok(&["cp", "-a", "disk.img:/tree", "other.img:/copy"]);
    assert!(pack("other.img:/copy") == first);
    std::fs::write(dir.path("first.tar"), &first).unwrap();
    let listed = succeed(command("tar").arg("-tvf").arg(dir.path("first.tar")));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.contains("2001-09-09") && !listed.contains("202"),
        "{listed}"
    );
    // Through standard input, and into a directory that exists.
    dir.ok(&["mkdir", "disk.img:/again"]);
    let mut unpack = dir.command(&["tar", "-x", "disk.img:/again"]);
    unpack.stdin(File::open(dir.path("first.tar")).unwrap());
    assert!(unpack.status().unwrap().success());
    assert!(pack("disk.img:/again") == first);
}

/// Writes an archive with these files; content is the letter x.
fn archive(dir: &TestDir, name: &str, entries: &[(&str, EntryKind)]) {
    let mut writer = tar::Writer::new(Vec::new());
    for (path, kind) in entries {
        let entry = entry(path, kind.clone());
        writer.append(&entry, None).unwrap();
        writer
            .write_data(&vec![b'x'; entry.size_bytes() as usize])
            .unwrap();
    }
    std::fs::write(dir.path(name), writer.finish().unwrap()).unwrap();
}

/// Returns an entry of an archive, owned by root.
fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry {
        path: path.as_bytes().to_vec(),
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        modified: folio::Timespec::new(1, 0),
        accessed: None,
        xattrs: Vec::new(),
        unreadable: Vec::new(),
    }
}

fn file(size_bytes: u64) -> EntryKind {
    EntryKind::File { size_bytes }
}

fn link(target: &str) -> EntryKind {
    EntryKind::Symlink(target.as_bytes().to_vec())
}

fn hard(target: &str) -> EntryKind {
    EntryKind::HardLink(target.as_bytes().to_vec())
}

#[test]
fn hostile_names_stay_in_the_destination() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    dir.ok(&["mkdir", "disk.img:/srv"]);
    dir.write("disk.img:/passwd", "root");
    archive(
        &dir,
        "a.tar",
        &[
            ("/absolute", file(1)),
            ("up", link("..")),
            ("up/through", file(1)),
            ("root", link("/")),
            ("root/through-root", file(1)),
            ("far", link("../../../../passwd")),
            ("far", file(2)),
            ("loop", link("loop")),
            ("linked", hard("absolute")),
        ],
    );
    dir.ok(&["tar", "-xf", "a.tar", "disk.img:/srv"]);
    let names = dir.ok(&["find", "disk.img:/"]);
    for name in ["absolute", "through", "through-root", "far", "linked"] {
        assert!(names.contains(&format!("/srv/{name}\n")), "{name}: {names}");
    }
    assert_eq!(dir.ok(&["cat", "disk.img:/passwd"]), "root");
    archive(
        &dir,
        "b.tar",
        &[
            ("../out", file(1)),
            ("d/../../out", file(1)),
            ("loop/x", file(1)),
            ("passwd", hard("../passwd")),
            ("gone", hard("nothing")),
            ("fine", file(1)),
        ],
    );
    dir.fails(&["tar", "-xf", "b.tar", "disk.img:/srv"], 1, "has '..'");
    dir.fails(
        &["tar", "-xf", "b.tar", "disk.img:/srv"],
        1,
        "its target nothing is missing",
    );
    dir.fails(
        &["tar", "-xf", "b.tar", "disk.img:/srv"],
        1,
        "disk.img:loop/x: Too many levels",
    );
    let names = dir.ok(&["find", "disk.img:/"]);
    assert!(
        names.contains("/srv/fine\n") && !names.contains("out"),
        "{names}"
    );
    fsck(&dir.path("disk.img"));
}

#[test]
fn links_may_precede_their_files() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    archive(
        &dir,
        "a.tar",
        &[
            ("first", hard("d/file")),
            ("d/second", hard("d/file")),
            ("d/file", file(700)),
            ("d/file", file(5)),
            ("over", file(9)),
            ("over", hard("d/file")),
            ("d/file", hard("over")),
        ],
    );
    dir.ok(&["tar", "-xf", "a.tar", "disk.img"]);
    let stat = dir.json(&["stat", "--json", "disk.img:/first", "disk.img:/over"]);
    assert_eq!(
        (&stat[0]["size"], &stat[0]["links"]),
        (&5.into(), &4.into())
    );
    assert_eq!(stat[0]["inode"], stat[1]["inode"]);
    fsck(&dir.path("disk.img"));
}

#[test]
fn damaged_archives_are_refused_with_offset() {
    requires!(tool("e2fsck"), tool("gzip"));
    let dir = TestDir::new();
    archive(
        &dir,
        "a.tar",
        &[("small", file(3)), ("large", file(100_000))],
    );
    let bytes = std::fs::read(dir.path("a.tar")).unwrap();
    std::fs::write(dir.path("cut.tar"), &bytes[..40_000]).unwrap();
    dir.fails(
        &["tar", "-xf", "cut.tar", "disk.img"],
        1,
        "large: archive: offset 40000: the archive is truncated",
    );
    assert_eq!(dir.ok(&["ls", "disk.img"]), "lost+found\nsmall\n");
    dir.fails(
        &["tar", "-xf", "cut.tar", "n.img:/", "--create", "8M"],
        1,
        "truncated",
    );
    assert!(!dir.path("n.img").exists());
    run("gzip", [dir.path("a.tar").into_os_string()]);
    let packed = std::fs::read(dir.path("a.tar.gz")).unwrap();
    std::fs::write(dir.path("cut.tar.gz"), &packed[..packed.len() / 2]).unwrap();
    dir.fails(&["tar", "-tf", "cut.tar.gz"], 1, "gzip stream");
    std::fs::write(
        dir.path("text"),
        "no archive, and longer than a block\n".repeat(99),
    )
    .unwrap();
    dir.fails(&["tar", "-tf", "text"], 1, "not a tar archive");
    // A bomb fills the image, no more.
    archive(&dir, "big.tar", &[("bomb", file(9 << 20))]);
    dir.fails(
        &["tar", "-xf", "big.tar", "s.img:/", "--create", "4M"],
        1,
        "repeat with a larger --create",
    );
    dir.fails(
        &["tar", "-xf", "nothing.tar", "disk.img"],
        1,
        "No such file",
    );
    dir.fails(&["tar", "-tf", "a.tar.gz", "disk.img"], 2, "folio ls -R");
    fsck(&dir.path("disk.img"));
}

#[test]
fn flipped_bytes_never_panic() {
    let dir = TestDir::new();
    archive(
        &dir,
        "a.tar",
        &[
            ("a", file(3)),
            ("b", link("a")),
            (&"c/".repeat(90), hard("a")),
            ("d", file(0)),
        ],
    );
    let bytes = std::fs::read(dir.path("a.tar")).unwrap();
    for at in 0..bytes.len().min(6000) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        let mut reader = tar::Reader::new(damaged.as_slice());
        while let Ok(Some(_)) = reader.next_entry() {
            while let Ok(Some(_)) = reader.next_data() {}
        }
    }
}

#[test]
fn closed_output_pipe_ends_the_command() {
    let dir = TestDir::new();
    std::fs::write(dir.path("big"), vec![1; 9 << 20]).unwrap();
    dir.ok(&["cp", "big", "disk.img:/"]);
    let mut packer = dir
        .command(&["tar", "-c", "disk.img"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(packer.stdout.take());
    let output = packer.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn archive_fits_into_image_of_automatic_size() {
    requires!(root, tool("tar"), tool("e2fsck"), tool("mkfifo"));
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("tree")).unwrap();
    full_tree(&dir.path("tree"));
    gnu_tar(&dir, "a.tar", "tree", &ALL);
    let mut stream = dir.command(&["tar", "-x", "stream.img:/", "--create", "auto"]);
    stream.stdin(Stdio::from(File::open(dir.path("a.tar")).unwrap()));
    succeed(&mut stream);
    dir.ok(&[
        "tar",
        "-x",
        "below.img:/srv/a",
        "-f",
        "a.tar",
        "--create",
        "auto+10%",
    ]);
    dir.ok(&["cp", "-a", "stream.img:/", "oci:layout:tag"]);
    dir.ok(&[
        "cp",
        "-a",
        "oci:layout:tag",
        "layers.qcow2:/",
        "--create",
        "auto",
    ]);
    for image in ["stream.img", "below.img"] {
        fsck(&dir.path(image));
    }
    compare(&dir, "a.tar", "stream.img", &ALL);
    dir.ok(&["diff", "stream.img:/", "layers.qcow2:/"]);
    dir.ok(&["diff", "stream.img:/big", "below.img:/srv/a/big"]);
    let len = |name: &str| dir.path(name).metadata().unwrap().len();
    assert!(
        len("stream.img") < 2 * len("a.tar") + (4 << 20),
        "{}",
        len("stream.img")
    );
}

#[test]
fn excluded_names_are_neither_packed_nor_unpacked() {
    let dir = TestDir::new();
    for folder in ["tree/src", "tree/target/deep", "tree/logs"] {
        std::fs::create_dir_all(dir.path(folder)).unwrap();
    }
    for name in ["src/a.c", "src/a.o", "target/deep/b.c", "logs/x", "keep.o"] {
        std::fs::write(dir.path("tree").join(name), name).unwrap();
    }
    dir.ok(&["cp", "-a", "tree/.", "disk.img:/"]);
    std::fs::write(dir.path("patterns"), "*.o\n!keep.o\n").unwrap();
    let patterns = [
        "--exclude-from",
        "patterns",
        "--exclude",
        "target/",
        "--exclude=/logs",
    ];
    dir.ok(&[&["tar", "-cf", "small.tar", "disk.img"], &patterns[..]].concat());
    let want = "./\n./keep.o\n./lost+found/\n./src/\n./src/a.c\n";
    assert_eq!(dir.ok(&["tar", "-tf", "small.tar"]), want);
    let listed = run("tar", ["-tf".as_ref(), dir.path("small.tar").as_os_str()]);
    assert_eq!(listed, want);

    dir.ok(&["tar", "-cf", "whole.tar", "disk.img"]);
    for (image, size) in [("auto.img", "auto"), ("sized.img", "16M")] {
        let unpack = ["tar", "-xf", "whole.tar", image, "--create", size];
        dir.ok(&[&unpack[..], &patterns].concat());
        let found = dir.ok(&["find", image, "--type", "f"]);
        assert_eq!(found, format!("{image}:/keep.o\n{image}:/src/a.c\n"));
        assert!(!dir.ok(&["ls", image]).contains("target"));
    }
    dir.fails(
        &["tar", "-tf", "small.tar", "--exclude", "x"],
        2,
        "only with -c and -x",
    );
}

#[test]
fn cut_archive_leaves_no_image_of_automatic_size() {
    let dir = TestDir::new();
    std::fs::write(dir.path("file"), vec![7; 100_000]).unwrap();
    dir.ok(&["cp", "file", "disk.img:/file"]);
    dir.ok(&["tar", "-cf", "whole.tar", "disk.img:/file"]);
    dir.ok(&["tar", "-xf", "whole.tar", "new.img", "--create", "auto"]);
    assert_eq!(dir.ok(&["cat", "new.img:/file"]).len(), 100_000);
    let whole = std::fs::read(dir.path("whole.tar")).unwrap();
    // In the content, which is skipped, and in a header.
    for len in [50_000, 300] {
        std::fs::write(dir.path("cut.tar"), &whole[..len]).unwrap();
        let unpack = ["tar", "-xf", "cut.tar", "cut.img", "--create", "auto"];
        dir.fails(&unpack, 1, "archive: offset");
        assert!(!dir.path("cut.img").exists());
    }
}

#[test]
fn unpacking_shows_percent_of_the_archive() {
    requires!(tool("python3"));
    let dir = TestDir::new();
    std::fs::write(dir.path("file"), vec![7; 3 << 20]).unwrap();
    dir.ok(&["cp", "file", "disk.img:/file"]);
    dir.ok(&["tar", "-czf", "a.tar.gz", "disk.img:/file"]);
    dir.ok(&["mkdir", "disk.img:/tree"]);
    dir.ok(&["cp", "file", "disk.img:/tree"]);
    dir.ok(&["cp", "-a", "disk.img:/tree", "oci:layout:tag"]);
    for words in [
        &["tar", "-xf", "a.tar.gz", "disk.img:/"][..],
        &["tar", "-xf", "a.tar.gz", "new.img", "--create", "auto"],
        &["cp", "-a", "oci:layout:tag", "disk.img:/"],
    ] {
        let mut unpack = dir.command(words);
        unpack.env("TERM", "xterm");
        let (code, errors) = converse(&unpack, "%, |\n read, |\n");
        assert_eq!(code, Some(0), "{words:?}: {errors}");
    }
    let unpacked = dir.ok(&["stat", "disk.img:/file"]);
    assert!(unpacked.contains("3145728"), "{unpacked}");
}

/// Compresses bytes with gzip.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), Compression::Gzip).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn empty_input_is_refused() {
    let dir = TestDir::new();
    for (name, bytes) in [("e.tar", Vec::new()), ("e.tar.gz", gzip(b""))] {
        std::fs::write(dir.path(name), bytes).unwrap();
        for words in [
            &["tar", "-tf", name][..],
            &["tar", "-xf", name, "disk.img:"],
            &["tar", "-xf", name, "e.img:", "--create", "16M"],
            &["tar", "-xf", name, "e.img:", "--create", "auto"],
        ] {
            dir.fails(words, 1, "empty input: not a tar archive");
        }
    }
    for size in ["16M", "auto"] {
        let words = ["tar", "-x", "e.img:", "--create", size];
        dir.fails(&words, 1, "empty input: not a tar archive");
        assert!(!dir.path("e.img").exists());
    }
    // The end of an archive is one without files; zeros behind gzip are the end of a tape.
    let tape = [gzip(&[0; 1024]), vec![0; 9000]].concat();
    for (name, bytes) in [("z.tar", vec![0; 1024]), ("z.tar.gz", tape)] {
        std::fs::write(dir.path(name), bytes).unwrap();
        dir.ok(&["tar", "-xf", name, "z.img:", "--create", "16M"]);
        std::fs::remove_file(dir.path("z.img")).unwrap();
    }
}

#[test]
fn auto_size_holds_many_data_ranges() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    let ranges: Vec<_> = (0..5).map(|at| at << 16..(at << 16) + 4096).collect();
    let mut writer = tar::Writer::new(File::create(dir.path("holes.tar")).unwrap());
    for number in 0..40 {
        let entry = entry(&format!("file {number}"), file(5 << 16));
        writer.append(&entry, Some(&ranges)).unwrap();
        writer.write_data(&[7; 5 * 4096]).unwrap();
    }
    writer.finish().unwrap();
    dir.ok(&["tar", "-xf", "holes.tar", "holes.img:", "--create", "auto"]);
    fsck(&dir.path("holes.img"));
}

/// Sends a command the signal TERM once `is_ready`, and asserts that it ends.
fn assert_terminated(mut child: Child, is_ready: impl Fn() -> bool) {
    while !is_ready() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // The pipe stays open.
    let pipe = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    drop(pipe);
}

#[test]
fn idle_pipe_ends_at_the_first_signal() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("tmp")).unwrap();
    let start = |size: &str, written: &[u8]| {
        let mut command = dir.command(&["tar", "-x", "new.img:", "--create", size]);
        command.env("TMPDIR", dir.path("tmp"));
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let pipe = child.stdin.as_mut().unwrap();
        pipe.write_all(written).unwrap();
        child
    };
    for written in [&b""[..], &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0]] {
        assert_terminated(start("16M", written), || dir.path("new.img").exists());
        assert!(!dir.path("new.img").exists());
    }
    // For an automatic size the input is stored first.
    let stored = || std::fs::read_dir(dir.path("tmp")).unwrap().count();
    assert_terminated(start("auto", b""), || stored() == 1);
    assert_eq!(stored(), 0);
}
