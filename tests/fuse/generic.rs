//! Subjects of xfstests' group `generic/quick`, for a mount: xfs_io, fio and system calls as
//! drivers. `docs/xfstests.md` lists the subjects, with the test of each.

use crate::support::tools::{command, run, succeed, text};
use crate::{Fixture, MountSource, for_each_source};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

for_each_source! {
    mapped_write_beyond_end_stays_unseen: "rw", "xfs_io";
    mapped_write_updates_times: "rw", "xfs_io";
    patterns_of_any_alignment_read_back: "rw", "xfs_io";
    punched_and_zeroed_edges_match_model: "rw", "xfs_io";
    synced_append_has_its_size: "rw", "xfs_io";
    write_from_own_mapping_ends: "rw", "xfs_io";
    limit_of_file_size_is_kept: "rw", "xfs_io";
    directory_positions_find_their_names: "rw";
    listing_has_type_of_every_entry: "rw";
    overwriting_rename_updates_directories: "rw";
    truncate_updates_times: "rw";
    names_of_any_bytes_are_kept: "rw";
    replaced_xattr_has_new_value: "rw";
    copied_ranges_match_model: "rw", "xfs_io";
    working_directory_survives_renames: "rw";
    mixed_engines_verify_their_blocks: "rw", "fio";
}

/// Runs xfs_io on a file, which `options` may create; each command is a word of its own.
#[track_caller]
fn xfs_io(options: &str, path: &Path, commands: &[&str]) -> String {
    let mut xfs_io = command("xfs_io");
    xfs_io.arg(options);
    for words in commands {
        xfs_io.args(["-c", words]);
    }
    text(&succeed(xfs_io.arg(path)))
}

/// Sets a file's times to one second after 1970, so that every change moves them.
fn age(path: &Path) {
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let old = Timestamps {
        last_access: second,
        last_modification: second,
    };
    rustix::fs::utimensat(rustix::fs::CWD, path, &old, AtFlags::empty()).unwrap();
}

/// generic/029, 030: bytes written by a mapping behind the end are not data once the file grows.
fn mapped_write_beyond_end_stays_unseen(fixture: Fixture) {
    let path = fixture.at("mapped");
    for end in [1, 511, 512, 4095, 5121, 8191] {
        let room = 12288;
        xfs_io(
            "-ft",
            &path,
            &[
                &format!("pwrite -S 0x58 0 {end}"),
                &format!("mmap -rw 0 {room}"),
                &format!("mwrite -S 0x5a {end} {}", 4096 - end % 4096),
                "munmap",
                &format!("truncate {}", 2 * room),
                "fsync",
            ],
        );
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len(), 2 * room);
        let is_right = |(at, byte): (usize, &u8)| *byte == if at < end { 0x58 } else { 0 };
        let wrong = content.iter().enumerate().position(|pair| !is_right(pair));
        assert_eq!(wrong, None, "end {end}");
    }
    fixture.finish();
}

/// generic/080, 215: a write through a mapping is a change of the data.
fn mapped_write_updates_times(fixture: Fixture) {
    let path = fixture.at("mapped");
    fs::write(&path, vec![1; 8192]).unwrap();
    age(&path);
    let before = fs::metadata(&path).unwrap();
    xfs_io("-r", &path, &["mmap -r 0 8192", "mread 0 8", "munmap"]);
    assert_eq!(
        fs::metadata(&path).unwrap().mtime(),
        1,
        "a read changes no times"
    );
    xfs_io(
        "-a",
        &path,
        &[
            "mmap -rw 0 8192",
            "mwrite -S 2 0 8192",
            "msync -s",
            "munmap",
        ],
    );
    let after = fs::metadata(&path).unwrap();
    assert!(after.mtime() > 1, "mtime {}", after.mtime());
    let ctime = |found: &fs::Metadata| (found.ctime(), found.ctime_nsec());
    assert!(ctime(&after) >= ctime(&before) && fs::read(&path).unwrap() == vec![2; 8192]);
    fixture.finish();
}

