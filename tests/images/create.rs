//! New images with every option: QEMU reports the options, finds no error, and writes into them.

use crate::images::model;
use crate::support::requires;
use crate::support::tools::{command, qemu_check, run, succeed, text};
use folio::Errno;
use folio::block::{
    self, BackingName, Compat, Compression, CreateOptions, DataFileName, ImageFormat, OpenOptions,
    Preallocation, create_with,
};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

const LEN: u64 = 5 << 20;

/// Returns the output of `qemu-img info`, without path and space on the host.
fn info(path: &Path) -> String {
    let said = text(&succeed(
        command("qemu-img")
            .args(["info", "--output=json"])
            .arg(path),
    ));
    said.lines()
        .filter(|line| !line.contains("filename\"") && !line.contains("actual-size"))
        .collect()
}

/// Creates an image with Folio and one with QEMU, compares `qemu-img info` of both, and writes into
/// the first. Returns the space of the first after its creation, in bytes.
fn same_as_qemu(folder: &Path, len_bytes: u64, options: &CreateOptions, words: &str) -> u64 {
    let (ours, theirs) = (folder.join("ours.qcow2"), folder.join("theirs.qcow2"));
    for path in [&ours, &theirs] {
        let _ = std::fs::remove_file(path);
    }
    create_with(&ours, ImageFormat::Qcow2, len_bytes, options).unwrap();
    let space_bytes = space_bytes(&ours);
    let line = format!("create -f qcow2 -o {words} theirs.qcow2 {len_bytes}");
    succeed(
        command("qemu-img")
            .args(line.split(' '))
            .current_dir(folder),
    );
    assert_eq!(info(&ours), info(&theirs), "{words}");
    qemu_check(&ours);
    let ours_text = ours.to_str().unwrap();
    run(
        "qemu-io",
        [
            "-c",
            "write -P 7 1M 1M",
            "-c",
            "write -P 8 4095k 2k",
            ours_text,
        ],
    );
    qemu_check(&ours);
    let mut want = vec![0; len_bytes as usize];
    want[1 << 20..2 << 20].fill(7);
    want[4095 << 10..4097 << 10].fill(8);
    let device = block::open(&ours, &OpenOptions::default()).unwrap();
    model::same(&*device, &want, 0);
    model::run(&*device, &mut want, 5, 60);
    drop(device);
    qemu_check(&ours);
    space_bytes
}

fn space_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn every_option_matches_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let base = CreateOptions::default;
    let widths = [1, 2, 4, 8, 32, 64];
    for refcount_bits in widths {
        let options = CreateOptions {
            refcount_bits,
            cluster_bytes: 4096,
            ..base()
        };
        let words = format!("refcount_bits={refcount_bits},cluster_size=4096");
        same_as_qemu(folder.path(), LEN, &options, &words);
    }
    for cluster_bytes in [512, 65536, 2 << 20] {
        for (compat, name) in [(Compat::V0_10, "0.10"), (Compat::V1_1, "1.1")] {
            let options = CreateOptions {
                cluster_bytes,
                compat,
                ..base()
            };
            let words = format!("cluster_size={cluster_bytes},compat={name}");
            same_as_qemu(folder.path(), LEN + 512, &options, &words);
        }
    }
    let options = CreateOptions {
        lazy_refcounts: true,
        compression: Compression::Zstd,
        ..base()
    };
    same_as_qemu(
        folder.path(),
        LEN,
        &options,
        "lazy_refcounts=on,compression_type=zstd",
    );
    same_as_qemu(
        folder.path(),
        LEN,
        &CreateOptions {
            extended_l2: true,
            ..base()
        },
        "extended_l2=on",
    );
}

#[test]
fn preallocation_takes_space_as_specified() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    takes_space_as_specified(&TempDir::new().unwrap());
}

#[test]
fn preallocation_on_tmpfs_takes_space_as_specified() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    takes_space_as_specified(&TempDir::new_in("/dev/shm").unwrap());
}

fn takes_space_as_specified(folder: &TempDir) {
    for preallocation in [
        Preallocation::Metadata,
        Preallocation::Falloc,
        Preallocation::Full,
    ] {
        let options = CreateOptions {
            preallocation,
            ..CreateOptions::default()
        };
        let words = format!(
            "preallocation={}",
            format!("{preallocation:?}").to_lowercase()
        );
        let taken_bytes = same_as_qemu(folder.path(), LEN, &options, &words);
        assert!(
            preallocation == Preallocation::Metadata || taken_bytes >= LEN,
            "{words}"
        );
        let raw = folder.path().join(words);
        if preallocation == Preallocation::Metadata {
            let refused = create_with(&raw, ImageFormat::Raw, LEN, &options).unwrap_err();
            assert_eq!(refused.errno(), Errno::INVAL);
            continue;
        }
        create_with(&raw, ImageFormat::Raw, LEN, &options).unwrap();
        assert_eq!(std::fs::metadata(&raw).unwrap().len(), LEN);
        assert!(space_bytes(&raw) >= LEN);
    }
}

