//! The command itself: search, exit code, streams, environment, user.

use crate::support::tools::text;
use crate::{Caller, Fixture, for_each_caller};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

for_each_caller! {
    exit_code_is_that_of_the_command;
    command_without_start_has_code_of_containers;
    invalid_options_are_refused;
    streams_are_those_of_the_caller;
    environment_is_new_but_for_env;
    user_has_home_and_groups;
    signal_reaches_the_command;
}

fn exit_code_is_that_of_the_command(fixture: &Fixture) {
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("kill -15 $$", 143),
        // A process that outlives the command is killed.
        ("sleep 1000 & exit 3", 3),
    ] {
        let output = fixture.run(&["disk.img", "--", "/bin/sh", "-c", script]);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{script}: {}",
            text(&output)
        );
    }
    fixture.check();
}

fn command_without_start_has_code_of_containers(fixture: &Fixture) {
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(120, 0);
    (elf[16], elf[18]) = (2, 183);
    std::fs::write(fixture.path("arm"), elf).unwrap();
    std::fs::write(fixture.path("script"), "#!/usr/bin/nothing -x\n").unwrap();
    for name in ["arm", "script"] {
        fixture.folio(&["cp", "-q", name, &format!("disk.img:/bin/{name}")]);
        fixture.folio(&["chmod", "755", &format!("disk.img:/bin/{name}")]);
    }
    for (command, code, message) in [
        ("nothing", 127, "nothing: command not found"),
        ("/bin/nothing", 127, "/bin/nothing: No such file"),
        ("script", 127, "its interpreter /usr/bin/nothing is missing"),
        ("/etc", 126, "/etc: Permission denied"),
        ("/etc/passwd", 126, "/etc/passwd: Permission denied"),
        ("arm", 126, "a program for aarch64"),
    ] {
        let output = fixture.run(&["disk.img", command]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(code), "{command}: {text}");
        assert!(text.contains(message), "{command}: {text}");
    }
    fixture.check();
}

fn invalid_options_are_refused(fixture: &Fixture) {
    for (option, value, message) in [
        ("--user", "nobody", "no user nobody"),
        ("--user", "4294967295", "invalid user"),
        ("--workdir", "/none", "/none: No such file"),
        ("--bind", "a", "expected HOST:INSIDE"),
        ("--bind", "none:/x", "--bind none: No such file"),
        ("--bind", "tree:/", "other than /"),
        ("--bind", "tree:/etc/passwd", "Not a directory"),
        ("--at", "/", "choose another directory"),
        ("--at", "folio", "not a directory"),
        ("--env", "=x", "expected NAME=VALUE"),
        ("--hostname", "a b", "letters, digits"),
        ("--unknown", "1", "--unknown"),
    ] {
        let output = fixture.run(&[option, value, "disk.img", "true"]);
        let text = text(&output);
        assert_eq!(output.status.code(), Some(125), "{option} {value}: {text}");
        assert!(text.contains(message), "{option} {value}: {text}");
    }
    let missing = fixture.run(&["none.img", "true"]);
    assert_eq!(missing.status.code(), Some(125), "{}", text(&missing));
    fixture.check();
}

fn streams_are_those_of_the_caller(fixture: &Fixture) {
    let mut command = fixture.command(&["disk.img", "--", "sh", "-c", "cat; echo err >&2"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let input = vec![b'x'; 300_000];
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn({
        let input = input.clone();
        move || stdin.write_all(&input).unwrap()
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(output.stdout, input);
    assert_eq!(output.stderr, b"err\n");
}

fn environment_is_new_but_for_env(fixture: &Fixture) {
    let options = [
        "--env",
        "A=b=c",
        "--env",
        "HOST_VARIABLE",
        "--workdir",
        "/home",
    ];
    let output = fixture.sh_with(&options, "env; pwd; umask");
    for line in [
        "A=b=c",
        "HOST_VARIABLE=1",
        "HOME=/root",
        "USER=root",
        "/home",
        "0022",
    ] {
        assert!(
            output.lines().any(|found| found == line),
            "{line}: {output}"
        );
    }
    assert!(!fixture.sh("env").contains("HOST_VARIABLE"));
}

fn user_has_home_and_groups(fixture: &Fixture) {
    if fixture.caller == Caller::WithoutIds {
        let output = fixture.run(&["--user", "user", "disk.img", "id"]);
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output).contains("/etc/subuid"), "{}", text(&output));
        return;
    }
    let output = fixture.sh_with(
        &["--user", "user"],
        "id; echo $HOME; cat /etc/shadow || touch /x",
    );
    let expected = "uid=1000(user) gid=100(users) groups=29(audio)\n/home\n";
    let output = output.replace(",100(users)", "");
    // The shadow file belongs to another group, but its mode lets all read it.
    assert_eq!(output, format!("{expected}secret\n"));
    let denied = fixture.run(&["--user", "1000:42", "disk.img", "touch", "/x"]);
    assert_eq!(denied.status.code(), Some(1), "{}", text(&denied));
}

fn signal_reaches_the_command(fixture: &Fixture) {
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let mut command = fixture.command(&["disk.img", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut rest).unwrap();
    assert_eq!(rest, "caught\n");
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(5), None));
    fixture.check();
}
