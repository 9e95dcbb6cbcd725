//! The front door (`Fs`, `File`, `Image`), judged by the behavior of `std::fs` where it has one.

mod guide;

use folio::block::{Device, MemoryDevice};
use folio::ramfs::HostFrames;
use folio::syscall::Credentials;
use folio::vfs::MountOptions;
use folio::{Errno, Error, Fs, Image, Kernel, KernelOptions, Timespec, errno_of};
use std::fs::Permissions;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Returns a gpufs over frames in the host's memory.
fn frames() -> Fs {
    let kernel = Kernel::new(KernelOptions::default());
    let memory = Arc::new(HostFrames::new(64 << 20));
    kernel
        .mount_gpufs("/", memory, &MountOptions::default())
        .unwrap();
    Fs::new(kernel)
}

/// Memory, device memory, an image and a directory of the host: the same calls work on each.
fn targets() -> Vec<(&'static str, Fs, tempfile::TempDir)> {
    let folder = || tempfile::tempdir().unwrap();
    let (host, image, memory) = (folder(), folder(), folder());
    let path = image.path().join("disk.qcow2");
    vec![
        ("memory", Fs::memory(), memory),
        ("frames", frames(), folder()),
        (
            "image",
            Image::create(path, 32 << 20).mount().unwrap(),
            image,
        ),
        ("host", Fs::host(host.path()).unwrap(), host),
    ]
}

fn names(fs: &Fs, path: &str) -> Vec<String> {
    let name = |entry: folio::DirEntry| entry.file_name().to_str().unwrap().to_owned();
    let entries = fs.read_dir(path).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry.unwrap()))
        .filter(|name| name != "lost+found")
        .collect();
    names.sort();
    names
}

#[test]
fn content_written_is_read_back_on_every_target() {
    for (target, fs, _folder) in targets() {
        fs.create_dir_all("/a/b/c").unwrap();
        fs.create_dir_all("/a/b/c").unwrap();
        fs.write("/a/b/c/f", "text").unwrap();
        assert_eq!(fs.read_to_string("/a/b/c/f").unwrap(), "text", "{target}");
        assert_eq!(fs.read("a/b/../b/c/f").unwrap(), b"text", "{target}");
        assert_eq!(names(&fs, "/a"), ["b"], "{target}");
        assert!(fs.metadata("/a/b").unwrap().is_dir() && fs.exists("/a/b/c/f").unwrap());
        assert!(!fs.exists("/a/b/c/g").unwrap() && !fs.exists("/a/b/c/f/g").unwrap());
        fs.close().unwrap();
    }
}

#[test]
fn file_has_the_traits_of_a_std_file() {
    for (target, fs, _folder) in targets() {
        let mut file = fs
            .open_options()
            .read(true)
            .write(true)
            .create_new(true)
            .open("/f")
            .unwrap();
        writeln!(file, "line {}", 1).unwrap();
        file.write_all_at(b"LINE", 0).unwrap();
        assert_eq!(file.stream_position().unwrap(), 7, "{target}");
        file.seek(SeekFrom::End(-2)).unwrap();
        let mut text = String::new();
        (&file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "1\n", "{target}");
        let mut head = [0; 4];
        file.read_exact_at(&mut head, 0).unwrap();
        assert_eq!(&head, b"LINE", "{target}");
        let beyond = file.read_exact_at(&mut [0; 9], 0).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
        file.set_len(2).unwrap();
        let mut twin = file.try_clone().unwrap();
        file.rewind().unwrap();
        drop(file);
        let mut rest = Vec::new();
        twin.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"LI", "{target}");
        twin.sync_all().unwrap();
        assert!(twin.seek(SeekFrom::Start(u64::MAX)).is_err());
    }
}

#[test]
fn vectored_calls_use_every_buffer() {
    let fs = Fs::memory();
    let mut file = fs.create("/f").unwrap();
    let parts = [IoSlice::new(b"one "), IoSlice::new(b"two")];
    assert_eq!(file.write_vectored(&parts).unwrap(), 7);
    let many = vec![IoSlice::new(b"."); 2000];
    assert_eq!(file.write_vectored(&many).unwrap(), 1024);
    let mut file = fs.open("/f").unwrap();
    let (mut head, mut tail) = ([0; 4], [0; 3]);
    let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    assert_eq!(file.read_vectored(&mut parts).unwrap(), 7);
    assert_eq!((&head, &tail), (b"one ", b"two"));
}

#[test]
fn permissions_and_times_are_set_as_in_std() {
    let time = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
    for (target, fs, _folder) in targets() {
        fs.write("/f", "text").unwrap();
        fs.set_permissions("/f", Permissions::from_mode(0o100_640))
            .unwrap();
        let found = fs.metadata("/f").unwrap();
        assert_eq!(found.permissions().mode(), 0o640, "{target}");
        fs.set_times("/f", Some(time(10)), Some(time(20))).unwrap();
        let file = fs.open("/f").unwrap();
        file.set_times(None, Some(time(30))).unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        let found = fs.metadata("/f").unwrap();
        let times = (found.accessed(), found.modified());
        assert_eq!(times, (time(10), time(30)), "{target}");
        assert_eq!(found.mode(), 0o600, "{target}");
    }
}

