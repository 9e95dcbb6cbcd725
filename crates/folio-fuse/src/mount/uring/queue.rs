//! The queue of one CPU: its ring, its slots, and the loop of its thread.
#![allow(unsafe_code)]

use super::slot::{Finished, Slot};
use super::workers::{Replies, SlowRequest};
use crate::changes::ReplyGuard;
use crate::server::{Outcome, Server, replies_with_attributes};
use crate::wire::Message;
use crate::wire::abi::UringCommand;
use io_uring::register::Restriction;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use zerocopy::IntoBytes;

/// Slots of a queue: requests of one CPU that are in progress at a time, most of them readahead and
/// requests that wait for a device. Further requests wait in the kernel.
const SLOTS: usize = 8;
/// The number of the event of slow requests, among the numbers of slots.
const REPLIES_READY: u64 = u64::MAX;
/// Bytes of a command in a submission.
const COMMAND_LEN: usize = 80;
/// Place of `len` in `struct io_uring_sqe`.
const SUBMISSION_LEN_AT: usize = 24;

/// `enum fuse_uring_cmd`.
#[derive(Clone, Copy)]
enum Command {
    Register = 1,
    CommitAndFetch = 2,
}

/// A ring with large submissions, as FUSE needs them, and no other operations than its own: no
/// filter of system calls sees what a ring does.
pub(super) struct Ring(IoUring<squeue::Entry128, cqueue::Entry>);

impl Ring {
    pub(super) fn new() -> io::Result<Self> {
        // Completions run when the thread waits for them, not as interrupts.
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        builder.setup_r_disabled();
        let ring: IoUring<_, _> = builder.build((SLOTS + 1).next_power_of_two() as u32)?;
        let operations = [opcode::UringCmd80::CODE, opcode::PollAdd::CODE];
        ring.submitter()
            .register_restrictions(&mut operations.map(Restriction::sqe_op))?;
        ring.submitter().register_enable_rings()?;
        Ok(Self(ring))
    }

    /// Adds a submission, sent with the next wait.
    fn push(&mut self, submission: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the memory that a submission refers to is that of slots, which live longer than
        // the ring (`Queue`), and which the kernel owns until the completion (U1); or none.
        let pushed = unsafe { self.0.submission().push(submission) };
        // There are as many places as slots and events.
        pushed.map_err(|_| io::Error::other("the ring is full"))
    }

    /// Sends submissions.
    fn submit(&self) -> io::Result<()> {
        retry(|| self.0.submit())
    }

    /// Sends submissions and waits for a completion.
    fn submit_and_wait(&self) -> io::Result<()> {
        retry(|| self.0.submit_and_wait(1))
    }
}

fn retry(mut submit: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    loop {
        match submit() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(drop),
        }
    }
}

/// The queue of one CPU.
pub(super) struct Queue {
    // Closed before its slots are unmapped.
    ring: Ring,
    slots: Vec<Slot>,
    number: u16,
    device: Arc<OwnedFd>,
    /// Whether changes are pushed to the kernel.
    has_push: bool,
    replies: Arc<Replies>,
    /// For replies that cannot be written in place.
    message: Message,
}

impl Queue {
    /// Creates the queue of CPU `number`. Called by its thread, which is bound to the CPU if it
    /// may use it.
    pub(super) fn new(number: u16, device: Arc<OwnedFd>, has_push: bool) -> io::Result<Self> {
        let mut cpu = rustix::thread::CpuSet::new();
        if usize::from(number) < rustix::thread::CpuSet::MAX_CPU {
            cpu.set(usize::from(number));
            let _ = rustix::thread::sched_setaffinity(None, &cpu);
        }
        Ok(Self {
            ring: Ring::new()?,
            slots: (0..SLOTS).map(|_| Slot::new()).collect::<io::Result<_>>()?,
            number,
            device,
            has_push,
            replies: Arc::new(Replies::new()?),
            message: Message::default(),
        })
    }

