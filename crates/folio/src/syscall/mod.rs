//! What a program asks: system calls as functions.

mod process;

pub use process::{AT_FDCWD, AtFlags, Credentials, Dirent, Fd, OpenFlags, Process, Whence};
