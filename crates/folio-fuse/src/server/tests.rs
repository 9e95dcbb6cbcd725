//! The server over a ramfs, without a transport: requests as a kernel sends them, and as none does.

use super::*;
use crate::client_options::{DataCache, FOREVER};
use crate::nodes::ROOT;
use crate::wire::abi::*;
use crate::wire::{Message, REPLY_BODY_MAX, REPLY_HEADER_LEN};
use folio::base::Owner;
use folio::{KernelOptions, Timespec};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const USER: Owner = Owner::new(1000, 100);
const WRONLY: u32 = 1;
const RDWR: u32 = 2;

fn server(options: ClientOptions) -> Server {
    let kernel = Kernel::new(KernelOptions::default());
    Server::new(kernel, PermissionChecks::ByClient, options)
}

fn request_as(user: Owner, opcode: u32, node: u64, pieces: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<InHeader>() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
    let header = InHeader {
        len: len as u32,
        opcode,
        unique: 77,
        node,
        uid: user.uid,
        gid: user.gid,
        ..InHeader::default()
    };
    [header.as_bytes(), &pieces.concat()].concat()
}

fn request(opcode: u32, node: u64, pieces: &[&[u8]]) -> Vec<u8> {
    request_as(Owner::ROOT, opcode, node, pieces)
}

