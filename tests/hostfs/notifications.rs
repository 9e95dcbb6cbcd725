//! Change notifications: listeners receive external changes, and the fallback without inotify.

use super::support;
use super::{LOST, World, errno, eventually, pause, write_host};
use folio::syscall::{AT_FDCWD, AtFlags, Caller, Credentials, OpenFlags};
use folio::vfs::{Change, ChangeListener, MountOptions};
use folio::{Errno, Kernel, KernelOptions};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A listener that records its notifications.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl ChangeListener for Notes {
    fn changed(&self, change: Change<'_>) {
        let note = match change {
            Change::Inode(number) => format!("inode {number}"),
            Change::Name(directory, name) => {
                format!("name {directory} {}", String::from_utf8_lossy(name))
            }
            // Not asked for.
            Change::Event(event) => format!("{event:?}"),
            Change::Everything => "everything".to_owned(),
        };
        self.0.lock().unwrap().push(note);
    }

    fn warned(&self) {
        self.0.lock().unwrap().push("warning".to_owned());
    }
}

impl Notes {
    fn has(&self, note: &str) -> bool {
        self.0.lock().unwrap().iter().any(|noted| noted == note)
    }

    /// Drops the notifications received so far.
    fn settle(&self) {
        pause(Duration::from_millis(100));
        self.0.lock().unwrap().clear();
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

fn listening(words: &str) -> (World, Arc<Notes>) {
    let world = World::new(words);
    let notes = Arc::new(Notes::default());
    let listener: Arc<dyn ChangeListener> = notes.clone();
    assert!(
        world
            .kernel
            .listen("/h", Arc::downgrade(&listener))
            .unwrap()
    );
    (world, notes)
}

#[test]
fn listeners_receive_external_changes() {
    let (world, notes) = listening("push=inotify");
    let p = &world.p;
    write_host(&world.host("f"), b"1");
    let root = p.stat("/h").unwrap().number;
    let file = p.stat("/h/f").unwrap().number;
    notes.settle();
    write_host(&world.host("f"), b"22");
    eventually("a write", LOST, || notes.has(&format!("inode {file}")));
    assert_eq!(p.stat("/h/f").unwrap().size_bytes, 2);
    notes.settle();
    write_host(&world.host("g"), b"");
    eventually("a new name", LOST, || notes.has(&format!("name {root} g")));
    std::fs::rename(world.host("f"), world.host("h")).unwrap();
    eventually("a name that went", LOST, || {
        notes.has(&format!("name {root} f"))
    });
    eventually("a name that came", LOST, || {
        notes.has(&format!("name {root} h"))
    });
    assert_eq!(p.stat("/h/h").unwrap().number, file);
    assert!(p.stat("/h/f").is_err());
    notes.settle();
    // Changes at its new position are reported, too.
    File::options()
        .write(true)
        .open(world.host("h"))
        .unwrap()
        .write_all_at(b"3", 0)
        .unwrap();
    eventually("a write elsewhere", LOST, || {
        notes.has(&format!("inode {file}"))
    });
    assert_eq!(world.read("/h/h").unwrap(), b"32");
}

#[test]
fn own_changes_are_not_reported() {
    let (world, notes) = listening("push=inotify");
    let p = &world.p;
    p.stat("/h").unwrap();
    p.mkdir("/h/d", 0o755).unwrap();
    let fd = p
        .open("/h/d/f", OpenFlags::CREAT | OpenFlags::RDWR, 0o644)
        .unwrap();
    notes.settle();
    for round in 0..20 {
        p.pwrite(fd, &[round; 5000], u64::from(round) * 100)
            .unwrap();
        pause(Duration::from_millis(2));
    }
    pause(Duration::from_millis(50));
    assert_eq!(notes.all(), [""; 0], "writes");
    p.link("/h/d/f", "/h/d/g").unwrap();
    p.rename("/h/d/g", "/h/d/i").unwrap();
    p.unlink("/h/d/i").unwrap();
    p.symlink("x", "/h/d/l").unwrap();
    pause(Duration::from_millis(50));
    let reported: Vec<_> = notes
        .all()
        .into_iter()
        .filter(|note| note.starts_with("name"))
        .collect();
    assert_eq!(reported, [""; 0], "names");
    p.close(fd).unwrap();
}

/// A change that fails before the host is asked does not hide the host's next change of the name.
#[test]
fn failed_link_hides_no_external_change() {
    let (world, notes) = listening("push=inotify");
    let p = &world.p;
    write_host(&world.host("f"), b"1");
    let fd = p.open("/h/f", OpenFlags::PATH, 0).unwrap();
    std::fs::remove_file(world.host("f")).unwrap();
    notes.settle();
    assert_eq!(errno(p.stat("/h/n")), Some(Errno::NOENT));
    let linked = p.linkat(fd, "", AT_FDCWD, "/h/n", AtFlags::EMPTY_PATH);
    assert_eq!(errno(linked), Some(Errno::STALE));
    assert_eq!(errno(p.stat("/h/n")), Some(Errno::NOENT));
    write_host(&world.host("n"), b"2");
    eventually("a new name", LOST / 10, || p.stat("/h/n").is_ok());
}

#[test]
fn unchanged_file_is_not_revalidated() {
    let folder = tempfile::tempdir().unwrap();
    write_host(&folder.path().join("f"), b"1");
    let kernel = mount_with_inotify(folder.path());
    let root = Credentials::root();
    let caller = Caller::new(&kernel, &root, 0);
    let root = caller.root();
    let file = caller.lookup(&root, b"f").unwrap().unwrap();
    // The change is recent: the file is revalidated once more.
    eventually("an end of questions", LOST, || {
        file.stat().unwrap();
        root.stat().unwrap();
        caller.lookup(&root, b"nothing").unwrap();
        caller.lookup(&root, b"f").unwrap();
        let ttls = [
            file.ttl(),
            root.ttl(),
            caller.name_ttl(&root, b"f"),
            caller.name_ttl(&root, b"nothing"),
        ];
        ttls == [Duration::MAX; 4]
    });
    write_host(&folder.path().join("f"), b"22");
    eventually("a change", LOST, || {
        file.ttl() < Duration::MAX || file.attributes().size_bytes == 2
    });
    assert_eq!(file.stat().unwrap().size_bytes, 2);
}

/// The lookup of a directory does not answer for its attributes: the question that follows adds
/// the watch.
#[test]
fn stat_after_lookup_watches_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("d")).unwrap();
    let kernel = mount_with_inotify(folder.path());
    let root = Credentials::root();
    let caller = Caller::new(&kernel, &root, 0);
    let directory = caller.lookup(&caller.root(), b"d").unwrap().unwrap();
    directory.stat().unwrap();
    assert_eq!(directory.ttl(), Duration::MAX);
}

