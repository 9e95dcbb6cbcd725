//! The place of a volume: a store, a path in it, and the runtime for its requests.

use folio::{Errno, Error};
use object_store::ObjectStore;
use object_store::path::Path;
use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// A store, the volume's path in it, and the runtime for its requests.
#[derive(Clone)]
pub struct StorePlace {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) root: Path,
    pub(crate) runtime: Handle,
    pub(crate) retries: u32,
    /// The store replaces an object only if its entity tag matches.
    pub(crate) has_updates: bool,
    name: Arc<str>,
}

impl StorePlace {
    /// Returns the place of the volume `root` in `store`. `name` is what errors call it, a URL for
    /// example. The runtime needs its own threads.
    pub fn new(store: Arc<dyn ObjectStore>, root: Path, runtime: Handle, name: &str) -> Self {
        Self {
            store,
            root,
            runtime,
            retries: 60,
            has_updates: true,
            name: name.into(),
        }
    }

    /// Sets how long a request is repeated, with pauses of up to a second, before its failure is
    /// final.
    #[must_use]
    pub fn with_io_timeout(mut self, timeout: Duration) -> Self {
        self.retries = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX).max(1);
        self
    }

    /// Declares that the store cannot replace an object on a condition, as files of the host
    /// cannot. Garbage collection then needs a minimum age longer than any process is paused.
    #[must_use]
    pub fn without_updates(mut self) -> Self {
        self.has_updates = false;
        self
    }

    /// Returns the place of another volume in the same store.
    pub(crate) fn sibling(&self, root: &str) -> Self {
        Self {
            root: Path::from(root),
            name: root.into(),
            ..self.clone()
        }
    }

    pub(crate) fn map_path(&self) -> Path {
        Path::from(format!("{}/map", self.root))
    }

    /// Returns the paths below which a volume's objects are: the map last.
    pub(crate) fn folders(&self) -> [Path; 3] {
        ["seg", "gc", "map"].map(|name| Path::from(format!("{}/{name}", self.root)))
    }

    /// Returns how long a request may be repeated.
    pub(crate) fn io_timeout(&self) -> Duration {
        Duration::from_secs(self.retries.into())
    }

    pub(crate) fn name(&self) -> Cow<'static, str> {
        Cow::Owned(self.name.to_string())
    }

    /// Runs `future` to its end on the runtime.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Converts an error of the store.
    pub(crate) fn error(&self, operation: &str, error: object_store::Error) -> Error {
        let errno = match error {
            object_store::Error::NotFound { .. } => Errno::NOENT,
            object_store::Error::AlreadyExists { .. } => Errno::EXIST,
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => Errno::ACCESS,
            _ => Errno::IO,
        };
        Error::new(errno, format!("{operation}: {error}"))
            .at(self.name())
            .caused_by(error)
    }
}
