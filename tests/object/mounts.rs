//! An object mounted with FUSE, and volume commands with wrong credentials.

use crate::Bucket;
use crate::support::requires;
use crate::support::tools::{run, succeed, text};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Stdio};

/// The mount of an object. Dropping it unmounts, which ends the server.
struct Mount<'a> {
    bucket: &'a Bucket,
    server: Child,
    /// Kept open, so that the server can print.
    _stderr: BufReader<ChildStderr>,
}

impl<'a> Mount<'a> {
    #[track_caller]
    fn new(bucket: &'a Bucket, url: &str) -> Self {
        std::fs::create_dir_all(bucket.path("mnt")).unwrap();
        let mut server = bucket
            .command(&format!("mount -o ro {url} mnt"))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(server.stderr.take().unwrap());
        let mut line = String::new();
        // The command prints a line when it is ready, or an error.
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("until Ctrl-C"), "{line}");
        Self {
            bucket,
            server,
            _stderr: stderr,
        }
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        run(
            "umount",
            ["--lazy".as_ref(), self.bucket.path("mnt").as_os_str()],
        );
        self.server.wait().unwrap();
    }
}

#[test]
fn replaced_object_is_stale_in_its_mount() {
    requires!(root, fuse, tool("umount"));
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.img", "64M");
    std::fs::write(bucket.path("large"), vec![5; 40 << 20]).unwrap();
    bucket.folio("cp large disk.img:/");
    bucket.folio("cp disk.img s3://bucket/disk.img");
    let mount = Mount::new(&bucket, "s3://bucket/disk.img");
    let read = std::fs::read(bucket.path("mnt/file")).unwrap();
    assert!(read == std::fs::read(bucket.path("tree/file")).unwrap());
    let mut large = std::fs::File::open(bucket.path("mnt/large")).unwrap();
    large.read_exact(&mut [0; 4096]).unwrap();
    bucket.folio("cp tree/file disk.img:/etc/");
    bucket.folio("cp disk.img s3://bucket/disk.img");
    // More than what is read ahead of the first read.
    let error = large.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(folio::Errno::STALE.raw_os_error())
    );
    // What was read before is of the old version.
    assert_eq!(std::fs::read(bucket.path("mnt/file")).unwrap(), read);
    assert!(!bucket.path("mnt/etc/file").exists());
    // Before the mount, which ends with its last open file.
    drop(large);
    drop(mount);
    let again = Mount::new(&bucket, "s3://bucket/disk.img");
    assert!(std::fs::read(bucket.path("mnt/etc/file")).unwrap() == read);
    drop(again);
}

#[test]
fn volume_with_wrong_credentials_fails_with_advice() {
    let Some(bucket) = Bucket::start_versitygw() else {
        return;
    };
    succeed(&mut bucket.command("volume create s3://bucket/vol --size 1G"));
    for words in [
        "volume info s3://bucket/vol",
        "volume list s3://bucket/",
        "ls s3://bucket/vol:/",
    ] {
        let mut wrong = bucket.command(words);
        let refused = wrong
            .env("AWS_SECRET_ACCESS_KEY", "wrong")
            .output()
            .unwrap();
        let printed = text(&refused);
        assert!(!refused.status.success(), "{words}");
        assert!(
            printed.contains("check the credentials"),
            "{words}: {printed}"
        );
    }
    for words in ["volume info s3://none/vol", "volume list s3://none/"] {
        let printed = text(&bucket.command(words).output().unwrap());
        assert!(printed.contains("check the bucket"), "{words}: {printed}");
    }
}
