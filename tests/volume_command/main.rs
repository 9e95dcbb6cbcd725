//! `folio volume` and `folio store` on real servers, and a writer that is killed.
//!
//! ```text
//!   folio volume, cp, ls, mount --> versitygw (files), gofakes3 (memory), file://
//!     image_commands.rs   commands for images and files
//!     server.rs   a server on a free port of the loopback
//! ```

mod database;
mod image_commands;
mod server;
#[path = "../support/mod.rs"]
mod support;

use rustix::process::{Pid, Signal, kill_process};
use server::Server;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use support::require::{report_skip, requires};
use tempfile::TempDir;

/// Rounds of `kill -9` and takeover.
const ROUNDS: usize = 20;

/// Returns a command of folio that finds the server.
fn folio(server: &Server, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
    server.set_environment(&mut command);
    command.args(arguments);
    command
}

#[track_caller]
fn succeed(server: &Server, arguments: &[&str]) -> String {
    let output = folio(server, arguments).output().expect("folio starts");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        errors(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn fail(server: &Server, arguments: &[&str]) -> String {
    let output = folio(server, arguments).output().expect("folio starts");
    assert!(!output.status.success(), "{arguments:?} succeeded");
    errors(&output)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command with `--json`, and asserts that docs/schema describes the output.
#[track_caller]
fn json(server: &Server, schema: &str, arguments: &[&str]) -> serde_json::Value {
    let words = [arguments, &["--json"]].concat();
    let printed = succeed(server, &words);
    let printed = serde_json::from_str(&printed).expect("JSON");
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/schema")
        .join(schema);
    let schema = std::fs::read_to_string(&file).expect("a schema");
    let mut schema: serde_json::Value = serde_json::from_str(&schema).expect("a schema in JSON");
    schema["additionalProperties"] = false.into();
    let validator = jsonschema::draft202012::new(&schema).expect("a valid schema");
    let wrong: Vec<_> = validator
        .iter_errors(&printed)
        .map(|e| e.to_string())
        .collect();
    assert!(wrong.is_empty(), "{arguments:?}: {wrong:?}\n{printed}");
    printed
}

/// Every command of a volume's life, as the documents show them.
fn volume_life(server: &Server) {
    let url = server.url("vol1");
    let url = url.as_str();
    let (inside, file) = (format!("{url}:/"), format!("{url}:/tree/a"));
    let folder = TempDir::new().expect("a folder");
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).expect("a folder");
    std::fs::write(tree.join("a"), "first").expect("a file");
    std::fs::write(tree.join("b"), vec![7; 20 << 20]).expect("a file");
    let tree = tree.to_str().expect("a name in UTF-8");

    json(
        server,
        "store-check.json",
        &["store", "check", &server.url("")],
    );
    json(
        server,
        "volume.json",
        &["volume", "create", url, "--size", "1G"],
    );
    let again = fail(server, &["volume", "create", url, "--size", "1G"]);
    assert!(again.contains("exists"), "{again}");
    succeed(server, &["cp", "-a", tree, &inside, "--create"]);
    let refused = fail(server, &["cp", "-a", tree, &inside, "--create"]);
    assert!(refused.contains("holds data"), "{refused}");
    assert_eq!(succeed(server, &["cat", &file]), "first");
    assert!(succeed(server, &["ls", &format!("{url}:/tree")]).contains('b'));
    succeed(server, &["check", url]);

    let clone = snapshot_and_clone(server, url, &file);
    json(
        server,
        "volume-check.json",
        &["volume", "check", url, "--data"],
    );
    json(
        server,
        "volume-gc.json",
        &["volume", "gc", url, "--min-age", "0"],
    );
    succeed(server, &["volume", "check", &clone, "--data"]);
    let info = json(server, "volume-info.json", &["volume", "info", url]);
    assert_eq!(info["size_bytes"], 1 << 30);
    let (stored, logical) = (&info["stored_bytes"], &info["logical_bytes"]);
    let (stored, logical) = (stored.as_u64().unwrap_or(0), logical.as_u64().unwrap_or(0));
    assert!(logical >= 20 << 20, "{info}");
    assert!(stored * 10 <= logical * 13, "{info}");
    delete_both(server, url, &clone);
}

/// Takes a snapshot, makes a clone of it and rolls back to it; returns the clone.
fn snapshot_and_clone(server: &Server, url: &str, file: &str) -> String {
    json(
        server,
        "volume.json",
        &["volume", "snapshot", url, "monday"],
    );
    succeed(server, &["rm", file]);
    fail(server, &["cat", file]);
    let clone = server.url("vol2");
    succeed(server, &["volume", "clone", url, "monday", &clone]);
    assert_eq!(
        succeed(server, &["cat", &format!("{clone}:/tree/a")]),
        "first"
    );
    let list = json(server, "volume-list.json", &["volume", "list", &clone]);
    assert!(
        list["clone_of"]
            .as_str()
            .is_some_and(|of| of.ends_with("vol1")),
        "{list}"
    );
    json(server, "volume-list.json", &["volume", "list", url]);
    volume_grows(server, &clone);
    let listed = succeed(server, &["volume", "list", url]);
    assert!(
        listed.contains("monday") && listed.contains("vol2"),
        "{listed}"
    );
    succeed(server, &["volume", "rollback", url, "monday"]);
    assert_eq!(succeed(server, &["cat", file]), "first");
    clone
}

/// A volume of 1 GiB grows with the file system in it, and does not shrink.
fn volume_grows(server: &Server, url: &str) {
    json(server, "volume.json", &["volume", "resize", url, "1536M"]);
    succeed(server, &["resize", url]);
    succeed(server, &["check", url]);
    let info = json(server, "volume-info.json", &["volume", "info", url]);
    assert_eq!(info["size_bytes"], 1536 << 20);
    let statistics = succeed(server, &["df", url]);
    assert!(statistics.contains("1512328"), "{statistics}");
    let refused = fail(server, &["volume", "resize", url, "1G"]);
    assert!(refused.contains("can only grow"), "{refused}");
}

/// Deletes a volume and its clone, which must go first.
fn delete_both(server: &Server, url: &str, clone: &str) {
    let busy = fail(server, &["volume", "delete", url]);
    assert!(busy.contains("clone"), "{busy}");
    json(server, "volume.json", &["volume", "delete", clone]);
    succeed(server, &["volume", "delete", url]);
    fail(server, &["volume", "info", url]);
}

#[test]
fn other_objects_are_not_the_volumes() {
    let folder = TempDir::new().expect("a folder");
    let bucket = folder.path().join("bucket");
    std::fs::create_dir_all(bucket.join("full")).expect("a folder");
    std::fs::write(bucket.join("full/notes"), "keep").expect("a file");
    let folio = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_folio"))
            .args(words)
            .output();
        let output = output.expect("folio starts");
        (output.status.success(), errors(&output))
    };
    let url = |name: &str| format!("file://{}/{name}", bucket.display());
    let create = |name: &str| folio(&["volume", "create", &url(name), "--size", "64M"]);
    let (is_created, printed) = create("full");
    assert!(
        !is_created && printed.contains("other objects"),
        "{printed}"
    );
    let (is_created, printed) = create("v");
    assert!(is_created, "{printed}");
    let (is_created, printed) = create("v/inside");
    assert!(
        !is_created && printed.contains("inside the volume"),
        "{printed}"
    );
    std::fs::write(bucket.join("v/notes"), "keep").expect("a file");
    let (is_deleted, printed) = folio(&["volume", "delete", &url("v")]);
    assert!(is_deleted, "{printed}");
    assert_eq!(
        std::fs::read(bucket.join("v/notes")).expect("a file"),
        b"keep"
    );
    assert!(!folio(&["volume", "info", &url("v")]).0);
}

#[test]
fn new_volume_is_never_a_qcow2_image() {
    let server = Server::directory();
    let folder = TempDir::new().expect("a folder");
    let tree = folder.path().to_str().expect("a name in UTF-8");
    for (name, format) in [("new.qcow2", &[][..]), ("new", &["--format", "qcow2"])] {
        let place = format!("{}:/", server.url(name));
        let words = ["cp", "-a", tree, &place, "--create", "64M"];
        let refused = fail(&server, &[&words[..], format].concat());
        assert!(refused.contains("a raw disk"), "{refused}");
    }
}

#[test]
fn image_in_a_file_is_never_a_volume() {
    let server = Server::directory();
    let folder = TempDir::new().expect("a folder");
    let image = folder.path().join("disk.img");
    let image = image.to_str().expect("a name in UTF-8");
    succeed(&server, &["mkfs", image, "--size", "16M"]);
    let url = format!("file://{image}");
    let refused = fail(&server, &["touch", &format!("{url}:/file")]);
    assert!(refused.contains("cannot be written in place"), "{refused}");
    let missing = fail(&server, &["ls", &format!("{url}/below.img:/")]);
    assert!(missing.contains("check the path"), "{missing}");
}

/// A closed error output is not a failure.
#[test]
fn command_outlives_the_reader_of_its_errors() {
    let server = Server::directory();
    let full = std::fs::File::options().write(true).open("/dev/full");
    let status = folio(&server, &["ls", &server.url("none")])
        .stderr(full.expect("/dev/full"))
        .status();
    assert_eq!(status.expect("folio starts").code(), Some(3));
}

#[test]
fn volume_lives_on_versitygw() {
    match Server::versitygw() {
        Ok(server) => volume_life(&server),
        Err(reason) => report_skip(&reason),
    }
}

#[test]
fn volume_lives_on_gofakes3() {
    match Server::gofakes3() {
        Ok(server) => volume_life(&server),
        Err(reason) => report_skip(&reason),
    }
}

#[test]
fn volume_lives_in_directory_of_host() {
    volume_life(&Server::directory());
}

/// A store that fails a required test has no volume, and the check names the test.
fn refuse_store(server: Result<Server, String>, test: &str) {
    let server = match server {
        Ok(server) => server,
        Err(reason) => return report_skip(&reason),
    };
    let output = folio(&server, &["store", "check", &server.url(""), "--json"]).output();
    let output = output.expect("folio starts");
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(printed["is_usable"], false, "{printed}");
    let tests = printed["tests"].as_array().expect("an array");
    let failed = tests.iter().find(|test| test["verdict"] == "failed");
    assert!(
        failed.is_some_and(|failed| failed["name"] == test),
        "{printed}"
    );
    let url = server.url("vol1");
    let refused = fail(&server, &["volume", "create", &url, "--size", "1G"]);
    assert!(
        refused.contains("the store is refused") && refused.contains(test),
        "{refused}"
    );
    fail(&server, &["volume", "info", &url]);
}

#[test]
fn store_without_conditions_is_refused() {
    refuse_store(Server::without_conditions(), "conditional creation, raced");
}

#[test]
fn store_without_ranges_is_refused() {
    refuse_store(Server::without_ranges(), "ranged reads");
}

#[test]
fn store_that_checks_without_lock_is_refused() {
    refuse_store(Server::s3s_fs(), "conditional creation, raced");
}

/// A mount; the server process is killed at drop, without a chance to flush.
struct Mounted {
    process: Child,
    _errors: BufReader<std::process::ChildStderr>,
    folder: TempDir,
}

impl Mounted {
    fn new(server: &Server, url: &str) -> Self {
        let folder = TempDir::with_prefix("folio-volume-").expect("a folder to mount on");
        let mut process = folio(server, &["mount", "--takeover", "--allow-other", url])
            .arg(folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("folio starts");
        let mut errors = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("folio prints a line");
        assert!(line.contains("until Ctrl-C"), "folio mount: {line}");
        Self {
            process,
            _errors: errors,
            folder,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("a signal");
    }

    /// Writes a file and waits until it is durable.
    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        let path = self.path().join(name);
        std::fs::write(&path, text)?;
        std::fs::File::open(path)?.sync_all()
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path().join(name)).ok()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// The writer is killed in the middle of a write that is not synced. Each file that fsync(2)
/// acknowledged is there after the takeover.
#[test]
fn killed_writer_loses_no_synced_file() {
    requires!(root, fuse);
    let server = match Server::versitygw() {
        Ok(server) => server,
        Err(reason) => return report_skip(&reason),
    };
    let url = server.url("disk");
    succeed(&server, &["volume", "create", &url, "--size", "256M"]);
    succeed(&server, &["mkfs", &url, "--size", "256M"]);
    for round in 0..ROUNDS {
        let mount = Mounted::new(&server, &url);
        for earlier in 0..round {
            let found = std::fs::read(mount.path().join(format!("file{earlier}")));
            let expected = vec![earlier as u8 + 1; 100_000 * (earlier % 5 + 1)];
            assert!(
                found.is_ok_and(|bytes| bytes == expected),
                "file{earlier} in round {round}"
            );
        }
        let path = mount.path().join(format!("file{round}"));
        std::fs::write(&path, vec![round as u8 + 1; 100_000 * (round % 5 + 1)]).expect("a write");
        std::fs::File::open(&path)
            .and_then(|file| file.sync_all())
            .expect("fsync");
        std::fs::write(mount.path().join("unsynced"), vec![9; 3 << 20]).expect("a write");
    }
    let refused = fail(&server, &["mkfs", &url, "--size", "256M"]);
    assert!(refused.contains("--takeover"), "{refused}");
    let checked = folio(&server, &["check", "--takeover", &url])
        .output()
        .expect("folio starts");
    assert!(
        checked.status.code().is_some_and(|code| code <= 1),
        "{}",
        errors(&checked)
    );
    succeed(&server, &["volume", "check", &url, "--data"]);
}

/// Two writers take over from each other, each paused meanwhile. What the paused one writes after
/// it resumed is refused; what was acknowledged stays.
#[test]
fn writer_paused_during_takeover_is_fenced() {
    requires!(root, fuse);
    let server = match Server::versitygw() {
        Ok(server) => server,
        Err(reason) => return report_skip(&reason),
    };
    let url = server.url("disk");
    succeed(&server, &["volume", "create", &url, "--size", "64M"]);
    succeed(&server, &["mkfs", &url, "--size", "64M"]);
    let mut writer = Mounted::new(&server, &url);
    for round in 0..4 {
        let (name, late) = (format!("kept{round}"), format!("late{round}"));
        writer.write(&name, "acknowledged").expect("fsync");
        writer.signal(Signal::STOP);
        let next = Mounted::new(&server, &url);
        writer.signal(Signal::CONT);
        writer.write(&late, "refused").expect_err("a fenced writer");
        for earlier in 0..=round {
            let kept = next.read(&format!("kept{earlier}"));
            assert_eq!(kept.as_deref(), Some("acknowledged"), "round {round}");
            assert_eq!(next.read(&format!("late{earlier}")), None, "round {round}");
        }
        writer = next;
    }
}

/// A store that answers nothing fails a command within the I/O timeout of its first request.
#[test]
fn store_without_answers_fails_once_and_says_why() {
    let server = match Server::versitygw() {
        Ok(server) => server,
        Err(reason) => return report_skip(&reason),
    };
    let url = server.url("disk");
    succeed(&server, &["volume", "create", &url, "--size", "64M"]);
    server.signal(Signal::STOP);
    let printed = fail(&server, &["--io-timeout", "1", "volume", "info", &url]);
    server.signal(Signal::CONT);
    assert_eq!(printed.lines().count(), 1, "{printed}");
    assert!(printed.contains("--io-timeout"), "{printed}");
    succeed(&server, &["volume", "info", &url]);
}

#[test]
fn store_without_volumes_is_refused() {
    let server = Server::directory();
    let web = fail(
        &server,
        &["volume", "create", "http://localhost:1/v", "--size", "1G"],
    );
    assert!(web.contains("web server"), "{web}");
    let missing = fail(&server, &["volume", "info", &server.url("none")]);
    assert!(missing.contains("no volume"), "{missing}");
}
