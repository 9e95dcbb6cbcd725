//! Images in object storage through the command, against gofakes3 and versitygw on loopback.
//!
//! ```text
//!   Bucket   gofakes3 (in memory) <--- folio ls, cat, cp, image, push, serve
//!                                 ---> the downloaded file, judged by qemu-img and e2fsck
//! ```

mod bench;
mod downloads;
mod mounts;
#[path = "../support/mod.rs"]
mod support;
mod web_identity;

use bench::assert_schema;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use support::require::{find, report_skip};
use support::requires;
use support::tools::{command, fsck, qemu_check, run, succeed, text, to_raw};
use tempfile::TempDir;

/// A store with one bucket, and a folder.
struct Bucket {
    server: Child,
    port: u16,
    folder: TempDir,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Returns a program that `cargo xtask test` installs into the target folder.
fn installed(name: &'static str) -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../object-stores");
    let installed = installed.join(name);
    installed
        .is_file()
        .then_some(installed)
        .or_else(|| find(name))
}

impl Bucket {
    /// Starts gofakes3, which keeps objects in memory and checks no signatures; reports a skip
    /// where it is missing.
    fn start() -> Option<Self> {
        let Some(program) = installed("gofakes3") else {
            report_skip(
                "needs gofakes3: go install \
                 github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0",
            );
            return None;
        };
        Some(Self::serve(|port, _| {
            let mut server = Command::new(&program);
            server
                .args(["-backend", "memory", "-initialbucket", "bucket", "-host"])
                .arg(format!("127.0.0.1:{port}"));
            server
        }))
    }

    /// Starts versitygw, which checks signatures and copies parts; reports a skip where it is
    /// missing.
    fn start_versitygw() -> Option<Self> {
        let Some(program) = installed("versitygw") else {
            report_skip(
                "needs versitygw: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0",
            );
            return None;
        };
        Some(Self::serve(|port, folder| {
            std::fs::create_dir_all(folder.join("store/bucket")).unwrap();
            let mut server = Command::new(&program);
            server
                .env("ROOT_ACCESS_KEY", "key")
                .env("ROOT_SECRET_KEY", "secret")
                .args(["--quiet", "--port", &format!("127.0.0.1:{port}"), "posix"])
                .arg(folder.join("store"));
            server
        }))
    }

    fn serve(server: impl Fn(u16, &Path) -> Command) -> Self {
        let folder = TempDir::with_prefix("folio-object-").unwrap();
        // The port is free again when the listener is dropped, and another program may take it.
        for _ in 0..10 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let mut server = server(port, folder.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            while server.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Self {
                        server,
                        port,
                        folder,
                    };
                }
                std::thread::yield_now();
            }
        }
        panic!("the store does not start");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = command(env!("CARGO_BIN_EXE_folio"));
        command
            .current_dir(self.folder.path())
            .env(
                "AWS_ENDPOINT_URL",
                format!("http://127.0.0.1:{}", self.port),
            )
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_REGION", "us-east-1")
            .env("NO_PROXY", "127.0.0.1")
            .args(words.split_whitespace());
        command
    }

    /// Runs the command; returns what it prints.
    #[track_caller]
    fn folio(&self, words: &str) -> String {
        text(&succeed(&mut self.command(words)))
    }

    #[track_caller]
    fn fails(&self, words: &str, code: i32, why: &str) {
        let output: Output = self.command(words).output().unwrap();
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(code), "{words}: {printed}");
        assert!(printed.contains(why), "{words}: {printed}");
    }

    /// Uploads an image with a tree.
    #[track_caller]
    fn with_image(&self, name: &str, size: &str) {
        std::fs::create_dir_all(self.path("tree/etc")).unwrap();
        std::fs::write(self.path("tree/etc/hostname"), "host\n").unwrap();
        let file: Vec<u8> = (0..200_000_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        std::fs::write(self.path("tree/file"), file).unwrap();
        self.folio(&format!("cp -r tree/. {name}:/ --create {size}"));
        self.folio(&format!("cp {name} s3://bucket/{name}"));
    }

    /// Returns a counter of `--stats` of a command.
    #[track_caller]
    fn count(&self, words: &str, counter: &str) -> u64 {
        let printed = self.folio(&format!("{words} --stats"));
        let line = printed.lines().find_map(|line| line.strip_prefix(counter));
        line.unwrap_or_else(|| panic!("{printed}"))
            .trim()
            .parse()
            .unwrap()
    }
}

