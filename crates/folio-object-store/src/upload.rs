//! Uploads: a whole image in parallel parts, and a new version of an object of which most parts are
//! copied inside of the store.

use crate::connector::with_match_on_complete;
use crate::part_copy::PartCopier;
use crate::runtime;
use crate::store::Store;
use bytes::Bytes;
use folio::block::Device;
use folio::{Errno, Error, Result};
use object_store::multipart::{MultipartStore, PartId};
use object_store::{ObjectStoreExt, PutMode, PutPayload, UpdateVersion};
use std::collections::VecDeque;
use std::ops::Range;
use tokio::task::JoinHandle;

/// Size of a part, unless the object is so large that it would need too many.
const UPLOAD_PART_BYTES: u64 = 8 << 20;
/// Parts of an upload, at most (S3: 10,000).
const UPLOAD_PARTS_MAX: u64 = 9_000;
/// Parts in flight.
const UPLOADS_IN_FLIGHT: usize = 8;
/// The largest object that a store without parts of S3 replaces in one request.
const REPLACE_WHOLE_MAX: u64 = 256 << 20;

/// What an upload reports, and how it is stopped.
pub struct UploadProgress<'a> {
    /// Called with the number of bytes that the store has taken since the last call.
    pub advance: &'a dyn Fn(u64),
    /// Whether to stop.
    pub is_canceled: &'a dyn Fn() -> bool,
}

/// The result of [`replace`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Bytes sent to the store.
    pub sent_bytes: u64,
    /// Bytes copied inside of the store.
    pub copied_bytes: u64,
    /// The entity tag of the new version, if the store returns it.
    pub e_tag: Option<String>,
}

/// Uploads the bytes of a device as the object of the store's URL, which is complete or absent at
/// any time. An object with this key is replaced.
///
/// # Errors
///
/// EINTR if stopped, those of the device, and those of [`Store::run`].
pub fn upload(store: &Store, source: &dyn Device, progress: &UploadProgress<'_>) -> Result<()> {
    let len_bytes = source.len_bytes();
    if len_bytes <= UPLOAD_PART_BYTES {
        let bytes = read(source, 0..len_bytes)?;
        store.run(
            "upload",
            store.objects().put(store.path(), PutPayload::from(bytes)),
        )?;
        (progress.advance)(len_bytes);
        return Ok(());
    }
    let mut upload = store.run(
        "start the upload",
        store.objects().put_multipart(store.path()),
    )?;
    let handle = runtime::handle()?;
    let mut sending = VecDeque::new();
    let sent = parts_of(len_bytes)
        .try_for_each(|range| {
            if (progress.is_canceled)() {
                return Err(Errno::INTR.into());
            }
            // Before the next part is read: all parts in flight are in memory.
            if sending.len() == UPLOADS_IN_FLIGHT {
                finish_first(store, &mut sending, progress)?;
            }
            let bytes = read(source, range.clone())?;
            let part = upload.put_part(PutPayload::from(bytes));
            sending.push_back((range, PartTask(handle.spawn(part))));
            Ok(())
        })
        .and_then(|()| {
            while !sending.is_empty() {
                finish_first(store, &mut sending, progress)?;
            }
            store
                .run("complete the upload", upload.complete())
                .map(drop)
        });
    if sent.is_err() {
        // First: a part that the store takes after the cancellation may stay there.
        drop(sending);
        // The error is reported; what is left of the upload is invisible, and expires.
        let _ = store.run("cancel the upload", upload.abort());
    }
    sent
}

/// A part in flight; dropping it aborts the request.
struct PartTask<T>(JoinHandle<object_store::Result<T>>);

impl<T> Drop for PartTask<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Sending<T> = VecDeque<(Range<u64>, PartTask<T>)>;

