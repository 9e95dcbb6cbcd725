//! A program on a new terminal, and a dialog with it.

use super::tools::command;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// A program that runs another one on a new terminal of 33 lines and 99 columns, and ends with its
/// exit code. Each line of its input: the text that is awaited, `|`, the keys that follow. A text
/// that is missing after two minutes, and a program that does not end, are errors.
const ON_TERMINAL: &str = "
import fcntl, os, pty, select, signal, struct, sys, termios, time
child, terminal = pty.fork()
if child == 0:
    # The tests may have been started with them ignored, and keys of a terminal send them.
    for number in signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP:
        signal.signal(number, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 33, 99, 0, 0))
seen = b''
def read_until(end, wanted):
    if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
        os.kill(child, signal.SIGKILL)
        sys.exit('no ' + wanted + ' within 120 s: ' + repr(seen))
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b''
for line in sys.stdin:
    wanted, keys = line.rstrip('\\n').split('|')
    end = time.monotonic() + 120
    while wanted.encode() not in seen:
        read = read_until(end, wanted)
        if not read:
            sys.exit('no ' + wanted + ': ' + repr(seen))
        seen += read
    seen = seen[seen.index(wanted.encode()) + len(wanted):]
    os.write(terminal, keys.encode().decode('unicode_escape').encode())
end = time.monotonic() + 120
while read := read_until(end, 'end of the program'):
    seen += read
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

/// Runs `program` on a terminal; needs python3. Returns its exit code, and errors of the dialog.
pub fn converse(program: &Command, dialog: &str) -> (Option<i32>, String) {
    let mut python = command("python3");
    python.args(["-c", ON_TERMINAL]).arg(program.get_program());
    python.args(program.get_args());
    if let Some(folder) = program.get_current_dir() {
        python.current_dir(folder);
    }
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => python.env(name, value),
            None => python.env_remove(name),
        };
    }
    python.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(dialog.as_bytes()).unwrap();
    drop(input);
    let mut errors = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut errors).unwrap();
    (child.wait().unwrap().code(), errors)
}
