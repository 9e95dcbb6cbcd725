//! Volumes on object storage: content, flush points, fencing, snapshots, garbage, faults.

mod content;
mod ext4;
mod faults;
mod fencing;
mod garbage;
mod lifecycle;
mod model;
mod sessions;
mod snapshots;
mod stores;
#[path = "../support"]
mod support {
    #![allow(dead_code, unreachable_pub)]
    pub mod random;
    #[macro_use]
    pub mod require;
    pub mod rounds;
    pub mod tools;
    pub(crate) use require::requires;
}
