//! Threads that change one FAT: no call waits for ever, and the result is consistent.

use super::{WIDTHS, assert_clean, formatted, mounted};
use crate::support::random::Random;
use crate::support::requires;

const THREADS: u64 = 4;
const OPERATIONS: usize = 400;

#[test]
fn threads_in_one_directory_leave_it_clean() {
    requires!(tool("fsck.vfat"));
    for (width, len_bytes) in WIDTHS {
        let device = formatted(width, len_bytes);
        let fs = mounted(&device);
        fs.create_dir("/shared").unwrap();
        std::thread::scope(|scope| {
            for seed in 0..THREADS {
                let fs = fs.clone();
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..OPERATIONS {
                        let mut name = || format!("/shared/a long name {}", random.below(20u32));
                        let (name, to) = (name(), name());
                        // Another thread may have changed the name.
                        let _ = match random.below(6) {
                            0 | 1 => fs.write(name, vec![1; random.below(9000)]),
                            2 => fs.remove_file(name),
                            3 => fs.rename(name, to),
                            4 => fs.read(name).map(drop),
                            _ => fs.read_dir("/shared").map(|entries| entries.for_each(drop)),
                        };
                    }
                });
            }
        });
        fs.close().unwrap();
        assert_clean(&device);
    }
}
