//! Devices: the CUDA driver, and the host with the device code compiled for it.
//!
//! The only folder with unsafe code: calls of the driver, and of code that was compiled at run
//! time.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod host;
mod library;
#[cfg(feature = "cuda")]
pub(crate) mod nvrtc;