/// Waits for the first part in flight.
fn finish_first<T>(
    store: &Store,
    sending: &mut Sending<T>,
    progress: &UploadProgress<'_>,
) -> Result<Option<T>> {
    let Some((range, mut part)) = sending.pop_front() else {
        return Ok(None);
    };
    let operation = format!("upload bytes {}-{}", range.start, range.end - 1);
    // Moved: a part that takes too long is aborted, too.
    let done = store.run(&operation, async move { (&mut part.0).await? })?;
    (progress.advance)(range.end - range.start);
    Ok(Some(done))
}

fn part_bytes(len_bytes: u64) -> u64 {
    len_bytes
        .div_ceil(UPLOAD_PARTS_MAX)
        .next_multiple_of(1 << 20)
        .max(UPLOAD_PART_BYTES)
}

fn parts_of(len_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let step = part_bytes(len_bytes);
    (0..len_bytes.div_ceil(step)).map(move |part| {
        let start = part * step;
        start..(start + step).min(len_bytes)
    })
}

fn read(source: &dyn Device, range: Range<u64>) -> Result<Bytes> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    source.read_at(&mut bytes, range.start)?;
    Ok(bytes.into())
}

/// Replaces the object of the store's URL by the first `len_bytes` bytes of a device, if its
/// version is still that of `e_tag`. `is_same` says which ranges are as in that version: S3 copies
/// them.
///
/// # Errors
///
/// ESTALE if the object was replaced or deleted meanwhile: it is then left as it is. EOPNOTSUPP for
/// a store that cannot replace on a condition. Else those of [`upload`].
pub fn replace(
    store: &Store,
    e_tag: &str,
    source: &dyn Device,
    len_bytes: u64,
    is_same: &dyn Fn(&Range<u64>) -> bool,
    progress: &UploadProgress<'_>,
) -> Result<Replaced> {
    if store.s3().is_none() || len_bytes <= UPLOAD_PART_BYTES {
        return replace_whole(store, e_tag, source, len_bytes, progress);
    }
    let upload = PartUpload::start(store, e_tag)?;
    let replaced = upload
        .send(e_tag, source, len_bytes, is_same, progress)
        .and_then(|(replaced, parts)| {
            let e_tag = upload.complete(e_tag, parts)?;
            Ok(Replaced { e_tag, ..replaced })
        });
    if replaced.is_err() {
        // `send` has aborted its parts.
        upload.cancel();
    }
    replaced
}

fn replace_whole(
    store: &Store,
    e_tag: &str,
    source: &dyn Device,
    len_bytes: u64,
    progress: &UploadProgress<'_>,
) -> Result<Replaced> {
    if len_bytes > REPLACE_WHOLE_MAX {
        let why = format!(
            "this kind of store replaces objects of at most {} MiB on a condition: use folio cp",
            REPLACE_WHOLE_MAX >> 20
        );
        return Err(Error::unsupported(why).at(store.url().to_string()));
    }
    let bytes = read(source, 0..len_bytes)?;
    let mode = PutMode::Update(UpdateVersion {
        e_tag: Some(e_tag.to_owned()),
        version: None,
    });
    let put = store
        .objects()
        .put_opts(store.path(), PutPayload::from(bytes), mode.into());
    let done = store.run("replace", put)?;
    (progress.advance)(len_bytes);
    Ok(Replaced {
        sent_bytes: len_bytes,
        copied_bytes: 0,
        e_tag: done.e_tag,
    })
}

/// An upload to S3 whose parts are numbered by the caller.
struct PartUpload<'a> {
    store: &'a Store,
    id: String,
    copier: Option<PartCopier>,
}

impl<'a> PartUpload<'a> {
    fn start(store: &'a Store, e_tag: &str) -> Result<Self> {
        let Some(s3) = store.s3() else {
            return Err(Errno::OPNOTSUPP.into());
        };
        let id = store.run("start the upload", s3.create_multipart(store.path()))?;
        let copier = PartCopier::new(store, &id, e_tag);
        Ok(Self { store, id, copier })
    }

