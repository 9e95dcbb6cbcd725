//! Tests of dentries and open files under many threads, with counted inodes.

use super::dentry::Dentry;
use super::dentry_cache::{Cached, DentryCache, Found};
use super::{
    AttrValidity, AttributeCell, AttributeChange, Attributes, Context, Credentials, FOREVER_NS,
    FileSystem, FileSystemStatistics, FileTable, FileType, Inode, InodeCommon, InodeLock, LastLink,
    Location, MountOptions, NewInode, OpenFlags, Vfs,
};
use crate::base::lock::Mutex;
use crate::base::{Errno, InodeNumber, Result, rcu};
use crate::cache::{CacheOptions, ObjectMemory, PageCache};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(folio_loom)]
mod loom_check;

const ALIVE: u64 = 0x600d_600d;

/// An inode that counts its instances; also a directory.
struct Counted {
    common: InodeCommon,
    canary: AtomicU64,
    alive: Arc<AtomicUsize>,
    names: Mutex<HashMap<Vec<u8>, Arc<dyn Inode>>>,
}

impl Counted {
    fn new(alive: &Arc<AtomicUsize>, file_type: FileType) -> Arc<Self> {
        alive.fetch_add(1, Ordering::Relaxed);
        let number = InodeNumber(1);
        let attributes = AttributeCell::new(&Attributes::new(number, file_type, 0o755));
        let common = InodeCommon {
            number,
            file_type,
            lock: InodeLock::default(),
            mapping: None,
            attributes,
            validity: None,
        };
        Arc::new(Self {
            common,
            canary: AtomicU64::new(ALIVE),
            alive: alive.clone(),
            names: Mutex::default(),
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.canary.store(0, Ordering::SeqCst);
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inode for Counted {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn set_attributes(&self, _caller: &Credentials, _change: &AttributeChange) -> Result<()> {
        Err(Errno::PERM.into())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        Ok(self.names.lock().get(name).cloned())
    }

    fn create(
        &self,
        _caller: &Credentials,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<dyn Inode>> {
        let inode: Arc<dyn Inode> = Self::new(&self.alive, new.file_type);
        self.names.lock().insert(name.to_vec(), inode.clone());
        Ok(inode)
    }

    fn unlink(&self, name: &[u8], _target: &Arc<dyn Inode>) -> Result<()> {
        let removed = self.names.lock().remove(name);
        removed.map(drop).ok_or(Errno::NOENT.into())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

struct OneDirectory(Arc<dyn Inode>);

impl FileSystem for OneDirectory {
    fn kind(&self) -> &'static str {
        "test"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.0.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        Ok(FileSystemStatistics::default())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

fn name_of(number: u64) -> Vec<u8> {
    format!("name {number}").into_bytes()
}

/// Returns the next pseudo-random number: Marsaglia's xorshift64.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Looks up a name as [`Context::child`] does; every name exists.
fn child(
    cache: &DentryCache,
    parent: &Arc<Dentry>,
    name: &[u8],
    alive: &Arc<AtomicUsize>,
) -> Arc<Dentry> {
    if let Cached::Positive(dentry) = cache.get(parent, name) {
        return dentry;
    }
    let _lock = parent.inode().common().lock.read();
    match cache.get(parent, name) {
        Cached::Positive(dentry) => dentry,
        _ => cache.add(
            parent,
            name,
            Found {
                inode: Counted::new(alive, FileType::Regular),
                ticket: None,
            },
        ),
    }
}

fn memory() -> Arc<ObjectMemory> {
    PageCache::new(CacheOptions::default()).objects().clone()
}

#[test]
fn dentry_cache_is_bounded_and_keeps_used_names() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Dentry::new_root(Counted::new(&alive, FileType::Directory), &memory());
    let cache = DentryCache::new(64, memory());
    let used: Vec<_> = (0..50)
        .map(|number| child(&cache, &root, &name_of(number), &alive))
        .collect();
    for number in 1000..20_000 {
        child(&cache, &root, &name_of(number), &alive);
        cache.add_negative(&root, &name_of(number + 1_000_000), None);
    }
    for (number, dentry) in used.iter().enumerate() {
        match cache.get(&root, &name_of(number as u64)) {
            Cached::Positive(found) => assert!(Arc::ptr_eq(&found, dentry)),
            _ => panic!("a name in use left the cache"),
        }
    }
    shrink(&cache, &root, &alive);
    drop((used, cache.forget_tree(&root), root));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn name_has_one_dentry_during_evictions() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Dentry::new_root(Counted::new(&alive, FileType::Directory), &memory());
    let cache = DentryCache::new(64, memory());
    std::thread::scope(|scope| {
        for seed in 1..=4_u64 {
            let (cache, root, alive) = (&cache, &root, &alive);
            scope.spawn(move || {
                let mut state = seed << 32 | 0x9e37_79b9;
                for _ in 0..30_000 {
                    let name = name_of(next(&mut state) % 400);
                    match next(&mut state) % 8 {
                        0 => delete(cache, root, &name),
                        1..4 => look(cache, root, &name),
                        _ => {
                            let first = child(cache, root, &name, alive);
                            let second = child(cache, root, &name, alive);
                            assert!(Arc::ptr_eq(&first, &second) || first.is_deleted());
                        }
                    }
                }
            });
        }
    });
    drop((cache.forget_tree(&root), root));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[test]
fn dentry_found_before_eviction_stays() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Dentry::new_root(Counted::new(&alive, FileType::Directory), &memory());
    let cache = DentryCache::new(64, memory());
    child(&cache, &root, b"wanted", &alive);
    let fill = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            child(&cache, &root, &name_of(number), &alive);
        }
    };
    let pin = rcu::pin();
    let Cached::Positive(found) = cache.find(&root, b"wanted", &pin) else {
        panic!("was just added")
    };
    // It is marked as leaving, and is not evicted while a thread is pinned.
    fill(0..10_000);
    assert!(!matches!(
        cache.find(&root, b"wanted", &pin),
        Cached::Positive(_)
    ));
    let kept = found.to_arc();
    drop(pin);
    fill(10_000..40_000);
    assert!(Arc::ptr_eq(&child(&cache, &root, b"wanted", &alive), &kept));
    shrink(&cache, &root, &alive);
}

/// Adds names until old ones are evicted, which waits for pinned threads: threads of other tests
/// may be pinned for as long as they are not scheduled.
fn shrink(cache: &DentryCache, root: &Arc<Dentry>, alive: &Arc<AtomicUsize>) {
    for number in 100_000..1_000_000 {
        if alive.load(Ordering::Relaxed) < 1000 {
            return;
        }
        child(cache, root, &name_of(number), alive);
        std::thread::yield_now();
    }
    panic!("{} of about 100 are left", alive.load(Ordering::Relaxed));
}

fn delete(cache: &DentryCache, root: &Arc<Dentry>, name: &[u8]) {
    let lock = root.inode().common().lock.write();
    let Cached::Positive(victim) = cache.get(root, name) else {
        return;
    };
    let removed = cache.delete(root, name, &victim);
    assert!(!matches!(cache.get(root, name), Cached::Positive(_)));
    drop(lock);
    drop((removed, victim));
}

/// Checks that a dentry found under a pin stays alive as long as the pin.
fn look(cache: &DentryCache, root: &Arc<Dentry>, name: &[u8]) {
    let pin = rcu::pin();
    if let Cached::Positive(dentry) = cache.find(root, name, &pin) {
        let inode = dentry
            .value()
            .inode()
            .as_any()
            .downcast_ref::<Counted>()
            .unwrap();
        for _ in 0..20 {
            assert_eq!(inode.canary.load(Ordering::SeqCst), ALIVE);
        }
    }
}

/// Opens a file, creating it if it does not exist.
fn open(vfs: &Vfs, start: &Location, name: &[u8], table: &FileTable) -> Result<usize> {
    let credentials = Credentials::root();
    let context = Context {
        vfs,
        credentials: &credentials,
        umask: 0,
    };
    table.install(context.open(start, name, OpenFlags::CREAT, 0o644)?)
}

fn unlink(vfs: &Vfs, start: &Location, name: &[u8]) -> Result<()> {
    let credentials = Credentials::root();
    Context {
        vfs,
        credentials: &credentials,
        umask: 0,
    }
    .unlink(start, name)
}

#[test]
fn unlinked_inode_is_freed_with_last_file() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Arc::new(OneDirectory(Counted::new(&alive, FileType::Directory)));
    let vfs = Vfs::new(root, MountOptions::default(), memory());
    let start = vfs.root();
    let (table, other) = (vfs.open_table(), vfs.open_table());
    let count = || alive.load(Ordering::Relaxed);
    // Closed and waiting when the name is removed.
    let fd = open(&vfs, &start, b"f", &table).unwrap();
    table.close(fd).unwrap();
    assert_eq!(count(), 2);
    unlink(&vfs, &start, b"f").unwrap();
    assert_eq!(count(), 1);
    // Closed after the name is removed; two open files, two tables.
    let fd = open(&vfs, &start, b"f", &table).unwrap();
    let other_fd = open(&vfs, &start, b"f", &other).unwrap();
    unlink(&vfs, &start, b"f").unwrap();
    table.close(fd).unwrap();
    assert_eq!(count(), 2);
    other.close(other_fd).unwrap();
    assert_eq!(count(), 1);
    // Never closed, but the process ends.
    open(&vfs, &start, b"f", &other).unwrap();
    unlink(&vfs, &start, b"f").unwrap();
    assert_eq!(count(), 2);
    vfs.close_table(&other);
    assert_eq!(count(), 1);
}

#[test]
fn open_file_lives_as_long_as_its_readers() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Arc::new(OneDirectory(Counted::new(&alive, FileType::Directory)));
    let vfs = Vfs::new(root, MountOptions::default(), memory());
    let start = vfs.root();
    let table = vfs.open_table();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for at in 0..8 {
                        let pin = rcu::pin();
                        let Some(file) = table.get(at, &pin) else {
                            continue;
                        };
                        let inode = file
                            .value()
                            .inode()
                            .as_any()
                            .downcast_ref::<Counted>()
                            .unwrap();
                        assert_eq!(inode.canary.load(Ordering::SeqCst), ALIVE);
                        let kept = file.to_arc();
                        drop(pin);
                        assert_eq!(inode_of(&kept).canary.load(Ordering::SeqCst), ALIVE);
                    }
                }
            });
        }
        let writers: Vec<_> = (1..=2_u64)
            .map(|seed| {
                let (vfs, start, table) = (&vfs, &start, &table);
                scope.spawn(move || {
                    let mut state = seed << 32 | 0x9e37_79b9;
                    for _ in 0..3_000 {
                        let name = name_of(next(&mut state) % 4);
                        let fd = open(vfs, start, &name, table).unwrap();
                        if next(&mut state).is_multiple_of(3) {
                            // The other thread may have been first.
                            let _ = unlink(vfs, start, &name);
                        }
                        table.close(fd).unwrap();
                    }
                })
            })
            .collect();
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
    });
    for number in 0..4 {
        let _ = unlink(&vfs, &start, &name_of(number));
    }
    assert_eq!(alive.load(Ordering::Relaxed), 1);
}

