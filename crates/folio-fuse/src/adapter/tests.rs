//! The adapter over a ramfs, with no kernel that asks.

use super::*;
use folio::KernelOptions;
use folio::vfs::SetTime;

const ROOT_USER: Client = Client { uid: 0, gid: 0 };
const USER: Client = Client {
    uid: 1000,
    gid: 100,
};
const RDWR: u32 = 2;

fn adapter(judge: PermissionChecks) -> Adapter {
    Adapter::new(Kernel::new(KernelOptions::default()), judge)
}

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

#[test]
fn nodes_live_as_long_as_they_are_known() {
    let adapter = adapter(PermissionChecks::ByClient);
    let folder = adapter.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0o022).unwrap();
    assert_eq!(
        adapter.lookup(ROOT_USER, ROOT, b"d").unwrap().unwrap().id,
        folder.id
    );
    assert_eq!(adapter.nodes.len(), 1);
    adapter.forget(folder.id, 1);
    assert!(adapter.attributes(folder.id).is_ok());
    adapter.forget(folder.id, 1);
    assert_eq!(errno(adapter.attributes(folder.id)), Some(Errno::STALE));
    // More than was ever told, and of nothing.
    adapter.forget(folder.id, 7);
    assert_eq!(adapter.nodes.len(), 0);
    assert!(adapter.lookup(ROOT_USER, ROOT, b"none").unwrap().is_none());
}

#[test]
fn names_that_are_none_are_refused() {
    let adapter = adapter(PermissionChecks::ByClient);
    for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b"] {
        assert_eq!(
            errno(adapter.lookup(ROOT_USER, ROOT, name)),
            Some(Errno::INVAL)
        );
        assert_eq!(
            errno(adapter.mkdir(ROOT_USER, ROOT, name, 0o755, 0)),
            Some(Errno::INVAL)
        );
        assert_eq!(
            errno(adapter.create(ROOT_USER, (ROOT, name), RDWR, 0o644, 0)),
            Some(Errno::INVAL)
        );
    }
    assert_eq!(
        errno(adapter.mkdir(ROOT_USER, ROOT, &[b'n'; 256], 0o755, 0)),
        Some(Errno::NAMETOOLONG)
    );
    assert_eq!(
        errno(adapter.lookup(ROOT_USER, ROOT, &[b'n'; 256])),
        Some(Errno::NAMETOOLONG)
    );
}

#[test]
fn what_is_made_belongs_to_who_asks() {
    let adapter = adapter(PermissionChecks::ByClient);
    let (entry, file) = adapter
        .create(USER, (ROOT, b"f"), RDWR, 0o4766, 0o022)
        .unwrap();
    let made = entry.attributes;
    assert_eq!((made.uid, made.gid, made.mode), (1000, 100, 0o4744));
    // The superuser may keep the bit, others may not.
    assert_eq!(adapter.write(ROOT_USER, file, b"abc", 0, false).unwrap(), 3);
    assert_eq!(adapter.attributes(entry.id).unwrap().mode, 0o4744);
    let change = Change {
        size_bytes: Some(2),
        file: Some(file),
        ..Change::default()
    };
    assert_eq!(
        adapter
            .set_attributes(USER, entry.id, &change)
            .unwrap()
            .mode,
        0o744
    );
    let judged_by_nobody = self::adapter(PermissionChecks::Off);
    let (entry, _) = judged_by_nobody
        .create(USER, (ROOT, b"f"), RDWR, 0o666, 0)
        .unwrap();
    assert_eq!((entry.attributes.uid, entry.attributes.gid), (0, 0));
}

#[test]
fn a_file_without_names_lives_until_it_is_released() {
    let adapter = adapter(PermissionChecks::ByClient);
    let (entry, file) = adapter
        .create(ROOT_USER, (ROOT, b"f"), RDWR, 0o600, 0)
        .unwrap();
    adapter
        .write(ROOT_USER, file, b"still here", 0, false)
        .unwrap();
    adapter.unlink(ROOT_USER, ROOT, b"f").unwrap();
    adapter.forget(entry.id, 1);
    let mut buf = [0; 32];
    assert_eq!(adapter.read(file, &mut buf, 6).unwrap(), 4);
    assert_eq!(&buf[..4], b"here");
    adapter.release(file);
    assert_eq!(errno(adapter.read(file, &mut buf, 0)), Some(Errno::BADF));
}

#[test]
fn directories_are_listed_from_any_cookie() {
    let adapter = adapter(PermissionChecks::ByClient);
    for number in 0..50 {
        adapter
            .mkdir(ROOT_USER, ROOT, format!("d{number}").as_bytes(), 0o755, 0)
            .unwrap();
    }
    let all = adapter.read_directory(ROOT_USER, ROOT, 0, 1000).unwrap();
    assert_eq!(all.iter().filter(|entry| !entry.is_dot()).count(), 50);
    let mut cookie = 0;
    let mut names = Vec::new();
    loop {
        let some = adapter.read_directory(ROOT_USER, ROOT, cookie, 7).unwrap();
        let Some(last) = some.last() else { break };
        cookie = last.next_cookie;
        names.extend(some.into_iter().map(|entry| entry.name));
    }
    assert_eq!(
        names,
        all.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
    );
}

#[test]
fn attributes_are_set_together() {
    let adapter = adapter(PermissionChecks::ByClient);
    let (entry, _) = adapter
        .create(ROOT_USER, (ROOT, b"f"), RDWR, 0o600, 0)
        .unwrap();
    let time = folio::Timespec::new(-5, 7);
    let change = Change {
        mode: Some(0o2640),
        uid: Some(7),
        gid: Some(8),
        size_bytes: Some(5000),
        modified: Some(SetTime::To(time)),
        ..Change::default()
    };
    let now = adapter
        .set_attributes(ROOT_USER, entry.id, &change)
        .unwrap();
    assert_eq!(
        (now.mode, now.uid, now.gid, now.size_bytes, now.modified),
        (0o2640, 7, 8, 5000, time)
    );
}

#[test]
fn space_comes_back_when_nobody_knows_the_inode() {
    use folio::block::{Device, MemoryDevice};
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
    folio::kernel::format_ext4(&*device, &folio::kernel::FormatOptions::default()).unwrap();
    let kernel = Kernel::new(KernelOptions::default());
    kernel
        .mount_ext4(device, "/", &folio::vfs::MountOptions::default())
        .unwrap();
    let adapter = Adapter::new(kernel, PermissionChecks::ByClient);
    let free = || {
        let told = adapter.statistics(ROOT_USER, ROOT).unwrap();
        (told.blocks_free, told.inodes_free)
    };
    let before = free();
    let (entry, file) = adapter
        .create(ROOT_USER, (ROOT, b"f"), RDWR, 0o600, 0)
        .unwrap();
    adapter.fallocate(ROOT_USER, file, 0, 0, 1 << 20).unwrap();
    adapter
        .write(ROOT_USER, file, &[7; 100_000], 0, false)
        .unwrap();
    adapter.release(file);
    assert_ne!(free(), before);
    adapter.unlink(ROOT_USER, ROOT, b"f").unwrap();
    assert_ne!(free(), before);
    adapter.forget(entry.id, 1);
    assert_eq!(free(), before);
}
