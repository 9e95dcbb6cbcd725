//! A parallel map over a slice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Default number of threads: enough to keep a fast disk busy while each thread waits for open(2)
/// of the next small file.
pub(crate) const THREADS: usize = 16;

/// Returns the results of `work` for `items`, in their order.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(items.len()) {
            scope.spawn(|| {
                let mut mine = Vec::new();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { break };
                    mine.push((at, work(item)));
                }
                all.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .append(&mut mine);
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_items() {
        let items: Vec<u32> = (0..10_000).collect();
        assert!(
            map(&items, |item| item * 2)
                .iter()
                .copied()
                .eq((0..10_000).map(|item| item * 2))
        );
        assert!(map(&[0_u8; 0], |item| *item).is_empty());
    }
}
