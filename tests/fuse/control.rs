//! Orders to a mount by folio ctl: forks and snapshots of a file system that is written.

use crate::support::requires;
use crate::support::rounds::Done;
use crate::support::tools::{command, fsck, order, qemu_check, run, succeed, text, to_raw};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const FOLIO: &str = env!("CARGO_BIN_EXE_folio");

/// A new file system in a qcow2 image, mounted in the background with a control socket; detached at
/// the end.
struct Scene {
    folder: TempDir,
    image: PathBuf,
    target: PathBuf,
    socket: PathBuf,
}

impl Scene {
    fn new(options: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let image = folder.path().join("disk.qcow2");
        succeed(command(FOLIO).args(["mkfs", "--size", "128M"]).arg(&image));
        Self::on(folder, options, &image)
    }

    /// Mounts `source`: the image disk.qcow2 of the folder, or its partition.
    fn on(folder: TempDir, options: &[&str], source: &Path) -> Self {
        let path = |name: &str| folder.path().join(name);
        let (image, target, socket) = (path("disk.qcow2"), path("mount"), path("control"));
        fs::create_dir(&target).unwrap();
        let this = Self {
            folder,
            image,
            target,
            socket,
        };
        let mounted = this.mount(options, source);
        assert!(mounted.status.success(), "{}", text(&mounted));
        this
    }

    fn mount(&self, options: &[&str], source: &Path) -> Output {
        let mut folio = command(FOLIO);
        // The server keeps no folder of its starter.
        folio.current_dir(self.folder.path());
        folio.args(["mount", "--background", "--control", "control"]);
        let folio = folio.args(options).arg(source).arg(&self.target);
        folio.output().unwrap()
    }

    fn order(&self, words: &[&str]) -> Result<serde_json::Value, String> {
        order(FOLIO, &self.socket, words)
    }

    fn fork(&self, name: &str) -> PathBuf {
        let new = self.folder.path().join(name);
        let answer = self.order(&["fork", new.to_str().unwrap()]).unwrap();
        assert_eq!(answer["fork"], new.to_str().unwrap());
        new
    }

    /// Unmounts, and waits until the image is complete.
    fn end(&self) {
        succeed(command("umount").arg(&self.target));
        succeed(command(FOLIO).args(["mount", "--wait"]).arg(&self.image));
        assert!(!self.socket.exists(), "the socket outlives the mount");
        qemu_check(&self.image);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let mut umount = command("umount");
        let _ = umount.args(["-l", "-q"]).arg(&self.target).output();
    }
}

/// Asserts that neither qemu-img nor e2fsck, which replays no journal here, finds an error.
#[track_caller]
fn assert_clean(image: &Path) {
    fsck(&without_log(image));
}

/// The same, after the removal of files that were open without a name: a mount removes them, too.
#[track_caller]
fn assert_frozen(image: &Path) {
    let raw = without_log(image);
    let removed = command("e2fsck").arg("-p").arg(&raw).output().unwrap();
    assert!(removed.status.code() <= Some(1), "{}", text(&removed));
    fsck(&raw);
}

/// Returns a raw copy of an image whose journal needs no replay.
#[track_caller]
fn without_log(image: &Path) -> PathBuf {
    let raw = image.with_extension("raw");
    qemu_check(image);
    to_raw(image, &raw);
    let features = run("dumpe2fs", ["-h", raw.to_str().unwrap()]);
    assert!(!features.contains("needs_recovery"), "{features}");
    raw
}

/// Changes files of its own below `folder` until `is_done`.
fn write_until(is_done: &AtomicBool, folder: &Path) {
    fs::create_dir(folder).unwrap();
    let content = vec![7; 40_000];
    for round in 0.. {
        if is_done.load(Ordering::Relaxed) {
            return;
        }
        let path = |round: usize| folder.join((round % 16).to_string());
        let _ = fs::remove_file(path(round + 1));
        let temporary = folder.join("new");
        fs::write(&temporary, &content[..round % 40_000]).unwrap();
        fs::rename(&temporary, path(round)).unwrap();
    }
}

