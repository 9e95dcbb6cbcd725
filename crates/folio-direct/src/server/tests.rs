//! The server with clients in this process, which make requests as the loader does.

use super::arena::Arena;
use super::door;
use super::registry::{ProcessState, Purpose, Registry};
use crate::shared::calls::{AT_FDCWD, Call, ELSEWHERE, FOR_CHILD, FOR_PROGRAM};
use crate::shared::layout::{ARENA_BYTES, Attach, DATA_BYTES, SLOTS_MAX, VERSION};
use folio::base::Errno;
use folio::syscall::Credentials;
use folio::vfs::HostNames;
use folio::{Kernel, KernelOptions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    send, sendmsg, socketpair,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

const CWD: u64 = AT_FDCWD as i64 as u64;
const O_CREAT_RDWR: u64 = 0o102;
const F_SETLK: u64 = 6;
const F_SETLKW: u64 = 7;
const LOCK_EX: u64 = 2;
const LOCK_NB: u64 = 4;

struct Server {
    registry: Arc<Registry>,
    door: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    kernel: Arc<Kernel>,
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

impl Server {
    fn start() -> Self {
        let registry = Arc::new(Registry::default());
        let (inside, door) = pair();
        let thread = {
            let registry = registry.clone();
            std::thread::spawn(move || door::serve(&registry, &inside))
        };
        Self {
            registry,
            door: Some(door),
            thread: Some(thread),
            kernel: Kernel::new(KernelOptions::default()),
        }
    }

    fn first(&self) -> Client {
        let process = self.kernel.process(Credentials::root());
        let process = ProcessState::new(process, None);
        let token = self
            .registry
            .prepare(0, process, Purpose::Child, None)
            .unwrap();
        self.attach(token.unwrap())
    }

    fn attach(&self, token: u64) -> Client {
        Client::attach(
            self.door.as_ref().unwrap(),
            token,
            arena_file(ARENA_BYTES as u64, true),
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.door.take());
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok(), "the server has panicked");
    }
}

fn arena_file(len: u64, is_sealed: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("arena", flags).unwrap();
    ftruncate(&file, len).unwrap();
    if is_sealed {
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    }
    file
}

struct Client {
    /// `None` if the file cannot be one.
    arena: Option<Arena>,
    socket: OwnedFd,
}

impl Client {
    fn attach(door: &OwnedFd, token: u64, file: OwnedFd) -> Self {
        let (socket, inside) = pair();
        let mut bytes = Vec::new();
        let attach = Attach {
            version: VERSION,
            process: 77,
            token,
        };
        bytes.extend_from_slice(&attach.version.to_ne_bytes());
        bytes.extend_from_slice(&attach.process.to_ne_bytes());
        bytes.extend_from_slice(&attach.token.to_ne_bytes());
        let rights = [file.as_fd(), inside.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
        let part = [IoSlice::new(&bytes)];
        sendmsg(door, &part, &mut control, SendFlags::NOSIGNAL).unwrap();
        let client = Self {
            arena: Arena::map(file.as_fd()).ok(),
            socket,
        };
        client.take_slot(0);
        client
    }

    /// Takes a slot, if the server has not refused the process.
    fn take_slot(&self, slot: u32) {
        let _ = send(&self.socket, &slot.to_ne_bytes(), SendFlags::NOSIGNAL);
    }

    fn arena(&self) -> &Arena {
        self.arena.as_ref().unwrap()
    }

    fn call_on(&self, slot: u32, call: Call, arguments: &[u64], input: &[u8]) -> (i64, Vec<u8>) {
        let slot = self.arena().slot(slot).unwrap();
        slot.send(call as u32, arguments, input, input.len() as u32);
        slot.receive()
    }

    fn call(&self, call: Call, arguments: &[u64], input: &[u8]) -> (i64, Vec<u8>) {
        self.call_on(0, call, arguments, input)
    }

    /// Makes a call that must succeed.
    #[track_caller]
    fn done(&self, call: Call, arguments: &[u64], input: &[u8]) -> Vec<u8> {
        let (result, output) = self.call(call, arguments, input);
        assert!(result >= 0, "{call:?}: {result}");
        output
    }

    #[track_caller]
    fn fails(&self, errno: Errno, call: Call, arguments: &[u64], input: &[u8]) {
        let (result, _) = self.call(call, arguments, input);
        assert_eq!(result, -i64::from(errno.raw_os_error()), "{call:?}");
    }

    fn token(&self, what: u64) -> u64 {
        // No file of the image is executed.
        let (token, _) = self.call(Call::Prepare, &[what, u64::MAX], &[]);
        assert!(token >= 0);
        token as u64
    }

    /// Waits until the server has closed the socket.
    fn wait_for_refusal(&self) {
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut ready, None).unwrap();
        assert!(ready[0].revents().contains(PollFlags::HUP));
    }
}

/// A write lock of the first byte.
fn flock() -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[..2].copy_from_slice(&1_i16.to_ne_bytes());
    bytes[16..24].copy_from_slice(&1_i64.to_ne_bytes());
    bytes
}

