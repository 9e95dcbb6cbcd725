//! The choice of the way: without FUSE or namespaces, the direct one.

use super::support::requires;
use super::{Fixture, finish, text};
use std::process::{Command, Output};

/// Runs `folio run` with these options in a user namespace, after a script of its superuser.
fn run_after(fixture: &Fixture, script: &str, options: &str) -> Output {
    let folio = env!("CARGO_BIN_EXE_folio");
    let (place, image) = (fixture.place(), fixture.image());
    let line = format!(
        "{script} && exec {folio} run {options} --at {} {} -- sh -c 'cd {0} && echo text >f && cat f'",
        place.display(),
        image.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &line]);
    finish(&mut command)
}

#[test]
fn direct_way_replaces_what_is_missing() {
    requires!(user_namespaces, tool("unshare"));
    let scripts = [
        (
            "echo 0 >/proc/sys/user/max_user_namespaces",
            "No space left",
        ),
        ("mount -t tmpfs none /dev", "/dev/fuse"),
    ];
    for (script, reason) in scripts {
        let fixture = Fixture::new("16M");
        let output = run_after(&fixture, script, "");
        assert_eq!(output.stdout, b"text\n", "{}", text(&output));
        let note = String::from_utf8_lossy(&output.stderr);
        assert!(note.contains(reason) && note.contains("--direct"), "{note}");
        assert!(output.status.success());
        fixture.check();
        for options in ["--fuse", "--network none"] {
            let output = run_after(&fixture, script, options);
            assert_eq!(output.status.code(), Some(125), "{}", text(&output));
            assert_eq!(output.stdout, b"");
        }
    }
}
