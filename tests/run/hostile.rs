//! Images whose content aims at the host.

use crate::support::Need;
use crate::support::require::report_skip;
use crate::support::tools::{succeed, text};
use crate::{Caller, Fixture, for_each_caller};
use std::os::unix::fs::symlink;

for_each_caller! {
    links_to_proc_lead_into_the_image;
    device_nodes_cannot_be_opened;
    set_user_id_files_gain_nothing_outside;
    names_with_escapes_are_escaped;
    programs_cannot_reach_the_first_process;
    inherited_descriptors_are_closed;
    directory_as_stream_is_refused;
    host_files_are_read_only;
    dangling_resolver_link_gets_name_servers;
    own_program_is_on_a_read_only_mount;
    overlay_has_the_mode_of_the_image;
    superuser_has_an_id_of_its_own;
    system_calls_are_filtered;
    namespaces_need_the_option;
    stopped_command_ends_by_a_signal;
}

/// Makes another image, from a tree with more files.
fn remake(fixture: &Fixture) {
    std::fs::remove_file(fixture.path("disk.img")).unwrap();
    fixture.make_image();
}

fn links_to_proc_lead_into_the_image(fixture: &Fixture) {
    std::fs::write(fixture.path("secret"), "host's\n").unwrap();
    let host = fixture.path("secret");
    let tree = fixture.path("tree");
    symlink("/proc/1/root", tree.join("r")).unwrap();
    symlink("../../../../../..", tree.join("up")).unwrap();
    // Where the run mounts: each leads elsewhere.
    symlink("/proc/1/root/etc", tree.join("dev")).unwrap();
    symlink("home", tree.join("proc")).unwrap();
    symlink("/proc/self/cwd", tree.join("tmp")).unwrap();
    symlink("/etc/passwd", tree.join("etc/resolv.conf")).unwrap();
    symlink("/proc/1/cwd", tree.join("b")).unwrap();
    remake(fixture);
    let host = host.display();
    let script = format!(
        "cat /r{host} /up{host} /proc/1/root{host} /proc/1/cwd{host} {host}; ls /b /dev; true"
    );
    let output = fixture.run(&["--bind", "tree:/b/x", "disk.img", "--", "sh", "-c", &script]);
    assert!(!text(&output).contains("host's"), "{}", text(&output));
    assert!(
        std::fs::read_to_string("/etc/passwd")
            .unwrap()
            .contains("root")
    );
    fixture.check();
}

fn device_nodes_cannot_be_opened(fixture: &Fixture) {
    let disk = rustix::fs::makedev(1, 5);
    let (kind, mode) = (rustix::fs::FileType::CharacterDevice, 0o666.into());
    rustix::fs::mknodat(rustix::fs::CWD, fixture.path("tree/zero"), kind, mode, disk).unwrap();
    remake(fixture);
    let script = "dd if=/zero bs=1 count=1 || echo refused; dd if=/dev/zero bs=1 count=1 of=/x";
    let output = fixture.run(&["disk.img", "--", "sh", "-c", script]);
    assert!(text(&output).contains("refused"), "{}", text(&output));
}

fn set_user_id_files_gain_nothing_outside(fixture: &Fixture) {
    use std::os::unix::fs::PermissionsExt;
    let id = fixture.path("tree/bin/myid");
    std::fs::copy(fixture.path("tree/bin/busybox"), &id).unwrap();
    std::fs::set_permissions(&id, std::fs::Permissions::from_mode(0o4755)).unwrap();
    remake(fixture);
    if fixture.caller == Caller::WithoutIds {
        return;
    }
    // Inside, the file makes a user the superuser of the namespace: outside, the caller.
    let script = "cat /proc/self/status; busybox id -u";
    let output = fixture.sh_with(&["--user", "user"], script);
    assert!(output.ends_with("1000\n"), "{output}");
    let host = fixture.path("mark");
    std::fs::write(&host, "").unwrap();
    std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o600)).unwrap();
    let output = fixture.run(&[
        "--bind",
        "mark:/mark",
        "disk.img",
        "--",
        "sh",
        "-c",
        "echo x >/mark",
    ]);
    let is_root = fixture.caller == Caller::Root;
    assert_eq!(output.status.success(), is_root, "{}", text(&output));
}

fn names_with_escapes_are_escaped(fixture: &Fixture) {
    let name = "a\u{1b}[2Jb";
    std::fs::write(fixture.path("tree").join(name), "").unwrap();
    remake(fixture);
    let output = fixture.run(&["disk.img", "--", &format!("/{name}")]);
    assert_eq!(output.status.code(), Some(126));
    assert!(!output.stderr.contains(&0x1b), "{}", text(&output));
}

fn programs_cannot_reach_the_first_process(fixture: &Fixture) {
    let script = "for name in exe root cwd fd/0 fd/3 fd/4 mem environ; do \
                  cat /proc/1/$name >/tmp/x 2>/dev/null && echo $name; done; true";
    assert_eq!(fixture.sh(script), "");
}

fn inherited_descriptors_are_closed(fixture: &Fixture) {
    let run = fixture.command(&[
        "disk.img",
        "--",
        "sh",
        "-c",
        "ls -l /proc/self/fd/; cd /proc/self/fd/7 || echo none",
    ]);
    let mut shell = crate::command("sh");
    shell
        .args(["-c", "exec 7</etc; exec \"$@\"", "sh"])
        .arg(run.get_program());
    let output = shell
        .args(run.get_args())
        .current_dir(fixture.folder.path())
        .output()
        .unwrap();
    assert!(text(&output).contains("none"), "{}", text(&output));
    assert!(!text(&output).contains("/etc"), "{}", text(&output));
}

