//! A system call on the mount that raises an event: made by the thread of the mount, which may
//! belong to another machine. So it has a form as bytes.

use folio::Errno;
use folio::vfs::FileType;

/// The names of directories that exist for the thread alone begin with this.
const OUTSIDE_PREFIX: &[u8] = b".folio-outside-";
/// Longest path or name, in bytes (linux/limits.h, `PATH_MAX`).
const PATH_BYTES_MAX: usize = 4095;

/// Makes the calls that raise events on one mount.
pub trait EventCaller {
    /// Makes a call, and waits until it has returned.
    ///
    /// # Errors
    /// [`EventCallError`].
    fn make(&self, call: &EventCall) -> Result<(), EventCallError>;

    /// Releases the mount: no event follows for now.
    fn release(&self);
}

/// The failure of an [`EventCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventCallError {
    /// The mount cannot be opened, or its server does not recognize the thread.
    Unreachable(Errno),
    /// The call has failed.
    Failed(Errno),
}

/// A system call that raises an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventCall {
    pub(crate) kind: EventCallKind,
    /// A name in the root that exists for the thread alone.
    pub(crate) outside_name: Box<[u8]>,
    /// The names of the call: as many as [`EventCallKind::name_count`].
    pub(crate) names: Vec<CallName>,
}

/// The kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventCallKind {
    /// Opens the mount and makes no call.
    Open,
    Create(FileType),
    RemoveFile,
    RemoveDirectory,
    Move,
    /// Sets the time of the last change of contents.
    SetModified,
    /// Sets the times of the last change and of the last access.
    SetTimes,
    /// Opens a regular file for writing, and closes it.
    CloseWriter,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallName {
    /// The path from the root to the directory.
    pub(crate) path: Box<[u8]>,
    /// The node of the directory.
    pub(crate) node: u64,
    /// Empty for the directory itself.
    pub(crate) name: Box<[u8]>,
}

/// The types of files, by their number in ids of placeholders and in the bytes of calls.
pub(super) const TYPES: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::Symlink,
    FileType::Fifo,
    FileType::Socket,
    FileType::CharacterDevice,
    FileType::BlockDevice,
];
/// The kinds other than [`EventCallKind::Create`], by their place in the bytes after [`TYPES`].
const KINDS: [EventCallKind; 7] = [
    EventCallKind::Open,
    EventCallKind::RemoveFile,
    EventCallKind::RemoveDirectory,
    EventCallKind::Move,
    EventCallKind::SetModified,
    EventCallKind::SetTimes,
    EventCallKind::CloseWriter,
];

impl EventCallKind {
    fn name_count(self) -> usize {
        match self {
            Self::Open => 0,
            Self::Move => 2,
            _ => 1,
        }
    }

    fn number(self) -> u8 {
        let position = match self {
            Self::Create(created) => TYPES.iter().position(|other| *other == created),
            _ => KINDS
                .iter()
                .position(|other| *other == self)
                .map(|position| position + TYPES.len()),
        };
        // Each kind is in one of the short lists.
        position.unwrap_or_default() as u8
    }

    fn of_number(number: u8) -> Option<Self> {
        let number = usize::from(number);
        match TYPES.get(number) {
            Some(created) => Some(Self::Create(*created)),
            None => KINDS.get(number - TYPES.len()).copied(),
        }
    }
}

/// Returns a name that exists for the thread alone.
pub(crate) fn outside_name(random: u64) -> Box<[u8]> {
    [OUTSIDE_PREFIX, format!("{random:016x}").as_bytes()]
        .concat()
        .into()
}

