//! UploadPartCopy of S3, which `object_store` does not offer for ranges.
//!
//! Amazon S3 API Reference: "UploadPartCopy".

use crate::store::{S3Requests, Store};
use object_store::aws::{AmazonS3, AwsAuthorizer};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use object_store::multipart::PartId;
use object_store::signer::Signer;
use object_store::{Error, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What a key keeps as it is in a header.
const KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');
const ID: &AsciiSet = &KEY.add(b'/');
/// Attempts at a copy that the store answers with an error of its own.
const ATTEMPTS: u32 = 5;

/// Copies ranges of one version of an object into parts of an upload.
pub(crate) struct PartCopier {
    s3: Arc<AmazonS3>,
    client: HttpClient,
    region: String,
    source: String,
    e_tag: String,
    upload_id: String,
    path: object_store::path::Path,
}

impl PartCopier {
    /// Returns a copier; none if the store is not S3, or takes requests without a signature.
    pub(crate) fn new(store: &Store, upload_id: &str, e_tag: &str) -> Option<Self> {
        if store.options().is_unsigned {
            return None;
        }
        let S3Requests { client, region } = store.s3_requests()?.clone();
        let key = utf8_percent_encode(store.url().key(), KEY);
        Some(Self {
            s3: store.s3()?.clone(),
            client,
            region,
            source: format!("{}/{key}", store.url().bucket()),
            e_tag: e_tag.to_owned(),
            upload_id: utf8_percent_encode(upload_id, ID).to_string(),
            path: store.path().clone(),
        })
    }

    /// Copies a range; none if the store does not do that.
    pub(crate) async fn copy(&self, index: usize, range: &Range<u64>) -> Result<Option<PartId>> {
        let mut pause = Duration::from_millis(100);
        for _ in 1..ATTEMPTS {
            match self.attempt(index, range).await {
                Err(Error::Generic { .. }) => tokio::time::sleep(pause).await,
                done => return done,
            }
            pause *= 2;
        }
        self.attempt(index, range).await
    }

    async fn attempt(&self, index: usize, range: &Range<u64>) -> Result<Option<PartId>> {
        let url = self
            .s3
            .signed_url(Method::PUT, &self.path, Duration::from_secs(60))
            .await?;
        // Only the address is taken from it: the headers below need a signature of their own.
        let base = url.as_str().split('?').next().unwrap_or_default();
        let (part, id) = (index + 1, &self.upload_id);
        let uri = format!("{base}?partNumber={part}&uploadId={id}");
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = uri.parse().map_err(generic)?;
        let last = range.end - 1;
        for (name, value) in [
            ("x-amz-copy-source", self.source.clone()),
            (
                "x-amz-copy-source-range",
                format!("bytes={}-{last}", range.start),
            ),
            // Parts of two versions must not be mixed.
            ("x-amz-copy-source-if-match", self.e_tag.clone()),
            ("content-length", "0".to_owned()),
        ] {
            let value = value.parse().map_err(generic)?;
            request.headers_mut().insert(name, value);
        }
        let credential = self.s3.credentials().get_credential().await?;
        AwsAuthorizer::new(&credential, "s3", &self.region).try_authorize(&mut request, None)?;
        let response = self.client.execute(request).await.map_err(generic)?;
        let status = response.status().as_u16();
        let body = response.into_body().bytes().await.map_err(generic)?;
        let body = String::from_utf8_lossy(&body);
        match status {
            // A store that ignores the headers of the copy has made an empty part.
            200 => Ok(copied_e_tag(&body)),
            412 => Err(Error::Precondition {
                path: self.path.to_string(),
                source: "the source of the copy was replaced".into(),
            }),
            // A store that expects a body, or knows no copies.
            400 | 404 | 405 | 411 | 501 => Ok(None),
            403 => Err(Error::PermissionDenied {
                path: self.path.to_string(),
                source: format!("Server returned non-2xx status code: 403: {body}").into(),
            }),
            _ => Err(generic(std::io::Error::other(format!(
                "Server returned non-2xx status code: {status}: {body}"
            )))),
        }
    }
}

/// Returns the ETag of `<CopyPartResult>`; none if the answer is something else.
fn copied_e_tag(body: &str) -> Option<PartId> {
    let (_, rest) = body.split_once("<CopyPartResult")?;
    let (_, rest) = rest.split_once("<ETag>")?;
    let (tag, _) = rest.split_once("</ETag>")?;
    Some(PartId {
        content_id: tag.replace("&quot;", "\"").replace("&#34;", "\""),
    })
}

fn generic(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic {
        store: "S3",
        source: Box::new(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_copy_result_has_an_e_tag() {
        let body =
            "<?xml?><CopyPartResult xmlns=\"x\"><ETag>&quot;a-1&quot;</ETag></CopyPartResult>";
        assert_eq!(copied_e_tag(body).unwrap().content_id, "\"a-1\"");
        assert!(copied_e_tag("").is_none() && copied_e_tag("<Error/>").is_none());
    }
}
