//! Options of a connection to a store. What is not given comes from the environment and the files
//! of the store's own tools.

use std::time::Duration;

/// Where the name of a bucket is in the URL of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AddressingStyle {
    /// In the path: `https://endpoint/bucket/key`.
    Path,
    /// In the host name: `https://bucket.endpoint/key`.
    Virtual,
}

/// Options of a connection to a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Time after which a request fails with ETIMEDOUT, its retries included. It grows by a second
    /// for each 64 KiB that are being sent.
    pub io_timeout: Duration,
    /// Address of the store. Environment: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`.
    pub endpoint_url: Option<String>,
    /// Region of the bucket. Environment: `AWS_REGION`, `AWS_DEFAULT_REGION`.
    pub region: Option<String>,
    /// Profile of ~/.aws/config and ~/.aws/credentials. Environment: `AWS_PROFILE`.
    pub profile: Option<String>,
    /// Requests without a signature, for public buckets. Environment: `AWS_SKIP_SIGNATURE`.
    pub is_unsigned: bool,
    /// Where requests name the bucket; in the path if not given.
    pub addressing_style: Option<AddressingStyle>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            io_timeout: Duration::from_secs(60),
            endpoint_url: None,
            region: None,
            profile: None,
            is_unsigned: false,
            addressing_style: None,
        }
    }
}
