//! The interface of a simulated page-replacement policy.

/// A cache without contents.
pub(crate) trait Policy {
    /// Accesses `page`: returns whether it was in the cache, and inserts it if not.
    fn access(&mut self, page: u32) -> bool;
}