#[test]
fn file_with_several_names_is_watched_itself() {
    let (world, _notes) = listening("push=inotify");
    let p = &world.p;
    std::fs::create_dir(world.host("unseen")).unwrap();
    write_host(&world.host("f"), b"1");
    std::fs::hard_link(world.host("f"), world.host("unseen/g")).unwrap();
    for round in 0..10_u8 {
        // Until the file is valid without end.
        for _ in 0..20 {
            p.stat("/h/f").unwrap();
            pause(Duration::from_millis(2));
        }
        write_host(
            &world.host("unseen/g"),
            &vec![round; 10 + usize::from(round)],
        );
        eventually("a write by another name", LOST, || {
            p.stat("/h/f").unwrap().size_bytes == 10 + u64::from(round)
        });
    }
}

#[test]
fn queue_overflow_invalidates_everything() {
    let (world, notes) = listening("push=inotify");
    let p = &world.p;
    for number in 0..50 {
        write_host(&world.host(&format!("f{number}")), b"1");
        p.stat(format!("/h/f{number}")).unwrap();
    }
    let most: usize = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    if most > 1 << 17 {
        support::report_skip("the queue of events is too long to fill");
        return;
    }
    // The external writer is faster than the listener, which is blocked.
    struct Slow;
    impl ChangeListener for Slow {
        fn changed(&self, _: Change<'_>) {
            pause(Duration::from_millis(50));
        }
    }
    let slow: Arc<dyn ChangeListener> = Arc::new(Slow);
    assert!(world.kernel.listen("/h", Arc::downgrade(&slow)).unwrap());
    for round in 0..2 * most {
        // Two alternating files, as equal events in succession are merged.
        let name = if round % 2 == 0 { "f0" } else { "f1" };
        rustix::fs::utimensat(
            rustix::fs::CWD,
            world.host(name),
            &rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec {
                    tv_sec: 0,
                    tv_nsec: rustix::fs::UTIME_NOW,
                },
                last_modification: rustix::fs::Timespec {
                    tv_sec: 0,
                    tv_nsec: rustix::fs::UTIME_NOW,
                },
            },
            rustix::fs::AtFlags::empty(),
        )
        .unwrap();
    }
    for number in 0..50 {
        write_host(&world.host(&format!("f{number}")), b"22");
    }
    drop(slow);
    eventually("everything", LOST, || notes.has("everything"));
    for number in 0..50 {
        assert_eq!(p.stat(format!("/h/f{number}")).unwrap().size_bytes, 2);
    }
}

