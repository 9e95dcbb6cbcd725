//! External changes of a mounted directory: a read returns the old or the new state, and soon the
//! new one. docs/semantics.md quotes these tests.
//!
//! Each test prints the delay (`--nocapture`) but does not limit it: `folio bench shared-folder`
//! measures it.

use crate::support::tools::{command, text};
use crate::support::{Need, requires};
use crate::{Fixture, MountSource};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const LEN: usize = 16 * PAGE;
/// How long a change may stay unseen before the test gives up. Only a lost change takes longer: on
/// a busy machine the server may wait for seconds for a processor.
const LOST: Duration = Duration::from_secs(120);

/// When the mount shows an external change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// By the next call.
    AtOnce,
    /// After a TTL, or a notice.
    Soon,
}

/// A directory of the host and a mount of it.
struct SharedMount {
    fixture: Fixture,
    options: &'static str,
    promise: Promise,
}

impl SharedMount {
    fn new(options: &'static str, promise: Promise) -> Self {
        let source = if options.contains("passthrough=on") {
            MountSource::Passthrough
        } else {
            MountSource::Directory
        };
        Self {
            fixture: Fixture::on(source, options),
            options,
            promise,
        }
    }

    fn host(&self, name: &str) -> PathBuf {
        self.fixture.behind.join(name)
    }

    fn mount(&self, name: &str) -> PathBuf {
        self.fixture.at(name)
    }

    /// Waits until a change is seen, as long as the promise permits.
    #[track_caller]
    fn seen(&self, what: &str, mut is_seen: impl FnMut() -> bool) {
        let start = Instant::now();
        let mut looks = 0;
        while !is_seen() {
            looks += 1;
            assert!(
                self.promise == Promise::Soon,
                "{}: {what}: not at once",
                self.options
            );
            assert!(start.elapsed() < LOST, "{}: {what}: never", self.options);
            std::thread::yield_now();
        }
        let delay = start.elapsed();
        println!(
            "{}: {what}: {:.2} ms, {looks} looks before",
            self.options,
            delay.as_secs_f64() * 1e3
        );
    }
}

/// Returns the version of all pages, `None` if some are still old. Each page must be of one version
/// throughout.
#[track_caller]
fn version(bytes: &[u8], old: u8, new: u8) -> Option<u8> {
    for page in bytes.chunks(PAGE) {
        assert!(
            page.iter().all(|byte| *byte == page[0]),
            "a page of two versions"
        );
        assert!(
            [old, new].contains(&page[0]),
            "version {} instead of {old} or {new}",
            page[0]
        );
    }
    let first = bytes.first().copied()?;
    bytes.iter().all(|byte| *byte == first).then_some(first)
}

/// A file mapped for reading.
struct Mapped(*const u8, usize);

impl Mapped {
    fn new(file: &File, len: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory that is in use.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Self(at.unwrap().cast::<u8>().cast_const(), len)
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the mapping is readable for its whole length. External writers change it, so each
        // byte is read by itself.
        (0..self.1)
            .map(|at| unsafe { self.0.wrapping_add(at).read_volatile() })
            .collect()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: there is no reference into the mapping.
        let _ = unsafe { rustix::mm::munmap(self.0.cast_mut().cast(), self.1) };
    }
}

fn sent(path: &Path, scratch: &Path) -> Vec<u8> {
    let (from, to) = (File::open(path).unwrap(), File::create(scratch).unwrap());
    let mut offset = 0;
    while rustix::fs::sendfile(&to, &from, Some(&mut offset), LEN).unwrap() > 0 {}
    fs::read(scratch).unwrap()
}

