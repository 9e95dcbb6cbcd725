//! The command's view of the machine, and its traces there.

use crate::support::tools::text;
use crate::{Fixture, for_each_caller};

for_each_caller! {
    command_sees_its_own_processes_and_mounts;
    devices_work;
    network_and_host_name_are_new_on_request;
    bind_shows_host_and_read_only_refuses_changes;
    at_keeps_the_tree_of_the_host;
    capabilities_are_those_of_containers;
}

fn command_sees_its_own_processes_and_mounts(fixture: &Fixture) {
    let script = "cat /proc/mounts; echo processes $(ls -d /proc/[0-9]* | wc -l)";
    let output = fixture.sh(script);
    let root = output.lines().find(|line| line.contains(" / fuse.folio "));
    assert!(root.is_some_and(|line| line.contains("nodev")), "{output}");
    // The first process, the shell, its subshell, ls and wc.
    let count = output
        .lines()
        .find_map(|line| line.strip_prefix("processes "));
    let count: u32 = count.unwrap().parse().unwrap();
    assert!((2..=5).contains(&count), "{output}");
    let folder = fixture.folder.path().to_str().unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(folder), "{mounts}");
    assert_eq!(processes_in(folder), Vec::<String>::new());
}

fn devices_work(fixture: &Fixture) {
    let script = "echo x >/dev/null; cat /dev/null; dd if=/dev/zero bs=5 count=1 2>/dev/null | wc -c; \
                  dd if=/dev/urandom bs=7 count=1 2>/dev/null | wc -c; echo x >/dev/full || echo full; \
                  echo s >/dev/shm/s; cat /dev/shm/s /proc/self/fd/0 </dev/shm/s; \
                  echo t >/tmp/t; stat -c %a /tmp; readlink /dev/ptmx; touch /sys/x || echo sys";
    let output = fixture.sh(script);
    assert_eq!(output, "5\n7\nfull\ns\ns\n1777\npts/ptmx\nsys\n");
}

fn network_and_host_name_are_new_on_request(fixture: &Fixture) {
    let options = ["--network", "none", "--hostname", "inside"];
    let output = fixture.sh_with(&options, "tail -n +3 /proc/net/dev | wc -l; hostname");
    assert_eq!(output, "1\ninside\n");
    let own = rustix::system::uname();
    let own = own.nodename().to_str().unwrap();
    assert_eq!(fixture.sh("hostname"), format!("{own}\n"));
}

fn bind_shows_host_and_read_only_refuses_changes(fixture: &Fixture) {
    std::fs::create_dir(fixture.path("host")).unwrap();
    std::fs::write(fixture.path("host/f"), "host\n").unwrap();
    fixture.give(&fixture.path("host"));
    fixture.give(&fixture.path("host/f"));
    let options = ["--bind", "host:/home", "--bind", "host/f:/etc/passwd:ro"];
    let script =
        "cat /home/f /etc/passwd; echo new >/home/new; echo x >/etc/passwd || echo refused";
    assert_eq!(fixture.sh_with(&options, script), "host\nhost\nrefused\n");
    let new = std::fs::read_to_string(fixture.path("host/new")).unwrap();
    assert_eq!(new, "new\n");
    assert_eq!(fixture.content("/home/new"), None);
}

fn at_keeps_the_tree_of_the_host(fixture: &Fixture) {
    std::fs::create_dir(fixture.path("at")).unwrap();
    let words = [
        "--at",
        "at",
        "disk.img",
        "--",
        "sh",
        "-c",
        "cat at/etc/shadow tree/etc/shadow; echo $HOST_VARIABLE; echo x >at/x",
    ];
    let output = fixture.run(&words);
    assert_eq!(text(&output), "secret\nsecret\n1\n");
    assert_eq!(std::fs::read_dir(fixture.path("at")).unwrap().count(), 0);
    assert_eq!(fixture.content("/x").as_deref(), Some("x\n"));
    let missing = fixture.run(&["--at", "none", "disk.img", "true"]);
    assert!(
        text(&missing).contains("create the directory first"),
        "{}",
        text(&missing)
    );
}

fn capabilities_are_those_of_containers(fixture: &Fixture) {
    let script = "cat /proc/self/status; umount /proc && echo unmounted; \
                  echo 1 >/proc/sys/kernel/core_uses_pid && echo written; cat /proc/1/environ";
    let output = fixture.run(&["disk.img", "--", "sh", "-c", script]);
    let output = text(&output);
    assert!(output.contains("CapBnd:\t00000000a80425fb"), "{output}");
    assert!(
        !output.contains("unmounted") && !output.contains("written"),
        "{output}"
    );
    assert!(!output.contains("HOST_VARIABLE"), "{output}");
}

/// Returns the command lines of processes that name a folder.
fn processes_in(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let lines = entries.filter_map(|entry| {
        let line = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(folder)).collect()
}
