//! The library's tests in one executable, except those that change or measure what belongs to the
//! whole process (`hostfs`, `model`: the umask; `syscalls`: allocations).

mod check;
mod crash;
mod facade;
mod fuzz_corpus;
mod hostile;
mod images;
mod mkfs;
mod names;
mod recovery;
mod resize;
mod support;
mod tmpfs;