/// Contents of the same size: through a file held open, a new open, sendfile and a mapping.
fn contents(shared: &SharedMount) {
    let (host, mount) = (shared.host("contents"), shared.mount("contents"));
    let scratch = shared.fixture.folder.path().join("scratch");
    fs::write(&host, [0; LEN]).unwrap();
    let held = File::open(&mount).unwrap();
    let mapped = Mapped::new(&held, LEN);
    let writer = OpenOptions::new().write(true).open(&host).unwrap();
    for new in 1..5_u8 {
        let old = new - 1;
        let mut buf = [0; LEN];
        held.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(version(&mapped.bytes(), old, old), Some(old));
        writer.write_all_at(&[new; LEN], 0).unwrap();
        shared.seen("contents, of a file held open", || {
            held.read_exact_at(&mut buf, 0).unwrap();
            version(&buf, old, new) == Some(new)
        });
        shared.seen("contents, opened anew", || {
            version(&fs::read(&mount).unwrap(), old, new) == Some(new)
        });
        shared.seen("contents, by sendfile", || {
            version(&sent(&mount, &scratch), old, new) == Some(new)
        });
        shared.seen("contents, mapped", || {
            version(&mapped.bytes(), old, new) == Some(new)
        });
    }
}

fn sizes(shared: &SharedMount) {
    let (host, mount) = (shared.host("sizes"), shared.mount("sizes"));
    fs::write(&host, "short").unwrap();
    let held = File::open(&mount).unwrap();
    let all = |file: &File| {
        let mut bytes = vec![0; 3 * LEN];
        let mut len = 0;
        while let count @ 1.. = file.read_at(&mut bytes[len..], len as u64).unwrap() {
            len += count;
        }
        bytes.truncate(len);
        bytes
    };
    assert_eq!(all(&held), b"short");
    let writer = OpenOptions::new().append(true).open(&host).unwrap();
    let append = |bytes: &[u8]| std::io::Write::write_all(&mut &writer, bytes).unwrap();
    append(b" and more");
    shared.seen("appended bytes", || all(&held) == b"short and more");
    shared.seen("size by stat", || fs::metadata(&mount).unwrap().len() == 14);
    append(&[7; LEN]);
    shared.seen("many appended bytes", || {
        held.metadata().unwrap().len() == 14 + LEN as u64
    });
    shared.seen("their contents", || {
        all(&held).len() == 14 + LEN && all(&held)[14..] == [7; LEN]
    });
    writer.set_len(3).unwrap();
    shared.seen("truncation", || all(&held) == b"sho");
    writer.set_len(8).unwrap();
    shared.seen("growth by a hole", || all(&held) == b"sho\0\0\0\0\0");
    // An append through the mount goes to the end that the external writer has moved.
    append(b"theirs");
    shared.seen("the moved end", || all(&held).ends_with(b"theirs"));
    let mut ours = OpenOptions::new().append(true).open(&mount).unwrap();
    std::io::Write::write_all(&mut ours, b"ours").unwrap();
    assert_eq!(fs::read(&host).unwrap(), b"sho\0\0\0\0\0theirsours");
}

/// An append goes to the end of the file also if its size has changed on the host since the client
/// saw it.
fn appends(shared: &SharedMount) {
    let (host, mount) = (shared.host("appends"), shared.mount("appends"));
    fs::write(&host, b"one ").unwrap();
    let mut ours = OpenOptions::new().append(true).open(&mount).unwrap();
    let mut theirs = OpenOptions::new().append(true).open(&host).unwrap();
    let (ours, theirs): (&mut dyn std::io::Write, &mut dyn std::io::Write) =
        (&mut ours, &mut theirs);
    for (file, words) in [(theirs, b"two "), (ours, b"six ")] {
        file.write_all(words).unwrap();
    }
    assert_eq!(fs::read(&host).unwrap(), b"one two six ");
}