#[test]
fn backing_name_and_format_are_stored() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("base.raw"), vec![5; (1 << 20) + 512]).unwrap();
    for cluster_bytes in [512, 65536] {
        for compat in [Compat::V0_10, Compat::V1_1] {
            let backing = Some(BackingName {
                name: "base.raw".to_owned(),
                format: Some(ImageFormat::Raw),
            });
            let options = CreateOptions {
                backing,
                compat,
                cluster_bytes,
                ..CreateOptions::default()
            };
            let path = folder
                .path()
                .join(format!("{compat:?}-{cluster_bytes}.qcow2"));
            create_with(&path, ImageFormat::Qcow2, 2 << 20, &options).unwrap();
            let said = text(&succeed(command("qemu-img").arg("info").arg(&path)));
            assert!(
                said.contains("backing file: base.raw")
                    && said.contains("backing file format: raw"),
                "{said}"
            );
            let mut want = vec![5; (1 << 20) + 512];
            want.resize(2 << 20, 0);
            model::same(
                &*block::open(&path, &OpenOptions::default()).unwrap(),
                &want,
                1,
            );
            qemu_check(&path);
        }
    }
}

#[test]
fn data_file_is_created_with_the_image() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let data_file = Some(DataFileName {
        name: "data".to_owned(),
        is_raw: true,
    });
    let options = CreateOptions {
        data_file,
        ..CreateOptions::default()
    };
    create_with(&path, ImageFormat::Qcow2, LEN, &options).unwrap();
    let device = block::open(&path, &OpenOptions::default()).unwrap();
    let mut want = vec![0; LEN as usize];
    model::run(&*device, &mut want, 9, 60);
    device.flush().unwrap();
    drop(device);
    assert!(std::fs::read(folder.path().join("data")).unwrap() == want);
    succeed(
        command("qemu-img")
            .args(["check", "disk.qcow2"])
            .current_dir(folder.path()),
    );
}

#[test]
fn invalid_options_are_rejected_without_files() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let base = CreateOptions::default;
    let old = || CreateOptions {
        compat: Compat::V0_10,
        ..base()
    };
    let backing = Some(BackingName {
        name: "x".repeat(1024),
        format: None,
    });
    let wrong = [
        CreateOptions {
            cluster_bytes: 3 << 10,
            ..base()
        },
        CreateOptions {
            cluster_bytes: 4 << 20,
            ..base()
        },
        CreateOptions {
            refcount_bits: 128,
            ..base()
        },
        CreateOptions {
            refcount_bits: 8,
            ..old()
        },
        CreateOptions {
            lazy_refcounts: true,
            ..old()
        },
        CreateOptions {
            compression: Compression::Zstd,
            ..old()
        },
        CreateOptions {
            extended_l2: true,
            cluster_bytes: 4096,
            ..base()
        },
        CreateOptions { backing, ..base() },
    ];
    for options in wrong {
        let refused = create_with(&path, ImageFormat::Qcow2, LEN, &options).unwrap_err();
        assert_eq!(refused.errno(), Errno::INVAL, "{refused}");
        assert!(!path.exists());
    }
    let small = CreateOptions {
        cluster_bytes: 512,
        ..base()
    };
    let refused = create_with(&path, ImageFormat::Qcow2, 1 << 50, &small).unwrap_err();
    assert_eq!(refused.errno(), Errno::FBIG, "{refused}");
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    let refused = create_with(&path, ImageFormat::Qcow2, LEN, &base()).unwrap_err();
    assert_eq!(refused.errno(), Errno::EXIST);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn other_formats_are_rejected_by_name() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    for (format, name) in [
        ("vmdk", "vmdk"),
        ("vhdx", "vhdx"),
        ("vpc", "vhd (vpc)"),
        ("vdi", "vdi"),
        ("qed", "qed"),
    ] {
        let path = folder.path().join(format);
        succeed(
            command("qemu-img")
                .args(["create", "-f", format])
                .arg(&path)
                .arg("10M"),
        );
        let refused = block::open(&path, &OpenOptions::default())
            .err()
            .expect("has to be refused");
        assert_eq!(refused.errno(), Errno::OPNOTSUPP);
        let said = refused.to_string();
        assert!(
            said.contains(&format!("{name} images are not supported"))
                && said.contains("qemu-img convert"),
            "{said}"
        );
        let raw = OpenOptions {
            format: Some(ImageFormat::Raw),
            ..OpenOptions::default()
        };
        block::open(&path, &raw).unwrap();
    }
}