#[test]
fn calls_have_the_results_of_linux() {
    let server = Server::start();
    let one = server.first();
    one.done(Call::Umask, &[0o22], &[]);
    one.done(Call::MakeDirectory, &[CWD, 0o777], b"/d\0");
    assert_eq!(
        one.call(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 9], b"/d/f\0")
            .0,
        9
    );
    assert_eq!(one.call(Call::Write, &[9], b"0123456789").0, 10);
    assert_eq!(one.call(Call::WriteAt, &[9, 2, 0], b"xy").0, 2);
    assert_eq!(one.call(Call::Seek, &[9, 1, 0], &[]).0, 1);
    assert_eq!(one.done(Call::Read, &[9, 4], &[]), b"1xy4");
    assert_eq!(one.done(Call::ReadAt, &[9, 100, 8], &[]), b"89");
    let stat = one.done(Call::Stat, &[CWD, 0x100, 0x7ff], b"/d/f\0");
    assert_eq!(stat.len(), 256);
    assert_eq!(stat[28..30], 0o10_0644_u16.to_ne_bytes());
    assert_eq!(stat[40..48], 10_u64.to_ne_bytes());
    assert_eq!(one.done(Call::FstatFileSystem, &[9], &[]).len(), 120);
    one.done(Call::MakeLink, &[CWD], b"f\0/d/l\0");
    assert_eq!(one.done(Call::ReadLink, &[CWD, 100], b"/d/l\0"), b"f");
    one.done(Call::ChangeDirectory, &[CWD], b"/d\0");
    assert_eq!(one.done(Call::WorkingDirectory, &[], &[]), b"/d\0");
    assert_eq!(one.done(Call::PathOf, &[9], &[]), b"/d/f\0");
    one.done(Call::Open, &[CWD, 0o200000, 0, 0, 10], b".\0");
    let entries = one.done(Call::ListDirectory, &[10, 1000], &[]);
    // Of two names with one letter, `.` and `..`.
    assert_eq!(entries.len(), 4 * 24);
    assert_eq!(one.call(Call::ListDirectory, &[10, 1000], &[]).0, 0);
    one.done(Call::SetAttribute, &[0, 0, 1], b"f\0user.a\0value");
    assert_eq!(
        one.call(Call::GetAttribute, &[0, 0, 1], b"f\0user.a\0"),
        (5, Vec::new())
    );
    assert_eq!(
        one.done(Call::GetAttribute, &[9, 9, 1], b"\0user.a\0"),
        b"value"
    );
    one.fails(Errno::RANGE, Call::GetAttribute, &[0, 4, 1], b"f\0user.a\0");
    one.done(Call::SetFlags, &[9, 0o2000], &[]);
    assert_eq!(one.call(Call::GetFlags, &[9], &[]).0, 0o10_2002);
    one.done(Call::ChangeMode, &[9, 0o600, 0x1000], b"\0");
    one.done(Call::ChangeOwner, &[CWD, 7, u64::MAX, 0], b"f\0");
    one.done(Call::SetTimes, &[CWD, 5, 6, 0, (1 << 30) - 2, 0], b"f\0");
    one.fails(
        Errno::INVAL,
        Call::SetTimes,
        &[CWD, 5, u64::MAX, 0, 0, 0],
        b"f\0",
    );
    one.done(Call::Rename, &[CWD, 10, 0], b"f\0g\0");
    one.done(Call::Duplicate, &[9, 3], &[]);
    one.done(Call::Close, &[9], &[]);
    one.fails(Errno::BADF, Call::Close, &[9], &[]);
    one.done(Call::Unlink, &[CWD, 0], b"g\0");
    assert_eq!(one.call(Call::Seek, &[3, 0, 2], &[]).0, 10);
    one.fails(Errno::NOENT, Call::Access, &[CWD, 0, 0], b"g\0");
    one.fails(Errno::NOTTY, Call::Control, &[3, 0x5401], &[]);
}