/// Set when the same test runs in a user namespace with few watches.
const FEW: &str = "FOLIO_FEW_WATCHES";

/// Runs the current test again in a user namespace with three watches.
fn run_with_few_watches() {
    support::requires!(root, user_namespaces);
    let own = std::env::current_exe().unwrap();
    let mut again = support::require::with_watches(3, own.as_os_str());
    let test = std::thread::current();
    again
        .args(["--exact", test.name().unwrap(), "--nocapture"])
        .env(FEW, "1");
    support::tools::succeed(&mut again);
}

/// Creates directories `d0` to `d5`, each with a file `f`.
fn create_directories(folder: &Path) {
    for number in 0..6 {
        std::fs::create_dir(folder.join(format!("d{number}"))).unwrap();
        write_host(&folder.join(format!("d{number}/f")), b"1");
    }
}

/// Returns a kernel with a directory mounted at `/`, with change notifications.
fn mount_with_inotify(folder: &Path) -> Arc<Kernel> {
    let kernel = Kernel::new(KernelOptions::default());
    let options = MountOptions::parse("push=inotify").unwrap();
    kernel.mount_hostfs(folder, "/", &options).unwrap();
    kernel
}

#[test]
fn exhausted_watches_fall_back_to_ttl_with_warning() {
    if std::env::var_os(FEW).is_none() {
        return run_with_few_watches();
    }
    let folder = tempfile::tempdir().unwrap();
    let host = |name: String| folder.path().join(name);
    create_directories(folder.path());
    let kernel = mount_with_inotify(folder.path());
    let notes = Arc::new(Notes::default());
    let listener: Arc<dyn ChangeListener> = notes.clone();
    assert!(kernel.listen("/", Arc::downgrade(&listener)).unwrap());
    let root = Credentials::root();
    let caller = Caller::new(&kernel, &root, 0);
    let directory = |number| {
        caller
            .lookup(&caller.root(), format!("d{number}").as_bytes())
            .unwrap()
            .unwrap()
    };
    let file = |number: usize| caller.lookup(&directory(number), b"f").unwrap().unwrap();
    // One watch is on the root, two are on the first directories.
    let files: Vec<_> = (0..6).map(file).collect();
    let is_valid_forever = |number: usize| {
        files[number].stat().unwrap();
        files[number].ttl() == Duration::MAX
    };
    for number in [0, 1] {
        eventually("an end of questions", LOST, || is_valid_forever(number));
    }
    for file in &files[2..] {
        file.stat().unwrap();
        assert!(
            file.ttl() <= Duration::from_millis(1),
            "its directory has no watch"
        );
    }
    let warnings = kernel.warnings("/").unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].contains("fs.inotify.max_user_watches"),
        "{warnings:?}"
    );
    assert_eq!(
        notes.all().iter().filter(|note| *note == "warning").count(),
        1
    );
    for (number, file) in files.iter().enumerate() {
        write_host(&host(format!("d{number}/f")), b"22");
        eventually("a change", LOST, || file.stat().unwrap().size_bytes == 2);
        write_host(&host(format!("d{number}/g")), b"");
        eventually("a name", LOST, || {
            caller.lookup(&directory(number), b"g").unwrap().is_some()
        });
    }
    // Additional watches are used as soon as there are some.
    std::fs::write(support::require::WATCHES_MAX, "100").unwrap();
    for number in 2..6 {
        eventually("an end of questions", LOST, || {
            caller.lookup(&directory(number), b"f").unwrap();
            is_valid_forever(number)
        });
    }
    assert_eq!(kernel.warnings("/").unwrap().len(), 1);
}

