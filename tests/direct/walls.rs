//! The host's files stay as they are, and calls that would reach past the library are refused.

use crate::support::require::requires;
use crate::support::tools::text;
use crate::{Fixture, finish};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Type, mode, owner and size of files of the host that programs have open or name.
fn host_state(folder: &Path) -> String {
    let mut state = String::new();
    let devices = [
        "null", "zero", "full", "random", "urandom", "tty", "shm", "fd", "pts",
    ];
    let devices = devices.map(|name| Path::new("/dev").join(name));
    let named = ["/", "/etc", "/etc/passwd", "/proc", "/tmp", "/dev"].map(Into::into);
    for path in devices.iter().chain(&named).chain([&folder.to_owned()]) {
        if let Ok(found) = path.symlink_metadata() {
            let (mode, owner, group) = (found.mode(), found.uid(), found.gid());
            writeln!(state, "{} {mode:o} {owner} {group}", path.display()).unwrap();
        }
    }
    state
}

#[test]
fn host_files_keep_modes_and_owners() {
    requires!(root, tool("python3"));
    let fixture = Fixture::new("64M");
    let before = host_state(&fixture.place());
    // chmod by descriptor is chmod of /proc/self/fd/N in some C libraries.
    let script = "python3 - <<'X' 2>/dev/null
import os
for i in range(20):
    fd = os.open(f'f{i}', os.O_CREAT | os.O_RDWR, 0o600)
    os.fchmod(fd, 0o755); os.fchown(fd, 7, 8); os.utime(fd, (1, 2))
    os.chmod(f'/proc/self/fd/{fd}', 0o701); os.truncate(f'/proc/self/fd/{fd}', 5)
    os.chown(f'/dev/fd/{fd}', 9, 9)
    dup = os.dup(fd); os.fchmod(dup, 0o711); os.close(fd); os.close(dup)
    s = os.stat(f'f{i}'); assert (oct(s.st_mode), s.st_uid, s.st_size) == ('0o100711', 9, 5), s
X
    tar -cf - . | tar -xpf - --one-top-level=x; cp -a x y; chmod -R u=rwX,go= y; chown -R 5:5 y; rm -r x
    chmod 700 .; chown 3:3 .; touch .; stat -c '%a %u' .; python3 -c 'print(1)'";
    let output = fixture.bash(script);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(output.stdout, b"700 3\n1\n", "{}", text(&output));
    assert_eq!(host_state(&fixture.place()), before);
    fixture.check();
}

#[test]
fn rings_and_filters_are_refused() {
    requires!(tool("fio"), tool("python3"));
    let fixture = Fixture::new("64M");
    let job = "--name=a --filename=f --size=64k --rw=write --output=o";
    for engine in ["io_uring", "libaio"] {
        let output = fixture.bash(&format!("fio {job} --ioengine={engine}; echo $?"));
        assert!(
            !output.stdout.ends_with(b"0\n"),
            "{engine}: {}",
            text(&output)
        );
    }
    let script = "import ctypes; c = ctypes.CDLL(None, use_errno=True)
for call in [(425, 1, 0), (206, 1, 0), (317, 1, 0, 0), (435, 0, 0)]:
    c.syscall(*call); print(ctypes.get_errno())";
    let output = fixture.bash(&format!("python3 -c '{script}'"));
    assert_eq!(output.stdout, b"38\n38\n22\n38\n", "{}", text(&output));
}