impl EventCall {
    /// Appends the call as bytes: the kind, and each text after its length.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let text = |bytes: &mut Vec<u8>, text: &[u8]| {
            // At most PATH_BYTES_MAX: `is_valid`.
            bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
            bytes.extend_from_slice(text);
        };
        bytes.push(self.kind.number());
        text(bytes, &self.outside_name);
        for name in &self.names {
            bytes.extend_from_slice(&name.node.to_le_bytes());
            text(bytes, &name.path);
            text(bytes, &name.name);
        }
    }

    /// Parses a call; `None` if it is malformed, or leads outside of the mount.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let [kind] = take(&mut bytes)?;
        let kind = EventCallKind::of_number(kind)?;
        let outside_name = take_text(&mut bytes)?;
        let names = (0..kind.name_count()).map(|_| {
            Some(CallName {
                node: u64::from_le_bytes(take(&mut bytes)?),
                path: take_text(&mut bytes)?,
                name: take_text(&mut bytes)?,
            })
        });
        let names = names.collect::<Option<_>>()?;
        let call = Self {
            kind,
            outside_name,
            names,
        };
        (bytes.is_empty() && call.is_valid()).then_some(call)
    }

    /// Returns whether the names are names, and short enough.
    pub(crate) fn is_valid(&self) -> bool {
        let is_short = |text: &[u8]| text.len() <= PATH_BYTES_MAX && !text.contains(&0);
        let may_be_empty = matches!(
            self.kind,
            EventCallKind::SetTimes | EventCallKind::SetModified
        );
        is_name(&self.outside_name)
            && self.outside_name.starts_with(OUTSIDE_PREFIX)
            && self.names.len() == self.kind.name_count()
            && self.names.iter().all(|name| {
                is_short(&name.path)
                    && is_short(&name.name)
                    && (is_name(&name.name) || may_be_empty && name.name.is_empty())
            })
    }
}

/// Returns whether `name` is that of an entry.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

fn take_text(bytes: &mut &[u8]) -> Option<Box<[u8]>> {
    let len = u16::from_le_bytes(take(bytes)?);
    let (text, rest) = bytes.split_at_checked(len.into())?;
    *bytes = rest;
    Some(text.into())
}

impl EventCallError {
    /// Returns the result of a call as a number: 0 for a success.
    pub fn encode(result: Result<(), Self>) -> i32 {
        match result {
            Ok(()) => 0,
            Err(Self::Failed(errno)) => errno.raw_os_error(),
            Err(Self::Unreachable(errno)) => -errno.raw_os_error(),
        }
    }

    /// Returns the result that a number states; a failure with EIO for any unknown one.
    ///
    /// # Errors
    /// The stated one.
    pub fn decode(number: i32) -> Result<(), Self> {
        let errno = |number: i32| match u16::try_from(number) {
            Ok(number @ 1..4096) => Errno::from_raw_os_error(number.into()),
            _ => Errno::IO,
        };
        match number {
            0 => Ok(()),
            1.. => Err(Self::Failed(errno(number))),
            _ => Err(Self::Unreachable(errno(number.checked_neg().unwrap_or(0)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: EventCallKind, names: &[(&[u8], &[u8])]) -> EventCall {
        let names = names.iter().map(|(path, name)| CallName {
            path: (*path).into(),
            node: 7,
            name: (*name).into(),
        });
        EventCall {
            kind,
            outside_name: outside_name(5),
            names: names.collect(),
        }
    }

    fn round_trip(call: &EventCall) -> Option<EventCall> {
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        EventCall::decode(&bytes)
    }

    #[test]
    fn encoded_calls_are_decoded() {
        let kinds = TYPES.map(EventCallKind::Create);
        for kind in kinds.into_iter().chain(KINDS) {
            let names: [(&[u8], &[u8]); 2] = [(b"./a", b"name"), (b".", b"other")];
            let call = call(kind, &names[..kind.name_count()]);
            assert_eq!(round_trip(&call), Some(call));
        }
        let itself = call(EventCallKind::SetTimes, &[(b".", b"")]);
        assert_eq!(round_trip(&itself), Some(itself));
        for result in [
            Ok(()),
            Err(EventCallError::Failed(Errno::STALE)),
            Err(EventCallError::Unreachable(Errno::NOENT)),
        ] {
            assert_eq!(
                EventCallError::decode(EventCallError::encode(result)),
                result
            );
        }
        assert!(EventCallError::decode(i32::MIN).is_err());
    }

    #[test]
    fn calls_outside_of_the_mount_are_refused() {
        for name in [&b"../etc/passwd"[..], b"..", b".", b"", b"a/b", b"a\0"] {
            let call = call(EventCallKind::RemoveFile, &[(b".", name)]);
            assert_eq!(round_trip(&call), None, "{}", name.escape_ascii());
        }
        let mut call = call(EventCallKind::RemoveFile, &[(b".", b"name")]);
        call.outside_name = (*b"etc").into();
        assert_eq!(round_trip(&call), None);
    }

    #[test]
    fn malformed_calls_are_refused() {
        let call = call(EventCallKind::Move, &[(b"./a", b"name"), (b".", b"other")]);
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(EventCall::decode(&bytes[..len]), None, "{len}");
        }
        bytes.push(0);
        assert_eq!(EventCall::decode(&bytes), None);
        assert_eq!(EventCall::decode(&[u8::MAX; 40]), None);
    }
}
