//! Forks, snapshots and new sizes of an image that threads write meanwhile.

use super::writers::{LEN_BYTES, Writers};
use super::{Scene, assert_qemu_reads, content, names};
use crate::support::requires;
use crate::support::tools::{command, succeed};
use folio::block::tools::snapshots;
use folio::block::{BackingPolicy, CreateOptions, Device, GENERATIONS_MAX, ImageFormat};
use folio::block::{DataFileName, LiveImage, OpenOptions, create, create_with, open};
use folio::{Detail, Errno};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;

#[test]
fn fork_is_the_disk_at_one_moment() {
    requires!(tool("qemu-img"));
    for options in [
        "compat=1.1",
        "compat=0.10",
        "cluster_size=4k,lazy_refcounts=on",
        "extended_l2=on",
    ] {
        let scene = Scene::new(options);
        let writers = Writers::new(vec![0; LEN_BYTES], false);
        let mut forks = Vec::new();
        writers.run(&scene.image, || {
            for round in 0..5 {
                writers.wait(100);
                let fork = scene.at(&format!("fork-{round}.qcow2"));
                // With a pause, only one content is right.
                let pause = (round % 2 == 0).then(|| writers.pause());
                let returned = writers.returned();
                let made = scene.image.fork(&fork).unwrap();
                let started = writers.started();
                drop(pause);
                assert_eq!(made.generations, round + 1);
                assert_eq!(scene.image.generations(), round + 1);
                let bytes = content(&fork);
                writers.check(&bytes, returned, started);
                forks.push((fork, bytes));
            }
        });
        let mut bytes = vec![0; LEN_BYTES];
        scene.image.read_at(&mut bytes, 0).unwrap();
        writers.check_all(&bytes);
        let disk = scene.at("disk.qcow2");
        let _folder = scene.close();
        assert_qemu_reads(&disk, &bytes);
        for (fork, bytes) in forks {
            assert_qemu_reads(&fork, &bytes);
        }
    }
}

#[test]
fn fork_is_opened_elsewhere_while_image_is_open() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let scene = Scene::new("compat=1.1");
    scene.image.write_at(&[1; 8192], 0).unwrap();
    let made = scene.image.fork(scene.at("fork.qcow2")).unwrap();
    let generation = made.generation.unwrap();
    assert_eq!(names(&[generation]), ["disk.gen-1.qcow2"]);
    scene.image.write_at(&[2; 4096], 0).unwrap();
    let qemu_io = |arguments: &[&str]| {
        let mut qemu_io = command("qemu-io");
        qemu_io.args(arguments).current_dir(&scene.folder);
        qemu_io.output().unwrap()
    };
    let output = qemu_io(&[
        "-c",
        "read -P 1 0 8192",
        "-c",
        "write -P 3 4096 4096",
        "fork.qcow2",
    ]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !said.contains("failed"),
        "{said}"
    );
    // The generation may be read, and not written; the image is locked as before.
    assert!(
        qemu_io(&["-r", "-c", "read 0 512", "disk.gen-1.qcow2"])
            .status
            .success()
    );
    for name in ["disk.gen-1.qcow2", "disk.qcow2"] {
        assert!(
            !qemu_io(&["-c", "read 0 512", name]).status.success(),
            "{name}"
        );
    }
    let busy = open(scene.at("disk.qcow2"), &OpenOptions::default())
        .err()
        .unwrap();
    assert_eq!(busy.errno(), Errno::BUSY);
    // A fork of a fork, in this process, beside the image.
    let fork = LiveImage::open(scene.at("fork.qcow2"), &OpenOptions::default()).unwrap();
    fork.fork(scene.at("second.qcow2")).unwrap();
    let formats = fork.chain().into_iter().map(|image| image.format);
    assert!(formats.eq([ImageFormat::Qcow2; 3]));
    let mut bytes = [0; 8192];
    fork.read_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes[0], bytes[8191]), (1, 3));
    scene.image.read_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes[0], bytes[8191]), (2, 1));
    drop(fork);
    scene.close();
}