fn names(shared: &SharedMount) {
    let (host, mount) = (
        |name: &str| shared.host(name),
        |name: &str| shared.mount(name),
    );
    fs::create_dir(host("names")).unwrap();
    let listing = || {
        let mut names: Vec<_> = fs::read_dir(mount("names"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    shared.seen("a new directory", || mount("names").is_dir());
    assert!(listing().is_empty() && !mount("names/a").exists());
    fs::write(host("names/a"), "a").unwrap();
    shared.seen("a new file", || mount("names/a").exists());
    shared.seen("its name in the listing", || listing() == ["a"]);
    // The name is replaced: an open file stays the old one.
    let held = File::open(mount("names/a")).unwrap();
    fs::write(host("names/b"), "another").unwrap();
    fs::rename(host("names/b"), host("names/a")).unwrap();
    shared.seen("a replaced file", || {
        fs::read(mount("names/a")).is_ok_and(|read| read == b"another")
    });
    let mut kept = [0; 16];
    let read = held.read_at(&mut kept, 0);
    assert!(
        read.is_ok_and(|count| kept[..count] == *b"a"),
        "the file held open has changed"
    );
    shared.seen("the listing after it", || listing() == ["a"]);
    fs::rename(host("names/a"), host("names/c")).unwrap();
    shared.seen("a name renamed away", || !mount("names/a").exists());
    shared.seen("the new name", || {
        fs::read(mount("names/c")).is_ok_and(|read| read == b"another")
    });
    fs::remove_file(host("names/c")).unwrap();
    shared.seen("an unlinked file", || !mount("names/c").exists());
    shared.seen("the empty listing", || listing().is_empty());
    for target in ["here", "there", "elsewhere"] {
        let _ = fs::remove_file(host("names/link"));
        symlink(target, host("names/link")).unwrap();
        let is_new =
            || fs::read_link(mount("names/link")).is_ok_and(|read| read == Path::new(target));
        shared.seen("the target of a link", is_new);
    }
}

fn attributes(shared: &SharedMount) {
    let (host, mount) = (shared.host("attributes"), shared.mount("attributes"));
    fs::write(&host, "x").unwrap();
    for mode in [0o600, 0o444, 0o4755] {
        fs::set_permissions(&host, fs::Permissions::from_mode(mode)).unwrap();
        shared.seen("mode", || {
            fs::metadata(&mount).unwrap().mode() & 0o7777 == mode
        });
    }
    std::os::unix::fs::chown(&host, Some(12), Some(34)).unwrap();
    shared.seen("owner", || {
        fs::metadata(&mount).is_ok_and(|now| (now.uid(), now.gid()) == (12, 34))
    });
    fs::hard_link(&host, shared.host("another name")).unwrap();
    shared.seen("link count", || fs::metadata(&mount).unwrap().nlink() == 2);
    let same = || fs::metadata(shared.mount("another name")).is_ok_and(|now| now.nlink() == 2);
    shared.seen("the other name", same);
    let set = |value: &[u8]| {
        rustix::fs::setxattr(&host, "user.note", value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    for value in [&b"one"[..], b"two"] {
        set(value);
        let mut buf = [0; 16];
        shared.seen("an extended attribute", || {
            rustix::fs::getxattr(&mount, "user.note", &mut buf)
                .is_ok_and(|len| buf[..len] == *value)
        });
    }
}

fn directories(shared: &SharedMount) {
    let (host, mount) = (
        |name: &str| shared.host(name),
        |name: &str| shared.mount(name),
    );
    for (folder, text) in [("one", "1"), ("two", "2")] {
        fs::create_dir_all(host(folder).join("deep")).unwrap();
        fs::write(host(folder).join("deep/f"), text).unwrap();
    }
    shared.seen("trees", || {
        mount("one/deep/f").exists() && mount("two/deep/f").exists()
    });
    assert_eq!(fs::read(mount("one/deep/f")).unwrap(), b"1");
    fs::rename(host("one"), host("moved")).unwrap();
    fs::rename(host("two"), host("one")).unwrap();
    shared.seen("a directory in the place of another", || {
        fs::read(mount("one/deep/f")).is_ok_and(|read| read == b"2")
    });
    shared.seen("the other in a new place", || {
        fs::read(mount("moved/deep/f")).is_ok_and(|read| read == b"1")
    });
    // Files looked up by their old names are written by their new ones.
    fs::write(mount("moved/deep/f"), "written").unwrap();
    fs::write(mount("moved/deep/g"), "made").unwrap();
    assert_eq!(fs::read(host("moved/deep/f")).unwrap(), b"written");
    assert_eq!(fs::read(host("moved/deep/g")).unwrap(), b"made");
    fs::remove_dir_all(host("moved")).unwrap();
    shared.seen("a removed tree", || !mount("moved").exists());
}

/// A program has a directory open that the host moves. It does not look the new path up.
fn moved_directory(shared: &SharedMount) {
    fs::create_dir_all(shared.host("from/deep/down")).unwrap();
    fs::create_dir(shared.host("to")).unwrap();
    fs::write(shared.host("from/deep/down/f"), "1").unwrap();
    let path = shared.mount("from/deep/down");
    shared.seen("a tree", || path.join("f").exists());
    let directory = File::open(&path).unwrap();
    let held = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let names = || fs::read_dir(&held).unwrap().count();
    assert_eq!(names(), 1);
    fs::rename(shared.host("from/deep"), shared.host("to/deep")).unwrap();
    let moved = shared.host("to/deep/down");
    for name in ["before", "after"] {
        assert_eq!(fs::read(held.join("f")).unwrap(), b"1", "{name}");
        fs::write(held.join(name), name).unwrap();
        assert_eq!(fs::read(moved.join(name)).unwrap(), name.as_bytes());
        shared.seen("a move", || !shared.mount("from/deep").exists());
    }
    assert_eq!(names(), 3);
    shared.seen("the new path", || {
        shared.mount("to/deep/down/after").exists()
    });
    fs::remove_dir_all(shared.host("to")).unwrap();
}

fn everything(options: &'static str, promise: Promise) {
    let shared = SharedMount::new(options, promise);
    contents(&shared);
    sizes(&shared);
    names(&shared);
    attributes(&shared);
    directories(&shared);
    moved_directory(&shared);
    shared.fixture.finish();
}

#[test]
fn push_external_change_is_seen_soon() {
    requires!(root, fuse);
    everything("rw,push=inotify", Promise::Soon);
}

#[test]
fn ttl_external_change_is_seen_soon() {
    requires!(root, fuse);
    everything("rw,push=off,ttl=30ms", Promise::Soon);
}

#[test]
fn zero_ttl_external_change_is_seen_at_once() {
    requires!(root, fuse, linux(6, 13));
    let shared = SharedMount::new("rw,push=off,ttl=0", Promise::AtOnce);
    // Mapped pages are revalidated when any program reads the file or its attributes.
    contents(&shared);
    sizes(&shared);
    names(&shared);
    attributes(&shared);
    directories(&shared);
    moved_directory(&shared);
    shared.fixture.finish();
}

#[test]
fn no_cache_external_change_is_seen_soon() {
    requires!(root, fuse, linux(6, 6));
    let shared = SharedMount::new("rw,cache=none", Promise::Soon);
    // Pages that are mapped stay as they are.
    sizes(&shared);
    appends(&shared);
    names(&shared);
    attributes(&shared);
    directories(&shared);
    moved_directory(&shared);
    shared.fixture.finish();
}

#[test]
fn passthrough_external_change_is_seen_soon() {
    requires!(root, fuse, linux(6, 9));
    everything("rw,passthrough=on", Promise::Soon);
}

/// Contents of files that the kernel reads by itself are the host's, so they are seen at once.
#[test]
fn passthrough_contents_are_seen_at_once() {
    requires!(root, fuse, linux(6, 9));
    let shared = SharedMount::new("rw,passthrough=on,push=off,ttl=inf", Promise::AtOnce);
    contents(&shared);
    // Not so the time of modification.
    shared.fixture.mount.unmount();
}

/// Replaces a file repeatedly: each open reads one whole version, never older than the one before.
fn versions(options: &'static str) {
    let shared = SharedMount::new(options, Promise::Soon);
    let write = |version: u32| {
        let bytes = version
            .to_le_bytes()
            .repeat(1 + version as usize * 97 % 5000);
        fs::write(shared.host("new"), bytes).unwrap();
        fs::rename(shared.host("new"), shared.host("f")).unwrap();
    };
    write(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut last, mut reads, mut stale) = (0, 0, 0);
            loop {
                let was_over = is_over.load(Ordering::Acquire);
                let mut bytes = Vec::new();
                match File::open(shared.mount("f"))
                    .and_then(|mut file| file.read_to_end(&mut bytes))
                {
                    Ok(_) => {}
                    // Replaced twice between two steps of one open(2), as over NFS.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::STALE) => {
                        stale += 1;
                        continue;
                    }
                    Err(error) => panic!("{options}: {error}"),
                }
                let version = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                let whole = version
                    .to_le_bytes()
                    .repeat(1 + version as usize * 97 % 5000);
                assert!(
                    bytes == whole,
                    "{options}: version {version} is not whole: {} bytes",
                    bytes.len()
                );
                assert!(version >= last, "{options}: version {version} after {last}");
                (last, reads) = (version, reads + 1);
                if was_over && version == 300 {
                    return (reads, stale);
                }
            }
        });
        (1..=300).for_each(write);
        is_over.store(true, Ordering::Release);
        let (reads, stale) = reader.join().unwrap();
        println!("{options}: {reads} reads, {stale} times ESTALE");
    });
    shared.fixture.finish();
}