#[test]
fn forks_of_a_written_mount_are_clean() {
    requires!(
        root,
        fuse,
        tool("qemu-img"),
        tool("e2fsck"),
        tool("dumpe2fs")
    );
    let scene = Scene::new(&[]);
    let is_done = AtomicBool::new(false);
    let forks: Vec<_> = std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let (is_done, target) = (&is_done, &scene.target);
            scope.spawn(move || write_until(is_done, &target.join(name)));
        }
        let _done = Done(&is_done);
        let forks = (0..4).map(|round| {
            let name = format!("mark-{round}");
            // Without fsync(2): what was written before the order is in the fork.
            fs::write(scene.target.join(&name), &name).unwrap();
            (scene.fork(&format!("{round}.qcow2")), name)
        });
        forks.collect()
    });
    let stats = scene.order(&["stats"]).unwrap();
    assert!(stats["requests"]["write"].as_u64() > Some(0), "{stats}");
    assert!(stats["cache"]["nr_dirtied"].as_u64() > Some(0), "{stats}");
    assert_eq!(stats["generations"], 4);
    for (fork, name) in &forks {
        assert_frozen(fork);
        let inside = format!("{}:/{name}", fork.display());
        assert_eq!(run(FOLIO, ["cat", &inside]), *name);
    }
    scene.end();
    assert_clean(&scene.image);
}

#[test]
fn partition_is_forked_with_its_disk() {
    requires!(root, fuse, tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let [spec, image] = ["spec.toml", "disk.qcow2"].map(|name| folder.path().join(name));
    let partitions = "[[partition]]\ntype = \"linux\"\nformat = \"ext4\"\nsize = \"32M\"\n";
    fs::write(&spec, partitions.repeat(2)).unwrap();
    succeed(
        command(FOLIO)
            .args(["disk", "create"])
            .args([&image, &spec]),
    );
    let part = |image: &Path| format!("{}@2", image.display());
    let scene = Scene::on(folder, &[], Path::new(&part(&image)));
    fs::write(scene.target.join("f"), "one").unwrap();
    let fork = scene.fork("fork.qcow2");
    fs::write(scene.target.join("f"), "two").unwrap();
    scene.end();
    for (image, content) in [(&fork, "one"), (&image, "two")] {
        qemu_check(image);
        let inside = format!("{}:/f", part(image));
        assert_eq!(run(FOLIO, ["cat", &inside]), content);
        run(FOLIO, ["check", &part(image)]);
    }
}

#[test]
fn mount_obeys_the_other_orders() {
    requires!(
        root,
        fuse,
        tool("qemu-img"),
        tool("e2fsck"),
        tool("dumpe2fs")
    );
    let scene = Scene::new(&["-o", "noatime"]);
    let file = scene.target.join("f");
    fs::write(&file, "before").unwrap();
    scene.order(&["snapshot", "one"]).unwrap();
    fs::write(&file, "after").unwrap();
    scene.order(&["flush"]).unwrap();
    let options = scene.order(&["options"]).unwrap();
    assert_eq!(options["target"], scene.target.to_str().unwrap());
    assert!(options["options"].as_str().unwrap().contains("noatime"));
    let refused = |words: &[&str], why: &str| {
        let said = scene.order(words).unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    refused(&["resize", "+1G"], "folio resize");
    let inside = scene.target.join("fork.qcow2");
    refused(&["fork", inside.to_str().unwrap()], "inside the mount");
    // The mount is not frozen.
    fs::write(&file, "last").unwrap();
    scene.end();
    assert_clean(&scene.image);
    let image = scene.image.to_str().unwrap();
    run("qemu-img", ["snapshot", "-a", "one", image]);
    assert_clean(&scene.image);
    let inside = format!("{image}:/f");
    assert_eq!(run(FOLIO, ["cat", &inside]), "before");
}

#[test]
fn generations_are_compacted_under_a_mount() {
    requires!(
        root,
        fuse,
        tool("qemu-img"),
        tool("e2fsck"),
        tool("dumpe2fs")
    );
    let scene = Scene::new(&[]);
    fs::write(scene.target.join("f"), vec![5; 3 << 20]).unwrap();
    let fork = scene.fork("fork.qcow2");
    fs::write(scene.target.join("f"), "new").unwrap();
    let compacted = scene.order(&["compact"]).unwrap();
    assert_eq!(compacted["unused"].as_array().unwrap().len(), 1);
    assert_eq!(scene.order(&["stats"]).unwrap()["generations"], 0);
    scene.end();
    assert_clean(&scene.image);
    assert_clean(&fork);
}

#[test]
fn read_only_mount_and_folder_refuse_forks() {
    requires!(root, fuse);
    let scene = Scene::new(&["--ro"]);
    let new = scene.folder.path().join("fork.qcow2");
    let why = scene.order(&["fork", new.to_str().unwrap()]).unwrap_err();
    assert!(why.contains("read-only"), "{why}");
    assert!(!new.exists());
    assert_eq!(scene.order(&["options"]).unwrap()["read_only"], true);
    succeed(command("umount").arg(&scene.target));
    succeed(command(FOLIO).args(["mount", "--wait"]).arg(&scene.image));
    let refused = scene.mount(&[], scene.folder.path());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused).contains("is not an image"), "{refused:?}");
}