#[test]
fn missing_notifications_cause_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/proc/self", folder.path().join("share")).unwrap();
    let world = World::on(folder, "push=auto");
    let warnings = world.kernel.warnings("/h").unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].contains("time to live"),
        "{warnings:?}"
    );
    let world = World::new("push=inotify");
    assert_eq!(world.kernel.warnings("/h").unwrap(), [""; 0]);
    let world = World::new("push=off");
    assert_eq!(world.kernel.warnings("/h").unwrap(), [""; 0]);
    struct Deaf;
    impl ChangeListener for Deaf {
        fn changed(&self, _: Change<'_>) {}
    }
    let deaf: Arc<dyn ChangeListener> = Arc::new(Deaf);
    assert!(!world.kernel.listen("/h", Arc::downgrade(&deaf)).unwrap());
}

/// Changes through Folio leave nothing behind that hides the same change by an external writer in
/// a later directory.
#[test]
fn change_in_a_new_directory_is_not_an_old_one() {
    let world = World::new("push=inotify");
    let there = world.host("d");
    for round in 0..200 {
        world.p.mkdir("/h/d", 0o755).unwrap();
        world.p.mkdir("/h/d/c", 0o755).unwrap();
        world.p.rmdir("/h/d/c").unwrap();
        world.p.rmdir("/h/d").unwrap();
        std::fs::create_dir(&there).unwrap();
        eventually("the directory", LOST, || world.p.stat("/h/d").is_ok());
        assert_eq!(errno(world.p.stat("/h/d/c")), Some(Errno::NOENT));
        std::fs::create_dir(there.join("c")).unwrap();
        eventually(&format!("round {round}"), LOST, || {
            world.p.stat("/h/d/c").is_ok()
        });
        std::fs::remove_dir(there.join("c")).unwrap();
        std::fs::remove_dir(&there).unwrap();
        eventually("the removal", LOST, || world.p.stat("/h/d").is_err());
    }
}

/// rename(2) between two names of one file changes nothing, and inotify reports nothing.
#[test]
fn rename_onto_another_name_of_the_file_keeps_both() {
    for words in ["push=inotify", "ttl=inf,push=off"] {
        let world = World::new(words);
        for round in 0..50 {
            let (one, two) = (format!("/h/one{round}"), format!("/h/two{round}"));
            world.write(&one, b"content").unwrap();
            assert_eq!(errno(world.p.stat(&two)), Some(Errno::NOENT));
            let on_host = |path: &str| world.host(path.trim_start_matches("/h/"));
            std::fs::hard_link(on_host(&one), on_host(&two)).unwrap();
            world.p.rename(&one, &two).unwrap();
            assert_eq!(world.read(&one).unwrap(), b"content", "{words} {round}");
            assert_eq!(world.read(&two).unwrap(), b"content", "{words} {round}");
            // A later change by an external writer is not taken for that rename.
            std::fs::rename(on_host(&one), on_host("old")).unwrap();
            if words == "push=inotify" {
                eventually(words, LOST, || world.p.stat(&one).is_err());
            }
        }
    }
}

/// A link of which the share has forgotten a name that is still valid.
#[test]
fn link_with_many_names_is_found_again() {
    let world = World::new("push=inotify");
    for index in 0..8 {
        std::fs::create_dir(world.host(&format!("d{index}"))).unwrap();
        let name = world.host(&format!("d{index}/f"));
        if index == 0 {
            std::os::unix::fs::symlink("target", name).unwrap();
        } else {
            std::fs::hard_link(world.host("d0/f"), name).unwrap();
        }
    }
    // The first lookup in a directory begins to watch it, and is not valid.
    for index in (0..8).chain(0..8) {
        world.p.lstat(format!("/h/d{index}/f")).unwrap();
    }
    for index in 2..8 {
        std::fs::remove_file(world.host(&format!("d{index}/f"))).unwrap();
    }
    eventually("two names", LOST, || {
        let stats = ["/h/d0/f", "/h/d1/f"].map(|path| world.p.lstat(path));
        stats
            .iter()
            .all(|stat| stat.as_ref().is_ok_and(|stat| stat.link_count == 2))
    });
}