#[test]
fn links_have_owners_and_files_have_xattrs() {
    let folder = tempfile::tempdir().unwrap();
    let image = Image::create(folder.path().join("disk.img"), 32 << 20);
    let fs = image.mount().unwrap();
    fs.write("/f", "text").unwrap();
    fs.symlink("f", "/link").unwrap();
    fs.lchown("/link", Some(7), None).unwrap();
    let owner = |found: folio::Metadata| found.attributes().uid;
    assert_eq!(owner(fs.symlink_metadata("/link").unwrap()), 7);
    assert_eq!(owner(fs.metadata("/link").unwrap()), 0);
    assert_eq!(fs.get_xattr("/f", "user.note").unwrap(), None);
    fs.set_xattr("/f", "user.note", "kept").unwrap();
    assert_eq!(fs.get_xattr("/f", "user.note").unwrap().unwrap(), b"kept");
    assert_eq!(fs.list_xattrs("/f").unwrap(), ["user.note"]);
    fs.remove_xattr("/f", "user.note").unwrap();
    assert!(fs.list_xattrs("/f").unwrap().is_empty());
    let error = fs.remove_xattr("/f", "user.note").unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::NODATA));
}

#[test]
fn append_and_truncate_act_as_in_std() {
    let fs = Fs::memory();
    fs.write("/log", "one\n").unwrap();
    let open = |options: folio::OpenOptions| options.open("/log").unwrap();
    let mut log = open(fs.open_options().append(true));
    log.write_all(b"two\n").unwrap();
    assert_eq!(fs.read_to_string("/log").unwrap(), "one\ntwo\n");
    drop(open(fs.open_options().write(true).truncate(true)));
    assert_eq!(fs.metadata("/log").unwrap().len(), 0);
    let error = fs.open_options().open("/log").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = fs.open_options().write(true).create_new(true).open("/log");
    assert_eq!(error.err().unwrap().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn dropped_file_gives_its_descriptor_back() {
    let fs = Fs::memory();
    let first = fs.create("/f").unwrap().fd();
    for _ in 0..3 {
        assert_eq!(fs.create("/f").unwrap().fd(), first);
    }
}

#[test]
fn remove_dir_all_removes_links_not_targets() {
    for (target, fs, _folder) in targets() {
        fs.create_dir_all("/tree/deep/deeper").unwrap();
        fs.create_dir("/kept").unwrap();
        fs.write("/kept/f", "kept").unwrap();
        fs.symlink("/kept", "/tree/deep/link").unwrap();
        for number in 0..600 {
            fs.write(format!("/tree/deep/{number}"), "").unwrap();
        }
        let walked = fs.walk("/tree").unwrap().map(io::Result::unwrap).count();
        assert_eq!(walked, 603, "{target}");
        fs.remove_dir_all("/tree").unwrap();
        assert_eq!(names(&fs, "/"), ["kept"], "{target}");
        assert_eq!(fs.read_to_string("/kept/f").unwrap(), "kept");
        fs.symlink("/kept", "/link").unwrap();
        assert!(fs.remove_dir_all("/link").is_err());
        assert!(fs.exists("/kept/f").unwrap());
    }
}

#[test]
fn copy_keeps_content_and_mode() {
    for (target, fs, _folder) in targets() {
        let content: Vec<u8> = (0..3 << 20).map(|at| (at % 251) as u8).collect();
        fs.write("/a", &content).unwrap();
        fs.set_mode("/a", 0o640).unwrap();
        assert_eq!(fs.copy("/a", "/b").unwrap(), 3 << 20, "{target}");
        assert_eq!(fs.read("/b").unwrap(), content, "{target}");
        assert_eq!(fs.metadata("/b").unwrap().mode(), 0o640);
        assert_eq!(
            fs.copy("/a", "/a").unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        assert_eq!(fs.read("/a").unwrap().len(), 3 << 20);
        assert!(fs.copy("/", "/c").is_err() && !fs.exists("/c").unwrap());
    }
}

#[test]
fn canonicalize_resolves_links_and_dots() {
    for (target, fs, _folder) in targets() {
        fs.create_dir_all("/a/b").unwrap();
        fs.symlink("a/b", "/link").unwrap();
        fs.write("/a/b/f", "").unwrap();
        let path = fs.canonicalize("link/../b/./f").unwrap();
        assert_eq!(path, Path::new("/a/b/f"), "{target}");
        assert_eq!(fs.read_link("/link").unwrap(), Path::new("a/b"));
        assert!(fs.symlink_metadata("/link").unwrap().is_symlink());
        let error = fs.canonicalize("/none").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

#[test]
fn error_names_the_path_and_keeps_the_errno() {
    let fs = Fs::memory();
    let error = fs.read("/no/such").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("/no/such"), "{error}");
    let inner = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
    assert_eq!(inner.errno(), Errno::NOENT);
    fs.write("/f", "").unwrap();
    let error = fs.create_dir_all("/f/g").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADirectory);
}

/// An open file's errors have the path, and one function returns the errno of all.
#[test]
fn open_file_errors_name_the_path() {
    let fs = Fs::memory();
    fs.create_dir("/d").unwrap();
    fs.write("/d/f", "old").unwrap();
    let file = fs.open("/d/f").unwrap();
    let errors = [
        (&file).write(b"new").unwrap_err(),
        file.write_at(b"new", 0).unwrap_err(),
        (&file).seek(SeekFrom::Current(-1)).unwrap_err(),
    ];
    fs.rename("/d", "/e").unwrap();
    let moved = file.set_len(1).unwrap_err();
    assert!(moved.to_string().starts_with("/e/f: "), "{moved}");
    for error in errors {
        assert!(error.to_string().starts_with("/d/f: "), "{error}");
        assert!(matches!(errno_of(&error), Some(Errno::BADF | Errno::INVAL)));
    }
    fs.remove_file("/e/f").unwrap();
    assert_eq!(errno_of(&file.set_len(1).unwrap_err()), Some(Errno::INVAL));
    // Of std as well.
    let host = std::fs::read("/none").unwrap_err();
    assert_eq!(errno_of(&host), Some(Errno::NOENT));
}

#[test]
fn user_is_refused_what_root_may_do() {
    let fs = Fs::memory();
    fs.write("/secret", "x").unwrap();
    fs.set_mode("/secret", 0o600).unwrap();
    let user = fs.as_user(Credentials::user(1000, 1000, Vec::new()));
    let error = user.read("/secret").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    fs.chown("/secret", Some(1000), None).unwrap();
    assert_eq!(user.read("/secret").unwrap(), b"x");
}

#[test]
fn close_reports_files_still_open() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(8 << 20));
    let fs = Image::create_on(device.clone()).mount().unwrap();
    let mut file = fs.create("/f").unwrap();
    file.write_all(b"bytes").unwrap();
    let error = fs.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    drop(file);
    let fs = Image::device(device).read_only().mount().unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"bytes");
    assert_eq!(
        fs.write("/g", "").unwrap_err().kind(),
        ErrorKind::ReadOnlyFilesystem
    );
    fs.close().unwrap();
}

