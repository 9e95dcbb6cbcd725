//! Read one file from many threads without copying: `cargo run --example zero_copy_reads`.
//!
//! `File::borrow` hands out the file's own pages in the page cache. A borrow is `Send`, outlives
//! the `File`, and keeps its pages from being evicted; a hit takes no lock.

use folio::syscall::Borrowed;
use folio::{File, Fs};
use std::error::Error;
use std::io;
use std::thread;

const FILE_BYTES: u64 = 64 << 20;
const THREADS: u64 = 4;
/// One borrow holds at most 2 MiB.
const PIECE_BYTES: u64 = 2 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let fs = Fs::memory();
    fs.write("/data", vec![1; FILE_BYTES as usize])?;
    let file = fs.open("/data")?;

    let share = FILE_BYTES / THREADS;
    let sums = thread::scope(|scope| {
        let file = &file;
        let workers: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || sum(file, number * share, share)))
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.collect::<Result<Vec<_>, _>>()
    });
    let sums = sums.map_err(|_| "a worker panicked")?;
    let total: u64 = sums.into_iter().sum::<io::Result<u64>>()?;
    assert_eq!(total, FILE_BYTES);
    println!("{THREADS} threads summed {total} bytes in place");
    Ok(())
}

fn sum(file: &File, start: u64, len_bytes: u64) -> io::Result<u64> {
    let mut total = 0;
    for piece in (start..start + len_bytes).step_by(PIECE_BYTES as usize) {
        let borrowed: Borrowed = file.borrow(piece..piece + PIECE_BYTES)?;
        let guard = borrowed.read();
        for slice in guard.slices() {
            total += slice.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }
    }
    Ok(total)
}