/// generic/124, 130: writes at any offset, cached and direct, read back by both.
fn patterns_of_any_alignment_read_back(fixture: Fixture) {
    let path = fixture.at("pattern");
    let mut model = vec![0; 1 << 20];
    let mut commands = Vec::new();
    for (index, start) in [0, 1, 511, 4095, 4097, 65_535, 131_072, 400_001]
        .iter()
        .enumerate()
    {
        let (byte, len) = (index + 0x41, 30_000 + 777 * index);
        commands.push(format!(
            "pwrite -b {} -S {byte:#x} {start} {len}",
            1000 + 511 * index
        ));
        model[*start..start + len].fill(byte as u8);
    }
    commands.push("truncate 1m".to_owned());
    let commands: Vec<_> = commands.iter().map(String::as_str).collect();
    xfs_io("-ft", &path, &commands);
    assert!(fs::read(&path).unwrap() == model, "cached");
    xfs_io(
        "-d",
        &path,
        &["pwrite -S 0x7a 8k 12k", "pwrite -S 0x79 64k 4k"],
    );
    model[8 << 10..20 << 10].fill(0x7a);
    model[64 << 10..68 << 10].fill(0x79);
    assert!(fs::read(&path).unwrap() == model, "after direct writes");
    fixture.finish();
}

/// generic/008, 009, 316, 420, 469: holes and zeros at the edges of
/// blocks, in written, allocated and missing blocks.
fn punched_and_zeroed_edges_match_model(fixture: Fixture) {
    for call in ["fpunch", "fzero", "fzero -k"] {
        for state in ["pwrite -S 0x58 0 64k", "falloc 0 64k", "truncate 64k"] {
            for (start, len) in [
                (0, 4096),
                (1, 4095),
                (4095, 2),
                (100, 20_000),
                (60_000, 9000),
            ] {
                let path = fixture.at("edges");
                let change = format!("{call} {start} {len}");
                xfs_io("-ft", &path, &[state, &change, "fsync"]);
                let data = if state.starts_with("pwrite") { 0x58 } else { 0 };
                let mut model = vec![data; 64 << 10];
                let end = (start + len).min(model.len());
                model[start..end].fill(0);
                // Only zeros without -k reach beyond the end.
                if call == "fzero" && start + len > model.len() {
                    model.resize(start + len, 0);
                }
                let found = fs::read(&path).unwrap();
                assert!(found == model, "{state}; {change}: {} bytes", found.len());
            }
        }
    }
    fixture.finish();
}

/// generic/169: a write with O_SYNC at the end is in the file's size, and stays there.
fn synced_append_has_its_size(fixture: Fixture) {
    let path = fixture.at("log");
    for count in 1..=10_u64 {
        xfs_io("-fas", &path, &["pwrite -S 0x61 0 1004"]);
        assert_eq!(fs::metadata(&path).unwrap().len(), count * 1004);
    }
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0x61));
    fixture.finish();
}

/// generic/248: a write whose bytes are a mapping of the same pages ends, with the right bytes.
fn write_from_own_mapping_ends(fixture: Fixture) {
    let path = fixture.at("own");
    let content: Vec<u8> = (0..65_536_u32).map(|at| (at % 253) as u8).collect();
    fs::write(&path, &content).unwrap();
    let script = "import mmap, os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDWR)\n\
        view = memoryview(mmap.mmap(fd, 65536))\n\
        for at, source in ((0, 4096), (8192, 8192), (20000, 19999), (40000, 44000)):\n\
        \x20   os.pwrite(fd, view[source:source + 3000], at)\n";
    let output = command("timeout")
        .args(["60", "python3", "-c", script])
        .arg(&path)
        .output()
        .unwrap();
    if output.status.code() == Some(127) {
        return crate::report_skip("no python3");
    }
    assert!(output.status.success(), "{}", text(&output));
    let mut model = content;
    for (at, source) in [(0, 4096), (8192, 8192), (40_000, 44_000)] {
        model.copy_within(source..source + 3000, at);
    }
    let found = fs::read(&path).unwrap();
    // The source and the target of the third write overlap: any order of bytes is right.
    let apart = |bytes: &[u8]| [&bytes[..19_999], &bytes[23_000..]].concat();
    assert!(apart(&found) == apart(&model) && found.len() == model.len());
    fixture.finish();
}