#[test]
fn child_and_next_program_attach_by_token() {
    let server = Server::start();
    let parent = server.first();
    parent.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/f\0");
    parent.done(Call::Write, &[3], b"abcdef");
    parent.done(Call::Lock, &[3, F_SETLK], &flock());
    let child = server.attach(parent.token(FOR_CHILD));
    child.done(Call::Seek, &[3, 2, 0], &[]);
    assert_eq!(parent.done(Call::Read, &[3, 10], &[]), b"cdef");
    child.fails(Errno::AGAIN, Call::Lock, &[3, F_SETLK], &flock());
    let next = parent.token(FOR_PROGRAM);
    // execve(2) closes the socket before the next program attaches.
    drop(parent);
    let next = server.attach(next);
    child.fails(Errno::AGAIN, Call::Lock, &[3, F_SETLK], &flock());
    let held = child.done(Call::Lock, &[3, 5], &flock());
    assert_eq!(held[24..28], 77_u32.to_ne_bytes());
    drop(next);
    child.done(Call::Lock, &[3, F_SETLKW], &flock());
}

#[test]
fn locks_end_with_their_process() {
    let server = Server::start();
    let one = server.first();
    one.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/f\0");
    let two = server.attach(one.token(FOR_CHILD));
    two.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/f\0");
    one.done(Call::Flock, &[3, LOCK_EX], &[]);
    one.done(Call::Lock, &[3, F_SETLK], &flock());
    two.fails(Errno::AGAIN, Call::Flock, &[3, LOCK_EX | LOCK_NB], &[]);
    let slot = two.arena().slot(0).unwrap();
    for (call, argument, input) in [
        (Call::Flock, LOCK_EX, Vec::new()),
        (Call::Lock, F_SETLKW, flock()),
    ] {
        slot.send(call as u32, &[3, argument], &input, input.len() as u32);
        slot.withdraw();
        assert_eq!(slot.receive().0, -i64::from(Errno::INTR.raw_os_error()));
    }
    // Credentials change while another thread waits.
    one.take_slot(1);
    two.take_slot(1);
    slot.send(Call::Flock as u32, &[3, LOCK_EX], &[], 0);
    let groups = 5_u32.to_ne_bytes();
    assert_eq!(
        two.call_on(1, Call::SetCredentials, &[0, 0, 1], &groups).0,
        0
    );
    drop(one);
    assert_eq!(slot.receive().0, 0);
    two.done(Call::Lock, &[3, F_SETLKW], &flock());
    // A process that ends while it waits.
    let three = server.attach(two.token(FOR_CHILD));
    three.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/f\0");
    let waiting = three.arena().slot(0).unwrap();
    waiting.send(Call::Flock as u32, &[3, LOCK_EX], &[], 0);
    drop(three);
    two.done(Call::Close, &[3], &[]);
}

#[test]
fn child_never_started_ends_with_its_creator() {
    let server = Server::start();
    let (one, two) = (server.first(), server.first());
    one.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/f\0");
    two.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/f\0");
    one.done(Call::Flock, &[3, LOCK_EX], &[]);
    let started = server.attach(one.token(FOR_CHILD));
    one.token(FOR_CHILD);
    one.done(Call::Close, &[3], &[]);
    started.done(Call::Close, &[3], &[]);
    let next = one.token(FOR_PROGRAM);
    // A child that the creator's end finds on the door.
    let late = one.token(FOR_CHILD);
    let late = server.attach(late);
    drop(one);
    two.done(Call::Flock, &[3, LOCK_EX], &[]);
    late.done(Call::SyncAll, &[], &[]);
    // That of the next program is kept.
    server.attach(next).done(Call::SyncAll, &[], &[]);
}

