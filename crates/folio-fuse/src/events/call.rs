//! The call in progress of the thread that raises events, and what the server answers to it.

use super::event_call::{TYPES, outside_name};
use super::places::DirectoryPlaces;
use folio::vfs::FileType;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Bit 63 marks node ids of placeholders. No inode of the host has one of the highest ids, as
/// numbers with this bit are given one after the other.
const PLACEHOLDER: u64 = 0xffff << 48;
/// The place of the type in the id of a placeholder.
const TYPE_SHIFT: u32 = 40;

/// The highest 2^28 group ids that are positive: a machine seldom gives one to a user or to a
/// container, and the superuser has one only by its own choice.
const GROUPS: u32 = 0x7000_0000;

/// What a name refers to, as the kernel is to see it during a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RaisedTarget {
    Absent,
    /// The inode that the name referred to before the event.
    Old(FileType, Option<u64>),
    /// An inode that has lost the name; absent if the client has forgotten it.
    Replaced(u64),
    /// The inode that the host has at the name, if it is of this type.
    Current(FileType),
}

/// A name that a call looks up.
#[derive(Debug)]
pub(crate) struct RaisedName {
    pub(crate) parent: u64,
    pub(crate) name: Box<[u8]>,
    pub(crate) target: RaisedTarget,
}

/// The names that a call looks up.
pub(crate) type RaisedCall = Vec<RaisedName>;

/// What is known of the id of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadId {
    /// It has not looked up [`EventCalls::outside_name`] yet.
    Unknown,
    Known,
    /// Its requests carry no id: its pid namespace is not the mount's, or one above it.
    Missing,
    /// The thread has ended, and another one may have its id.
    Ended,
}

/// The field of requests by which the thread is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadField {
    /// The thread is one of this process, and lives as long as the mount.
    Pid,
    /// The thread is another machine's, which may be stopped in the middle of a call, or be killed
    /// and have its `pid` used again. Its user is the superuser: any program can learn the group,
    /// and another user may be given it.
    Group,
}

/// State that the thread and the server share.
pub(crate) struct EventCalls {
    pub(crate) places: DirectoryPlaces,
    field: ThreadField,
    thread: Mutex<ThreadId>,
    /// The id of the thread, as its requests have it; 0 while it is unknown.
    known_thread: AtomicU32,
    /// A name in the root that exists for the thread alone: a directory without watchers, for the
    /// other side of a move into the mount or out of it.
    outside_name: Box<[u8]>,
    has_call: AtomicBool,
    call: Mutex<RaisedCall>,
    next_placeholder: AtomicU64,
}

impl EventCalls {
    /// For a thread of this process.
    pub(crate) fn new() -> Self {
        Self::by(ThreadField::Pid, ThreadId::Unknown, 0)
    }

    /// For a notifier, whose requests have a group id of their own ([`EventCalls::group`]).
    pub(crate) fn of_notifier() -> Self {
        let group = GROUPS | random() as u32 >> 4;
        Self::by(ThreadField::Group, ThreadId::Known, group)
    }

    fn by(field: ThreadField, thread: ThreadId, known: u32) -> Self {
        Self {
            places: DirectoryPlaces::default(),
            field,
            thread: Mutex::new(thread),
            known_thread: AtomicU32::new(known),
            outside_name: outside_name(random()),
            has_call: AtomicBool::new(false),
            call: Mutex::default(),
            next_placeholder: AtomicU64::new(1),
        }
    }

    /// Takes the first requester that looks up [`EventCalls::outside_name`] for the thread, since
    /// no program knows that name. So the id is right in any pid namespace.
    pub(crate) fn recognize(&self, pid: u32) {
        let mut thread = self.thread.lock();
        if *thread == ThreadId::Unknown {
            *thread = if pid == 0 {
                ThreadId::Missing
            } else {
                ThreadId::Known
            };
            self.known_thread.store(pid, Ordering::Release);
        }
    }

    /// Returns whether the thread cannot be recognized: its requests carry no id.
    pub(crate) fn is_unrecognizable(&self) -> bool {
        *self.thread.lock() == ThreadId::Missing
    }

