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

use crate::device::Device;
#[cfg(not(feature = "cuda"))]
use folio::{Errno, Error};
use std::sync::Arc;

/// Opens the GPU number `ordinal`.
///
/// # Errors
/// ENODEV if there is no driver or no such GPU, and in a build without the feature `cuda`.
pub fn open(ordinal: u32) -> folio::Result<Arc<dyn Device>> {
    #[cfg(feature = "cuda")]
    return Ok(Arc::new(cuda::CudaDevice::open(ordinal)?));
    #[cfg(not(feature = "cuda"))]
    Err(Error::new(
        Errno::NODEV,
        format!("GPU {ordinal}: built without CUDA: build with --features cuda"),
    ))
}
