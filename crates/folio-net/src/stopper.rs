//! A handle that stops a server from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops a server from another thread. Clones stop the same server.
#[derive(Clone)]
pub struct Stopper(Arc<State>);

struct State {
    is_stopping: AtomicBool,
    on_stop: Box<dyn Fn() + Send + Sync>,
}

impl Stopper {
    /// Creates a stopper. `on_stop` wakes the server's threads; it runs at each [`Stopper::stop`],
    /// in the thread that stops.
    pub fn new(on_stop: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(State {
            is_stopping: AtomicBool::new(false),
            on_stop: Box::new(on_stop),
        }))
    }

    /// Stops the server: it accepts no more clients, finishes the requests it has received, and
    /// returns from its serve function.
    pub fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::SeqCst);
        (self.0.on_stop)();
    }

    /// Returns whether [`Stopper::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping.load(Ordering::SeqCst)
    }
}
