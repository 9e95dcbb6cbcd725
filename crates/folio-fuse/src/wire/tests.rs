//! The protocol over a ramfs: what a kernel would send, and what none would.

use super::abi::*;
use super::*;
use folio::{Kernel, KernelOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes};

fn server(options: ClientOptions) -> Server {
    let kernel = Kernel::new(KernelOptions::default());
    Server::new(
        Arc::new(Adapter::new(kernel, PermissionChecks::ByClient)),
        PermissionChecks::ByClient,
        options,
    )
}

fn request(opcode: u32, node: u64, pieces: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<InHeader>() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
    let header = InHeader {
        len: len as u32,
        opcode,
        unique: 77,
        node,
        ..InHeader::default()
    };
    [header.as_bytes(), &pieces.concat()].concat()
}

/// What a request is answered with: errno and body.
fn ask(server: &Server, opcode: u32, node: u64, pieces: &[&[u8]]) -> (i32, Vec<u8>) {
    let mut reply = Message::default();
    let outcome = server.handle(&request(opcode, node, pieces), &mut reply);
    assert!(
        matches!(outcome, Outcome::Replied | Outcome::Ended),
        "{opcode}: {outcome:?}"
    );
    let (header, body) = OutHeader::read_from_prefix(reply.bytes()).unwrap();
    assert_eq!(
        (header.len as usize, header.unique),
        (reply.bytes().len(), 77)
    );
    (-header.error, body.to_vec())
}

#[track_caller]
fn told<T: FromBytes>(server: &Server, opcode: u32, node: u64, pieces: &[&[u8]]) -> T {
    let (errno, body) = ask(server, opcode, node, pieces);
    assert_eq!(errno, 0, "{opcode}");
    T::read_from_prefix(&body).unwrap().0
}

