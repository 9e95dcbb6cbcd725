//! The place of a volume: a store, a path in it, and the runtime for its requests.

use crate::clock::MapClock;
use crate::requests::{Requests, RetryPolicy};
use folio::{Errno, Error};
use object_store::ObjectStore;
use object_store::path::Path;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

const MAP_GARBAGE_AGE: Duration = Duration::from_secs(10 * 60);

/// A store, the volume's path in it, and the runtime for its requests.
#[derive(Clone)]
pub struct StorePlace {
    /// The store as it is, for the check of a store.
    pub(crate) direct: Arc<dyn ObjectStore>,
    /// The store whose failures are final.
    pub(crate) store: Arc<Requests>,
    /// One clock for all that this process does to a map: its times must not go back.
    pub(crate) clock: Arc<MapClock>,
    pub(crate) root: Path,
    pub(crate) runtime: Handle,
    /// The store replaces an object only if its entity tag matches.
    pub(crate) has_updates: bool,
    pub(crate) map_garbage_age: Duration,
    name: Arc<str>,
}

impl StorePlace {
    /// Returns the place of the volume `root` in `store`. `name` is what errors call it, a URL for
    /// example. The runtime needs its own threads.
    pub fn new(store: Arc<dyn ObjectStore>, root: Path, runtime: Handle, name: &str) -> Self {
        Self {
            direct: store.clone(),
            store: Arc::new(Requests::new(store, RetryPolicy::default())),
            clock: Arc::default(),
            root,
            runtime,
            has_updates: true,
            map_garbage_age: MAP_GARBAGE_AGE,
            name: name.into(),
        }
    }

    /// Sets how a request that fails is repeated.
    #[must_use]
    pub fn with_retries(mut self, policy: RetryPolicy) -> Self {
        self.store = Arc::new(Requests::new(self.direct.clone(), policy));
        self
    }

    /// Declares that the store cannot replace an object on a condition, as files of the host
    /// cannot. Garbage collection then needs a minimum age longer than any process is paused.
    #[must_use]
    pub fn without_updates(mut self) -> Self {
        self.has_updates = false;
        self
    }

    /// Sets how long the writer keeps objects of the map that newer ones replaced: longer than a
    /// reader takes to open the volume.
    #[must_use]
    pub fn with_map_garbage_age(mut self, age: Duration) -> Self {
        self.map_garbage_age = age;
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

    pub(crate) fn name(&self) -> Cow<'static, str> {
        Cow::Owned(self.name.to_string())
    }

    /// Runs `future` to its end on the runtime.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Returns the error for a place without a volume.
    pub(crate) fn missing(&self) -> Error {
        let reason = "no volume (create one with folio volume create)";
        Error::new(Errno::NOENT, reason).at(self.name())
    }

    /// Returns the error for a place with the rest of a volume.
    pub(crate) fn half_deleted(&self) -> Error {
        let reason =
            "the deletion of the volume was interrupted (finish it with folio volume delete)";
        Error::new(Errno::NOENT, reason).at(self.name())
    }

    /// Returns the error for a place with a volume.
    pub(crate) fn occupied(&self) -> Error {
        Error::new(Errno::EXIST, "a volume exists there").at(self.name())
    }

    /// Converts an error of the store.
    pub(crate) fn error(&self, operation: &str, error: object_store::Error) -> Error {
        if let Some(error) = explained(&error) {
            return Error::new(error.errno(), format!("{operation}: {error}")).at(self.name());
        }
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

/// Returns the cause that explains itself: a connection makes its failures errors of Folio.
pub(crate) fn explained<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    std::iter::successors(Some(error), |error| (*error).source())
        .find_map(|error| error.downcast_ref())
}