#[test]
fn paths_of_the_host_are_returned() {
    let server = Server::start();
    let one = server.first();
    one.done(Call::MakeDirectory, &[CWD, 0o755], b"/d\0");
    one.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/d/f\0");
    let names = HostNames::InRoot(vec![b"dev".to_vec()]);
    server.kernel.set_host_names("/", names).unwrap();
    let elsewhere = |output: &[u8]| (-ELSEWHERE, output.to_vec());
    let opened = one.call(Call::Open, &[CWD, 0, 0, 0, 4], b"/d/../dev/null\0");
    assert_eq!(opened, elsewhere(b"/dev/null\0"));
    let renamed = one.call(Call::Rename, &[CWD, CWD, 0], b"/d/f\0/dev/f\0");
    assert_eq!(renamed, elsewhere(b"\0/dev/f\0"));
    let linked = one.call(Call::Link, &[CWD, CWD, 0], b"/dev/null\0/d/g\0");
    assert_eq!(linked, elsewhere(b"/dev/null\0\0"));
    let target = one.call(Call::MakeLink, &[CWD], b"/dev/null\0/dev/l\0");
    assert_eq!(target, elsewhere(b"/dev/l\0"));
}

#[test]
fn refused_process_finds_its_socket_closed() {
    let server = Server::start();
    let one = server.first();
    server.attach(12345).wait_for_refusal();
    let door = server.door.as_ref().unwrap();
    for (len, is_sealed) in [(ARENA_BYTES as u64, false), (4096, true), (1 << 40, true)] {
        let token = one.token(FOR_CHILD);
        Client::attach(door, token, arena_file(len, is_sealed)).wait_for_refusal();
        // The token is still good.
        server.attach(token).done(Call::SyncAll, &[], &[]);
    }
    let token = one.token(FOR_CHILD);
    one.done(Call::Forget, &[token], &[]);
    server.attach(token).wait_for_refusal();
    for garbage in [&[][..], b"x", &[0xff; 16], &[0; 4000]] {
        send(door, garbage, SendFlags::NOSIGNAL).unwrap();
    }
    let two = server.attach(one.token(FOR_CHILD));
    two.take_slot(SLOTS_MAX as u32);
    two.wait_for_refusal();
    one.done(Call::SyncAll, &[], &[]);
}

#[test]
fn garbage_requests_harm_their_client_alone() {
    let server = Server::start();
    let (good, bad) = (server.first(), server.first());
    let mut number = 1_u64;
    let mut random = || {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        number >> 33
    };
    let slot = bad.arena().slot(0).unwrap();
    bad.fails(Errno::NOSYS, Call::Open, &[CWD, 0, 0, 8, 3], b"/f\0");
    for round in 0..20_000 {
        let arguments = [0; 6].map(|_: u64| match random() % 4 {
            0 => random() % 8,
            1 => CWD,
            2 => (random() << 33) | random(),
            _ => u64::MAX - random() % 5000,
        });
        let input: Vec<u8> = (0..random() % 40)
            .map(|_| (random() % 4) as u8 * 47)
            .collect();
        let call = random() % 70;
        // The wait of a lock would have no end, and much memory needs no test here.
        let left_out = [Call::Flock, Call::Lock, Call::Prepare, Call::Allocate];
        let left_out = left_out.map(|call| call as u64);
        if left_out.contains(&call) {
            continue;
        }
        let len = match random() % 8 {
            0 => random() as u32,
            1 => DATA_BYTES as u32 + 1,
            _ => input.len() as u32,
        };
        slot.send(call as u32, &arguments, &input, len);
        let (result, output) = slot.receive();
        assert!(
            output.len() <= DATA_BYTES && result > -4096,
            "{round}: {call} {result}"
        );
    }
    good.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/good\0");
}

#[test]
fn each_thread_has_a_slot() {
    let server = Server::start();
    let one = server.first();
    one.done(Call::Open, &[CWD, O_CREAT_RDWR, 0o666, 0, 3], b"/f\0");
    std::thread::scope(|scope| {
        for thread in 1..6_u32 {
            let one = &one;
            scope.spawn(move || {
                one.take_slot(thread);
                for step in 0..200 {
                    let offset = u64::from(thread) * 1000 + step;
                    let written = one.call_on(thread, Call::WriteAt, &[3, offset, 0], b"x");
                    assert_eq!(written.0, 1);
                    let read = one.call_on(thread, Call::ReadAt, &[3, 1, offset], &[]);
                    assert_eq!(read, (1, b"x".to_vec()));
                }
            });
        }
    });
    assert_eq!(one.call(Call::Seek, &[3, 0, 2], &[]).0, 5200);
}