#[test]
fn image_in_a_bucket_is_read_in_place() {
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.qcow2", "256M");
    let listed = bucket.folio("ls s3://bucket/disk.qcow2:/");
    assert!(
        listed.contains("etc") && listed.contains("file"),
        "{listed}"
    );
    assert_eq!(
        bucket.folio("cat s3://bucket/disk.qcow2:/etc/hostname"),
        "host\n"
    );
    let http = format!(
        "cat http://127.0.0.1:{}/bucket/disk.qcow2:/etc/hostname",
        bucket.port
    );
    assert_eq!(bucket.folio(&http), "host\n");
    let file = format!(
        "cat file://{}:/etc/hostname",
        bucket.path("disk.qcow2").display()
    );
    assert_eq!(bucket.folio(&file), "host\n");
    bucket.folio("cp -r s3://bucket/disk.qcow2:/ back");
    run(
        "diff",
        [
            "-r".as_ref(),
            bucket.path("tree/etc").as_os_str(),
            bucket.path("back/etc").as_os_str(),
        ],
    );
    for words in [
        "stat s3://bucket/disk.qcow2:/file",
        "tree s3://bucket/disk.qcow2",
        "du s3://bucket/disk.qcow2:/",
        "find s3://bucket/disk.qcow2:/",
        "image check s3://bucket/disk.qcow2",
        "image map s3://bucket/disk.qcow2",
        "image measure -O raw s3://bucket/disk.qcow2",
        "image compare s3://bucket/disk.qcow2 disk.qcow2",
        "image info --json s3://bucket/disk.qcow2",
    ] {
        bucket.folio(words);
    }
    bucket.fails(
        "ls s3://bucket/none.qcow2:/",
        3,
        "check the bucket and the key",
    );
    for words in [
        "rm s3://bucket/disk.qcow2:/file",
        "trim s3://bucket/disk.qcow2",
        "image resize s3://bucket/disk.qcow2 1G",
        "image snapshot -c now s3://bucket/disk.qcow2",
        "image bitmap --add s3://bucket/disk.qcow2 bits",
        "image create -f qcow2 s3://bucket/new.qcow2 1G",
    ] {
        bucket.fails(words, 3, "then folio push overlay.qcow2 URL");
    }
    bucket.folio("image snapshot -l s3://bucket/disk.qcow2");
}

#[test]
fn downloaded_image_keeps_its_holes() {
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.img", "64M");
    bucket.folio("cp s3://bucket/disk.img back.img");
    run("cmp", [bucket.path("disk.img"), bucket.path("back.img")]);
    let blocks = bucket.path("back.img").metadata().unwrap().blocks();
    assert!(blocks * 512 < 32 << 20, "{blocks}");
}

#[test]
fn cold_list_and_read_need_few_requests() {
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.qcow2", "10G");
    for words in [
        "ls s3://bucket/disk.qcow2:/",
        "cat s3://bucket/disk.qcow2:/etc/hostname",
    ] {
        assert!(bucket.count(words, "object_store_get ") <= 12, "{words}");
        assert!(
            bucket.count(words, "object_store_received_bytes ") <= 8 << 20,
            "{words}"
        );
    }
    let cached = "cat s3://bucket/disk.qcow2:/file --part-cache parts";
    assert!(bucket.count(cached, "object_store_get ") > 1);
    assert_eq!(bucket.count(cached, "object_store_get "), 1);
}

#[test]
fn backing_files_are_found_in_the_bucket() {
    requires!(tool("qemu-img"));
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.qcow2", "256M");
    let qemu = |words: &str| {
        succeed(
            command("qemu-img")
                .current_dir(bucket.folder.path())
                .args(words.split(' ')),
        );
    };
    qemu("create -q -f qcow2 -b disk.qcow2 -F qcow2 top.qcow2");
    qemu("convert -c -O qcow2 disk.qcow2 small.qcow2");
    for name in ["top.qcow2", "small.qcow2"] {
        bucket.folio(&format!("cp {name} s3://bucket/{name}"));
        let read = bucket.folio(&format!("cat s3://bucket/{name}:/etc/hostname"));
        assert_eq!(read, "host\n");
    }
    bucket
        .folio("image create -f qcow2 -b s3://bucket/disk.qcow2 -F qcow2 --backing allow o.qcow2");
    bucket.fails("ls o.qcow2:/", 3, "--backing-url");
    bucket.folio("--backing-url s3://bucket/ ls o.qcow2:/");
}