fn directory_as_stream_is_refused(fixture: &Fixture) {
    let folder = || std::fs::File::open(fixture.folder.path()).unwrap();
    let run = || fixture.command(&["disk.img", "--", "cat", "/proc/self/fd/0/../etc/passwd"]);
    let input = run().stdin(folder()).output().unwrap();
    assert_eq!(input.status.code(), Some(125), "{}", text(&input));
    assert!(
        text(&input).contains("standard input is a directory"),
        "{}",
        text(&input)
    );
    let error = run().stderr(folder()).output().unwrap();
    assert_eq!(error.status.code(), Some(125), "{}", text(&error));
}

/// The mode stays the same even if a change succeeds.
fn host_files_are_read_only(fixture: &Fixture) {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let (null, resolver) = (mode("/dev/null"), mode("/etc/resolv.conf"));
    let script = format!(
        "chmod {null:o} /dev/null && echo changed; chmod {resolver:o} /etc/resolv.conf && echo changed; \
         true >>/etc/resolv.conf && echo opened; echo x >/dev/null && echo written"
    );
    let output = fixture.run(&["disk.img", "--", "sh", "-c", &script]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "written\n",
        "{}",
        text(&output)
    );
}

fn dangling_resolver_link_gets_name_servers(fixture: &Fixture) {
    let link = fixture.path("tree/etc/resolv.conf");
    symlink("../run/systemd/resolve/stub-resolv.conf", &link).unwrap();
    remake(fixture);
    let host = std::fs::read_to_string("/etc/resolv.conf").unwrap();
    assert_eq!(fixture.sh("cat /etc/resolv.conf"), host);
    let listed = fixture.folio(&["ls", "-l", "disk.img:/etc"]);
    assert!(text(&listed).contains("-> ../run/systemd/resolve/stub-resolv.conf"));
    fixture.check();
}

/// Starts a command, calls `look` while it runs, and ends it.
fn while_running<T>(fixture: &Fixture, words: &[&str], look: impl FnOnce(u32) -> T) -> T {
    use std::io::{BufRead, BufReader};
    let script = ["disk.img", "--", "sh", "-c", "echo ready; cat"];
    let mut run = fixture.command(&[words, &script].concat());
    let piped = std::process::Stdio::piped;
    let mut child = run.stdin(piped()).stdout(piped()).spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let seen = look(child.id());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    seen
}

fn own_program_is_on_a_read_only_mount(fixture: &Fixture) {
    let flags = while_running(fixture, &[], |id| {
        let program = format!("/proc/{id}/exe");
        rustix::fs::statvfs(program.as_str()).unwrap().f_flag
    });
    assert!(flags.contains(rustix::fs::StatVfsMountFlags::RDONLY));
}

fn overlay_has_the_mode_of_the_image(fixture: &Fixture) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(fixture.path("disk.img"), mode).unwrap();
    let modes = while_running(fixture, &["--commit-on-success"], |_| {
        let entries = std::fs::read_dir(fixture.folder.path()).unwrap().flatten();
        let overlays = entries.filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(b"disk.run-")
        });
        let mode = |entry: std::fs::DirEntry| entry.metadata().unwrap().permissions().mode();
        overlays
            .map(|entry| mode(entry) & 0o777)
            .collect::<Vec<_>>()
    });
    assert_eq!(modes, [0o600]);
}

/// Returns the only child of a process.
fn child(id: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    children.unwrap().trim().parse().unwrap()
}

fn superuser_has_an_id_of_its_own(fixture: &Fixture) {
    // folio, the first process of the namespace, the shell.
    let status = while_running(fixture, &[], |id| {
        std::fs::read_to_string(format!("/proc/{}/status", child(child(id)))).unwrap()
    });
    let owner = status.lines().find_map(|line| line.strip_prefix("Uid:\t"));
    let owner: u32 = owner.unwrap().split('\t').next().unwrap().parse().unwrap();
    if fixture.caller != Caller::Root {
        assert_eq!(owner, crate::USER);
        return;
    }
    assert!(owner >= 1 << 31, "{owner}");
    let log = std::fs::File::create(fixture.path("log")).unwrap();
    let script = "id -u; echo changed >/dev/stdout";
    let mut run = fixture.command(&["disk.img", "--", "sh", "-c", script]);
    let status = run.stdout(log).status().unwrap();
    assert!(!status.success());
    assert_eq!(std::fs::read_to_string(fixture.path("log")).unwrap(), "0\n");
    // A pipe is the command's own.
    assert_eq!(fixture.sh(script), "0\nchanged\n");
}

fn system_calls_are_filtered(fixture: &Fixture) {
    if let Err(reason) = Need::Tool("gcc").met() {
        report_skip(&reason);
        return;
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/run/calls.c");
    let mut compiler = crate::command("gcc");
    compiler.args(["-static", "-o"]);
    succeed(compiler.arg(fixture.path("tree/bin/calls")).arg(source));
    remake(fixture);
    assert_eq!(fixture.sh("calls"), "");
}

fn namespaces_need_the_option(fixture: &Fixture) {
    let script = "busybox unshare -U true && echo made";
    assert!(
        !fixture
            .run(&["disk.img", "--", "sh", "-c", script])
            .status
            .success()
    );
    let made = fixture.sh_with(&["--allow-namespaces"], script);
    assert_eq!(made, "made\n");
}

fn stopped_command_ends_by_a_signal(fixture: &Fixture) {
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::Read;
    let mut run = fixture.command(&["disk.img", "--", "sh", "-c", "echo ready; kill -STOP $$"]);
    let mut child = run.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}
