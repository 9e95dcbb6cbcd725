//! Dentries and open files under many threads, with inodes that are counted.

use super::dentry::Dentry;
use super::dentry_cache::{Cached, DentryCache, Found};
use super::{
    AttributeCell, AttributeChange, Attributes, Coherence, Context, Credentials, FOREVER_NS,
    FileSystem, FileSystemStatistics, FileTable, FileType, Inode, InodeCommon, Location,
    MountOptions, NewInode, OpenFlags, Vfs,
};
use crate::base::{Errno, InodeNumber, Result, Timespec, rcu};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const ALIVE: u64 = 0x600d_600d;

/// An inode that is counted, and a directory if it is asked for names.
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
        let time = Timespec::default();
        let attributes = AttributeCell::new(&Attributes {
            number,
            file_type,
            mode: 0o755,
            uid: 0,
            gid: 0,
            link_count: 1,
            size_bytes: 0,
            blocks_512: 0,
            block_size: 4096,
            device: (0, 0),
            accessed: time,
            modified: time,
            changed: time,
            created: None,
        });
        let common = InodeCommon {
            number,
            file_type,
            lock: RwLock::new(()),
            mapping: None,
            attributes,
            coherence: None,
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

    fn set_attributes(&self, _change: &AttributeChange) -> Result<()> {
        Err(Errno::PERM.into())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        Ok(self.names.lock().get(name).cloned())
    }

    fn create(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>> {
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

/// A small generator of numbers. Marsaglia's xorshift64.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// What [`Context::child`] does, for names that are all there.
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
                question: None,
            },
        ),
    }
}

#[test]
fn the_cache_is_bounded_and_keeps_what_is_used() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Dentry::new_root(Counted::new(&alive, FileType::Directory));
    let cache = DentryCache::new(64);
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
fn one_name_has_one_dentry_while_others_are_evicted() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Dentry::new_root(Counted::new(&alive, FileType::Directory));
    let cache = DentryCache::new(64);
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
fn a_dentry_found_before_it_was_to_leave_stays() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Dentry::new_root(Counted::new(&alive, FileType::Directory));
    let cache = DentryCache::new(64);
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
    // It is told to leave, and does not go while somebody is pinned.
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

/// New names push old ones out, once nobody is pinned who may have found them: threads of other
/// tests may be, for as long as they are kept from running.
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
    let gone = cache.delete(root, name, &victim);
    assert!(!matches!(cache.get(root, name), Cached::Positive(_)));
    drop(lock);
    drop((gone, victim));
}

/// What is found under a pin is alive as long as the pin.
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

