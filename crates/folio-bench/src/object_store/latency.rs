//! The latency of the modeled stores.

use std::time::Duration;

/// Of a PUT.
pub(super) const PUT: Duration = Duration::from_millis(60);
/// Of a GET.
pub(super) const GET: Duration = Duration::from_millis(30);
