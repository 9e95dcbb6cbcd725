//! The text of the device code.

/// The text of device/folio_device.h: kernels that use it are compiled with this text before them.
pub const HEADER: &str = include_str!("../device/folio_device.h");
/// The text of the kernels of this crate.
pub const KERNELS: &str = include_str!("../device/kernels.cu");