    /// Serves requests until the unmount.
    ///
    /// # Errors
    /// Those of io_uring, and of a kernel that sends malformed requests.
    pub(super) fn serve(mut self, server: &Server, slow: &Sender<SlowRequest>) -> io::Result<()> {
        for slot in 0..self.slots.len() {
            self.send(Command::Register, slot, 0)?;
        }
        self.poll_replies()?;
        let mut registered = self.slots.len();
        let mut completions = Vec::with_capacity(SLOTS + 1);
        while registered > 0 {
            self.ring.submit_and_wait()?;
            let completed = self.ring.0.completion();
            completions.extend(completed.map(|done| (done.user_data(), done.result())));
            let mut guards = Vec::new();
            for (number, result) in completions.drain(..) {
                if number == REPLIES_READY {
                    self.send_replies()?;
                } else if result < 0 {
                    // The kernel gave the slot back.
                    registered -= 1;
                    check_end(result)?;
                } else {
                    guards.extend(self.handle(number as usize, server, slow)?);
                }
            }
            if !guards.is_empty() {
                // A guard is held until its reply is sent.
                self.ring.submit()?;
            }
        }
        Ok(())
    }

    /// Handles the request in a slot, or gives it to a worker. Returns the guard of the reply, if
    /// it needs one.
    fn handle<'server>(
        &mut self,
        slot: usize,
        server: &'server Server,
        slow: &Sender<SlowRequest>,
    ) -> io::Result<Option<ReplyGuard<'server>>> {
        let request = self.slots[slot].request().ok_or_else(malformed)?;
        let bytes = request.bytes;
        let needs_guard = self.has_push && replies_with_attributes(bytes);
        let guard = needs_guard.then(|| server.begin_reply());
        let (outcome, in_place) = match request.body {
            Some(mut body) => {
                let outcome = server.handle_at_once(bytes, &mut body);
                (outcome, Some(body.finished()))
            }
            None => (server.handle_at_once(bytes, &mut self.message), None),
        };
        match outcome {
            Ok(Outcome::Replied | Outcome::Ended) => {
                let reply = in_place.unwrap_or_else(|| self.slots[slot].put(self.message.bytes()));
                self.commit(slot, &reply)?;
            }
            Ok(Outcome::Malformed | Outcome::Silent) => return Err(malformed()),
            Err(_) => {
                let request = SlowRequest {
                    bytes: bytes.to_vec(),
                    slot,
                    replies: Arc::clone(&self.replies),
                };
                let sent = slow.send(request);
                sent.map_err(|_| io::Error::other("the threads of slow requests have ended"))?;
            }
        }
        Ok(guard)
    }

    /// Sends the replies of the workers.
    fn send_replies(&mut self) -> io::Result<()> {
        for (slot, reply) in self.replies.take() {
            let reply = reply.ok_or_else(malformed)?;
            let reply = self.slots[slot].put(reply.bytes());
            self.commit(slot, &reply)?;
        }
        self.poll_replies()
    }

    fn poll_replies(&mut self) -> io::Result<()> {
        let event = types::Fd(self.replies.event());
        let poll = opcode::PollAdd::new(event, PollFlags::IN.bits() as u32);
        let poll: squeue::Entry128 = poll.build().user_data(REPLIES_READY).into();
        self.ring.push(&poll)
    }

    /// Sends the reply in a slot, which then receives the next request.
    fn commit(&mut self, slot: usize, reply: &Finished) -> io::Result<()> {
        let commit_id = self.slots[slot].finish(reply);
        self.send(Command::CommitAndFetch, slot, commit_id)
    }

    fn send(&mut self, command: Command, slot: usize, commit_id: u64) -> io::Result<()> {
        let argument = UringCommand {
            commit_id,
            queue: self.number,
            ..UringCommand::default()
        };
        let mut bytes = [0; COMMAND_LEN];
        bytes[..size_of::<UringCommand>()].copy_from_slice(argument.as_bytes());
        let device = types::Fd(self.device.as_raw_fd());
        let (ranges, range_count) = self.slots[slot].ranges();
        let submission = opcode::UringCmd80::new(device, command as u32).cmd(bytes);
        let mut submission = match command {
            Command::Register => submission.addr(Some(ranges)).build(),
            Command::CommitAndFetch => submission.build(),
        };
        if let Command::Register = command {
            let fields = (&raw mut submission).cast::<[u8; SUBMISSION_LEN_AT]>();
            let len = fields.wrapping_add(1).cast::<u32>();
            // SAFETY: a submission begins with the `struct io_uring_sqe` that the kernel reads; the
            // crate has no name for its field `len`, a u32 at this aligned place.
            unsafe { len.write(range_count) };
        }
        self.ring.push(&submission.user_data(slot as u64))
    }
}

/// Returns the error of a slot that the kernel gave back, unless it was unmounted.
fn check_end(result: i32) -> io::Result<()> {
    match Errno::from_raw_os_error(-result) {
        Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => Ok(()),
        errno => Err(errno.into()),
    }
}

fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "malformed request from /dev/fuse",
    )
}
