//! Container images: OCI layouts, archives of `docker save`, registries.
//!
//! ```text
//!   image.rs      an image: which layers, in which order   layout.rs   a new image in a layout
//!   registry.rs   blobs of a registry, through HTTP        difference.rs   what a layer must hold
//!   login.rs      credentials of registries
//!   blobs.rs      blobs of a folder or an archive
//!   reference.rs  names of images, platforms
//!   documents.rs  the JSON documents
//!   digest.rs     digests, verified while reading
//! ```
//!
//! The documents are a few structures of our own: the crate oci-spec (0.10) brings 30 crates for
//! builders and getters that nothing here needs.

mod blobs;
mod difference;
mod digest;
mod documents;
pub(crate) mod fuzzing;
mod image;
mod layout;
#[cfg(feature = "registry")]
mod login;
mod reference;
#[cfg(feature = "registry")]
mod registry;

pub use digest::Digest;
pub use image::ContainerImage;
pub use layout::NewContainerImage;
pub use reference::{Platform, Reference};