fn start(server: &Server, flags: u64) -> InitOut {
    let told = InitIn {
        major: 7,
        minor: 38,
        readahead_max: 131_072,
        flags: (flags | init::INIT_EXT) as u32,
    };
    let rest = [(flags >> 32) as u32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    self::told(server, op::INIT, 0, &[told.as_bytes(), rest.as_bytes()])
}

fn bytes(message: &(impl IntoBytes + Immutable)) -> &[u8] {
    message.as_bytes()
}

#[test]
fn files_need_no_open_where_both_sides_can_do_without() {
    let server = server(ClientOptions::exclusive());
    let agreed = start(&server, u64::MAX);
    assert_ne!(u64::from(agreed.flags) & init::NO_OPEN_SUPPORT, 0);
    let create = CreateIn {
        flags: 1,
        mode: 0o100_644,
        umask: 0,
        open_flags: 0,
    };
    let (_, body) = ask(&server, op::CREATE, 1, &[bytes(&create), b"f\0"]);
    let (entry, rest) = EntryOut::read_from_prefix(&body).unwrap();
    assert_eq!(OpenOut::read_from_prefix(rest).unwrap().0.file, 0);
    assert_eq!(
        ask(&server, op::OPEN, entry.node, &[&[0; 8]]).0,
        Errno::NOSYS.raw_os_error()
    );
    let write = WriteIn {
        size: 5,
        offset: 3,
        ..WriteIn::default()
    };
    let written: WriteOut = told(&server, op::WRITE, entry.node, &[bytes(&write), b"hello"]);
    assert_eq!(written.size, 5);
    let read = ReadIn {
        size: 4096,
        ..ReadIn::default()
    };
    assert_eq!(
        ask(&server, op::READ, entry.node, &[bytes(&read)]),
        (0, b"\0\0\0hello".to_vec())
    );
    let set = SetattrIn {
        valid: set::SIZE | set::FH | set::MODE,
        size: 2,
        mode: 0o600,
        ..Default::default()
    };
    let now: AttrOut = told(&server, op::SETATTR, entry.node, &[bytes(&set)]);
    assert_eq!(
        (now.attr.size, now.attr.mode, now.valid),
        (2, 0o100_600, 3600)
    );
    // Gone from the tree, and still there for who knows the node.
    assert_eq!(ask(&server, op::UNLINK, 1, &[b"f\0"]).0, 0);
    assert_eq!(
        ask(&server, op::READ, entry.node, &[bytes(&read)]),
        (0, vec![0, 0])
    );
    let mut reply = Message::default();
    let forget = request(op::FORGET, entry.node, &[bytes(&ForgetIn { lookups: 1 })]);
    assert_eq!(server.handle(&forget, &mut reply), Outcome::Silent);
    assert_eq!(
        ask(&server, op::READ, entry.node, &[bytes(&read)]).0,
        Errno::STALE.raw_os_error()
    );
}

#[test]
fn files_are_opened_where_data_is_not_kept() {
    let server = server(ClientOptions {
        data: DataCache::None,
        ..ClientOptions::exclusive()
    });
    start(&server, u64::MAX);
    let (_, body) = ask(
        &server,
        op::CREATE,
        1,
        &[
            bytes(&CreateIn {
                flags: 2,
                mode: 0o644,
                ..Default::default()
            }),
            b"f\0",
        ],
    );
    let (entry, rest) = EntryOut::read_from_prefix(&body).unwrap();
    let created = OpenOut::read_from_prefix(rest).unwrap().0;
    assert!(created.file != 0 && created.open_flags & open::DIRECT_IO != 0);
    let write = WriteIn {
        file: created.file,
        size: 2,
        ..WriteIn::default()
    };
    assert_eq!(
        ask(&server, op::WRITE, entry.node, &[bytes(&write), b"ab"]).0,
        0
    );
    let opened: OpenOut = told(&server, op::OPEN, entry.node, &[bytes(&OpenIn::default())]);
    let read = ReadIn {
        file: opened.file,
        size: 9,
        ..ReadIn::default()
    };
    assert_eq!(
        ask(&server, op::READ, entry.node, &[bytes(&read)]),
        (0, b"ab".to_vec())
    );
    for file in [created.file, opened.file] {
        let release = ReleaseIn {
            file,
            ..Default::default()
        };
        assert_eq!(
            ask(&server, op::RELEASE, entry.node, &[bytes(&release)]).0,
            0
        );
    }
    assert_eq!(
        ask(&server, op::READ, entry.node, &[bytes(&read)]).0,
        Errno::BADF.raw_os_error()
    );
}

#[test]
fn listings_end_where_the_room_does() {
    let server = server(ClientOptions::exclusive());
    for number in 0..40 {
        let name = format!("name-{number}\0");
        assert_eq!(
            ask(
                &server,
                op::MKDIR,
                1,
                &[
                    bytes(&MkdirIn {
                        mode: 0o755,
                        umask: 0
                    }),
                    name.as_bytes()
                ]
            )
            .0,
            0
        );
    }
    for (opcode, plus) in [(op::READDIR, 0), (op::READDIRPLUS, size_of::<EntryOut>())] {
        let (mut cookie, mut names) = (0, 0);
        loop {
            let read = ReadIn {
                offset: cookie,
                size: 1000,
                ..ReadIn::default()
            };
            let (errno, body) = ask(&server, opcode, 1, &[bytes(&read)]);
            assert!(errno == 0 && body.len() <= 1000);
            let mut rest = &body[..];
            while !rest.is_empty() {
                let dirent = Dirent::read_from_prefix(&rest[plus..]).unwrap().0;
                cookie = dirent.next_cookie;
                names += 1;
                rest = &rest[plus + (24 + dirent.name_len as usize).next_multiple_of(8)..];
            }
            if body.is_empty() {
                break;
            }
        }
        assert_eq!(names, 42);
    }
}

#[test]
fn what_must_wait_is_left_to_who_may() {
    let server = server(ClientOptions::exclusive());
    start(&server, u64::MAX);
    let mut reply = Message::default();
    let sync = request(op::FSYNC, 1, &[bytes(&FsyncIn::default())]);
    assert_eq!(server.handle_at_once(&sync, &mut reply), Err(Wait::Long));
    let look = request(op::GETATTR, 1, &[&[0; 16]]);
    assert_eq!(
        server.handle_at_once(&look, &mut reply),
        Ok(Outcome::Replied)
    );
}

#[test]
fn nothing_changes_what_is_read_only() {
    let server = server(ClientOptions {
        read_only: true,
        ..ClientOptions::exclusive()
    });
    let refused = ask(
        &server,
        op::MKDIR,
        1,
        &[
            bytes(&MkdirIn {
                mode: 0o755,
                umask: 0,
            }),
            b"d\0",
        ],
    );
    assert_eq!(refused, (Errno::ROFS.raw_os_error(), Vec::new()));
}

#[test]
fn a_new_session_knows_nothing_of_the_last() {
    let server = server(ClientOptions::exclusive());
    start(&server, u64::MAX);
    let made: EntryOut = told(
        &server,
        op::MKDIR,
        1,
        &[
            bytes(&MkdirIn {
                mode: 0o755,
                umask: 0,
            }),
            b"d\0",
        ],
    );
    start(&server, u64::MAX);
    assert_eq!(
        ask(&server, op::GETATTR, made.node, &[&[0; 16]]).0,
        Errno::STALE.raw_os_error()
    );
    let old = InitIn {
        major: 7,
        minor: 10,
        ..InitIn::default()
    };
    assert_eq!(
        ask(&server, op::INIT, 0, &[bytes(&old)]).0,
        Errno::PROTO.raw_os_error()
    );
}

/// Small numbers that a seed leads to (xorshift).
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn whatever_is_asked_is_answered_or_refused() {
    for (seed, options) in [
        (1, ClientOptions::exclusive()),
        (
            2,
            ClientOptions {
                data: DataCache::None,
                ..ClientOptions::exclusive()
            },
        ),
    ] {
        let server = server(options);
        start(&server, u64::MAX);
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ seed);
        let mut reply = Message::default();
        for _ in 0..60_000 {
            let len = (dice.throw() % 160) as usize;
            let mut body: Vec<u8> = (0..len)
                .map(|_| (dice.throw() % 4 * (dice.throw() % 0x61)) as u8)
                .collect();
            if dice.throw().is_multiple_of(4) {
                body.iter_mut()
                    .for_each(|byte| *byte = byte.wrapping_mul(0xff));
            }
            let mut bytes = request((dice.throw() % 56) as u32, dice.throw() % 5, &[&body]);
            match dice.throw() % 50 {
                0 => bytes[0] ^= 1,
                1 => bytes[36] = 3,
                _ => {}
            }
            let outcome = server.handle(&bytes, &mut reply);
            if outcome == Outcome::Replied {
                let header = OutHeader::read_from_prefix(reply.bytes()).unwrap().0;
                assert_eq!(header.len as usize, reply.bytes().len(), "seed {seed}");
                assert!((-4095..=0).contains(&header.error), "seed {seed}");
            }
            assert!(
                reply.bytes().len() <= REPLY_HEADER_LEN + REPLY_BODY_MAX,
                "seed {seed}"
            );
        }
    }
    let server = server(ClientOptions::exclusive());
    for bytes in [&[][..], &[0; 39], &[40, 0, 0, 0]] {
        assert_eq!(
            server.handle(bytes, &mut Message::default()),
            Outcome::Malformed
        );
    }
}
