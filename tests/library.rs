//! The library's tests in one executable, except those that change or measure what belongs to the
//! whole process (`hostfs`, `model`: the umask; `syscalls`: allocations).

mod check;
mod crash;
mod durability;
mod ext4;
mod facade;
mod fat;
mod forks;
mod fuzz_corpus;
mod hostile;
mod images;
mod memory;
mod mkfs;
mod names;
mod panics;
mod recovery;
mod resize;
mod support;
mod tmpfs;
