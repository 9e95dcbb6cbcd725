//! URLs of objects: scheme, bucket and key, and names relative to an object.

use folio::{Errno, Error, Result};
use percent_encoding::percent_decode_str;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A kind of store, by the scheme of its URLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// `s3://BUCKET/KEY`: Amazon S3, and stores with its protocol.
    S3,
    /// `gs://BUCKET/KEY`: Google Cloud Storage.
    Gcs,
    /// `az://CONTAINER/KEY`: Azure Blob Storage.
    Azure,
    /// `http://HOST/PATH`: a web server with range requests; read only.
    Http,
    /// `https://HOST/PATH`: the same with TLS.
    Https,
    /// `file:///PATH`: files of the host.
    File,
    /// `memory://NAME/KEY`: the memory of this process; for tests.
    Memory,
}

impl Scheme {
    /// All schemes, with their names in URLs.
    const NAMES: [(&'static str, Self); 7] = [
        ("s3", Self::S3),
        ("gs", Self::Gcs),
        ("az", Self::Azure),
        ("http", Self::Http),
        ("https", Self::Https),
        ("file", Self::File),
        ("memory", Self::Memory),
    ];

    /// Returns the name of the scheme.
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, scheme)| *scheme == self)
            .map_or("", |(name, _)| name)
    }

    /// Whether the text after the host is percent-encoded. Keys of buckets are literal, as in the
    /// tools of the stores.
    fn is_encoded(self) -> bool {
        matches!(self, Self::Http | Self::Https | Self::File)
    }
}

/// The URL of an object, or of a prefix of keys.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectUrl {
    scheme: Scheme,
    bucket: String,
    key: String,
    /// Of a web server: what follows the `?`, often a signature.
    query: Option<String>,
}

impl ObjectUrl {
    /// Whether a text is a URL of an object store, by its scheme.
    pub fn is_url(text: &str) -> bool {
        text.split_once("://")
            .is_some_and(|(scheme, _)| Scheme::NAMES.iter().any(|(name, _)| *name == scheme))
    }

    /// Returns the kind of store.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the bucket, the container, or the host with its port; empty for a file.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the key, without a slash at its start, and decoded.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns what follows the `?` in the URL of a web server.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// Returns the same store with another key.
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            query: None,
            ..self.clone()
        }
    }

    /// Returns the file of the host that a `file://` URL names.
    pub fn host_path(&self) -> Option<PathBuf> {
        (self.scheme == Scheme::File).then(|| format!("/{}", self.key).into())
    }

    /// Resolves a name found in this object: a URL, a path from the root of the bucket if it starts
    /// with a slash, else a path from the object's folder.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid URL, EPERM for a path that leaves the bucket.
    pub fn join(&self, name: &str) -> Result<Self> {
        if name.contains("://") {
            return name.parse();
        }
        let mut parts: Vec<&str> = if name.starts_with('/') {
            Vec::new()
        } else {
            let folder = self.key.rsplit_once('/').map_or("", |(folder, _)| folder);
            folder.split('/').filter(|part| !part.is_empty()).collect()
        };
        for part in name.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    if parts.pop().is_none() {
                        let why = format!("the name {name:?} leaves the bucket");
                        return Err(Error::new(Errno::PERM, why).at(self.to_string()));
                    }
                }
                part => parts.push(part),
            }
        }
        Ok(self.with_key(parts.join("/")))
    }

    /// Whether `other` is in the folder of this object or below it.
    pub fn is_beside(&self, other: &Self) -> bool {
        let folder = self.key.rfind('/').map_or("", |end| &self.key[..=end]);
        (self.scheme, &self.bucket) == (other.scheme, &other.bucket)
            && other.key.starts_with(folder)
    }
}

impl FromStr for ObjectUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: &str| Error::new(Errno::INVAL, format!("invalid URL {text:?}: {why}"));
        let expected = "expected s3://BUCKET/KEY, gs://, az://, http://, https:// or file:///PATH";
        let (name, rest) = text.split_once("://").ok_or_else(|| invalid(expected))?;
        let (_, scheme) = *Scheme::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| invalid(expected))?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) if matches!(scheme, Scheme::Http | Scheme::Https) => {
                (rest, Some(query.to_owned()))
            }
            _ => (rest, None),
        };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let has_host = !matches!(scheme, Scheme::File | Scheme::Memory);
        if has_host && bucket.is_empty() {
            return Err(invalid("the name of the bucket is missing"));
        }
        if scheme == Scheme::File && !matches!(bucket, "" | "localhost") {
            return Err(invalid("a file of another host: expected file:///PATH"));
        }
        if bucket.contains('@') && scheme != Scheme::Azure {
            return Err(invalid("credentials in a URL are not supported"));
        }
        let key = if scheme.is_encoded() {
            let decoded = percent_decode_str(key).decode_utf8();
            decoded
                .map_err(|_| invalid("the path is not UTF-8"))?
                .into_owned()
        } else {
            key.to_owned()
        };
        let mut parts = key.split('/');
        if parts.any(|part| matches!(part, "." | "..")) {
            return Err(invalid("`.` and `..` are not names in a bucket"));
        }
        Ok(Self {
            scheme,
            bucket: if scheme == Scheme::File { "" } else { bucket }.to_owned(),
            key: key.trim_start_matches('/').to_owned(),
            query,
        })
    }
}

/// Without the query, which may hold a signature.
impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme.name(), self.bucket, self.key)
    }
}

impl fmt::Debug for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ObjectUrl {
        text.parse().unwrap()
    }

    #[test]
    fn url_parses_into_bucket_and_key() {
        let found = url("s3://bucket/a b/disk%20.qcow2");
        assert_eq!(
            (found.bucket(), found.key()),
            ("bucket", "a b/disk%20.qcow2")
        );
        let found = url("https://host:8080/a%20b.img?X-Signature=secret");
        assert_eq!((found.bucket(), found.key()), ("host:8080", "a b.img"));
        assert_eq!(found.query(), Some("X-Signature=secret"));
        assert_eq!(found.to_string(), "https://host:8080/a b.img");
        assert_eq!(
            url("file:///srv/x").host_path().unwrap(),
            PathBuf::from("/srv/x")
        );
        assert_eq!(url("s3://bucket").key(), "");
        for text in [
            "s3:///k",
            "ftp://h/k",
            "disk.img",
            "file://h/k",
            "http://u:p@h/k",
            "s3://b/../k",
        ] {
            assert_eq!(
                text.parse::<ObjectUrl>().unwrap_err().errno(),
                Errno::INVAL,
                "{text}"
            );
        }
    }

    #[test]
    fn relative_name_stays_in_the_bucket() {
        let image = url("s3://bucket/images/a/disk.qcow2");
        for (name, want) in [
            ("base.qcow2", "images/a/base.qcow2"),
            ("../base.qcow2", "images/base.qcow2"),
            ("/base.qcow2", "base.qcow2"),
        ] {
            assert_eq!(image.join(name).unwrap().key(), want);
        }
        assert_eq!(image.join("../../../x").unwrap_err().errno(), Errno::PERM);
        assert_eq!(image.join("s3://other/x").unwrap().bucket(), "other");
        assert!(image.is_beside(&url("s3://bucket/images/a/b/c")));
        assert!(!image.is_beside(&url("s3://bucket/images/ab")));
        assert!(!image.is_beside(&url("s3://other/images/a/b")));
    }
}
