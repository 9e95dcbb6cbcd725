//! Programs that watch a mount act on changes of the host: an edit in place, a replacement by
//! rename, a new file, and a removal. docs/semantics.md quotes these tests.

use crate::support::require::report_skip;
use crate::support::requires;
use crate::support::tools::command;
use crate::{Fixture, MountSource};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a program may take to act before the test gives up.
const LOST: Duration = Duration::from_secs(120);
/// How long a program prints nothing before the next change: entr drops events while its command
/// runs, on the host too.
const QUIET: Duration = Duration::from_secs(1);

/// A program that watches the working directory, and what it prints.
struct Watcher {
    script: &'static str,
    /// Once it watches.
    ready: &'static str,
    /// After each change.
    acts: [&'static str; 5],
}

/// A running watcher, and the file that it prints to. Ends with the value.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Returns what it has printed.
    fn printed(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Returns how many lines with this text it has printed.
    fn count(&self, text: &str) -> usize {
        self.printed().matches(text).count()
    }

    /// Waits until the watcher prints `text` once more than `before` times.
    #[track_caller]
    fn wait_for(&mut self, text: &str, before: usize, what: &str) {
        let start = Instant::now();
        while self.count(text) <= before {
            let said = self.printed();
            let ended = self.child.try_wait().unwrap();
            assert_eq!(ended, None, "{what}: {said}");
            assert!(start.elapsed() < LOST, "{what}: no {text:?} in {said}");
            pause(Duration::from_millis(1));
        }
    }

    /// Waits until it has printed nothing for [`QUIET`].
    fn wait_until_quiet(&self) {
        let start = Instant::now();
        let mut printed = self.printed();
        loop {
            assert!(start.elapsed() < LOST, "prints without end: {printed}");
            pause(QUIET);
            let now = self.printed();
            if now == printed {
                return;
            }
            printed = now;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A watcher that has ended by itself has no process group.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn pause(time: Duration) {
    let (_sender, receiver) = mpsc::channel::<()>();
    let _ = receiver.recv_timeout(time);
}

/// Runs the watcher in the mount of a folder, and changes the folder on the host.
fn acts_on_changes_of_the_host(watcher: &Watcher) {
    let fixture = Fixture::on(MountSource::Directory, "events=on");
    let host = |name: &str| fixture.behind.join(name);
    fs::write(host("one"), "1").unwrap();
    fs::write(host("two"), "2").unwrap();
    let log = fixture.folder.path().join("log");
    let output = File::create(&log).unwrap();
    let mut shell = command("sh");
    shell
        .args(["-c", watcher.script])
        .current_dir(fixture.mount.path())
        .process_group(0)
        .stdin(Stdio::null())
        .stderr(output.try_clone().unwrap())
        .stdout(output);
    let child = shell.spawn().unwrap();
    let mut running = Running { child, log };
    running.wait_for(watcher.ready, 0, "start");
    let write = |name: &str, text: &str| fs::write(host(name), text).unwrap();
    let remove = |name: &str| fs::remove_file(host(name)).unwrap();
    let changes: [(&str, &dyn Fn()); 5] = [
        ("edit in place", &|| write("one", "10")),
        ("replacement by rename", &|| {
            write(".one.new", "20");
            fs::rename(host(".one.new"), host("one")).unwrap();
        }),
        ("new file", &|| write("three", "3")),
        ("removal", &|| remove("two")),
        ("edit of the replaced file", &|| write("one", "30")),
    ];
    for ((what, change), text) in changes.into_iter().zip(watcher.acts) {
        running.wait_until_quiet();
        let before = running.count(text);
        change();
        running.wait_for(text, before, what);
    }
}

#[test]
fn inotifywait_sees_changes_of_the_host() {
    requires!(root, fuse, tool("inotifywait"));
    acts_on_changes_of_the_host(&Watcher {
        script: "exec inotifywait -m -r --format '%e %f' .",
        ready: "Watches established",
        acts: [
            "CLOSE_WRITE,CLOSE one\n",
            "MOVED_TO one\n",
            "CREATE three\n",
            "DELETE two\n",
            "CLOSE_WRITE,CLOSE one\n",
        ],
    });
}

/// entr ends when a file appears or disappears, and is started again, as its manual shows.
#[test]
fn entr_runs_again_after_changes_of_the_host() {
    requires!(root, fuse, tool("entr"));
    acts_on_changes_of_the_host(&Watcher {
        script: "while :; do find . -type f | entr -nd sh -c 'echo $(cat one; ls) end'; done",
        ready: "1one two end",
        acts: [
            "10one two end",
            "20one two end",
            "20one three two end",
            "20one three end",
            "30one three end",
        ],
    });
}

#[test]
fn watchdog_sees_changes_of_the_host() {
    requires!(root, fuse, tool("python3"));
    let import = command("python3").args(["-c", "import watchdog"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        return report_skip("needs watchdog of PyPI in the Python of the PATH");
    }
    acts_on_changes_of_the_host(&Watcher {
        script: r#"exec python3 -u -c '
import os, time
from watchdog.observers import Observer
from watchdog.events import FileSystemEventHandler
class Handler(FileSystemEventHandler):
    def on_any_event(self, event):
        print(event.event_type, *map(os.path.basename, (event.src_path, event.dest_path)))
observer = Observer()
observer.schedule(Handler(), ".", recursive=True)
observer.start()
print("ready")
while True:
    time.sleep(100)
'"#,
        ready: "ready\n",
        acts: [
            "modified one ",
            "moved .one.new one",
            "created three ",
            "deleted two ",
            "modified one ",
        ],
    });
}