/// generic/228, 394: RLIMIT_FSIZE limits writes, truncation and allocation; nothing changes beyond.
fn limit_of_file_size_is_kept(fixture: Fixture) {
    let path = fixture.at("limited");
    let limited = |request: &str| {
        // `ulimit -f` counts 512 bytes in sh; the signal is ignored, so that the call fails.
        let script = format!("trap '' XFSZ; ulimit -f 128; exec xfs_io -f -c '{request}' \"$0\"");
        let output = command("sh")
            .args(["-c", &script])
            .arg(&path)
            .output()
            .unwrap();
        text(&output)
    };
    assert!(!limited("pwrite 0 64k").contains("File too large"));
    for request in [
        "pwrite 64k 4k",
        "truncate 65537",
        "falloc 60k 8k",
        "fzero 60k 8k",
    ] {
        let said = limited(request);
        assert!(said.contains("File too large"), "{request}: {said}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 65_536, "{request}");
    }
    fixture.finish();
}

/// generic/257: a directory can be read on from each position that it gave.
fn directory_positions_find_their_names(fixture: Fixture) {
    let folder = fixture.at("many");
    fs::create_dir(&folder).unwrap();
    for index in 0..700 {
        fs::write(folder.join(format!("a-name-of-some-length-{index}")), "").unwrap();
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = rustix::fs::open(&folder, flags, Mode::empty()).unwrap();
    let read = |from: u64, count: usize| -> Vec<(u64, Vec<u8>)> {
        rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(from)).unwrap();
        let mut room = vec![std::mem::MaybeUninit::uninit(); 4096];
        let mut listing = rustix::fs::RawDir::new(&fd, &mut room);
        let mut found = Vec::new();
        while found.len() < count {
            let Some(entry) = listing.next() else { break };
            let entry = entry.unwrap();
            found.push((
                entry.next_entry_cookie(),
                entry.file_name().to_bytes().to_vec(),
            ));
        }
        found
    };
    let all = read(0, usize::MAX);
    assert_eq!(all.len(), 702);
    let positions: BTreeMap<u64, usize> = all
        .iter()
        .enumerate()
        .map(|(index, (position, _))| (*position, index))
        .collect();
    assert_eq!(positions.len(), all.len(), "every position is another one");
    for index in (0..all.len() - 1).rev().step_by(7) {
        let next = read(all[index].0, 1);
        assert_eq!(next[0].1, all[index + 1].1, "after entry {index}");
    }
    assert!(
        read(all[all.len() - 1].0, 1).is_empty(),
        "nothing follows the last entry"
    );
    drop(fd);
    fixture.finish();
}

/// generic/401: the types that a listing gives are those of the inodes.
fn listing_has_type_of_every_entry(fixture: Fixture) {
    let at = |name: &str| fixture.at(name);
    fs::write(at("file"), "").unwrap();
    fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    run("mkfifo", [at("fifo")]);
    let device = |name: &str, kind: &str| {
        run(
            "mknod",
            [
                at(name).into_os_string(),
                kind.into(),
                "1".into(),
                "3".into(),
            ],
        );
    };
    device("character", "c");
    device("block", "b");
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    let mut count = 0;
    for entry in fs::read_dir(fixture.mount.path()).unwrap() {
        let entry = entry.unwrap();
        let listed = entry.file_type().unwrap();
        let found = fs::symlink_metadata(entry.path()).unwrap().file_type();
        assert_eq!(listed, found, "{:?}", entry.path());
        count += usize::from(!listed.is_dir());
    }
    let is_socket = fs::symlink_metadata(at("socket"))
        .unwrap()
        .file_type()
        .is_socket();
    assert!(count == 6 && is_socket, "{count}");
    fixture.finish();
}

/// generic/309: a rename over a name changes both directories.
fn overwriting_rename_updates_directories(fixture: Fixture) {
    let (from, to) = (fixture.at("from"), fixture.at("to"));
    for folder in [&from, &to] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("name"), "").unwrap();
        age(folder);
    }
    fs::rename(from.join("name"), to.join("name")).unwrap();
    for folder in [&from, &to] {
        assert!(
            fs::metadata(folder).unwrap().mtime() > 1,
            "{}",
            folder.display()
        );
    }
    fixture.finish();
}

/// generic/313: ftruncate(2) to another size changes both times.
fn truncate_updates_times(fixture: Fixture) {
    let path = fixture.at("file");
    fs::write(&path, vec![1; 10_000]).unwrap();
    for size in [100, 10_000_000] {
        age(&path);
        let before = fs::metadata(&path).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(size)
            .unwrap();
        let after = fs::metadata(&path).unwrap();
        let ctime = |found: &fs::Metadata| (found.ctime(), found.ctime_nsec());
        assert!(
            after.mtime() > 1 && ctime(&after) >= ctime(&before),
            "{size}"
        );
        assert_eq!(after.len(), size);
    }
    fixture.finish();
}