#[test]
fn replaced_file_is_read_whole() {
    requires!(root, fuse);
    for options in [
        "rw,push=inotify",
        "rw,push=off,ttl=1ms",
        "rw,push=off,ttl=0",
        "rw,cache=none",
    ] {
        versions(options);
    }
    if Need::Linux(6, 9).met().is_ok() {
        versions("rw,passthrough=on");
    }
}

/// Between a write on the host and its notice, a page with old bytes does not get the new size.
#[test]
fn old_page_never_gets_new_size() {
    requires!(root, fuse);
    let shared = SharedMount::new("push=inotify", Promise::Soon);
    for round in 0..500 {
        let name = format!("f{}", round % 50);
        for (new, old_with_new_size) in [("1\n", "22"), ("22\n", "1\n\0")] {
            fs::write(shared.host(&name), new).unwrap();
            let start = Instant::now();
            loop {
                let mut buf = [0; 8];
                let file = File::open(shared.mount(&name)).unwrap();
                file.metadata().unwrap();
                let count = file.read_at(&mut buf, 0).unwrap();
                let seen = str::from_utf8(&buf[..count]).unwrap();
                if seen == new {
                    break;
                }
                assert_ne!(seen, old_with_new_size, "round {round}");
                assert!(start.elapsed() < LOST, "round {round}: {new:?} never");
            }
        }
    }
    shared.fixture.finish();
}

