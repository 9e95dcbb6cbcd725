//! Image files against QEMU: what one writes the other reads, and `qemu-img check` agrees.

mod backing;
mod bitmaps;
mod check;
mod convert;
mod create;
mod data_file;
mod hostile;
mod lazy;
mod locks;
mod model;
mod rebase;
mod resize;
mod snapshots;
mod variants;
mod writes;