#[test]
fn refused_fork_changes_nothing() {
    requires!(tool("qemu-img"));
    let scene = Scene::new("compat=1.1");
    let files = || {
        let mut names: Vec<_> = std::fs::read_dir(scene.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    std::fs::write(scene.at("exists"), "kept").unwrap();
    let before = files();
    let error = scene.image.fork(scene.at("exists")).unwrap_err();
    assert_eq!(error.errno(), Errno::EXIST);
    assert_eq!(std::fs::read(scene.at("exists")).unwrap(), b"kept");
    let error = scene.image.fork(scene.at("no/fork.qcow2")).unwrap_err();
    assert_eq!(error.errno(), Errno::NOENT);
    // Another file at the path.
    std::fs::rename(scene.at("disk.qcow2"), scene.at("moved.qcow2")).unwrap();
    std::fs::write(scene.at("disk.qcow2"), "other").unwrap();
    let error = scene.image.fork(scene.at("fork.qcow2")).unwrap_err();
    assert_eq!(error.errno(), Errno::STALE);
    std::fs::rename(scene.at("moved.qcow2"), scene.at("disk.qcow2")).unwrap();
    assert_eq!(files(), before);
    assert_eq!(scene.image.generations(), 0);
    let folder = scene.close();
    let open = |options: &OpenOptions, name: &str| {
        let image = LiveImage::open(folder.path().join(name), options).unwrap();
        let error = image.fork(folder.path().join("fork.qcow2")).unwrap_err();
        assert!(!folder.path().join("fork.qcow2").exists());
        error.errno()
    };
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    assert_eq!(open(&read_only, "disk.qcow2"), Errno::ROFS);
    let alone = OpenOptions {
        backing: BackingPolicy::Refuse,
        ..OpenOptions::default()
    };
    assert_eq!(open(&alone, "disk.qcow2"), Errno::PERM);
    std::os::unix::fs::symlink("disk.qcow2", folder.path().join("link.qcow2")).unwrap();
    assert_eq!(open(&OpenOptions::default(), "link.qcow2"), Errno::INVAL);
    let with_data = CreateOptions {
        data_file: Some(DataFileName {
            name: "data".to_owned(),
            is_raw: false,
        }),
        ..CreateOptions::default()
    };
    create_with(
        folder.path().join("split.qcow2"),
        ImageFormat::Qcow2,
        1 << 20,
        &with_data,
    )
    .unwrap();
    assert_eq!(
        open(&OpenOptions::default(), "split.qcow2"),
        Errno::OPNOTSUPP
    );
}

#[test]
fn fork_keeps_properties_mode_and_names() {
    requires!(tool("qemu-img"));
    let scene = Scene::new("cluster_size=16k,extended_l2=on,compression_type=zstd,refcount_bits=8");
    let disk = scene.at("disk.qcow2");
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::create_dir(scene.at("other")).unwrap();
    for (number, name) in ["fork.qcow2", "other/fork.qcow2"].into_iter().enumerate() {
        // A name that is in use is passed over.
        let taken = scene.at(&format!("disk.gen-{}.qcow2", 2 * number + 1));
        std::fs::write(&taken, "").unwrap();
        let made = scene.image.fork(scene.at(name)).unwrap();
        let expected = scene.at(&format!("disk.gen-{}.qcow2", 2 * number + 2));
        assert_eq!(made.generation.as_ref(), Some(&expected));
        std::fs::remove_file(taken).unwrap();
    }
    let info = |name: &str| {
        let path = scene.at(name);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{name}");
        let options = OpenOptions {
            read_only: true,
            is_shared: true,
            ..OpenOptions::default()
        };
        folio::block::tools::info(&path, &options)
            .unwrap()
            .qcow2
            .unwrap()
    };
    let frozen = info("disk.gen-2.qcow2");
    for (name, backing) in [
        ("disk.qcow2", Path::new("disk.gen-4.qcow2").to_owned()),
        ("fork.qcow2", Path::new("disk.gen-2.qcow2").to_owned()),
        ("other/fork.qcow2", scene.at("disk.gen-4.qcow2")),
    ] {
        let mut found = info(name);
        assert_eq!(found.backing_name.take().as_deref(), backing.to_str());
        assert_eq!(found.backing_format.take().as_deref(), Some("qcow2"));
        found.is_dirty = false;
        assert_eq!(format!("{found:?}"), format!("{frozen:?}"));
    }
    let anywhere = OpenOptions {
        backing: BackingPolicy::Anywhere,
        ..OpenOptions::default()
    };
    drop(open(scene.at("other/fork.qcow2"), &anywhere).unwrap());
    scene.close();
}

#[test]
fn generations_are_bounded() {
    requires!(tool("qemu-img"));
    let scene = Scene::new("cluster_size=512");
    for number in 0..GENERATIONS_MAX {
        scene
            .image
            .write_at(&[number as u8 + 1; 100], number as u64 * 100)
            .unwrap();
        scene
            .image
            .fork(scene.at(&format!("{number}.qcow2")))
            .unwrap();
    }
    let error = scene.image.fork(scene.at("more.qcow2")).unwrap_err();
    assert_eq!(error.errno(), Errno::MLINK);
    assert_eq!(error.detail(), Some(&Detail::TooManyGenerations));
    let mut bytes = [0; GENERATIONS_MAX * 100];
    scene.image.read_at(&mut bytes, 0).unwrap();
    let expected = (0..GENERATIONS_MAX).flat_map(|number| [number as u8 + 1; 100]);
    assert!(bytes.into_iter().eq(expected));
    scene.close();
}

#[test]
fn raw_image_is_resized_and_not_forked() {
    // Its files cannot be cloned.
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let path = folder.path().join("disk");
    drop(create(&path, ImageFormat::Raw, 1 << 20).unwrap());
    let image = LiveImage::open(&path, &OpenOptions::default()).unwrap();
    let error = image.fork(folder.path().join("fork")).unwrap_err();
    assert_eq!(error.errno(), Errno::OPNOTSUPP);
    assert!(
        error.to_string().contains("convert the image to qcow2"),
        "{error}"
    );
    assert_eq!(image.snapshot("a").unwrap_err().errno(), Errno::OPNOTSUPP);
    image.resize((2 << 20) + 1, false).unwrap();
    image.write_at(&[1; 512], 2 << 20).unwrap();
    assert_eq!(image.len_bytes(), (2 << 20) + 512);
    assert_eq!(
        image.resize(512, false).unwrap_err().detail(),
        Some(&Detail::WouldShrink)
    );
    image.resize(1 << 20, true).unwrap();
    assert_eq!(
        image.read_at(&mut [0], 1 << 20).unwrap_err().errno(),
        Errno::IO
    );
    drop(image);
    assert_eq!(std::fs::metadata(path).unwrap().len(), 1 << 20);
}

#[test]
fn snapshots_and_sizes_change_under_writes() {
    requires!(tool("qemu-img"));
    let scene = Scene::new("lazy_refcounts=on");
    let writers = Writers::new(vec![0; LEN_BYTES], false);
    let mut counts = Vec::new();
    writers.run(&scene.image, || {
        for round in 0..3 {
            writers.wait(100);
            let returned = writers.returned();
            scene.image.snapshot(&format!("s{round}")).unwrap();
            counts.push((returned, writers.started()));
            let grown = (LEN_BYTES + (round + 1) * (3 << 20)) as u64;
            scene.image.resize(grown, false).unwrap();
            assert_eq!(scene.image.len_bytes(), grown);
            scene.image.write_at(&[9; 512], grown - 512).unwrap();
            if round == 1 {
                scene.image.resize(LEN_BYTES as u64, true).unwrap();
            }
        }
    });
    // A fork leaves the snapshots in the generation.
    scene.image.fork(scene.at("fork.qcow2")).unwrap();
    let disk = scene.at("disk.qcow2");
    let generation = scene.at("disk.gen-1.qcow2");
    let folder = scene.close();
    assert_eq!(snapshots(&disk, None, false).unwrap().len(), 0);
    assert_eq!(snapshots(&generation, None, false).unwrap().len(), 3);
    let bytes = content(&disk);
    writers.check_all(&bytes[..LEN_BYTES]);
    assert!(
        bytes[LEN_BYTES..bytes.len() - 512]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert_qemu_reads(&disk, &bytes);
    for (round, (returned, started)) in counts.into_iter().enumerate() {
        let line = format!("convert -l s{round} -O raw disk.gen-1.qcow2 snapshot.raw");
        succeed(
            command("qemu-img")
                .args(line.split(' '))
                .current_dir(&folder),
        );
        let bytes = std::fs::read(folder.path().join("snapshot.raw")).unwrap();
        writers.check(&bytes[..LEN_BYTES], returned, started);
    }
}

#[test]
fn image_that_does_not_open_again_fails_requests() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    drop(create(&path, ImageFormat::Qcow2, 1 << 20).unwrap());
    let image = LiveImage::open(&path, &OpenOptions::default()).unwrap();
    // Another program destroys the header.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 8], 0).unwrap();
    assert_eq!(image.snapshot("a").unwrap_err().errno(), Errno::UCLEAN);
    assert_eq!(image.read_at(&mut [0], 0).unwrap_err().errno(), Errno::IO);
    assert_eq!(image.write_at(&[0], 0).unwrap_err().errno(), Errno::IO);
    assert_eq!(image.flush().unwrap_err().errno(), Errno::IO);
    let error = image.fork(folder.path().join("fork.qcow2")).unwrap_err();
    assert_eq!(error.errno(), Errno::UCLEAN);
    // It is locked all the same.
    let busy = open(&path, &OpenOptions::default()).err().unwrap();
    assert_eq!(busy.errno(), Errno::BUSY);
}

/// The time of a fork does not depend on the size; the number is printed, not judged.
#[test]
fn fork_of_a_large_image_takes_milliseconds() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    drop(create(&path, ImageFormat::Qcow2, 1 << 40).unwrap());
    let image = LiveImage::open(&path, &OpenOptions::default()).unwrap();
    for at in 0..64 {
        image.write_at(&[at as u8 + 1; 4096], at << 34).unwrap();
    }
    image.flush().unwrap();
    let start = Instant::now();
    image.fork(folder.path().join("fork.qcow2")).unwrap();
    eprintln!("fork of 1 TiB: {:.1?}", start.elapsed());
    let fork = open(folder.path().join("fork.qcow2"), &OpenOptions::default()).unwrap();
    let mut bytes = [0; 4096];
    fork.read_at(&mut bytes, 63 << 34).unwrap();
    assert_eq!(bytes, [64; 4096]);
}