/// Data written through the mount stays in the kernel's cache: only external changes are pushed.
#[test]
fn own_write_keeps_cached_pages() {
    requires!(root, fuse, tool("fincore"));
    let shared = SharedMount::new("rw,push=inotify", Promise::Soon);
    let resident = |name: &str| {
        let output = command("fincore")
            .args(["-bnro", "RES"])
            .arg(shared.mount(name))
            .output()
            .unwrap();
        text(&output).trim().parse::<usize>().unwrap()
    };
    fs::write(shared.mount("ours"), [1; LEN]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(shared.mount("ours"))
        .unwrap();
    for version in 2..6 {
        file.write_all_at(&[version; LEN], 0).unwrap();
    }
    assert_eq!(resident("ours"), LEN);
    // Notices come in the order of changes: after this one, none is pending for the writes above.
    fs::write(shared.host("theirs"), "x").unwrap();
    shared.seen("a file created by the host", || {
        shared.mount("theirs").exists()
    });
    fs::write(shared.host("theirs"), "changed").unwrap();
    shared.seen("its change", || {
        fs::read(shared.mount("theirs")).unwrap() == b"changed"
    });
    assert_eq!(
        fs::metadata(shared.mount("ours")).unwrap().len(),
        LEN as u64
    );
    assert_eq!(resident("ours"), LEN);
    drop(file);
    shared.fixture.finish();
}

/// While the server is stopped, the host's event queue overflows: then everything may have changed.
#[test]
fn change_after_queue_overflow_is_seen() {
    requires!(root, fuse);
    let shared = SharedMount::new("rw,push=inotify", Promise::Soon);
    let max = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let max: usize = max.trim().parse().unwrap();
    if max > 100_000 {
        return crate::support::require::report_skip("needs an event queue that can be filled");
    }
    fs::create_dir_all(shared.host("folder/deep")).unwrap();
    fs::write(shared.host("folder/f"), "old").unwrap();
    fs::write(shared.host("folder/deep/f"), "old").unwrap();
    let reads = |text: &[u8]| {
        ["folder/f", "folder/deep/f"]
            .iter()
            .all(|name| fs::read(shared.mount(name)).is_ok_and(|read| read == text))
    };
    shared.seen("the initial files", || reads(b"old"));
    assert!(!shared.mount("folder/new").exists() && !shared.mount("new").exists());
    let held = File::open(shared.mount("folder/f")).unwrap();
    let server = shared.fixture.mount.process();
    rustix::process::kill_process(server, rustix::process::Signal::STOP).unwrap();
    // Two files in turn: equal consecutive events are merged.
    let noise = ["folder/one", "folder/two"].map(|name| File::create(shared.host(name)).unwrap());
    for number in 0..max + 1000 {
        noise[number % 2].write_all_at(b"x", 0).unwrap();
    }
    fs::write(shared.host("folder/f"), "newer").unwrap();
    fs::write(shared.host("folder/deep/f"), "newer").unwrap();
    fs::write(shared.host("folder/new"), "").unwrap();
    fs::write(shared.host("new"), "").unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::CONT).unwrap();
    shared.seen("contents", || reads(b"newer"));
    let mut buf = [0; 16];
    shared.seen("contents of a file held open", || {
        held.read_at(&mut buf, 0)
            .is_ok_and(|count| buf[..count] == *b"newer")
    });
    shared.seen("new names", || {
        shared.mount("folder/new").exists() && shared.mount("new").exists()
    });
    drop(held);
    shared.fixture.finish();
}

