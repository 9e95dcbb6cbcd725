//! Objects and volumes as images with URLs for names, below the image formats of a process.

use crate::place::StorePlace;
use crate::reader::VolumeReader;
use crate::requests::RetryPolicy;
use crate::volume::{Takeover, Volume};
use folio::block::{Device, RemoteImage, RemoteImages};
use folio::{Errno, Error, Result};
use folio_object_store::{ObjectImages, ObjectUrl, Scheme, handle};
use parking_lot::Mutex;
use std::sync::Arc;

/// Objects and volumes as images with URLs. What is opened for writing is a volume.
#[derive(Clone)]
pub struct StoredImages {
    objects: ObjectImages,
    takeover: Takeover,
    /// The volumes that this process writes.
    open: Arc<Mutex<Vec<Arc<Volume>>>>,
}

impl StoredImages {
    /// Returns images that nothing opens by their names yet. `takeover` is the handling of a volume
    /// that its last writer has not closed.
    pub fn new(objects: ObjectImages, takeover: Takeover) -> Self {
        Self {
            objects,
            takeover,
            open: Arc::default(),
        }
    }

    /// Returns the images that are objects.
    pub fn objects(&self) -> &ObjectImages {
        &self.objects
    }

    /// Returns the handling of a volume that its last writer has not closed.
    pub fn takeover(&self) -> Takeover {
        self.takeover
    }

    /// Returns the place of a volume's URL; none on a web server, which holds objects only.
    ///
    /// # Errors
    ///
    /// Those of a connection to the store.
    pub fn place(&self, url: &ObjectUrl) -> Result<Option<StorePlace>> {
        if matches!(url.scheme(), Scheme::Http | Scheme::Https) {
            return Ok(None);
        }
        let store = self.objects.connect(url)?;
        let root = store.path().clone();
        let policy = RetryPolicy {
            timeout: store.options().io_timeout,
            ..RetryPolicy::default()
        };
        let name = url.to_string();
        let place = StorePlace::new(store.explained(), root, handle()?, &name).with_retries(policy);
        Ok(Some(match url.scheme() {
            Scheme::File => place.without_updates(),
            _ => place,
        }))
    }

    /// Keeps a volume until [`StoredImages::close_unused`] or [`StoredImages::take_open`].
    pub fn keep(&self, volume: Volume) -> Arc<dyn Device> {
        let volume = Arc::new(volume);
        self.open.lock().push(volume.clone());
        volume
    }

    /// Closes the volumes that this process wrote and no device uses any more.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::close`].
    pub fn close_unused(&self) -> Result<()> {
        let mut open = self.open.lock();
        let unused: Vec<_> = open
            .extract_if(.., |volume| Arc::strong_count(volume) == 1)
            .collect();
        // Without the lock: closing a volume makes requests.
        drop(open);
        let closed = unused.iter().map(|volume| volume.close());
        closed.fold(Ok(()), Result::and)
    }

    /// Returns the volumes that this process wrote, for the caller to close.
    pub fn take_open(&self) -> Vec<Arc<Volume>> {
        std::mem::take(&mut *self.open.lock())
    }

    /// Opens the volume at a URL; none if there is no volume.
    fn volume(&self, name: &str, read_only: bool) -> Result<Option<RemoteImage>> {
        let Some(place) = self.place(&name.parse()?)? else {
            return Ok(None);
        };
        let opened = if read_only {
            VolumeReader::open(&place, None).map(|volume| Arc::new(volume) as _)
        } else {
            Volume::open(&place, self.takeover).map(|volume| self.keep(volume))
        };
        match opened {
            Ok(device) => Ok(Some(RemoteImage {
                device,
                is_disk: true,
            })),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl RemoteImages for StoredImages {
    fn has_name(&self, name: &str) -> bool {
        self.objects.has_name(name)
    }

    /// To read, the object is tried first: it takes fewer requests.
    fn open(&self, name: &str, read_only: bool) -> Result<RemoteImage> {
        let object = || self.objects.open(name, read_only);
        if read_only {
            return match object() {
                Err(error) if error.errno() == Errno::NOENT => {
                    self.volume(name, true)?.ok_or(error)
                }
                opened => opened,
            };
        }
        self.volume(name, false)?.map_or_else(object, Ok)
    }

    fn not_writable(&self, name: &str) -> Error {
        self.objects.not_writable(name)
    }

    fn resolve(&self, image: &str, name: &str) -> Result<String> {
        self.objects.resolve(image, name)
    }

    fn is_allowed(&self, image: &str, url: &str) -> bool {
        self.objects.is_allowed(image, url)
    }
}