#[test]
fn converted_image_is_uploaded_complete() {
    requires!(tool("qemu-img"), tool("e2fsck"));
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.img", "64M");
    bucket.folio("image convert -c -O qcow2 s3://bucket/disk.img s3://bucket/new.qcow2");
    bucket.folio("cp s3://bucket/new.qcow2 new.qcow2");
    qemu_check(&bucket.path("new.qcow2"));
    to_raw(&bucket.path("new.qcow2"), &bucket.path("new.img"));
    fsck(&bucket.path("new.img"));
    run("cmp", [bucket.path("new.img"), bucket.path("disk.img")]);
}

/// Makes an overlay with a new file, and pushes it.
#[track_caller]
fn push_and_read(bucket: &Bucket, name: &str, format: &str) {
    let url = format!("s3://bucket/{name}");
    bucket.folio(&format!(
        "image create -f qcow2 -b {url} -F {format} --backing allow o-{name}"
    ));
    std::fs::write(bucket.path("app.conf"), "new\n").unwrap();
    bucket.folio(&format!(
        "cp --backing-url s3://bucket/ app.conf o-{name}:/etc/"
    ));
    let pushed = bucket.folio(&format!("push o-{name} {url} --json"));
    let pushed = serde_json::from_str(&pushed).expect("JSON");
    assert_schema("push.json", &pushed);
    assert_eq!(pushed["is_replaced"], true);
    assert_eq!(bucket.folio(&format!("cat {url}:/etc/app.conf")), "new\n");
    assert_eq!(bucket.folio(&format!("cat {url}:/etc/hostname")), "host\n");
    bucket.folio(&format!("cp {url} pushed-{name}"));
}

#[test]
fn push_writes_a_new_version() {
    requires!(tool("qemu-img"), tool("e2fsck"));
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.qcow2", "256M");
    push_and_read(&bucket, "disk.qcow2", "qcow2");
    qemu_check(&bucket.path("pushed-disk.qcow2"));
    to_raw(
        &bucket.path("pushed-disk.qcow2"),
        &bucket.path("pushed.raw"),
    );
    fsck(&bucket.path("pushed.raw"));
    bucket.with_image("big.img", "64M");
    push_and_read(&bucket, "big.img", "raw");
    fsck(&bucket.path("pushed-big.img"));
    // Its backing file is another object now.
    bucket.fails(
        "push o-big.img s3://bucket/disk.qcow2",
        2,
        "its backing file is",
    );
}