/// Host and mount change the same directories at the same time: no call hangs, calls on own files
/// succeed, and in the end both sides agree.
#[test]
fn concurrent_host_and_mount_changes_agree() {
    requires!(root, fuse);
    for options in [
        "rw,push=inotify",
        "rw,push=off,ttl=0",
        "rw,push=off,ttl=20ms",
    ] {
        let shared = SharedMount::new(options, Promise::Soon);
        let (host, mount) = (
            |name: &str| shared.host(name),
            |name: &str| shared.mount(name),
        );
        fs::create_dir(host("d")).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // An entry may be unlinked before it is opened.
                    for entry in fs::read_dir(mount("d")).unwrap().flatten() {
                        let _ = (entry.metadata(), fs::read(entry.path()));
                    }
                }
            });
            let theirs = scope.spawn(|| {
                for round in 0..400 {
                    let name = host(&format!("d/theirs {}", round % 8));
                    fs::write(host("d/new"), vec![7; round * 31]).unwrap();
                    fs::rename(host("d/new"), &name).unwrap();
                    fs::create_dir_all(host("e/deep")).unwrap();
                    fs::rename(host("e"), host("moved")).unwrap();
                    fs::remove_dir_all(host("moved")).unwrap();
                }
            });
            for round in 0..100_usize {
                let name = mount(&format!("d/ours {}", round % 8));
                fs::write(mount("d/own"), vec![8; round * 31]).unwrap();
                fs::rename(mount("d/own"), &name).unwrap();
                assert_eq!(fs::metadata(&name).unwrap().len(), round as u64 * 31);
                fs::create_dir_all(mount("own/deep")).unwrap();
                fs::remove_dir_all(mount("own")).unwrap();
            }
            theirs.join().unwrap();
            is_over.store(true, Ordering::Relaxed);
        });
        let names = |folder: PathBuf| {
            let mut names: Vec<_> = fs::read_dir(folder)
                .unwrap()
                .map(|entry| {
                    let entry = entry.unwrap();
                    (
                        entry.file_name(),
                        fs::read(entry.path()).unwrap_or_default(),
                    )
                })
                .collect();
            names.sort();
            names
        };
        shared.seen("the same on both sides", || {
            names(mount("d")) == names(host("d"))
        });
        let changed = |folder: PathBuf| fs::metadata(folder).unwrap().modified().unwrap();
        shared.seen("the same times", || {
            changed(mount("d")) == changed(host("d"))
        });
        shared.fixture.finish();
    }
}