    /// Notes that the thread has ended. A notifier may still make its last call.
    pub(crate) fn end_thread(&self) {
        if self.field == ThreadField::Pid {
            *self.thread.lock() = ThreadId::Ended;
            self.known_thread.store(0, Ordering::Release);
        }
    }

    /// Returns whether a request with these ids is the thread's.
    pub(crate) fn is_thread(&self, pid: u32, uid: u32, gid: u32) -> bool {
        let id = match self.field {
            ThreadField::Pid => pid,
            ThreadField::Group if uid == 0 => gid,
            ThreadField::Group => return false,
        };
        id != 0 && self.known_thread.load(Ordering::Acquire) == id
    }

    /// Returns the group id of a notifier's requests.
    pub(crate) fn group(&self) -> u32 {
        self.known_thread.load(Ordering::Acquire)
    }

    pub(crate) fn outside_name(&self) -> &[u8] {
        &self.outside_name
    }

    /// Begins a call that looks up these names.
    pub(crate) fn begin(&self, call: RaisedCall) {
        *self.call.lock() = call;
        self.has_call.store(true, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.has_call.store(false, Ordering::Release);
        self.call.lock().clear();
    }

    /// Returns what a name refers to in the call in progress, if the call looks it up.
    pub(crate) fn target(&self, parent: u64, name: &[u8]) -> Option<RaisedTarget> {
        if !self.has_call.load(Ordering::Acquire) {
            return None;
        }
        let call = self.call.lock();
        let found = call
            .iter()
            .find(|raised| raised.parent == parent && *raised.name == *name);
        found.map(|raised| raised.target)
    }

    /// Returns a new node id for a file that does not exist on the host.
    pub(crate) fn placeholder(&self, file_type: FileType) -> u64 {
        let kind = TYPES
            .iter()
            .position(|kind| *kind == file_type)
            .unwrap_or(0) as u64;
        let number = self.next_placeholder.fetch_add(1, Ordering::Relaxed);
        PLACEHOLDER | kind << TYPE_SHIFT | number & ((1 << TYPE_SHIFT) - 1)
    }

    /// Returns the node id of the directory called [`EventCalls::outside_name`].
    pub(crate) fn outside() -> u64 {
        PLACEHOLDER | 1 << TYPE_SHIFT
    }
}

/// Without randomness a secret may be known: a name in the directory is then not seen.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_le_bytes(bytes)
}

/// Returns the type of a placeholder; `None` for another node.
pub(crate) fn placeholder_type(node: u64) -> Option<FileType> {
    let kind = (node & !PLACEHOLDER) >> TYPE_SHIFT;
    TYPES
        .get(kind as usize)
        .filter(|_| node & PLACEHOLDER == PLACEHOLDER)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lookup_of_the_secret_name_recognizes() {
        let calls = EventCalls::new();
        assert!(!calls.is_thread(0, 0, 0) && !calls.is_thread(7, 7, 7));
        calls.recognize(7);
        calls.recognize(8);
        assert!(calls.is_thread(7, 1000, 0) && !calls.is_thread(8, 0, 0));
        assert!(!calls.is_unrecognizable());
        calls.end_thread();
        calls.recognize(7);
        assert!(!calls.is_thread(7, 0, 0) && !calls.is_unrecognizable());
    }

    #[test]
    fn notifier_is_recognized_by_its_group() {
        let calls = EventCalls::of_notifier();
        let group = calls.group();
        assert!((0x7000_0000..0x8000_0000).contains(&group));
        // A lookup of the secret name by another thread changes nothing.
        calls.recognize(7);
        assert!(calls.is_thread(9, 0, group));
        assert!(!calls.is_thread(group, 0, 0) && !calls.is_thread(7, 0, 0));
        // The group of an ordinary user may be the same.
        assert!(!calls.is_thread(9, 1000, group));
    }

    #[test]
    fn requests_without_an_id_are_noticed() {
        let calls = EventCalls::new();
        calls.recognize(0);
        assert!(calls.is_unrecognizable() && !calls.is_thread(0, 0, 0));
    }
}
