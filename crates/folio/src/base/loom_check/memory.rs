//! Grace periods, slots of threads, and words that are read consistently.

use super::{Plain, check, join};
use crate::base::rcu::{self, Grace, RcuCell};
use crate::base::seq::SeqWords;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{process_wide, thread, thread_local};
use crate::base::thread_slots::{self, SlotRelease, ThreadSlot, ThreadSlots};
use std::cell::Cell;
use std::sync::Arc;

/// Reads the value of a cell twice under one pin; returns it.
fn read(cell: &RcuCell<Plain>) -> u64 {
    let pin = rcu::pin();
    let value = cell.load(&pin).unwrap();
    let first = value.get();
    assert_eq!(value.get(), first);
    first
}

#[test]
fn replaced_value_lives_as_long_as_its_readers() {
    check(None, || {
        let cell = Arc::new(RcuCell::new(Arc::new(Plain::new(1))));
        let reader = thread::spawn({
            let cell = cell.clone();
            move || {
                let first = read(&cell);
                assert!(read(&cell) >= first, "values in their order");
            }
        });
        let old = cell.replace(Some(Arc::new(Plain::new(2)))).unwrap();
        drop(old.after(Grace::start().wait()));
        join([reader]);
    });
}

#[test]
fn inner_unpin_does_not_end_the_outer_pin() {
    check(None, || {
        let cell = Arc::new(RcuCell::new(Arc::new(Plain::new(1))));
        let reader = thread::spawn({
            let cell = cell.clone();
            move || {
                let pin = rcu::pin();
                let value = cell.load(&pin).unwrap();
                let first = value.get();
                assert!(read(&cell) >= first, "values in their order");
                assert_eq!(value.get(), first);
            }
        });
        let old = cell.replace(Some(Arc::new(Plain::new(2)))).unwrap();
        let grace = Grace::start();
        let over = loop {
            match grace.over() {
                Some(over) => break over,
                None => thread::yield_now(),
            }
        };
        drop(old.after(over));
        join([reader]);
    });
}

#[test]
fn counted_reference_outlives_the_pin() {
    check(3, || {
        let cell = Arc::new(RcuCell::new(Arc::new(Plain::new(1))));
        let readers = [0; 2].map(|_| {
            let cell = cell.clone();
            thread::spawn(move || cell.get(&rcu::pin()).map(|value| value.get()))
        });
        let old = cell.replace(None).unwrap();
        let old = old.after(Grace::start().wait());
        assert_eq!(old.get(), 1);
        drop(old);
        for reader in readers {
            assert!(matches!(reader.join().unwrap(), Some(1) | None));
        }
    });
}

#[test]
fn barrier_drops_deferred_value_after_its_readers() {
    check(None, || {
        let cell = Arc::new(RcuCell::new(Arc::new(Plain::new(1))));
        let reader = thread::spawn({
            let cell = cell.clone();
            move || {
                let pin = rcu::pin();
                assert!(cell.load(&pin).is_none_or(|value| value.get() == 1));
            }
        });
        drop(cell.replace(None));
        rcu::barrier();
        join([reader]);
    });
}

process_wide! {
    static COUNTS: ThreadSlots<AtomicU64> = ThreadSlots::new(forget_count);
}

thread_local! {
    static COUNT: Cell<Option<&'static ThreadSlot<AtomicU64>>> = const { Cell::new(None) };
}

extern "C" fn forget_count() {}

#[test]
fn released_slot_keeps_its_contents() {
    check(None, || {
        let count = || {
            let slot =
                thread_slots::claim(&mut COUNTS.lock_to_claim(), &COUNT, || AtomicU64::new(0));
            // As plain memory of the owner.
            slot.store(slot.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            drop(SlotRelease(&COUNT));
        };
        let threads = [0; 2].map(|_| thread::spawn(count));
        count();
        join(threads);
        let slots = COUNTS.lock();
        let sum: u64 = slots.iter().map(|slot| slot.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 3);
    });
}

#[test]
fn words_of_two_writes_are_not_mixed() {
    check(3, || {
        let words = Arc::new(SeqWords::new([0; 2]));
        let reader = thread::spawn({
            let words = words.clone();
            move || {
                let [first, second] = words.read::<0, 2>();
                assert_eq!(first, second);
                let [later] = words.read::<1, 1>();
                assert!(later >= first, "values in their order");
            }
        });
        words.write([1; 2]);
        words.write([2; 2]);
        join([reader]);
    });
}