/// Events of the external write look like those of the mount's own write.
#[test]
fn external_change_after_own_write_is_seen() {
    requires!(root, fuse);
    let shared = SharedMount::new("rw,push=inotify", Promise::Soon);
    let theirs = File::create(shared.host("f")).unwrap();
    let ours = OpenOptions::new()
        .read(true)
        .write(true)
        .open(shared.mount("f"))
        .unwrap();
    for version in (2..20).step_by(2) {
        ours.write_all_at(&[version; LEN], 0).unwrap();
        theirs.write_all_at(&[version + 1; LEN], 0).unwrap();
        let mut buf = [0; LEN];
        shared.seen("the external write after the own one", || {
            ours.read_exact_at(&mut buf, 0).unwrap();
            self::version(&buf, version, version + 1) == Some(version + 1)
        });
    }
    drop(ours);
    shared.fixture.finish();
}

/// Every call after a write that bypasses Folio knows its effect.
#[test]
fn passthrough_write_is_known_at_once() {
    requires!(root, fuse, linux(6, 9));
    let shared = SharedMount::new("rw,passthrough=on,push=off,ttl=inf", Promise::AtOnce);
    let path = shared.mount("f");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    for round in 1..5_u64 {
        file.write_all_at(&[round as u8; PAGE], (round - 1) * PAGE as u64)
            .unwrap();
        let (seen, there) = (
            fs::metadata(&path).unwrap(),
            fs::metadata(shared.host("f")).unwrap(),
        );
        assert_eq!((seen.len(), seen.len()), (round * PAGE as u64, there.len()));
        assert_eq!(
            (seen.mtime(), seen.mtime_nsec()),
            (there.mtime(), there.mtime_nsec())
        );
    }
    let copy = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(shared.mount("copy"))
        .unwrap();
    let (mut from, mut to) = (0, 0);
    while from < 4 * PAGE as u64 {
        let left = 4 * PAGE - from as usize;
        assert!(
            rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left)
                .unwrap()
                > 0
        );
    }
    assert_eq!(
        fs::read(shared.host("copy")).unwrap(),
        fs::read(shared.host("f")).unwrap()
    );
    drop((file, copy));
    let (seen, there) = (
        fs::metadata(&path).unwrap(),
        fs::metadata(shared.host("f")).unwrap(),
    );
    assert_eq!(
        (seen.mtime(), seen.mtime_nsec()),
        (there.mtime(), there.mtime_nsec())
    );
    shared.fixture.finish();
}
