//! An observer of the changes that a client makes.

/// Sees each request that changes files, or makes them durable, while it is served.
pub trait CallObserver: Send + Sync {
    /// Calls `serve` once, which serves the request. `call` is for people: `rename("/a", "/b")`,
    /// with paths from the root of the mount. Called from any number of threads.
    fn observe(&self, call: &str, serve: &mut dyn FnMut());
}
