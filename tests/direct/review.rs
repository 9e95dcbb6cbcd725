//! Paths through descriptors, messages and sockets, scripts: cases at the edge of the image.

use crate::support::tools::text;
use crate::{Fixture, finish};
use std::process::Command;

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

/// Runs a program of Python on the host too: it must print the same.
#[track_caller]
fn prints_as_on_the_host(program: &str) {
    let fixture = Fixture::new("16M");
    let host = fixture.folder.path().join("host");
    std::fs::create_dir(&host).unwrap();
    let mut native = Command::new("python3");
    native.args(["-c", program]).current_dir(&host);
    python(&fixture, program, &text(&finish(&mut native)));
    fixture.check();
}

#[test]
fn first_lines_of_scripts_end_as_in_linux() {
    let program = "import os
echo, long = b'#!/bin/echo', b'#!' + b'/' * 245
for line in [echo, echo + b' x\\n', b'#! \\t/bin/echo  a b \\t\\n', echo + b' ' * 300 + b'late\\n',
             echo + b' ' * 244 + b'xyz', echo + b' ' + b'y' * 300 + b'\\n', echo + b'\\r\\n',
             echo + b' a\\0b\\nc', echo + b'\\0z', b'#!', b'#!  \\n', b'#!' + b' ' * 300 + b'/bin/echo\\n',
             long + b'bin/echo\\n', long + b'/bin/echo\\n', long + b'bin/echo x\\n',
             long + b'/bin/echo x\\n', long * 2]:
    with open('s', 'wb') as script: script.write(line)
    os.chmod('s', 0o755)
    pid = os.fork()
    if pid == 0:
        try: os.execv('./s', ['s', 'a'])
        except OSError as error: os.write(1, f'{error.errno}\\n'.encode())
        os._exit(1)
    os.waitpid(pid, 0)";
    prints_as_on_the_host(program);
}

/// Makes sendmmsg(2) of one message: with an address, or with a descriptor.
const SENDMMSG: &str = "import ctypes, os, socket, struct
c = ctypes.CDLL(None, use_errno=True)
def sendmmsg(s, text, name=b'', fds=b''):
    pointer = lambda buffer: ctypes.addressof(buffer) if buffer else 0
    text = ctypes.create_string_buffer(text, len(text))
    part = ctypes.create_string_buffer(struct.pack('QQ', pointer(text), len(text)), 16)
    if name: name = struct.pack('H', 1) + name + b'\\0'
    if fds: fds = struct.pack('Qii', 16 + len(fds), 1, 1) + fds
    name, fds = [b and ctypes.create_string_buffer(b, len(b)) for b in (name, fds)]
    head = struct.pack('QIIQQQQII', pointer(name), len(name), 0, pointer(part), 1, pointer(fds),
                       len(fds), 0, 0)
    head = ctypes.create_string_buffer(head + bytes(64 - len(head)), 64)
    sent = c.sendmmsg(s.fileno(), head, 1, 0)
    return sent if sent >= 0 else -ctypes.get_errno()
";

#[test]
fn descriptors_of_image_and_runtime_are_not_sent() {
    let fixture = Fixture::new("16M");
    let program = format!(
        "{SENDMMSG}
one, two = socket.socketpair()
mine, null = os.open('f', os.O_CREAT | os.O_RDWR), os.open('/dev/null', os.O_RDWR)
runtime = max(int(fd) for fd in os.listdir('/proc/self/fd'))
for fd in mine, runtime, null:
    try: print(socket.send_fds(one, [b'text'], [fd]))
    except OSError as error: print(-error.errno)
    print(sendmmsg(one, b'text', fds=struct.pack('i', fd)))
print([len(socket.recv_fds(two, 4, 2)[1]) for _ in range(2)])"
    );
    python(&fixture, &program, "-22\n-22\n-9\n-9\n4\n1\n[1, 1]\n");
    fixture.check();
}

#[test]
fn datagrams_reach_sockets_of_the_image() {
    let fixture = Fixture::new("16M");
    let program = format!(
        "{SENDMMSG}
outside = os.path.dirname(os.getcwd()) + '/outside'
make = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s, host, client = make(), make(), make()
s.bind('s'); host.bind(outside); os.symlink(outside, 'link'); open('f', 'w')
for name in 's', os.getcwd() + '/s', 'link', outside:
    receiver = host if 'ink' in name or name == outside else s
    client.sendto(b'one', name); client.sendmsg([b'two'], [], 0, name)
    print(receiver.recv(9), receiver.recv(9))
for name in 'none', 'f':
    for send in lambda: client.sendto(b'x', name), lambda: client.sendmsg([b'x'], [], 0, name):
        try: send()
        except OSError as error: print(error.errno)
print(sendmmsg(client, b'x', name=b's'), sendmmsg(client, b'y', name=outside.encode()))
print(host.recv(9))
for name, receiver in ('s', s), ('link', host):
    client.connect(name); client.send(b'z'); print(receiver.recv(9))"
    );
    let each = "b'one' b'two'\n".repeat(4);
    let expected = format!("{each}2\n2\n111\n111\n-22 1\nb'y'\nb'z'\nb'z'\n");
    python(&fixture, &program, &expected);
    fixture.check();
}
