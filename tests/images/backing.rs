//! Files that a hostile image names: none is opened unless the policy allows it.

use crate::support::requires;
use folio::block::qcow2::Qcow2Device;
use folio::block::{BackingPolicy, CreateOptions, OpenOptions, open};
use folio::{Errno, Error};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::fs::{FileType, Mode, mknodat};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const LEN: u64 = 1 << 20;
/// Offset of the header extensions in an image that Folio creates.
const EXTENSIONS: u64 = 112;
/// Kind of the header extension that names the backing file's format.
const BACKING_FORMAT: u32 = 0xe279_2aca;

/// Creates an image whose header has `name` as its backing file.
fn overlay(path: &Path, name: &[u8], format: Option<&[u8]>) {
    drop(Qcow2Device::create(path, LEN, &CreateOptions::default()).unwrap());
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let mut at = EXTENSIONS;
    file.write_all_at(&[0; 4096], at).unwrap();
    if let Some(format) = format {
        let head = [
            BACKING_FORMAT.to_be_bytes(),
            (format.len() as u32).to_be_bytes(),
        ]
        .concat();
        file.write_all_at(&head, at).unwrap();
        file.write_all_at(format, at + 8).unwrap();
        at += 8 + (format.len() as u64).next_multiple_of(8);
    }
    let offset = at + 8;
    file.write_all_at(name, offset).unwrap();
    file.write_all_at(&offset.to_be_bytes(), 8).unwrap();
    file.write_all_at(&(name.len() as u32).to_be_bytes(), 16)
        .unwrap();
}

/// Creates an image whose header has `name` as its external data file.
fn with_data_in(path: &Path, name: &[u8]) {
    const DATA_FILE: u32 = 0x4441_5441;
    drop(Qcow2Device::create(path, LEN, &CreateOptions::default()).unwrap());
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let head = [DATA_FILE.to_be_bytes(), (name.len() as u32).to_be_bytes()].concat();
    file.write_all_at(&[0; 4096], EXTENSIONS).unwrap();
    file.write_all_at(&head, EXTENSIONS).unwrap();
    file.write_all_at(name, EXTENSIONS + 8).unwrap();
    // The incompatible feature.
    file.write_all_at(&4u64.to_be_bytes(), 72).unwrap();
}

fn refusal(path: &Path, options: &OpenOptions) -> Error {
    open(path, options)
        .err()
        .unwrap_or_else(|| panic!("{} was opened", path.display()))
}

/// Detects opens of a file (inotify).
struct Watch(OwnedFd);

impl Watch {
    fn new(path: &Path) -> Self {
        let fd = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        add_watch(&fd, path, WatchFlags::OPEN).unwrap();
        Self(fd)
    }

    fn was_opened(&self) -> bool {
        let mut buf = [MaybeUninit::uninit(); 512];
        Reader::new(&self.0, &mut buf)
            .next()
            .is_ok_and(|event| event.events().contains(ReadFlags::OPEN))
    }
}

/// A folder with a secret, a folder inside it for images, and a file there that links to the
/// secret.
fn folders() -> (TempDir, PathBuf, PathBuf) {
    let folder = TempDir::new().unwrap();
    let (inner, secret) = (folder.path().join("inner"), folder.path().join("secret"));
    std::fs::create_dir_all(inner.join("below")).unwrap();
    std::fs::write(&secret, vec![5; LEN as usize]).unwrap();
    symlink("../secret", inner.join("link")).unwrap();
    symlink(folder.path(), inner.join("up")).unwrap();
    (folder, inner, secret)
}