    /// Sends or copies all parts.
    fn send(
        &self,
        e_tag: &str,
        source: &dyn Device,
        len_bytes: u64,
        is_same: &dyn Fn(&Range<u64>) -> bool,
        progress: &UploadProgress<'_>,
    ) -> Result<(Replaced, Vec<PartId>)> {
        let handle = runtime::handle()?;
        let (mut sending, mut parts) = (Sending::new(), Vec::new());
        let mut replaced = Replaced::default();
        let mut can_copy = self.copier.is_some();
        for (index, range) in parts_of(len_bytes).enumerate() {
            if (progress.is_canceled)() {
                return Err(Errno::INTR.into());
            }
            if sending.len() == UPLOADS_IN_FLIGHT {
                parts.extend(finish_first(self.store, &mut sending, progress)?);
            }
            if can_copy && is_same(&range) {
                if let Some(part) = self.copy(index, &range)? {
                    // In order: the parts before this one first.
                    while let Some(part) = finish_first(self.store, &mut sending, progress)? {
                        parts.push(part);
                    }
                    parts.push(part);
                    replaced.copied_bytes += range.end - range.start;
                    (progress.advance)(range.end - range.start);
                    continue;
                }
                tracing::info!(url = %self.store.url(), e_tag, "the store does not copy parts");
                can_copy = false;
            }
            let bytes = read(source, range.clone())?;
            replaced.sent_bytes += bytes.len() as u64;
            let (s3, path, id) = (
                self.store.s3().cloned(),
                self.store.path().clone(),
                self.id.clone(),
            );
            let part = async move {
                let s3 = s3.ok_or(object_store::Error::NotImplemented {
                    operation: "put_part".to_owned(),
                    implementer: "store".to_owned(),
                })?;
                s3.put_part(&path, &id, index, PutPayload::from(bytes))
                    .await
            };
            sending.push_back((range, PartTask(handle.spawn(part))));
        }
        while let Some(part) = finish_first(self.store, &mut sending, progress)? {
            parts.push(part);
        }
        Ok((replaced, parts))
    }

    /// Copies a part inside of the store; none if the store cannot do that.
    fn copy(&self, index: usize, range: &Range<u64>) -> Result<Option<PartId>> {
        let Some(copier) = &self.copier else {
            return Ok(None);
        };
        let operation = format!("copy bytes {}-{}", range.start, range.end - 1);
        self.store.run(&operation, copier.copy(index, range))
    }

    /// Completes the upload; returns the new entity tag.
    fn complete(&self, e_tag: &str, parts: Vec<PartId>) -> Result<Option<String>> {
        let Some(s3) = self.store.s3() else {
            return Err(Errno::OPNOTSUPP.into());
        };
        // For a store that ignores the condition of the last request.
        let found = self
            .store
            .run("stat", self.store.objects().head(self.store.path()))?;
        if found.e_tag.as_deref() != Some(e_tag) {
            let why = "the object was replaced since it was opened, and is left as it is";
            return Err(Error::new(Errno::STALE, why).at(self.store.url().to_string()));
        }
        let done = s3.complete_multipart(self.store.path(), &self.id, parts);
        let done = with_match_on_complete(e_tag.to_owned(), done);
        let done = self.store.run("complete the upload", done)?;
        Ok(done.e_tag)
    }

    fn cancel(&self) {
        if let Some(s3) = self.store.s3() {
            // The error that led here is reported; the parts are invisible, and expire.
            let aborted = s3.abort_multipart(self.store.path(), &self.id);
            let _ = self.store.run("cancel the upload", aborted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn dropped_parts_are_aborted() {
        let handle = runtime::handle().unwrap();
        let in_flight = Arc::new(());
        let mut sending = Sending::<()>::new();
        for part in 0..3 {
            let held = in_flight.clone();
            let request = async move {
                std::future::pending::<()>().await;
                drop(held);
                Ok(())
            };
            sending.push_back((part..part + 1, PartTask(handle.spawn(request))));
        }
        drop(sending);
        while Arc::strong_count(&in_flight) > 1 {
            std::thread::yield_now();
        }
    }
}
