//! Disk images in object storage, read in place: S3, Google Cloud Storage, Azure, web servers and
//! files, through the crate `object_store`.
//!
//! ```text
//!   images.rs       images with URLs below the formats of this process
//!      v
//!   device.rs       an object as a read-only disk, pinned to one version
//!      |   |
//!      |  parts.rs  read_ahead.rs  part_cache.rs    in memory, ahead of readers, on disk
//!      |      upload.rs  part_copy.rs    uploads, whole or of changed parts
//!      v
//!   store.rs        a connection: the builder of each kind of store
//!      |   |
//!      |  aws_profile.rs    ~/.aws/config and ~/.aws/credentials
//!   connector.rs    the HTTP client: counts requests, keeps request ids
//!   explained.rs    a store whose errors explain themselves
//!   failure.rs      errors of a store as errors of Folio
//!   counters.rs     requests, by kind
//!   uplink.rs       how long they may take
//!   url.rs  options.rs  runtime.rs
//! ```
//!
//! Each line uses only lines below it. The crate is a face: it uses the public API of `folio` only.

mod aws_profile;
mod connector;
mod counters;
mod device;
mod explained;
mod failure;
mod images;
mod options;
mod part_cache;
mod part_copy;
mod parts;
mod read_ahead;
mod runtime;
mod store;
mod uplink;
mod upload;
mod url;

pub use counters::{RequestCounters, RequestCounts};
pub use device::ObjectDevice;
pub use images::{ImageOptions, ObjectImages};
pub use options::{AddressingStyle, StoreOptions};
pub use part_cache::{PartCache, PartCacheOptions};
pub use runtime::{block_on, handle};
pub use store::{Store, provide_memory};
pub use uplink::{Sending, Uplink};
pub use upload::{Replaced, UploadProgress, replace, upload};
pub use url::{ObjectUrl, Scheme};
