//! The random operations for the model and the file systems.

use folio::vfs::{FallocateMode, RenameFlags};
use proptest::prelude::*;

/// One call on paths below the root of the tree under test.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Mkdir(String, u16),
    Rmdir(String),
    /// open(2) with O_CREAT, perhaps O_EXCL, then close.
    Create(String, u16, bool),
    Unlink(String),
    Rename(String, String, RenameFlags),
    Link(String, String),
    /// Target, then name.
    Symlink(String, String),
    Readlink(String),
    /// Offset, length, fill byte.
    Write(String, u64, usize, u8),
    Append(String, usize, u8),
    Read(String),
    Truncate(String, u64),
    Fallocate(String, FallocateMode, u64, u64),
    Chmod(String, u16),
    Chown(String, Option<u32>, Option<u32>),
    SetModified(String, i64),
    SetXattr(String, u8, usize),
    RemoveXattr(String, u8),
    Fsync(String),
    Sync,
    /// Keeps a file open in one of a few slots; later calls use it even after its name was removed.
    Hold(usize, String),
    WriteHeld(usize, u64, usize, u8),
    ReadHeld(usize),
    CloseHeld(usize),
    /// Compares the whole tree.
    Check,
}

/// Slots for [`Operation::Hold`].
pub(crate) const HELD: usize = 3;

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        5 => Just("a".to_owned()),
        3 => Just("b".to_owned()),
        3 => Just("c".to_owned()),
        1 => Just("long_name_".repeat(20)),
    ]
}

/// Returns names joined by slashes; never above the root.
fn names() -> impl Strategy<Value = String> {
    let count = prop_oneof![4 => Just(1usize), 4 => Just(2), 2 => Just(3)];
    count
        .prop_flat_map(|count| prop::collection::vec(name(), count))
        .prop_map(|names| names.join("/"))
}

fn path() -> impl Strategy<Value = String> {
    (
        names(),
        prop::sample::select({
            let mut suffixes = vec![""; 20];
            suffixes.extend(["/", "/.", "/.."]);
            suffixes
        }),
    )
        .prop_map(|(names, suffix)| names + suffix)
}

/// Returns a path that usually refers to a file, if it exists.
fn file() -> impl Strategy<Value = String> {
    let likely = ["b", "c", "a/b", "a/c", "a/a/b", "a/a/c"].map(str::to_owned);
    prop_oneof![4 => prop::sample::select(likely.to_vec()), 1 => path()]
}

/// Returns a path that usually refers to a directory, if it exists.
fn directory() -> impl Strategy<Value = String> {
    let likely = ["a", "d", "a/a", "a/d", "a/a/a"].map(str::to_owned);
    prop_oneof![3 => prop::sample::select(likely.to_vec()), 1 => path()]
}

fn either() -> impl Strategy<Value = String> {
    prop_oneof![2 => file(), 1 => directory()]
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..100u64,
        0..20_000u64,
        (0..12u64).prop_map(|page| page * 4096),
        0..200_000u64
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..50usize,
        0..10_000usize,
        (0..5usize).prop_map(|pages| pages * 4096)
    ]
}

fn rename_flags() -> impl Strategy<Value = RenameFlags> {
    prop_oneof![
        4 => Just(RenameFlags::empty()),
        1 => Just(RenameFlags::NOREPLACE),
        1 => Just(RenameFlags::EXCHANGE),
    ]
}

fn fallocate_mode() -> impl Strategy<Value = FallocateMode> {
    use FallocateMode::*;
    prop::sample::select(vec![
        Allocate,
        AllocateKeepSize,
        PunchHole,
        ZeroRange,
        ZeroRangeKeepSize,
    ])
}

fn id() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), (0..100_000u32).prop_map(Some)]
}

fn names_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (directory(), 0..0o2000u16).prop_map(|(path, mode)| Operation::Mkdir(path, mode)),
        1 => directory().prop_map(Operation::Rmdir),
        4 => (file(), 0..0o10000u16, any::<bool>()).prop_map(|(path, mode, excl)| Operation::Create(path, mode, excl)),
        2 => file().prop_map(Operation::Unlink),
        4 => (either(), either(), rename_flags()).prop_map(|(from, to, flags)| Operation::Rename(from, to, flags)),
        2 => (file(), file()).prop_map(|(from, to)| Operation::Link(from, to)),
        2 => (names(), either()).prop_map(|(target, path)| Operation::Symlink(target, path)),
        1 => either().prop_map(Operation::Readlink),
    ]
}

fn data_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (file(), offset(), len(), any::<u8>())
            .prop_map(|(path, offset, len, byte)| Operation::Write(path, offset, len, byte)),
        2 => (file(), len(), any::<u8>()).prop_map(|(path, len, byte)| Operation::Append(path, len, byte)),
        2 => file().prop_map(Operation::Read),
        2 => (file(), offset()).prop_map(|(path, size)| Operation::Truncate(path, size)),
        2 => (file(), fallocate_mode(), offset(), 1..50_000u64)
            .prop_map(|(path, mode, offset, len)| Operation::Fallocate(path, mode, offset, len)),
        2 => (file(), any::<bool>(), (0..12u64, 1..6u64), 0..20u64).prop_map(|(path, inserts, (at, count), odd)| {
            let mode = if inserts { FallocateMode::InsertRange } else { FallocateMode::CollapseRange };
            // Sometimes not a multiple of any block size.
            let odd = if odd == 0 { 100 } else { 0 };
            Operation::Fallocate(path, mode, at * 4096 + odd, count * 4096)
        }),
        2 => (0..HELD, file()).prop_map(|(slot, path)| Operation::Hold(slot, path)),
        1 => (0..HELD, offset(), len(), any::<u8>())
            .prop_map(|(slot, offset, len, byte)| Operation::WriteHeld(slot, offset, len, byte)),
        1 => (0..HELD).prop_map(Operation::ReadHeld),
        1 => (0..HELD).prop_map(Operation::CloseHeld),
    ]
}

/// All attributes of a file fit into one block of 1,024 bytes: the model never runs out of space.
const XATTR_BYTES_MAX: usize = 220;

fn attribute_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (either(), 0..0o10000u16).prop_map(|(path, mode)| Operation::Chmod(path, mode)),
        1 => (either(), id(), id()).prop_map(|(path, uid, gid)| Operation::Chown(path, uid, gid)),
        1 => (either(), -1000..4_000_000_000i64).prop_map(|(path, secs)| Operation::SetModified(path, secs)),
        2 => (either(), 0..4u8, 0..=XATTR_BYTES_MAX).prop_map(|(path, name, len)| Operation::SetXattr(path, name, len)),
        1 => (either(), 0..4u8).prop_map(|(path, name)| Operation::RemoveXattr(path, name)),
        1 => either().prop_map(Operation::Fsync),
        1 => Just(Operation::Sync),
        1 => Just(Operation::Check),
    ]
}

/// Returns sequences of at most `count` random operations, after a few that create files.
pub(crate) fn operations(count: usize) -> impl Strategy<Value = Vec<Operation>> {
    let operation =
        prop_oneof![4 => names_operation(), 5 => data_operation(), 2 => attribute_operation()];
    prop::collection::vec(operation, 1..count).prop_map(|random| {
        let directories = ["a", "a/a", "d"].map(|path| Operation::Mkdir(path.to_owned(), 0o755));
        let files =
            ["a/b", "a/a/b", "b", "c"].map(|path| Operation::Create(path.to_owned(), 0o644, true));
        directories.into_iter().chain(files).chain(random).collect()
    })
}