/// Sends a request; returns the reply's errno and body.
fn send_as(
    server: &Server,
    user: Owner,
    opcode: u32,
    node: u64,
    pieces: &[&[u8]],
) -> (i32, Vec<u8>) {
    let mut reply = Message::default();
    let outcome = server.handle(&request_as(user, opcode, node, pieces), &mut reply);
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

fn send(server: &Server, opcode: u32, node: u64, pieces: &[&[u8]]) -> (i32, Vec<u8>) {
    send_as(server, Owner::ROOT, opcode, node, pieces)
}

/// Sends a request that succeeds; returns the struct at the start of the reply.
#[track_caller]
fn reply<T: FromBytes>(server: &Server, opcode: u32, node: u64, pieces: &[&[u8]]) -> T {
    let (errno, body) = send(server, opcode, node, pieces);
    assert_eq!(errno, 0, "{opcode}");
    T::read_from_prefix(&body).unwrap().0
}

/// Sends a request; returns its errno.
fn errno(server: &Server, opcode: u32, node: u64, pieces: &[&[u8]]) -> Errno {
    Errno::from_raw_os_error(send(server, opcode, node, pieces).0)
}

fn start(server: &Server, flags: u64) -> InitOut {
    let args = InitIn {
        major: 7,
        minor: 38,
        readahead_max: 131_072,
        flags: (flags | init::INIT_EXT) as u32,
    };
    let rest = [(flags >> 32) as u32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    reply(server, op::INIT, 0, &[args.as_bytes(), rest.as_bytes()])
}

fn bytes(message: &(impl IntoBytes + Immutable)) -> &[u8] {
    message.as_bytes()
}

fn mkdir(server: &Server, name: &[u8]) -> EntryOut {
    let args = MkdirIn {
        mode: 0o755,
        umask: 0o022,
    };
    reply(server, op::MKDIR, ROOT, &[bytes(&args), name, b"\0"])
}

/// Creates a file in the root; returns its entry and file.
#[track_caller]
fn create(
    server: &Server,
    user: Owner,
    name: &[u8],
    flags: u32,
    mode: u32,
    umask: u32,
) -> (EntryOut, OpenOut) {
    let args = CreateIn {
        flags,
        mode,
        umask,
        open_flags: 0,
    };
    let (errno, body) = send_as(server, user, op::CREATE, ROOT, &[bytes(&args), name, b"\0"]);
    assert_eq!(errno, 0);
    let (entry, rest) = EntryOut::read_from_prefix(&body).unwrap();
    (entry, OpenOut::read_from_prefix(rest).unwrap().0)
}

fn write(server: &Server, node: u64, file: u64, data: &[u8]) -> WriteOut {
    let args = WriteIn {
        file,
        size: data.len() as u32,
        ..WriteIn::default()
    };
    reply(server, op::WRITE, node, &[bytes(&args), data])
}

fn read(server: &Server, node: u64, file: u64, offset: u64) -> (i32, Vec<u8>) {
    let args = ReadIn {
        file,
        offset,
        size: 4096,
        ..ReadIn::default()
    };
    send(server, op::READ, node, &[bytes(&args)])
}

fn release(server: &Server, node: u64, file: u64) {
    let args = ReleaseIn {
        file,
        ..ReleaseIn::default()
    };
    assert_eq!(send(server, op::RELEASE, node, &[bytes(&args)]).0, 0);
}

fn forget(server: &Server, node: u64, lookups: u64) {
    let forget = request(op::FORGET, node, &[bytes(&ForgetIn { lookups })]);
    let outcome = server.handle(&forget, &mut Message::default());
    assert_eq!(outcome, Outcome::Silent);
}

#[test]
fn forget_last_lookup_removes_node() {
    let server = server(ClientOptions::exclusive());
    let folder = mkdir(&server, b"d");
    let found: EntryOut = reply(&server, op::LOOKUP, ROOT, &[b"d\0"]);
    assert_eq!(found.node, folder.node);
    assert_eq!(server.load().0, 1);
    forget(&server, folder.node, 1);
    assert_eq!(send(&server, op::GETATTR, folder.node, &[&[0; 16]]).0, 0);
    forget(&server, folder.node, 1);
    assert_eq!(
        errno(&server, op::GETATTR, folder.node, &[&[0; 16]]),
        Errno::STALE
    );
    // More lookups than were ever counted, and an unknown node.
    forget(&server, folder.node, 7);
    assert_eq!(server.load().0, 0);
    let missing: EntryOut = reply(&server, op::LOOKUP, ROOT, &[b"none\0"]);
    assert_eq!(missing.node, 0);
}

#[test]
fn invalid_name_returns_einval() {
    let server = server(ClientOptions::exclusive());
    let lookup = |name: &[u8]| errno(&server, op::LOOKUP, ROOT, &[name, b"\0"]);
    let mkdir = |name: &[u8]| {
        let args = MkdirIn::default();
        errno(&server, op::MKDIR, ROOT, &[bytes(&args), name, b"\0"])
    };
    let create = |name: &[u8]| {
        let args = CreateIn {
            flags: RDWR,
            ..CreateIn::default()
        };
        errno(&server, op::CREATE, ROOT, &[bytes(&args), name, b"\0"])
    };
    for name in [&b""[..], b".", b"..", b"a/b", b"/etc"] {
        assert_eq!(lookup(name), Errno::INVAL);
        assert_eq!(mkdir(name), Errno::INVAL);
        assert_eq!(create(name), Errno::INVAL);
    }
    assert_eq!(lookup(&[b'n'; 256]), Errno::NAMETOOLONG);
    assert_eq!(mkdir(&[b'n'; 256]), Errno::NAMETOOLONG);
}

#[test]
fn name_without_zero_byte_returns_einval() {
    let server = server(ClientOptions::exclusive());
    assert_eq!(errno(&server, op::LOOKUP, ROOT, &[b"name"]), Errno::INVAL);
    let credentials = Credentials::root();
    let caller = server.caller(&credentials, 0);
    let found = caller.lookup(&caller.root(), b"a\0b");
    assert_eq!(found.err().map(|error| error.errno()), Some(Errno::INVAL));
    // Only the bytes before the zero byte are the name.
    mkdir(&server, b"a");
    let found: EntryOut = reply(&server, op::LOOKUP, ROOT, &[b"a\0b\0"]);
    assert_ne!(found.node, 0);
}

#[test]
fn new_file_belongs_to_requesting_user() {
    let server = server(ClientOptions::exclusive());
    let (entry, file) = create(&server, USER, b"f", RDWR, 0o4766, 0o022);
    let made = entry.attr;
    assert_eq!((made.uid, made.gid, made.mode), (1000, 100, 0o104_744));
    let mode = || {
        reply::<AttrOut>(&server, op::GETATTR, entry.node, &[&[0; 16]])
            .attr
            .mode
    };
    // A write by the superuser keeps the set-user-ID bit, a truncation by another user does not.
    assert_eq!(write(&server, entry.node, file.file, b"abc").size, 3);
    assert_eq!(mode(), 0o104_744);
    let truncate = SetattrIn {
        valid: set::SIZE | set::FH,
        size: 2,
        file: file.file,
        ..SetattrIn::default()
    };
    let (errno, _) = send_as(&server, USER, op::SETATTR, entry.node, &[bytes(&truncate)]);
    assert_eq!((errno, mode()), (0, 0o100_744));
    let unchecked = Server::new(
        Kernel::new(KernelOptions::default()),
        PermissionChecks::Off,
        ClientOptions::exclusive(),
    );
    let (entry, _) = create(&unchecked, USER, b"f", RDWR, 0o666, 0);
    assert_eq!((entry.attr.uid, entry.attr.gid), (0, 0));
}

#[test]
fn unlinked_file_lives_until_release() {
    let server = server(ClientOptions::exclusive());
    let (entry, file) = create(&server, Owner::ROOT, b"f", RDWR, 0o600, 0);
    write(&server, entry.node, file.file, b"still here");
    assert_eq!(send(&server, op::UNLINK, ROOT, &[b"f\0"]).0, 0);
    forget(&server, entry.node, 1);
    assert_eq!(
        read(&server, entry.node, file.file, 6),
        (0, b"here".to_vec())
    );
    release(&server, entry.node, file.file);
    assert_eq!(
        read(&server, entry.node, file.file, 0).0,
        Errno::BADF.raw_os_error()
    );
}

/// Reads a directory; returns its names, `size` bytes at a time.
fn list(server: &Server, opcode: u32, size: u32) -> Vec<Vec<u8>> {
    let skipped = if opcode == op::READDIRPLUS {
        size_of::<EntryOut>()
    } else {
        0
    };
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let args = ReadIn {
            offset: cookie,
            size,
            ..ReadIn::default()
        };
        let (errno, body) = send(server, opcode, ROOT, &[bytes(&args)]);
        assert!(errno == 0 && body.len() <= size as usize);
        if body.is_empty() {
            return names;
        }
        let mut rest = &body[..];
        while !rest.is_empty() {
            let (dirent, name) = Dirent::read_from_prefix(&rest[skipped..]).unwrap();
            let name_len = dirent.name_len as usize;
            cookie = dirent.next_cookie;
            names.push(name[..name_len].to_vec());
            rest = &rest[skipped + (size_of::<Dirent>() + name_len).next_multiple_of(8)..];
        }
    }
}

#[test]
fn readdir_resumes_from_any_cookie() {
    let server = server(ClientOptions::exclusive());
    for number in 0..50 {
        mkdir(&server, format!("d{number}").as_bytes());
    }
    let all = list(&server, op::READDIR, 1 << 16);
    let is_dot = |name: &&Vec<u8>| matches!(&name[..], b"." | b"..");
    assert_eq!(all.iter().filter(|name| !is_dot(name)).count(), 50);
    // About seven entries at a time.
    assert_eq!(list(&server, op::READDIR, 7 * 32), all);
}

#[test]
fn setattr_sets_all_attributes_together() {
    let server = server(ClientOptions::exclusive());
    let (entry, _) = create(&server, Owner::ROOT, b"f", RDWR, 0o600, 0);
    let time = Timespec::new(-5, 7);
    let args = SetattrIn {
        valid: set::MODE | set::UID | set::GID | set::SIZE | set::MTIME,
        mode: 0o2640,
        uid: 7,
        gid: 8,
        size: 5000,
        mtime: time.secs,
        mtime_nanos: time.nanos,
        ..SetattrIn::default()
    };
    let now = reply::<AttrOut>(&server, op::SETATTR, entry.node, &[bytes(&args)]).attr;
    assert_eq!((now.mode, now.uid, now.gid), (0o102_640, 7, 8));
    assert_eq!(
        (now.size, now.mtime, now.mtime_nanos),
        (5000, time.secs, time.nanos)
    );
}

#[test]
fn forget_of_unlinked_file_frees_space() {
    use folio::block::{Device, MemoryDevice};
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    folio::ext4::format(&*device, &folio::ext4::FormatOptions::default()).unwrap();
    let kernel = Kernel::new(KernelOptions::default());
    kernel
        .mount_ext4(device, "/", &folio::vfs::MountOptions::default())
        .unwrap();
    let server = Server::new(
        kernel,
        PermissionChecks::ByClient,
        ClientOptions::exclusive(),
    );
    let free = || {
        let statistics: StatfsOut = reply(&server, op::STATFS, ROOT, &[]);
        (statistics.blocks_free, statistics.inodes_free)
    };
    let before = free();
    let (entry, file) = create(&server, Owner::ROOT, b"f", RDWR, 0o600, 0);
    let allocate = FallocateIn {
        file: file.file,
        len: 1 << 20,
        ..FallocateIn::default()
    };
    assert_eq!(
        send(&server, op::FALLOCATE, entry.node, &[bytes(&allocate)]).0,
        0
    );
    write(&server, entry.node, file.file, &[7; 100_000]);
    release(&server, entry.node, file.file);
    assert_ne!(free(), before);
    assert_eq!(send(&server, op::UNLINK, ROOT, &[b"f\0"]).0, 0);
    assert_ne!(free(), before);
    forget(&server, entry.node, 1);
    assert_eq!(free(), before);
}

#[test]
fn negotiated_no_open_needs_no_file() {
    let server = server(ClientOptions::exclusive());
    let agreed = start(&server, u64::MAX);
    assert_ne!(u64::from(agreed.flags) & init::NO_OPEN_SUPPORT, 0);
    let (entry, created) = create(&server, Owner::ROOT, b"f", WRONLY, 0o100_644, 0);
    assert_eq!((created.file, server.load()), (0, (1, 1)));
    assert_eq!(
        errno(&server, op::OPEN, entry.node, &[&[0; 8]]),
        Errno::NOSYS
    );
    let args = WriteIn {
        size: 5,
        offset: 3,
        ..WriteIn::default()
    };
    let written: WriteOut = reply(&server, op::WRITE, entry.node, &[bytes(&args), b"hello"]);
    assert_eq!(written.size, 5);
    assert_eq!(
        read(&server, entry.node, 0, 0),
        (0, b"\0\0\0hello".to_vec())
    );
    assert_eq!(server.load(), (1, 2));
    let args = SetattrIn {
        valid: set::SIZE | set::FH | set::MODE,
        size: 2,
        mode: 0o600,
        ..SetattrIn::default()
    };
    let now: AttrOut = reply(&server, op::SETATTR, entry.node, &[bytes(&args)]);
    assert_eq!(
        (now.attr.size, now.attr.mode, now.valid),
        (2, 0o100_600, 3600)
    );
    // Unlinked, and still readable by its node.
    assert_eq!(send(&server, op::UNLINK, ROOT, &[b"f\0"]).0, 0);
    assert_eq!(read(&server, entry.node, 0, 0), (0, vec![0, 0]));
    forget(&server, entry.node, 1);
    assert_eq!(
        read(&server, entry.node, 0, 0).0,
        Errno::STALE.raw_os_error()
    );
    assert_eq!(server.load(), (0, 0));
}

#[test]
fn listing_of_expiring_entries_is_not_kept() {
    let shared = |ttl, readdirplus| ClientOptions {
        readdirplus,
        ..ClientOptions::shared(ttl)
    };
    let (tick, second) = (Duration::from_millis(1), Duration::from_secs(1));
    let own = server(shared(second, true));
    start(&own, u64::MAX);
    let opened: OpenOut = reply(&own, op::OPENDIR, ROOT, &[&[0; 8]]);
    assert_eq!((opened.file, opened.open_flags), (0, 0));
    for kept in [
        shared(second, false),
        shared(tick, true),
        shared(FOREVER, true),
        ClientOptions::exclusive(),
    ] {
        let server = server(kept);
        start(&server, u64::MAX);
        // The client opens directories by itself, and keeps their listings.
        assert_eq!(errno(&server, op::OPENDIR, ROOT, &[&[0; 8]]), Errno::NOSYS);
    }
}

#[test]
fn open_without_data_cache_returns_file() {
    let server = server(ClientOptions {
        data: DataCache::None,
        ..ClientOptions::exclusive()
    });
    start(&server, u64::MAX);
    let (entry, created) = create(&server, Owner::ROOT, b"f", RDWR, 0o644, 0);
    assert!(created.file != 0 && created.open_flags & open::DIRECT_IO != 0);
    assert_eq!(write(&server, entry.node, created.file, b"ab").size, 2);
    let opened: OpenOut = reply(&server, op::OPEN, entry.node, &[bytes(&OpenIn::default())]);
    assert_eq!(
        read(&server, entry.node, opened.file, 0),
        (0, b"ab".to_vec())
    );
    for file in [created.file, opened.file] {
        release(&server, entry.node, file);
    }
    assert_eq!(
        read(&server, entry.node, opened.file, 0).0,
        Errno::BADF.raw_os_error()
    );
}

#[test]
fn listing_ends_where_the_room_ends() {
    let server = server(ClientOptions::exclusive());
    for number in 0..40 {
        mkdir(&server, format!("name-{number}").as_bytes());
    }
    for opcode in [op::READDIR, op::READDIRPLUS] {
        assert_eq!(list(&server, opcode, 1000).len(), 42);
    }
}

#[test]
fn slow_request_at_once_returns_wait() {
    let server = server(ClientOptions::exclusive());
    start(&server, u64::MAX);
    let mut reply = Message::default();
    let sync = request(op::FSYNC, ROOT, &[bytes(&FsyncIn::default())]);
    assert_eq!(server.handle_at_once(&sync, &mut reply), Err(Wait::Long));
    let getattr = request(op::GETATTR, ROOT, &[&[0; 16]]);
    assert_eq!(
        server.handle_at_once(&getattr, &mut reply),
        Ok(Outcome::Replied)
    );
}

#[test]
fn change_of_read_only_returns_erofs() {
    let server = server(ClientOptions {
        read_only: true,
        ..ClientOptions::exclusive()
    });
    let args = MkdirIn {
        mode: 0o755,
        umask: 0,
    };
    let refused = send(&server, op::MKDIR, ROOT, &[bytes(&args), b"d\0"]);
    assert_eq!(refused, (Errno::ROFS.raw_os_error(), Vec::new()));
}

#[test]
fn new_session_forgets_nodes_of_the_last() {
    let server = server(ClientOptions::exclusive());
    start(&server, u64::MAX);
    let made = mkdir(&server, b"d");
    start(&server, u64::MAX);
    assert_eq!(
        errno(&server, op::GETATTR, made.node, &[&[0; 16]]),
        Errno::STALE
    );
    let old = InitIn {
        major: 7,
        minor: 10,
        ..InitIn::default()
    };
    assert_eq!(errno(&server, op::INIT, 0, &[bytes(&old)]), Errno::PROTO);
}

/// A pseudo-random sequence (xorshift).
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn random_request_gets_valid_reply() {
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
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15 ^ seed);
        let mut reply = Message::default();
        for _ in 0..60_000 {
            let len = (random.next() % 160) as usize;
            let mut body: Vec<u8> = (0..len)
                .map(|_| (random.next() % 4 * (random.next() % 0x61)) as u8)
                .collect();
            if random.next().is_multiple_of(4) {
                body.iter_mut()
                    .for_each(|byte| *byte = byte.wrapping_mul(0xff));
            }
            let mut bytes = request((random.next() % 56) as u32, random.next() % 5, &[&body]);
            match random.next() % 50 {
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
