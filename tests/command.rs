//! The command's tests in one executable, except those that measure the page cache or the machine
//! (`bench`, `doctor`, `pagecache`) and the longest one (`fuse`).

mod boot;
mod cli;
#[path = "support/guest_watcher.rs"]
mod guest_watcher;
mod kernel;
mod nbd;
#[path = "support/probe.rs"]
mod probe;
mod readme;
mod remote;
mod support;
mod vhost_user_blk;
mod virtiofs;