/// generic/453, 454: names and attributes of any bytes are kept apart.
fn names_of_any_bytes_are_kept(fixture: Fixture) {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let folder = fixture.at("names");
    fs::create_dir(&folder).unwrap();
    // One letter in two forms of Unicode, invalid UTF-8, control characters, right-to-left marks.
    let names: [&[u8]; 9] = [
        b"caf\xc3\xa9",
        b"cafe\xcc\x81",
        b"\xff\xfe",
        b"\x01\x1b[2J",
        b"a\xe2\x80\xaeb",
        b"a\xe2\x80\x8bb",
        b"ab",
        b" ",
        b"...",
    ];
    for (index, name) in names.iter().enumerate() {
        let path = folder.join(std::ffi::OsStr::from_bytes(name));
        File::create_new(&path)
            .unwrap()
            .write_all_at(&[index as u8], 0)
            .unwrap();
    }
    let listed = fs::read_dir(&folder).unwrap();
    let mut listed: Vec<_> = listed
        .map(|entry| entry.unwrap().file_name().into_vec())
        .collect();
    listed.sort();
    let mut expected: Vec<_> = names.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    assert_eq!(listed, expected);
    for (index, name) in names.iter().enumerate() {
        let path = folder.join(std::ffi::OsStr::from_bytes(name));
        assert_eq!(fs::read(path).unwrap(), [index as u8]);
    }
    fixture.finish();
}

/// generic/422, 614: data that is not written back yet counts as blocks: programs that copy
/// sparse files rely on it. The kernel's writeback cache counts none: a limit.
#[test]
fn new_data_has_blocks_at_once() {
    let places = [
        (MountSource::Image, "rw,nowriteback"),
        (MountSource::Directory, "rw"),
        (MountSource::Passthrough, "rw"),
    ];
    for (source, options) in places {
        if let Some(fixture) = Fixture::try_on(source, options, &[]) {
            check_blocks_of_new_data(fixture);
        }
    }
}

fn check_blocks_of_new_data(fixture: Fixture) {
    let path = fixture.at("delayed");
    for round in 0..20 {
        let file = File::create(&path).unwrap();
        file.write_all_at(&[1; 65_536], 0).unwrap();
        let written = file.metadata().unwrap().blocks();
        file.sync_all().unwrap();
        let synced = file.metadata().unwrap().blocks();
        fs::remove_file(&path).unwrap();
        assert!(
            written > 0 && synced >= 128,
            "{:?}, {round}: {written}, {synced}",
            fixture.source
        );
    }
    fixture.finish();
}

/// With the kernel's writeback cache, the blocks of a file are right once it is closed.
#[test]
fn closed_file_has_its_blocks() {
    let Some(fixture) = Fixture::try_on(MountSource::Image, "rw", &[]) else {
        return;
    };
    for index in 0..20 {
        let path = fixture.at(&format!("closed{index}"));
        fs::write(&path, vec![1; 65_536]).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() >= 128, "file {index}");
    }
    fixture.finish();
}

/// generic/337, 486, 523: attributes replaced by longer and shorter values; a name with a slash.
fn replaced_xattr_has_new_value(fixture: Fixture) {
    let path = fixture.at("attributes");
    fs::write(&path, "").unwrap();
    let name = "user.a/b";
    for len in [1, 200, 3000, 40, 3500, 0, 2000] {
        let value = vec![len as u8; len];
        rustix::fs::setxattr(&path, name, &value, XattrFlags::empty()).unwrap();
        let mut found = vec![0; 4096];
        let found_len = rustix::fs::getxattr(&path, name, &mut found[..]).unwrap();
        assert_eq!(&found[..found_len], &value[..]);
    }
    let made = rustix::fs::setxattr(&path, name, b"x", XattrFlags::CREATE);
    assert_eq!(made, Err(Errno::EXIST));
    rustix::fs::removexattr(&path, name).unwrap();
    let replaced = rustix::fs::setxattr(&path, name, b"x", XattrFlags::REPLACE);
    assert_eq!(replaced, Err(Errno::NODATA));
    fixture.finish();
}

/// generic/430 to 434, 553, 564, 565: copy_file_range(2) within a file and between files, at and
/// beyond the end.
fn copied_ranges_match_model(fixture: Fixture) {
    let (source, target) = (fixture.at("source"), fixture.at("target"));
    let content: Vec<u8> = (0..100_000_u32).map(|at| (at % 241) as u8).collect();
    for (from, to, len) in [
        (0, 0, 100_000),
        (1000, 5000, 50_000),
        (99_999, 0, 1),
        (90_000, 150_000, 50_000),
        (100_000, 10, 5),
        (4096, 8192, 4096),
    ] {
        fs::write(&source, &content).unwrap();
        fs::write(&target, vec![9; 20_000]).unwrap();
        let words = format!("copy_range -s {from} -d {to} -l {len} {}", source.display());
        xfs_io("-f", &target, &[&words]);
        let copied = &content[from..(from + len).min(content.len())];
        let mut model = vec![9; 20_000];
        if !copied.is_empty() {
            model.resize(model.len().max(to + copied.len()), 0);
            model[to..to + copied.len()].copy_from_slice(copied);
        }
        assert!(fs::read(&target).unwrap() == model, "{words}");
    }
    // Within one file: apart succeeds, overlapping ranges are refused.
    let words = format!("copy_range -s 0 -d 60000 -l 30000 {}", source.display());
    xfs_io("-f", &source, &[&words]);
    let mut model = content;
    model.copy_within(0..30_000, 60_000);
    assert!(fs::read(&source).unwrap() == model, "within one file");
    let words = format!("copy_range -s 0 -d 10000 -l 30000 {}", source.display());
    let output = command("xfs_io")
        .args(["-c", &words])
        .arg(&source)
        .output()
        .unwrap();
    assert!(
        text(&output).contains("Invalid argument"),
        "{}",
        text(&output)
    );
    fixture.finish();
}