#[test]
fn overlay_of_a_replaced_object_is_stale() {
    requires!(tool("qemu-img"), tool("e2fsck"));
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.qcow2", "64M");
    let (url, allow) = ("s3://bucket/disk.qcow2", "--backing-url s3://bucket/");
    std::fs::write(bucket.path("file"), "new").unwrap();
    for overlay in ["first", "second"] {
        let name = format!("-b {url} -F qcow2 --backing allow {overlay}.qcow2");
        bucket.folio(&format!("image create -f qcow2 {name}"));
        bucket.folio(&format!("cp {allow} file {overlay}.qcow2:/{overlay}"));
        // QEMU has no s3://, and keeps what it does not know.
        let path = bucket.path(&format!("{overlay}.qcow2"));
        let file = format!(r#"{{"driver":"file","filename":"{}"}}"#, path.display());
        let image = format!(r#"json:{{"driver":"qcow2","backing":null,"file":{file}}}"#);
        run("qemu-img", ["check", image.as_str()]);
    }
    bucket.folio(&format!("push first.qcow2 {url}"));
    let reason = "has changed since this image was written";
    for words in [
        format!("push second.qcow2 {url}"),
        format!("cat {allow} second.qcow2:/second"),
        format!("cp {allow} file second.qcow2:/more"),
    ] {
        let output = bucket.command(&words).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words}");
        assert!(printed.contains(reason), "{words}: {printed}");
    }
    // The pushed overlay goes on.
    bucket.folio(&format!("cp {allow} file first.qcow2:/again"));
    bucket.folio(&format!("push first.qcow2 {url}"));
    assert_eq!(bucket.folio(&format!("cat {url}:/again")), "new");
    // The user may say that the content is the same.
    let rebase = format!("image rebase -u -b {url} -F qcow2 second.qcow2");
    bucket.folio(&rebase);
    bucket.folio(&format!("stat {allow} second.qcow2:/second"));
}

#[test]
fn push_copies_unchanged_parts_in_the_store() {
    requires!(tool("e2fsck"));
    let Some(bucket) = Bucket::start_versitygw() else {
        return;
    };
    bucket.with_image("big.img", "64M");
    push_and_read(&bucket, "big.img", "raw");
    fsck(&bucket.path("pushed-big.img"));
    // The last push made no difference, and this one has one of its own.
    bucket.folio("image create -f qcow2 -b s3://bucket/big.img -F raw --backing allow next.qcow2");
    bucket.folio("cp --backing-url s3://bucket/ app.conf next.qcow2:/");
    let sent = bucket.count(
        "push next.qcow2 s3://bucket/big.img",
        "object_store_sent_bytes ",
    );
    assert!(sent < 40 << 20, "{sent}");
    let mut wrong = bucket.command("ls s3://bucket/big.img:/");
    let refused = text(
        &wrong
            .env("AWS_SECRET_ACCESS_KEY", "wrong")
            .output()
            .unwrap(),
    );
    assert!(refused.contains("check the credentials"), "{refused}");
}

#[test]
fn nbd_serves_a_bucket_through_an_overlay() {
    requires!(tool("qemu-img"));
    let Some(bucket) = Bucket::start() else {
        return;
    };
    bucket.with_image("disk.qcow2", "64M");
    let words = "serve nbd --overlay local.qcow2 s3://bucket/disk.qcow2 --port 0 --json";
    let mut server = bucket
        .command(words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let uri = ready["uri"].as_str().unwrap();
    assert_eq!(ready["read_only"], false);
    let compared = run(
        "qemu-img",
        [
            "compare",
            "-U",
            uri,
            bucket.path("disk.qcow2").to_str().unwrap(),
        ],
    );
    assert!(compared.contains("identical"), "{compared}");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&server),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert!(server.wait().unwrap().success());
    assert!(bucket.path("local.qcow2").is_file());
}

#[test]
fn lost_race_of_a_replacement_changes_nothing() {
    use folio::block::{Device, MemoryDevice};
    use folio_object_store::{ObjectDevice, Store, StoreOptions, UploadProgress, replace, upload};
    let Some(bucket) = Bucket::start() else {
        return;
    };
    let mut options = StoreOptions::default();
    options.endpoint_url = Some(format!("http://127.0.0.1:{}", bucket.port));
    options.is_unsigned = true;
    let store = Store::open(&"s3://bucket/disk".parse().unwrap(), &options).unwrap();
    let open = || ObjectDevice::open(store.clone(), |_, _, _| None).unwrap();
    let progress = UploadProgress {
        advance: &|_| {},
        is_canceled: &|| false,
    };
    // Below and above the size from which on parts are uploaded.
    for len_bytes in [1_u64 << 20, 20 << 20] {
        let content = |byte: u8| {
            let device = MemoryDevice::new(len_bytes);
            device.write_at(&vec![byte; len_bytes as usize], 0).unwrap();
            device
        };
        let last_byte = || {
            let mut byte = [0];
            open().read_at(&mut byte, len_bytes - 1).unwrap();
            byte[0]
        };
        upload(&store, &content(1), &progress).unwrap();
        let seen = open().e_tag().unwrap().to_owned();
        upload(&store, &content(2), &progress).unwrap();
        let put = |tag: &str, byte| {
            replace(
                &store,
                tag,
                &content(byte),
                len_bytes,
                &|_| false,
                &progress,
            )
        };
        let error = put(&seen, 3).unwrap_err();
        assert_eq!(error.errno(), folio::Errno::STALE, "{error}");
        assert_eq!(last_byte(), 2);
        let seen = open().e_tag().unwrap().to_owned();
        put(&seen, 4).unwrap();
        assert_eq!(last_byte(), 4);
    }
}