#[test]
fn debug_output_identifies_each_object() {
    let fs = Fs::memory();
    let file = fs.create("/log").unwrap();
    let entry = fs.read_dir("/").unwrap().next().unwrap().unwrap();
    let (list, walk) = (fs.read_dir("/").unwrap(), fs.walk("/").unwrap());
    for (shown, part) in [
        (format!("{fs:?}"), "Fs { kernel: Kernel { cache_bytes: "),
        (format!("{:?}", fs.process()), "Process { credentials: "),
        (format!("{file:?}"), "File { fd: Fd(0), .. }"),
        (
            format!("{entry:?}"),
            r#"DirEntry { path: "/log", file_type: Some(Regular), .. }"#,
        ),
        (format!("{list:?}"), r#"ReadDir { path: "/", .. }"#),
        (format!("{walk:?}"), r#"Walk { open: [ReadDir { path: "/""#),
        (
            format!("{:?}", fs.open_options().read(true)),
            "OpenOptions { is_read: true, ",
        ),
        (
            format!("{:?}", Image::file("disk.img")),
            r#"Image { source: "disk.img", "#,
        ),
    ] {
        assert!(shown.starts_with(part), "{shown}");
    }
}

#[test]
fn reproducible_images_are_byte_identical() {
    let build = || {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let image = Image::create_on(device.clone());
        let fs = image
            .reproducible([7; 16], Timespec::new(1, 0))
            .mount()
            .unwrap();
        for number in 0..50 {
            fs.write(format!("/{number}"), vec![number; 5000]).unwrap();
        }
        fs.close().unwrap();
        let mut bytes = vec![0; 16 << 20];
        device.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    assert!(build() == build());
}

#[test]
fn failed_creation_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.img");
    let error = Image::create(&path, 4096).mount().err().unwrap();
    assert!(error.to_string().contains("small.img"), "{error}");
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    let error = Image::create(&path, 1 << 20).mount().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn borrowed_bytes_are_the_file_own() {
    let fs = Fs::memory();
    fs.write("/f", "0123456789").unwrap();
    let file = fs.open("/f").unwrap();
    let borrowed = file.borrow(2..5).unwrap();
    let bytes: Vec<u8> = borrowed.read().slices().flatten().copied().collect();
    assert_eq!(bytes, b"234");
    drop(file);
    let bytes: Vec<u8> = borrowed.read().slices().flatten().copied().collect();
    assert_eq!(bytes, b"234");
}
