//! Images in object storage: URLs on the command line, and the images of this process.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The schemes of URLs of object stores.
const SCHEMES: [&str; 7] = ["s3", "gs", "az", "http", "https", "file", "memory"];

/// Whether a name is a URL of an object store.
pub(crate) fn is_url(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    SCHEMES.iter().any(|scheme| {
        let rest = bytes.strip_prefix(scheme.as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b"://"))
    })
}

/// Refuses a URL in a build without object storage.
///
/// # Errors
///
/// The message of a usage error.
pub(crate) fn check_built(name: &Path) -> Result<(), String> {
    if cfg!(feature = "object-store") {
        return Ok(());
    }
    Err(format!(
        "{}: built without object storage: cargo install --path crates/folio-cli --features full",
        name.display()
    ))
}

/// Refuses a URL as the place of a new image that is written in pieces.
///
/// # Errors
///
/// The message of a usage error.
pub(crate) fn refuse_new(name: &Path) -> Result<(), String> {
    if !is_url(name.as_os_str()) {
        return Ok(());
    }
    check_built(name)?;
    Err(format!(
        "{}: an object cannot be written in place: make a local image, then folio cp IMAGE URL",
        name.display()
    ))
}

/// Splits `URL:/path` and `URL:` into image and path; without a path the image's root is meant.
pub(crate) fn split_url(word: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = word.as_bytes();
    let start = bytes.windows(3).position(|found| found == b"://")? + 3;
    if !is_url(word) {
        return None;
    }
    let rest = &bytes[start..];
    let at_end = || rest.ends_with(b":").then(|| rest.len() - 1);
    let colon = rest.windows(2).position(|found| found == b":/");
    let (image, path) = match colon.or_else(at_end) {
        Some(at) => (&bytes[..start + at], &bytes[start + at + 1..]),
        None => (bytes, &b""[..]),
    };
    let path = if path.is_empty() { b"/" } else { path };
    Some((OsStr::from_bytes(image), OsStr::from_bytes(path)))
}

/// Whether a URL names a path inside of an image, and not the object alone.
pub(crate) fn has_inner_path(word: &OsStr) -> bool {
    split_url(word).is_some_and(|(image, _)| image.len() < word.len())
}

#[cfg(feature = "object-store")]
pub(crate) use with_feature::*;

#[cfg(feature = "object-store")]
mod with_feature {
    use folio_object_store::{ImageOptions, ObjectImages, RequestCounts};
    use serde_json::{Value, json};
    use std::sync::OnceLock;

    static IMAGES: OnceLock<ObjectImages> = OnceLock::new();

    /// Sets the options of object storage; returns the images of this process.
    pub(crate) fn set_options(options: ImageOptions) -> &'static ObjectImages {
        IMAGES.get_or_init(|| ObjectImages::new(options))
    }

    /// Returns the images of this process.
    pub(crate) fn images() -> Option<&'static ObjectImages> {
        IMAGES.get()
    }

    /// Returns the requests so far, if there were any.
    pub(crate) fn requests() -> Option<RequestCounts> {
        let counts = IMAGES.get()?.counts();
        (counts.requests() > 0).then_some(counts)
    }

    /// Returns the requests so far, named as in `--stats`.
    pub(crate) fn requests_json() -> Option<Value> {
        let counts = requests()?;
        Some(json!({
            "get": counts.gets,
            "head": counts.heads,
            "put": counts.puts,
            "post": counts.posts,
            "delete": counts.deletes,
            "failed": counts.failed,
            "received_bytes": counts.received_bytes,
            "sent_bytes": counts.sent_bytes,
        }))
    }
}

#[cfg(not(feature = "object-store"))]
mod without_feature {
    use serde_json::Value;

    pub(crate) fn requests_json() -> Option<Value> {
        None
    }
}

#[cfg(not(feature = "object-store"))]
pub(crate) use without_feature::*;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_splits_at_the_path_inside() {
        for (word, image, path) in [
            ("s3://b/disk.qcow2:/etc", "s3://b/disk.qcow2", "/etc"),
            ("s3://b/disk.qcow2@1:/a:/b", "s3://b/disk.qcow2@1", "/a:/b"),
            ("http://h:9000/d.img:", "http://h:9000/d.img", "/"),
            ("http://h:9000/d.img", "http://h:9000/d.img", "/"),
            (
                "az://box@account/d.img@2:/x",
                "az://box@account/d.img@2",
                "/x",
            ),
        ] {
            let found = split_url(OsStr::new(word)).unwrap();
            assert_eq!(found, (OsStr::new(image), OsStr::new(path)));
            assert_eq!(has_inner_path(OsStr::new(word)), word.len() > image.len());
        }
        assert!(split_url(OsStr::new("disk.img:/a")).is_none());
    }

    #[test]
    fn schemes_are_those_of_stores() {
        assert!(is_url(OsStr::new("s3://b")) && !is_url(OsStr::new("s3:b")));
        assert!(!is_url(OsStr::new("ssh://h/x")) && !is_url(OsStr::new("/s3://b")));
    }
}
