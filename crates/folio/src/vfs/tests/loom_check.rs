//! The dentry cache and the validity of names under loom.

use super::*;
use crate::base::loom_check::{Plain, check, join};
use crate::base::rcu::RcuCell;
use crate::base::sync::thread;
use crate::vfs::dentry_cache::NameSlot;
use crate::vfs::validity::NameValidity;

/// A cache whose shards are full with one name each.
struct Names {
    cache: DentryCache,
    root: Arc<Dentry>,
    alive: Arc<AtomicUsize>,
}

impl Names {
    fn new() -> Arc<Self> {
        let alive = Arc::new(AtomicUsize::new(0));
        let cache = PageCache::new(CacheOptions {
            budget_bytes: 1 << 20,
            ..CacheOptions::default()
        });
        let memory = cache.objects().clone();
        let root = Dentry::new_root(Counted::new(&alive, FileType::Directory), &memory);
        let cache = DentryCache::new(1, memory);
        Arc::new(Self { cache, root, alive })
    }

    fn add(&self, name: &[u8]) -> Arc<Dentry> {
        child(&self.cache, &self.root, name, &self.alive)
    }

    /// Returns `count` names of one shard.
    fn of_one_shard(&self, count: usize) -> Vec<Vec<u8>> {
        let shard = |name: &Vec<u8>| self.cache.shard_of(&self.root, name);
        let wanted = shard(&name_of(0));
        let names = (0..).map(name_of).filter(|name| shard(name) == wanted);
        names.take(count).collect()
    }
}

#[test]
fn dentry_in_use_is_not_evicted() {
    check(3, || {
        let names = Names::new();
        let all = names.of_one_shard(3);
        names.add(&all[0]);
        let user = thread::spawn({
            let (names, name) = (names.clone(), all[0].clone());
            move || match names.cache.get(&names.root, &name) {
                Cached::Positive(dentry) => {
                    let again = names.cache.get(&names.root, &name);
                    assert!(
                        matches!(again, Cached::Positive(again) if Arc::ptr_eq(&again, &dentry))
                    );
                }
                Cached::Negative => panic!("the name exists"),
                Cached::Unknown => {}
            }
        });
        for name in &all[1..] {
            names.add(name);
        }
        join([user]);
    });
}

#[test]
fn replaced_name_is_never_missing() {
    check(None, || {
        let names = Names::new();
        let all = names.of_one_shard(2);
        let old = names.add(&all[0]);
        let new = names.add(&all[1]);
        let reader = thread::spawn({
            let (names, name) = (names.clone(), all[0].clone());
            move || {
                let pin = rcu::pin();
                let Cached::Positive(found) = names.cache.find(&names.root, &name, &pin) else {
                    panic!("one file or the other");
                };
                assert_eq!(found.value().file_type(), FileType::Regular);
            }
        });
        let from = NameSlot::new(&names.root, &all[1]);
        let to = NameSlot::new(&names.root, &all[0]);
        drop(names.cache.rename(from, &new, to, Some(&old), None));
        join([reader]);
    });
}

#[test]
fn forgotten_name_is_not_a_negative_one() {
    check(None, || {
        let names = Names::new();
        names.add(b"name");
        let reader = thread::spawn({
            let names = names.clone();
            move || {
                let pin = rcu::pin();
                let found = names.cache.find(&names.root, b"name", &pin);
                assert!(!matches!(found, Cached::Negative), "the name exists");
            }
        });
        drop(names.cache.forget_tree(&names.root));
        join([reader]);
    });
}

#[test]
fn valid_name_has_its_newest_dentry() {
    valid_name_is_the_newest(|directory, _| directory.invalidate_names());
    valid_name_is_the_newest(|_, name| name.invalidate());
}

/// Looks up an invalid name, which refers to the value 1, and finds the value 2.
fn valid_name_is_the_newest(invalidate: fn(&AttrValidity, &NameValidity)) {
    check(None, move || {
        let directory = Arc::new(AttrValidity::default());
        directory.set_name_ttl(FOREVER_NS);
        let name = Arc::new((
            NameValidity::default(),
            RcuCell::new(Arc::new(Plain::new(1))),
        ));
        name.0.validate(directory.name_ticket(), &directory);
        invalidate(&directory, &name.0);
        let lookup = thread::spawn({
            let (directory, name) = (directory.clone(), name.clone());
            move || {
                let ticket = directory.name_ticket();
                let old = name.1.replace(Some(Arc::new(Plain::new(2))));
                name.0.validate(ticket, &directory);
                drop(old);
            }
        });
        let pin = rcu::pin();
        if name.0.is_valid(&directory) {
            assert_eq!(name.1.load(&pin).unwrap().get(), 2);
        }
        drop(pin);
        join([lookup]);
    });
}