fn inode_of(file: &super::OpenFile) -> &Counted {
    file.inode().as_any().downcast_ref().unwrap()
}

/// An inode with an external writer, the test, which sets its names. Counts questions.
struct SharedInode {
    common: InodeCommon,
    names: Mutex<HashMap<Vec<u8>, Arc<SharedInode>>>,
    ttl_ns: u64,
    asked: AtomicUsize,
    is_lost: AtomicBool,
}

impl SharedInode {
    fn new(file_type: FileType, ttl_ns: u64) -> Arc<Self> {
        let Counted { common, .. } = &*Counted::new(&Arc::default(), file_type);
        let attributes = AttributeCell::new(&common.attributes.load(common.number, file_type));
        let validity = AttrValidity::default();
        validity.set_name_ttl(ttl_ns);
        Arc::new(Self {
            common: InodeCommon {
                number: common.number,
                file_type,
                lock: InodeLock::default(),
                mapping: None,
                attributes,
                validity: Some(validity),
            },
            names: Mutex::default(),
            ttl_ns,
            asked: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        })
    }

    fn validity(&self) -> &AttrValidity {
        self.common.validity.as_ref().unwrap()
    }

    /// Sets or removes a name, as an external writer does.
    fn put(&self, name: &[u8], inode: Option<&Arc<Self>>) {
        let mut names = self.names.lock();
        match inode {
            Some(inode) => drop(names.insert(name.to_vec(), inode.clone())),
            None => drop(names.remove(name)),
        }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Inode for SharedInode {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn revalidate(&self) -> Result<()> {
        let ticket = self.validity().ticket();
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(Errno::STALE.into());
        }
        self.validity().validate(ticket, self.ttl_ns);
        Ok(())
    }

    fn set_attributes(&self, _caller: &Credentials, _change: &AttributeChange) -> Result<()> {
        Err(Errno::PERM.into())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(self
            .names
            .lock()
            .get(name)
            .map(|inode| inode.clone() as Arc<dyn Inode>))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Returns a tree with an external writer at its root, and a VFS to walk in it.
fn shared_tree(ttl_ns: u64) -> (Arc<SharedInode>, Vfs) {
    let root = SharedInode::new(FileType::Directory, ttl_ns);
    let vfs = Vfs::new(
        Arc::new(OneDirectory(root.clone())),
        MountOptions::default(),
        memory(),
    );
    (root, vfs)
}

fn walk(vfs: &Vfs, path: &[u8]) -> Result<Location> {
    let context = Context {
        vfs,
        credentials: &Credentials::root(),
        umask: 0,
    };
    context.resolve(&vfs.root(), path, LastLink::Follow)
}

/// Returns whether a walk finds `inode`.
fn finds(vfs: &Vfs, path: &[u8], inode: &Arc<SharedInode>) -> bool {
    walk(vfs, path)
        .is_ok_and(|found| std::ptr::addr_eq(Arc::as_ptr(found.inode()), Arc::as_ptr(inode)))
}

#[test]
fn invalidated_name_is_looked_up_again() {
    let (root, vfs) = shared_tree(FOREVER_NS);
    let (first, second) = (
        SharedInode::new(FileType::Regular, FOREVER_NS),
        SharedInode::new(FileType::Regular, FOREVER_NS),
    );
    root.put(b"a", Some(&first));
    assert!(finds(&vfs, b"a", &first) && walk(&vfs, b"b").is_err());
    let before = root.asked();
    root.put(b"a", Some(&second));
    root.put(b"b", Some(&second));
    assert!(
        finds(&vfs, b"a", &first) && walk(&vfs, b"b").is_err(),
        "not invalidated yet"
    );
    assert_eq!(root.asked(), before);
    root.validity().invalidate_names();
    assert!(finds(&vfs, b"a", &second) && finds(&vfs, b"b", &second));
    root.put(b"a", None);
    root.validity().invalidate_names();
    assert!(walk(&vfs, b"a").is_err() && finds(&vfs, b"b", &second));
    let before = root.asked();
    assert!(walk(&vfs, b"a").is_err() && finds(&vfs, b"b", &second));
    assert_eq!(root.asked(), before);
}

#[test]
fn name_with_zero_ttl_is_always_looked_up() {
    let (root, vfs) = shared_tree(0);
    let file = SharedInode::new(FileType::Regular, 0);
    assert!(walk(&vfs, b"a").is_err());
    root.put(b"a", Some(&file));
    assert!(finds(&vfs, b"a", &file));
    root.put(b"a", None);
    assert!(walk(&vfs, b"a").is_err());
    let before = root.asked();
    assert!(walk(&vfs, b"a").is_err());
    assert!(root.asked() > before);
}

#[test]
fn externally_moved_directory_keeps_its_dentry() {
    let (root, vfs) = shared_tree(FOREVER_NS);
    let new = || SharedInode::new(FileType::Directory, FOREVER_NS);
    let (a, b, moved, file) = (
        new(),
        new(),
        new(),
        SharedInode::new(FileType::Regular, FOREVER_NS),
    );
    root.put(b"a", Some(&a));
    root.put(b"b", Some(&b));
    a.put(b"d", Some(&moved));
    moved.put(b"f", Some(&file));
    let held = walk(&vfs, b"a/d").unwrap();
    a.put(b"d", None);
    b.put(b"e", Some(&moved));
    a.validity().invalidate_names();
    // Its new position is not known until a lookup finds it.
    moved.is_lost.store(true, Ordering::Relaxed);
    moved.validity().invalidate();
    assert!(walk(&vfs, b"a/d").is_err() && held.dentry.is_deleted());
    moved.is_lost.store(false, Ordering::Relaxed);
    let found = walk(&vfs, b"b/e").unwrap();
    assert!(Arc::ptr_eq(&found.dentry, &held.dentry) && !held.dentry.is_deleted());
    let context = Context {
        vfs: &vfs,
        credentials: &Credentials::root(),
        umask: 0,
    };
    assert_eq!(context.path_of(&held).unwrap(), b"/b/e");
    assert!(finds(&vfs, b"b/e/f", &file));
    // The external writer moves it below its own child: this causes no loop.
    moved.put(b"b", Some(&b));
    assert!(walk(&vfs, b"b/e/b").is_ok());
    assert!(context.path_of(&walk(&vfs, b"b/e").unwrap()).is_ok());
}