/// generic/028: getcwd(2) gives one of the names while a directory above is renamed.
fn working_directory_survives_renames(fixture: Fixture) {
    let (one, two) = (fixture.at("one"), fixture.at("two"));
    fs::create_dir_all(one.join("inner")).unwrap();
    let is_over = AtomicBool::new(false);
    let script = "for i in $(seq 200); do /bin/pwd -P || exit 1; done";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                fs::rename(&one, &two).unwrap();
                fs::rename(&two, &one).unwrap();
            }
        });
        let fd = [&one, &two]
            .into_iter()
            .cycle()
            .find_map(|name| File::open(name.join("inner")).ok());
        let mut shell = command("sh");
        shell.args(["-c", &format!("cd /proc/self/fd/0 && {script}")]);
        let output = shell.stdin(fd.unwrap()).output().unwrap();
        is_over.store(true, Ordering::Release);
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        let known = [one.join("inner"), two.join("inner")].map(|path| path.display().to_string());
        assert!(
            said.lines()
                .all(|line| known.iter().any(|name| name == line)),
            "{said}"
        );
    });
    fixture.finish();
}

/// generic/091, 113, 198, 240, 263, 451, 465: cached, mapped and direct writers of one kind after
/// another; fio verifies every block.
fn mixed_engines_verify_their_blocks(fixture: Fixture) {
    let path = fixture.at("verified");
    let file = format!("--filename={}", path.display());
    for engine in [
        "--ioengine=psync",
        "--ioengine=mmap",
        "--ioengine=libaio --iodepth=8",
    ] {
        for direct in ["--direct=0", "--direct=1"] {
            // A passthrough file has the host's rules for direct calls, and a mapping has none.
            let is_odd = engine.contains("mmap") || fixture.source == MountSource::Passthrough;
            if is_odd && direct == "--direct=1" {
                continue;
            }
            let fixed = "--name=verify --size=8M --bs=4k --rw=randwrite --verify=crc32c \
                         --do_verify=1 --verify_fatal=1 --randseed=7 --minimal";
            let words = fixed
                .split_whitespace()
                .chain(engine.split(' '))
                .chain([direct]);
            let mut fio = command("fio");
            let output = succeed(
                fio.args(words)
                    .arg(&file)
                    .current_dir(fixture.folder.path()),
            );
            assert!(
                !text(&output).contains("verify:"),
                "{engine} {direct}: {}",
                text(&output)
            );
        }
    }
    assert_eq!(fs::metadata(&path).unwrap().len(), 8 << 20);
    fixture.finish();
}

/// generic/294, 306: on a read-only mount an existing name is EEXIST, a new one EROFS, and devices
/// stay writable.
#[test]
fn read_only_mount_refuses_only_changes() {
    let needs = ["mknod"];
    let Some(fixture) = Fixture::try_on(MountSource::Image, "rw,dev", &needs) else {
        return;
    };
    fs::create_dir(fixture.at("folder")).unwrap();
    let null = fixture.at("null");
    run(
        "mknod",
        [null.as_os_str(), "c".as_ref(), "1".as_ref(), "3".as_ref()],
    );
    run(
        "mount",
        [
            "-i".into(),
            "-o".into(),
            "remount,ro".into(),
            fixture.mount.path().into_os_string(),
        ],
    );
    let error = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    let errno = |errno: Errno| errno.raw_os_error();
    assert_eq!(
        error(fs::create_dir(fixture.at("folder"))),
        errno(Errno::EXIST)
    );
    assert_eq!(
        error(fs::create_dir(fixture.at("other"))),
        errno(Errno::ROFS)
    );
    assert_eq!(
        error(fs::write(fixture.at("file"), "x")),
        errno(Errno::ROFS)
    );
    fs::write(&null, "x").unwrap();
    fixture.finish();
}