/// Opens what is there, or makes it.
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
fn an_inode_without_names_goes_with_the_last_file() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Arc::new(OneDirectory(Counted::new(&alive, FileType::Directory)));
    let vfs = Vfs::new(root, MountOptions::default());
    let start = vfs.root();
    let (table, other) = (vfs.open_table(), vfs.open_table());
    let count = || alive.load(Ordering::Relaxed);
    // Closed and waiting when the name goes.
    let fd = open(&vfs, &start, b"f", &table).unwrap();
    table.close(fd).unwrap();
    assert_eq!(count(), 2);
    unlink(&vfs, &start, b"f").unwrap();
    assert_eq!(count(), 1);
    // Closed after the name is gone; two open files, two tables.
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
fn open_files_live_as_long_as_somebody_looks() {
    let alive = Arc::new(AtomicUsize::new(0));
    let root = Arc::new(OneDirectory(Counted::new(&alive, FileType::Directory)));
    let vfs = Vfs::new(root, MountOptions::default());
    let start = vfs.root();
    let table = vfs.open_table();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for at in 0..8 {
                        let pin = rcu::pin();
                        let Ok(file) = table.get(at, &pin) else {
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

/// An inode that others change: names are put in by the test, questions are counted.
struct Shifting {
    common: InodeCommon,
    names: Mutex<HashMap<Vec<u8>, Arc<Shifting>>>,
    ttl_ns: u64,
    asked: AtomicUsize,
    is_lost: AtomicBool,
}

impl Shifting {
    fn new(file_type: FileType, ttl_ns: u64) -> Arc<Self> {
        let Counted { common, .. } = &*Counted::new(&Arc::default(), file_type);
        let attributes = AttributeCell::new(&common.attributes.load(common.number, file_type));
        let coherence = Coherence::default();
        coherence.believe_names_for(ttl_ns);
        Arc::new(Self {
            common: InodeCommon {
                number: common.number,
                file_type,
                lock: RwLock::new(()),
                mapping: None,
                attributes,
                coherence: Some(coherence),
            },
            names: Mutex::default(),
            ttl_ns,
            asked: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        })
    }

    fn coherence(&self) -> &Coherence {
        self.common.coherence.as_ref().unwrap()
    }

    /// Others let `name` lead to `inode`, or to nothing.
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

impl Inode for Shifting {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn revalidate(&self) -> Result<()> {
        let question = self.coherence().ask();
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(Errno::STALE.into());
        }
        self.coherence().believe(question, self.ttl_ns);
        Ok(())
    }

    fn set_attributes(&self, _change: &AttributeChange) -> Result<()> {
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

/// A tree whose root others change, and what walks in it.
fn shifting(ttl_ns: u64) -> (Arc<Shifting>, Vfs) {
    let root = Shifting::new(FileType::Directory, ttl_ns);
    let vfs = Vfs::new(
        Arc::new(OneDirectory(root.clone())),
        MountOptions::default(),
    );
    (root, vfs)
}

fn walk(vfs: &Vfs, path: &[u8]) -> Result<Location> {
    let context = Context {
        vfs,
        credentials: &Credentials::root(),
        umask: 0,
    };
    context.resolve(&vfs.root(), path, super::LastLink::Follow)
}

/// Whether a walk finds `inode`.
fn finds(vfs: &Vfs, path: &[u8], inode: &Arc<Shifting>) -> bool {
    walk(vfs, path)
        .is_ok_and(|found| std::ptr::addr_eq(Arc::as_ptr(found.inode()), Arc::as_ptr(inode)))
}

#[test]
fn names_are_asked_for_again_once_they_are_doubted() {
    let (root, vfs) = shifting(FOREVER_NS);
    let (first, second) = (
        Shifting::new(FileType::Regular, FOREVER_NS),
        Shifting::new(FileType::Regular, FOREVER_NS),
    );
    root.put(b"a", Some(&first));
    assert!(finds(&vfs, b"a", &first) && walk(&vfs, b"b").is_err());
    let before = root.asked();
    root.put(b"a", Some(&second));
    root.put(b"b", Some(&second));
    assert!(
        finds(&vfs, b"a", &first) && walk(&vfs, b"b").is_err(),
        "nobody told"
    );
    assert_eq!(root.asked(), before);
    root.coherence().doubt_names();
    assert!(finds(&vfs, b"a", &second) && finds(&vfs, b"b", &second));
    root.put(b"a", None);
    root.coherence().doubt_names();
    assert!(walk(&vfs, b"a").is_err() && finds(&vfs, b"b", &second));
    let before = root.asked();
    assert!(walk(&vfs, b"a").is_err() && finds(&vfs, b"b", &second));
    assert_eq!(root.asked(), before);
}

#[test]
fn names_that_are_never_believed_are_always_asked_for() {
    let (root, vfs) = shifting(0);
    let file = Shifting::new(FileType::Regular, 0);
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
fn a_directory_that_others_move_keeps_its_dentry() {
    let (root, vfs) = shifting(FOREVER_NS);
    let new = || Shifting::new(FileType::Directory, FOREVER_NS);
    let (a, b, moved, file) = (
        new(),
        new(),
        new(),
        Shifting::new(FileType::Regular, FOREVER_NS),
    );
    root.put(b"a", Some(&a));
    root.put(b"b", Some(&b));
    a.put(b"d", Some(&moved));
    moved.put(b"f", Some(&file));
    let stands = walk(&vfs, b"a/d").unwrap();
    a.put(b"d", None);
    b.put(b"e", Some(&moved));
    a.coherence().doubt_names();
    // It lies at no place that is known, until it is found.
    moved.is_lost.store(true, Ordering::Relaxed);
    moved.coherence().doubt();
    assert!(walk(&vfs, b"a/d").is_err() && stands.dentry.is_deleted());
    moved.is_lost.store(false, Ordering::Relaxed);
    let found = walk(&vfs, b"b/e").unwrap();
    assert!(Arc::ptr_eq(&found.dentry, &stands.dentry) && !stands.dentry.is_deleted());
    let context = Context {
        vfs: &vfs,
        credentials: &Credentials::root(),
        umask: 0,
    };
    assert_eq!(context.path_of(&stands).unwrap(), b"/b/e");
    assert!(finds(&vfs, b"b/e/f", &file));
    // Others move it below what was below it: no loop comes of it.
    moved.put(b"b", Some(&b));
    assert!(walk(&vfs, b"b/e/b").is_ok());
    assert!(context.path_of(&walk(&vfs, b"b/e").unwrap()).is_ok());
}
