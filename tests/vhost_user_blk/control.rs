//! Orders to a running server: forks, snapshots and sizes of a disk that is written.

use super::{BlockServer, connect};
use crate::support::requires;
use crate::support::tools::{command, order, qemu_check, run, text};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A served qcow2 with a control socket.
struct Scene {
    folder: TempDir,
    image: PathBuf,
    control: PathBuf,
    server: BlockServer,
}

impl Scene {
    fn new(words: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let [image, control] = ["disk.qcow2", "control"].map(|name| folder.path().join(name));
        run(
            "qemu-img",
            [
                "create",
                "-q",
                "-f",
                "qcow2",
                image.to_str().unwrap(),
                "16M",
            ],
        );
        let words = [&["--control", control.to_str().unwrap()], words].concat();
        let server = BlockServer::new(&[&image], &words);
        Self {
            folder,
            image,
            control,
            server,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Gives an order; returns its answer, or what the command said.
    fn order(&self, words: &[&str]) -> Result<serde_json::Value, String> {
        order(env!("CARGO_BIN_EXE_folio"), &self.control, words)
    }
}

/// Asserts that each block of a read-only image begins with a byte.
#[track_caller]
fn assert_pattern(image: &Path, pattern: u8, range: &str) {
    let read = format!("read -P {pattern} {range}");
    let output = command("qemu-io")
        .args(["-r", "-U", "-c", &read])
        .arg(image)
        .output()
        .unwrap();
    let said = text(&output);
    assert!(!said.contains("failed"), "{}: {said}", image.display());
}

#[test]
fn disk_in_use_is_forked() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let scene = Scene::new(&[]);
    let mut client = scene.server.connect(1, 1);
    let queue = &mut client.queues()[0];
    for (round, name) in [(1, "one.qcow2"), (2, "two.qcow2")] {
        assert_eq!(queue.do_one(1, 0, &[round; 65536], 0).unwrap().status, 0);
        let fork = scene.path(name);
        let answer = scene.order(&["fork", fork.to_str().unwrap()]).unwrap();
        assert_eq!(answer["fork"], fork.to_str().unwrap());
        // What is written afterwards is the served disk's alone.
        assert_eq!(queue.do_one(1, 0, &[9; 65536], 0).unwrap().status, 0);
        assert_eq!(queue.do_one(1, 1 << 20, &[9; 512], 0).unwrap().status, 0);
    }
    let stats = scene.order(&["stats"]).unwrap();
    assert_eq!(stats["requests"]["writes"], 6);
    for (round, name) in [(1, "one.qcow2"), (2, "two.qcow2")] {
        let fork = scene.path(name);
        qemu_check(&fork);
        assert_pattern(&fork, round, "0 64k");
        // A fork is a disk of its own while the first one is in use.
        let socket = fork.with_extension("sock");
        let server = BlockServer::new(&[&fork], &[]);
        let mut client = connect(&socket, 1, 1);
        assert_eq!(
            client.queues()[0]
                .do_one(1, 0, &[7; 512], 0)
                .unwrap()
                .status,
            0
        );
        drop(client);
        server.stop();
    }
    let taken = scene.path("one.qcow2");
    let why = scene.order(&["fork", taken.to_str().unwrap()]).unwrap_err();
    assert!(why.contains("File exists"), "{why}");
    drop(client);
    let Scene {
        image,
        server,
        folder,
        ..
    } = scene;
    server.stop();
    qemu_check(&image);
    assert_pattern(&image, 9, "0 64k");
    drop(folder);
}

#[test]
fn generations_are_compacted_under_a_server() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let scene = Scene::new(&[]);
    let mut client = scene.server.connect(1, 1);
    let queue = &mut client.queues()[0];
    for round in 0..3_u8 {
        let offset = u64::from(round) << 20;
        assert_eq!(
            queue
                .do_one(1, offset, &[round + 1; 4096], 0)
                .unwrap()
                .status,
            0
        );
        let fork = scene.path(&format!("{round}.qcow2"));
        scene.order(&["fork", fork.to_str().unwrap()]).unwrap();
    }
    let answer = scene.order(&["compact"]).unwrap();
    let generations = scene.order(&["stats"]).unwrap()["generations"].clone();
    assert_eq!(generations, 0, "{answer}");
    drop(client);
    let Scene {
        image,
        server,
        folder,
        ..
    } = scene;
    server.stop();
    qemu_check(&image);
    for round in 0..3_u8 {
        assert_pattern(&image, round + 1, &format!("{round}M 4k"));
        assert_pattern(
            &folder.path().join("2.qcow2"),
            round + 1,
            &format!("{round}M 4k"),
        );
    }
}

#[test]
fn driver_sees_the_new_size() {
    requires!(tool("qemu-img"));
    let scene = Scene::new(&[]);
    let mut client = scene.server.connect(1, 1);
    assert_eq!(client.len_bytes(), 16 << 20);
    let end = 20 << 20;
    assert_eq!(
        client.queues()[0]
            .do_one(1, end, &[1; 512], 0)
            .unwrap()
            .status,
        1
    );
    assert_eq!(scene.order(&["resize", "+16M"]).unwrap()["size"], 32 << 20);
    assert_eq!(client.read_len_bytes().unwrap(), 32 << 20);
    assert_eq!(
        client.queues()[0]
            .do_one(1, end, &[1; 512], 0)
            .unwrap()
            .status,
        0
    );
    let why = scene.order(&["resize", "1M"]).unwrap_err();
    assert!(why.contains("shrink"), "{why}");
    drop(client);
    scene.server.stop();
    qemu_check(&scene.image);
}

#[test]
fn snapshot_of_a_disk_in_use_is_applied_later() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let scene = Scene::new(&[]);
    let mut client = scene.server.connect(1, 1);
    let queue = &mut client.queues()[0];
    assert_eq!(queue.do_one(1, 0, &[3; 4096], 0).unwrap().status, 0);
    scene.order(&["snapshot", "before"]).unwrap();
    assert_eq!(queue.do_one(1, 0, &[4; 4096], 0).unwrap().status, 0);
    scene.order(&["flush"]).unwrap();
    assert_eq!(scene.order(&["options"]).unwrap()["queues"], 4);
    drop(client);
    scene.server.stop();
    let image = scene.image.to_str().unwrap();
    assert_pattern(&scene.image, 4, "0 4k");
    run("qemu-img", ["snapshot", "-a", "before", image]);
    assert_pattern(&scene.image, 3, "0 4k");
    qemu_check(&scene.image);
}

#[test]
fn orders_that_cannot_be_read_are_refused() {
    use std::io::{Read, Write};
    requires!(tool("qemu-img"));
    let scene = Scene::new(&[]);
    for line in ["", "\n", "{}\n", "{\"order\":\"destroy\"}\n", "\u{0}\n"] {
        let mut stream = std::os::unix::net::UnixStream::connect(&scene.control).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("not an order"), "{answer}");
    }
    let why = scene
        .order(&["--image", "none.qcow2", "flush"])
        .unwrap_err();
    assert!(why.contains("not served"), "{why}");
    scene.server.stop();
}
