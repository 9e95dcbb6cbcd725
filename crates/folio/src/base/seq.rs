//! A few words that are read consistently without a lock, while other threads write them. Linux:
//! `seqlock_t`.

use super::sync::atomic::{AtomicU64, Ordering, fence};
use super::sync::{spin_loop, thread};

/// Attempts after which a reader yields: the writer may have been preempted.
const TRIES: u32 = 100;

/// `N` words, of which a reader always sees the values of a single write.
///
/// Writers exclude one another by a lock of their own. A reader writes to no shared memory; it
/// retries if the words change during the read.
pub(crate) struct SeqWords<const N: usize> {
    /// Odd during a write.
    sequence: AtomicU64,
    words: [AtomicU64; N],
}

impl<const N: usize> SeqWords<N> {
    pub(crate) fn new(words: [u64; N]) -> Self {
        Self {
            sequence: AtomicU64::new(0),
            words: words.map(AtomicU64::new),
        }
    }

    /// Reads `COUNT` words from word `FIRST` on. Linux: `read_seqbegin`, `read_seqretry`.
    #[inline]
    pub(crate) fn read<const FIRST: usize, const COUNT: usize>(&self) -> [u64; COUNT] {
        const { assert!(FIRST + COUNT <= N, "within the words") };
        let mut tries = 0;
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let words = std::array::from_fn(|at| self.words[FIRST + at].load(Ordering::Relaxed));
            // Orders the loads above before the one below; pairs with the fence in `write`.
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return words;
            }
            tries += 1;
            if tries < TRIES {
                spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Writes all words. Linux: `write_seqlock`.
    pub(crate) fn write(&self, words: [u64; N]) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // A reader that sees a new word also sees the odd sequence.
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_never_see_a_partial_write() {
        let shared = SeqWords::new([0; 8]);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 200_000 {
                        let words: [u64; 8] = shared.read::<0, 8>();
                        assert!(words.iter().all(|word| *word == words[0]) && words[0] >= last);
                        last = words[0];
                        let [second, third] = shared.read::<1, 2>();
                        assert!(second == third && second >= last);
                    }
                });
            }
            for value in 1..=200_000 {
                shared.write([value; 8]);
            }
        });
    }
}
