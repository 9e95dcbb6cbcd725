//! Entries of the fuzz targets: documents of container images. Not public API.

use super::blobs::{BlobReader, Blobs};
use super::documents::Descriptor;
use super::image::ContainerImage;
use super::reference::{Platform, Reference};
use crate::entry::{Entry, EntryKind};
use crate::tar::Writer;
use folio::{Errno, Result, Timespec};
use std::io::{Cursor, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ends a document in an input: no JSON document has it.
const SEPARATOR: u8 = 0;
/// Most documents of one input.
const DOCUMENTS_MAX: usize = 16;

/// Documents that are read in their order, whatever their digests.
struct Documents {
    all: Vec<Vec<u8>>,
    next: AtomicUsize,
}

impl Blobs for Documents {
    fn open(&self, name: &str) -> Result<BlobReader> {
        if name.starts_with("blobs/") {
            // A layer: an empty one is valid, and has a known digest.
            return Ok(Box::new(std::io::empty()));
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let document = self.all.get(next).ok_or(Errno::NOENT)?;
        Ok(Box::new(Cursor::new(document.clone())))
    }

    fn read_blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        descriptor.digest()?;
        self.read("document")
    }
}

/// Opens an image whose index, lists, manifest and configuration are in `data`, for this machine's
/// platform and for a fixed one.
pub fn documents(data: &[u8]) {
    let arm = Platform {
        os: "linux".to_owned(),
        architecture: "arm".to_owned(),
        variant: Some("v7".to_owned()),
    };
    for platform in [None, Some(&arm)] {
        for tag in [None, Some("latest")] {
            let documents = Documents {
                all: split(data).map(<[u8]>::to_vec).collect(),
                next: AtomicUsize::new(0),
            };
            use_image(ContainerImage::layout(Box::new(documents), tag, platform));
        }
    }
}

/// Opens an archive of `docker save`, whose manifest.json is the first document in `data`; the
/// other documents are the members `1`, `2` and so on.
pub fn docker_archive(data: &[u8]) {
    let mut writer = Writer::new(Vec::new());
    for (at, document) in split(data).enumerate() {
        let name = match at {
            0 => "manifest.json".to_owned(),
            at => at.to_string(),
        };
        let file = Entry {
            path: name.into_bytes(),
            kind: EntryKind::File {
                size_bytes: document.len() as u64,
            },
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: Timespec::default(),
            accessed: None,
            xattrs: Vec::new(),
            unreadable: Vec::new(),
        };
        let added = writer.append(&file, None);
        if added.and_then(|()| writer.write_data(document)).is_err() {
            return;
        }
    }
    let (Ok(bytes), Ok(mut file)) = (writer.finish(), tempfile::NamedTempFile::new()) else {
        return;
    };
    if file.write_all(&bytes).is_ok() {
        for tag in [None, Some("app:1".to_owned())] {
            let reference = Reference::DockerArchive(file.path().to_path_buf(), tag);
            use_image(ContainerImage::open(&reference, None));
        }
    }
}

fn split(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.split(|byte| *byte == SEPARATOR).take(DOCUMENTS_MAX)
}

/// Reads the layers of an image with few of them: each starts a thread.
fn use_image(image: Result<ContainerImage>) {
    if let Ok(image) = image
        && image.layer_count() <= 4
    {
        let _ = image.contents();
        let _ = image.diff_ids();
    }
}
