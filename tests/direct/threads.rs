//! Threads and processes at the same time.

use super::support::requires;
use super::{Fixture, text};

/// Threads change descriptors while `check` makes processes; it returns what it finds wrong.
fn while_descriptors_change(check: &str) {
    requires!(tool("python3"));
    let fixture = Fixture::new("64M");
    let script = format!(
        "
import fcntl, os, threading
is_over = False
def change(name):
    while not is_over:
        fd = os.open(name, os.O_RDWR | os.O_CREAT)
        os.close(os.dup(fd))
        os.close(fd)
def works(call):
    try: call()
    except OSError: return False
    return True
{check}
threads = [threading.Thread(target=change, args=(name,)) for name in 'abc']
for thread in threads: thread.start()
found = [check() for _ in range(200)]
is_over = True
for thread in threads: thread.join()
print(sum(found))"
    );
    let output = fixture.bash(&format!("python3 -c \"{script}\""));
    assert_eq!(output.stdout, b"0\n", "{}", text(&output));
    fixture.check();
}

#[test]
fn fork_copies_descriptors_at_one_moment() {
    // The host knows a descriptor of the child by its placeholder, and the server by its file.
    while_descriptors_change(
        "
def differs(fd):
    return works(lambda: fcntl.fcntl(fd, fcntl.F_GETFD)) != works(lambda: os.fstat(fd))
def check():
    child = os.fork()
    if child == 0: os._exit(sum(map(differs, range(3, 32))))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])",
    );
}

#[test]
fn vfork_does_not_stop_changes_of_descriptors() {
    while_descriptors_change(
        "
def check():
    child = os.posix_spawn('/bin/true', ['true'], os.environ)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])",
    );
}
