//! Paths through descriptors, messages and sockets, scripts: cases at the edge of the image.

use crate::Fixture;
use crate::support::tools::text;

/// Runs a program of Python in the image's root; it must print `expected`.
#[track_caller]
fn python(fixture: &Fixture, program: &str, expected: &str) {
    let output = fixture.bash(&format!("python3 - <<'X'\n{program}\nX"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(text(&output), expected);
}

#[test]
fn paths_below_descriptors_are_of_their_directory() {
    let fixture = Fixture::new("16M");
    let program = "import os
os.makedirs('d/e'); os.makedirs('e'); open('d/f', 'w').write('text'); open('f', 'w').write('root')
open('d/run', 'w').write('#!/bin/sh\\necho run\\n'); os.chmod('d/run', 0o755)
fd = os.open('d', os.O_RDONLY); root = os.getcwd()
for below in f'/proc/self/fd/{fd}', f'/dev/fd/{fd}', f'/proc/{os.getpid()}/fd/{fd}':
    os.truncate(below + '/f', 2)
    print(os.path.getsize('d/f'), os.path.getsize('f'), os.statvfs(below + '/e').f_files > 0)
    os.chdir(below + '/e'); print(os.getcwd().removeprefix(root))
    os.chdir(below); print(os.getcwd().removeprefix(root), os.statvfs(below).f_files > 0)
    os.chdir(root); os.truncate('d/f', 4)
for call in os.truncate, os.chdir, os.statvfs:
    try: call(*[f'/proc/self/fd/{fd}/none', 1][:2 if call is os.truncate else 1])
    except OSError as error: print(error.errno)
os.truncate(f'/proc/self/fd/{os.open(\"f\", os.O_RDONLY)}', 1); print(os.path.getsize('f'))
os.execv(f'/proc/self/fd/{fd}/run', ['run'])";
    let each = "2 4 True\n/d/e\n/d True\n";
    let expected = format!("{}2\n2\n2\n1\nrun\n", each.repeat(3));
    python(&fixture, program, &expected);
    fixture.check();
}