#[test]
fn files_outside_the_folder_are_not_opened() {
    let (_folder, inner, secret) = folders();
    let watch = Watch::new(&secret);
    let absolute = secret.to_str().unwrap();
    let names = [
        absolute.to_owned(),
        format!("file:{absolute}"),
        format!("file://{absolute}"),
        "../secret".to_owned(),
        "file:../secret".to_owned(),
        "./../secret".to_owned(),
        "below/../../secret".to_owned(),
        "link".to_owned(),
        "up/secret".to_owned(),
        "up/inner/link".to_owned(),
        format!("/proc/self/root{absolute}"),
    ];
    let top = inner.join("top.qcow2");
    for name in names {
        for format in [None, Some(&b"raw"[..]), Some(b"qcow2")] {
            overlay(&top, name.as_bytes(), format);
            for policy in [
                BackingPolicy::Beside,
                BackingPolicy::Refuse,
                BackingPolicy::Within(inner.clone()),
            ] {
                let options = OpenOptions {
                    backing: policy,
                    ..OpenOptions::default()
                };
                let error = refusal(&top, &options);
                assert_eq!(error.errno(), Errno::PERM, "{name}: {error}");
                assert!(
                    error.to_string().contains("secret") || error.to_string().contains("link"),
                    "{error}"
                );
            }
            assert!(!watch.was_opened(), "{name}");
            std::fs::remove_file(&top).unwrap();
        }
    }
    for name in [absolute, "../secret", "link", "up/secret", "file:../secret"] {
        with_data_in(&top, name.as_bytes());
        for read_only in [true, false] {
            let error = refusal(
                &top,
                &OpenOptions {
                    read_only,
                    ..OpenOptions::default()
                },
            );
            assert_eq!(error.errno(), Errno::PERM, "{name}: {error}");
        }
        assert!(!watch.was_opened(), "{name}");
        std::fs::remove_file(&top).unwrap();
    }
    overlay(&top, b"link", Some(b"raw"));
    let anywhere = OpenOptions {
        backing: BackingPolicy::Anywhere,
        ..OpenOptions::default()
    };
    open(&top, &anywhere).unwrap();
    assert!(watch.was_opened(), "the watch detects an open");
}

/// The policy also applies to the backing file of an allowed backing file.
#[test]
fn policy_applies_to_the_whole_chain() {
    let (_folder, inner, secret) = folders();
    let watch = Watch::new(&secret);
    overlay(
        &inner.join("below/middle.qcow2"),
        b"../../secret",
        Some(b"raw"),
    );
    let top = inner.join("top.qcow2");
    // Without a format name, so the format is detected.
    overlay(&top, b"below/middle.qcow2", None);
    let error = refusal(&top, &OpenOptions::default());
    assert_eq!(error.errno(), Errno::PERM, "{error}");
    assert!(error.to_string().contains("secret"), "{error}");
    assert!(!watch.was_opened());
}

#[test]
fn names_with_a_protocol_are_rejected() {
    let (_folder, inner, secret) = folders();
    let watch = Watch::new(&secret);
    let secret = secret.display();
    let names = [
        format!(
            "json:{{\"driver\":\"raw\",\"file\":{{\"driver\":\"file\",\"filename\":\"{secret}\"}}}}"
        ),
        format!("json:{{\"file.filename\":\"{secret}\"}}"),
        "nbd://127.0.0.1:1/".to_owned(),
        "nbd:unix:/nowhere".to_owned(),
        "ssh://127.0.0.1/secret".to_owned(),
        "http://127.0.0.1:1/secret".to_owned(),
        "fat:rw:.".to_owned(),
        format!("blkdebug::{secret}"),
        format!("raw:{secret}"),
        ":secret".to_owned(),
    ];
    let top = inner.join("top.qcow2");
    for name in names {
        overlay(&top, name.as_bytes(), None);
        for policy in [BackingPolicy::Beside, BackingPolicy::Anywhere] {
            let error = refusal(
                &top,
                &OpenOptions {
                    backing: policy,
                    ..OpenOptions::default()
                },
            );
            assert_eq!(error.errno(), Errno::OPNOTSUPP, "{name}: {error}");
            assert!(error.to_string().contains("protocol"), "{error}");
        }
        std::fs::remove_file(&top).unwrap();
    }
    for name in ["json:{}", "nbd://127.0.0.1:1/"] {
        with_data_in(&top, name.as_bytes());
        assert_eq!(
            refusal(&top, &OpenOptions::default()).errno(),
            Errno::OPNOTSUPP
        );
        std::fs::remove_file(&top).unwrap();
    }
    assert!(!watch.was_opened());
}

#[test]
fn invalid_data_file_names_are_rejected() {
    let (_folder, inner, secret) = folders();
    let watch = Watch::new(&secret);
    let top = inner.join("top.qcow2");
    for name in [
        &b"top.qcow2"[..],
        b"sec\0ret",
        b"\xff\xfe",
        b"",
        &[b'x'; 4000],
        b"nowhere",
        b".",
    ] {
        with_data_in(&top, name);
        refusal(&top, &OpenOptions::default());
        std::fs::remove_file(&top).unwrap();
    }
    assert!(!watch.was_opened());
}

#[test]
fn invalid_backing_names_are_rejected() {
    let (_folder, inner, secret) = folders();
    let watch = Watch::new(&secret);
    let top = inner.join("top.qcow2");
    for name in [
        &b"sec\0ret"[..],
        b"\xff\xfe",
        &[b'x'; 1023],
        b"nowhere",
        b".",
    ] {
        overlay(&top, name, None);
        refusal(&top, &OpenOptions::default());
        std::fs::remove_file(&top).unwrap();
    }
    assert!(!watch.was_opened());
}

