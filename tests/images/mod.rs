//! Image files shared with QEMU: each reads the other's writes, and `qemu-img check` finds no
//! error.

mod backing;
mod bitmaps;
mod check;
mod convert;
mod create;
mod data_file;
mod hostile;
mod lazy;
mod live;
mod locks;
mod model;
mod mounts;
mod parallel;
mod rebase;
mod resize;
mod snapshots;
mod variants;
mod writes;
