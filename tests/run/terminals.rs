//! A terminal of the command's own.

use crate::support::tools::command;
use crate::{Fixture, for_each_caller};
use std::io::{Read, Write};
use std::process::Stdio;

for_each_caller! {
    shell_has_job_control_and_window_size;
}

/// A program that runs another one on a new terminal, passes its own input on, and ends with its
/// exit code.
const ON_TERMINAL: &str = "
import fcntl, os, pty, select, struct, sys, termios
child, terminal = pty.fork()
if child == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 33, 99, 0, 0))
seen = b''
for line in sys.stdin:
    wanted, keys = line.rstrip('\\n').split('|')
    while wanted.encode() not in seen:
        try:
            read = os.read(terminal, 4096)
        except OSError:
            read = b''
        if not read:
            sys.exit('no ' + wanted + ': ' + repr(seen))
        seen += read
    seen = seen[seen.index(wanted.encode()) + len(wanted):]
    os.write(terminal, keys.encode().decode('unicode_escape').encode())
try:
    while os.read(terminal, 4096):
        pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

fn shell_has_job_control_and_window_size(fixture: &Fixture) {
    if let Err(reason) = crate::Need::Tool("python3").met() {
        crate::report_skip(&reason);
        return;
    }
    let run = fixture.command(&["disk.img", "--", "sh", "-i"]);
    let mut python = command("python3");
    python.args(["-c", ON_TERMINAL]).arg(run.get_program());
    python
        .args(run.get_args())
        .current_dir(fixture.folder.path());
    python.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.spawn().unwrap();
    // Each line: what is awaited, and the keys that follow.
    // Keys that send signals wait for a program that has begun, in the mode of programs.
    let start = "sh -c 'echo beg''un; exec sleep 1000'\\n";
    let dialog = format!(
        "# |tty; stty size\\n\n/dev/pts/0|\n33 99|{start}\nbegun|\\x1a\n\
         Stopped|kill -9 %1; echo kil''led\\n\nkilled|{start}\nbegun|\\x03\n# |exit 6\\n\n"
    );
    child
        .stdin
        .take()
        .unwrap()
        .write_all(dialog.as_bytes())
        .unwrap();
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6), "{errors}");
    fixture.check();
}