#[test]
fn invalid_backing_formats_are_rejected() {
    let (_folder, inner, secret) = folders();
    let watch = Watch::new(&secret);
    let top = inner.join("top.qcow2");
    for format in [
        &b"nbd"[..],
        b"file",
        b"host_device",
        b"vmdk",
        b"",
        b"\xff",
        b"raw\0",
    ] {
        overlay(&top, b"below", Some(format));
        refusal(&top, &OpenOptions::default());
        std::fs::remove_file(&top).unwrap();
    }
    assert!(!watch.was_opened());
}

/// Special files beside the image: opening one could block or have side effects.
#[test]
fn special_files_are_not_opened() {
    let folder = TempDir::new().unwrap();
    let top = folder.path().join("top.qcow2");
    let fifo = folder.path().join("fifo");
    mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    let watch = Watch::new(&fifo);
    for name in ["fifo", "socket", "."] {
        overlay(&top, name.as_bytes(), Some(b"raw"));
        let error = refusal(&top, &OpenOptions::default());
        assert_eq!(error.errno(), Errno::PERM, "{error}");
        let anywhere = OpenOptions {
            backing: BackingPolicy::Anywhere,
            ..OpenOptions::default()
        };
        refusal(&top, &anywhere);
        std::fs::remove_file(&top).unwrap();
        with_data_in(&top, name.as_bytes());
        refusal(&top, &OpenOptions::default());
        refusal(&top, &anywhere);
        std::fs::remove_file(&top).unwrap();
    }
    refusal(&fifo, &OpenOptions::default());
    assert!(!watch.was_opened());
}

#[test]
fn device_nodes_beside_are_not_opened() {
    requires!(root);
    let folder = TempDir::new().unwrap();
    let top = folder.path().join("top.qcow2");
    // The null device, and a disk that may not exist: the node itself must not be opened.
    for (name, kind, device) in [
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("disk", FileType::BlockDevice, rustix::fs::makedev(7, 0)),
    ] {
        let node = folder.path().join(name);
        mknodat(rustix::fs::CWD, &node, kind, Mode::RWXU, device).unwrap();
        let watch = Watch::new(&node);
        overlay(&top, name.as_bytes(), Some(b"raw"));
        let error = refusal(&top, &OpenOptions::default());
        assert_eq!(error.errno(), Errno::PERM, "{error}");
        assert!(!watch.was_opened(), "{name}");
        std::fs::remove_file(&top).unwrap();
    }
    assert_eq!(
        refusal(&folder.path().join("null"), &OpenOptions::default()).errno(),
        Errno::INVAL
    );
}

#[test]
fn chain_of_70_images_is_rejected() {
    const DEPTH: usize = 70;
    let folder = TempDir::new().unwrap();
    let at = |n: usize| folder.path().join(format!("{n}.qcow2"));
    for n in 0..DEPTH {
        overlay(
            &at(n),
            format!("{}.qcow2", n + 1).as_bytes(),
            Some(b"qcow2"),
        );
    }
    drop(Qcow2Device::create(at(DEPTH), LEN, &CreateOptions::default()).unwrap());
    let error = refusal(&at(0), &OpenOptions::default());
    assert_eq!(error.errno(), Errno::LOOP, "{error}");
    assert!(
        error.to_string().len() < 20_000,
        "{}",
        error.to_string().len()
    );
    open(at(DEPTH - 40), &OpenOptions::default()).unwrap();
}

#[test]
fn chain_with_a_loop_is_rejected() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    overlay(&at("self"), b"self", None);
    overlay(&at("hard"), b"other", None);
    std::fs::hard_link(at("hard"), at("other")).unwrap();
    overlay(&at("soft"), b"pointer", None);
    symlink("soft", at("pointer")).unwrap();
    overlay(&at("a"), b"b", None);
    overlay(&at("b"), b"c", None);
    overlay(&at("c"), b"b", None);
    for name in ["self", "hard", "soft", "a"] {
        for read_only in [true, false] {
            let error = refusal(
                &at(name),
                &OpenOptions {
                    read_only,
                    ..OpenOptions::default()
                },
            );
            assert_eq!(error.errno(), Errno::LOOP, "{error}");
            assert!(
                error.to_string().contains("its own backing file"),
                "{error}"
            );
        }
    }
    overlay(&at("d"), b"round", None);
    symlink("round", at("round")).unwrap();
    refusal(&at("d"), &OpenOptions::default());
}