#[test]
fn bad_pointers_fail_with_efault() {
    requires!(tool("python3"));
    let fixture = Fixture::new("16M");
    let script = "import ctypes, os; c = ctypes.CDLL(None, use_errno=True)
fd = os.open(\"f\", os.O_CREAT | os.O_RDWR); os.write(fd, b\"text\")
for call in [(1, fd, 8, 4), (17, fd, 8, 4, 0), (2, 8, 0), (4, b\"f\", 8), (217, fd, 8, 100),
             (20, fd, 8, 1), (82, b\"f\", 8), (89, b\"f\", 8, 10)]:
    call = [ctypes.c_long(a) if isinstance(a, int) else a for a in call]
    print(c.syscall(*call), ctypes.get_errno())";
    let output = fixture.bash(&format!("python3 -c '{script}'"));
    let lines: Vec<_> = text(&output).lines().map(str::to_owned).collect();
    let efault = "-1 14".to_owned();
    let expected = [&efault; 8].map(|line| line.clone());
    assert_eq!(lines[..4], expected[..4], "{}", text(&output));
    assert_eq!(lines[5..7], expected[5..7], "{}", text(&output));
    fixture.check();
}

#[test]
fn links_lead_into_and_out_of_the_image() {
    let fixture = Fixture::new("16M");
    let outside = fixture.folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "host\n").unwrap();
    let script = format!(
        "mkdir -p a/b; echo image >a/f; ln -s {0} out; ln -s ../../../outside up; \
         cat out/f; cat a/../up/f 2>/dev/null; cd a/b; cat ../../out/f ../f; cd ../../out; pwd -P; \
         cat f; echo new >g; cd - >/dev/null; cd ../..; mv out/g out/h; ln -s $PWD/a/f abs; cat abs; \
         mv out/h . 2>/dev/null; cat h",
        outside.display()
    );
    let output = fixture.bash(&script);
    let found = text(&output);
    let lines: Vec<_> = found.lines().collect();
    assert_eq!(lines.first(), Some(&"host"), "{found}");
    assert!(found.contains(&*outside.to_string_lossy()), "{found}");
    assert_eq!(lines.last(), Some(&"new"), "{found}");
    assert!(!outside.join("h").exists(), "moved to the image");
    assert_eq!(
        finish(&mut fixture.command(&["true"])).status.code(),
        Some(0)
    );
    fixture.check();
}

#[test]
fn programs_keep_no_rights_that_execve_ends() {
    requires!(root, tool("setpriv"));
    let fixture = Fixture::new("16M");
    let folder = fixture.folder.path().join("host");
    std::fs::create_dir(&folder).unwrap();
    // A user that root becomes, root without a capability, and root that gets it again.
    let script = "mkdir -m 755 d; umask 077; echo secret >d/s; echo own >d/o; chown 1000 d/o
as_user='setpriv --reuid 1000 --regid 1000 --clear-groups'
for call in 'cat d/s' 'cat d/o' 'touch d/new' 'rm -f d/s' 'chmod 777 d'; do
    $as_user $call 2>&1; echo $?
    $as_user sh -c \"$call\" 2>&1; echo $?
done
setpriv --bounding-set -dac_override,-dac_read_search --inh-caps -all cat d/o 2>&1; echo $?
setpriv --bounding-set -dac_override,-dac_read_search --inh-caps -all sh -c 'cat d/s d/o' 2>&1
ls -ld d | cut -c1-10; ls d";
    let mut native = Command::new("bash");
    native.args(["-c", script]).env("LC_ALL", "C");
    let native = finish(native.current_dir(&folder));
    let output = fixture.bash(script);
    assert_eq!(text(&output), text(&native));
    assert!(text(&native).contains("Permission denied"));
    fixture.check();
}

#[test]
fn direct_run_inside_another_is_refused() {
    let (outer, inner) = (Fixture::new("16M"), Fixture::new("16M"));
    let (folio, place) = (env!("CARGO_BIN_EXE_folio"), inner.place());
    let (place, image) = (place.display(), inner.image());
    let image = image.display();
    let output = outer.bash(&format!(
        "'{folio}' run --direct --at '{place}' '{image}' -- true"
    ));
    assert_eq!(output.status.code(), Some(125), "{}", text(&output));
    assert!(
        text(&output).contains("cannot start another"),
        "{}",
        text(&output)
    );
    outer.check();
    inner.check();
}
