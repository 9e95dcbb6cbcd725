//! A connection to the store of a URL.

use crate::aws_profile::{ProcessProvider, Profile};
use crate::connector::{CountingConnector, with_request_id};
use crate::counters::RequestCounters;
use crate::explained::Explained;
use crate::failure::{failure, timed_out};
use crate::options::{AddressingStyle, StoreOptions};
use crate::runtime;
use crate::url::{ObjectUrl, Scheme};
use folio::{Errno, Error, Result};
use object_store::aws::AmazonS3ConfigKey::{
    Region, RoleArn, RoleSessionName, S3Endpoint, WebIdentityTokenFile,
};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig, StaticCredentialProvider,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::env;
use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock, Once};
use std::time::Duration;
use tokio::time::Instant;

/// Time to connect, at most.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts that fit into the I/O timeout if each of them hangs.
const HANGING_ATTEMPTS: u32 = 3;
/// A bound for a store that fails at once each time; the I/O timeout is the other one.
const RETRIES_MAX: usize = 20;

/// The stores of `memory://` URLs, by the name in place of the host.
static MEMORY: LazyLock<Mutex<HashMap<String, Arc<dyn ObjectStore>>>> =
    LazyLock::new(Mutex::default);

/// Makes `memory://NAME/` a given store, for example one that fails or that is slow.
pub fn provide_memory(name: &str, store: Arc<dyn ObjectStore>) {
    MEMORY.lock().insert(name.to_owned(), store);
}

/// What a request to S3 needs that `object_store` does not make.
#[derive(Clone)]
pub(crate) struct S3Requests {
    pub(crate) client: HttpClient,
    pub(crate) region: String,
}

/// A connection to the store of a URL.
#[derive(Clone)]
pub struct Store {
    url: ObjectUrl,
    path: Path,
    objects: Arc<dyn ObjectStore>,
    /// Of S3: for requests that `object_store` does not have.
    s3: Option<Arc<AmazonS3>>,
    s3_requests: Option<S3Requests>,
    counters: Arc<RequestCounters>,
    options: Arc<StoreOptions>,
}

impl Store {
    /// Prepares a connection; no request is made.
    ///
    /// # Errors
    ///
    /// EINVAL for options or variables that are invalid, ENOENT for a missing profile, EOPNOTSUPP
    /// for a profile that needs the AWS tools.
    pub fn open(url: &ObjectUrl, options: &StoreOptions) -> Result<Self> {
        let at_url = |error: Error| error.at(url.to_string());
        let counters = Arc::new(RequestCounters::default());
        let http = Http::new(url, options, &counters).map_err(at_url)?;
        let (mut s3, mut s3_requests) = (None, None);
        let invalid = |error: object_store::Error| {
            Error::new(Errno::INVAL, format!("connect: {error}")).at(url.to_string())
        };
        let objects: Arc<dyn ObjectStore> = match url.scheme() {
            Scheme::S3 => {
                let client = http.connector.connect(&http.client).map_err(invalid)?;
                let builder = http.s3(url.bucket(), options).map_err(at_url)?;
                let region = builder.get_config_value(&Region);
                s3_requests = Some(S3Requests {
                    client,
                    region: region.unwrap_or_else(|| "us-east-1".to_owned()),
                });
                let opened = Arc::new(builder.build().map_err(invalid)?);
                s3 = Some(opened.clone());
                opened
            }
            Scheme::Gcs => Arc::new(http.gcs(url.bucket(), options).build().map_err(invalid)?),
            Scheme::Azure => Arc::new(http.azure(url.bucket(), options).build().map_err(invalid)?),
            Scheme::Http | Scheme::Https => Arc::new(http.web(url).build().map_err(invalid)?),
            // A volume's promise holds on the host's disk too.
            Scheme::File => Arc::new(LocalFileSystem::new().with_fsync(true)),
            Scheme::Memory => MEMORY
                .lock()
                .entry(url.bucket().to_owned())
                .or_insert_with(|| Arc::new(InMemory::new()))
                .clone(),
        };
        let path = Path::parse(url.key()).map_err(|error| {
            Error::new(Errno::INVAL, format!("the key is not supported: {error}"))
                .at(url.to_string())
        })?;
        Ok(Self {
            url: url.clone(),
            path,
            objects,
            s3,
            s3_requests,
            counters,
            options: Arc::new(options.clone()),
        })
    }

    /// Returns the URL.
    pub fn url(&self) -> &ObjectUrl {
        &self.url
    }

    /// Returns the key of the URL.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all objects of the bucket.
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// Returns all objects of the bucket, through a store whose errors have an error of Folio as
    /// their cause: with the URL of the object, the request id, and what to check.
    pub fn explained(&self) -> Arc<dyn ObjectStore> {
        Arc::new(Explained::new(&self.url, self.objects.clone()))
    }

    /// Returns the client of S3, for requests that [`ObjectStore`] does not have.
    pub fn s3(&self) -> Option<&Arc<AmazonS3>> {
        self.s3.as_ref()
    }

    /// Returns what own requests to S3 need.
    pub(crate) fn s3_requests(&self) -> Option<&S3Requests> {
        self.s3_requests.as_ref()
    }

    /// Returns the counters of requests. A store of files or of memory makes none.
    pub fn counters(&self) -> &Arc<RequestCounters> {
        &self.counters
    }

    /// Returns the options.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Runs an operation on the store to its end, within the I/O timeout, which grows by a second
    /// for each 64 KiB that the connection is sending. `operation` names it in errors: "read bytes
    /// 0-65535".
    ///
    /// # Errors
    ///
    /// ENOENT, EACCES, ESTALE for an object that was replaced, EEXIST, EHOSTUNREACH, ETIMEDOUT,
    /// EOPNOTSUPP, else EIO.
    pub fn run<T>(
        &self,
        operation: &str,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        runtime::block_on(self.attempt(operation, work))
    }

    /// Does as [`Store::run`], inside of a runtime.
    ///
    /// # Errors
    ///
    /// Those of [`Store::run`].
    pub async fn attempt<T>(
        &self,
        operation: &str,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let io_timeout = self.options.io_timeout;
        let (uplink, work) = (&self.counters.uplink, with_request_id(work));
        match uplink.within(Instant::now(), io_timeout, work).await {
            Some((result, id)) => {
                result.map_err(|error| failure(&self.url, operation, id.as_deref(), &error))
            }
            None => Err(timed_out(&self.url, operation, io_timeout)),
        }
    }
}

/// The HTTP settings of a connection.
struct Http {
    client: ClientOptions,
    retry: RetryConfig,
    connector: Arc<CountingConnector>,
}

impl Http {
    fn new(
        url: &ObjectUrl,
        options: &StoreOptions,
        counters: &Arc<RequestCounters>,
    ) -> Result<Self> {
        install_tls();
        let attempt = (options.io_timeout / HANGING_ATTEMPTS).max(Duration::from_millis(1));
        let mut client = ClientOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT.min(attempt))
            .with_allow_http(true);
        if let Some(path) = env::var_os("AWS_CA_BUNDLE").filter(|path| !path.is_empty()) {
            let place = format!("AWS_CA_BUNDLE {}", path.display());
            let pem =
                std::fs::read(&path).map_err(|error| Error::io("read", error).at(place.clone()))?;
            let found = Certificate::from_pem_bundle(&pem)
                .map_err(|error| Error::new(Errno::INVAL, error.to_string()).at(place))?;
            for certificate in found {
                client = client.with_root_certificate(certificate);
            }
        }
        Ok(Self {
            client,
            retry: RetryConfig {
                backoff: BackoffConfig {
                    init_backoff: Duration::from_millis(100),
                    max_backoff: attempt.min(Duration::from_secs(15)),
                    base: 2.0,
                },
                max_retries: RETRIES_MAX,
                // Earlier than the I/O timeout, so that the error has the store's reason.
                retry_timeout: options.io_timeout / 2,
            },
            connector: Arc::new(CountingConnector {
                counters: counters.clone(),
                query: url.query().map(ToOwned::to_owned),
                time_limit: attempt,
            }),
        })
    }

    fn connector(&self) -> SharedConnector {
        SharedConnector(self.connector.clone())
    }

    /// Prepares S3: environment, then the profile, then options; container, instance and web
    /// identity credentials are found by `object_store`.
    fn s3(self, bucket: &str, options: &StoreOptions) -> Result<AmazonS3Builder> {
        let profile = Profile::read(options.profile.as_deref())?;
        let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(self.client.clone())
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector());
        let region = options.region.clone().or_else(|| {
            let from_env = is_set("AWS_REGION") || is_set("AWS_DEFAULT_REGION");
            profile
                .get("region")
                .filter(|_| !from_env)
                .map(ToOwned::to_owned)
        });
        if let Some(region) = region {
            builder = builder.with_region(region);
        }
        let from_env = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .iter()
            .find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()));
        let endpoint = options.endpoint_url.clone().or(from_env);
        let endpoint = endpoint.or_else(|| profile.get("endpoint_url").map(ToOwned::to_owned));
        let style = options.addressing_style.or_else(|| {
            let name = profile.get("s3.addressing_style")?;
            (name == "virtual").then_some(AddressingStyle::Virtual)
        });
        if let Some(style) = style {
            builder = builder.with_virtual_hosted_style_request(style == AddressingStyle::Virtual);
        }
        if let Some(endpoint) = endpoint {
            // Also in place of AWS_ENDPOINT_URL_S3, which `from_env` has taken.
            builder = builder.with_config(S3Endpoint, host_of(&endpoint, bucket, style)?);
        }
        if options.is_unsigned {
            return Ok(builder.with_skip_signature(true));
        }
        // As in the AWS tools: a profile that an option names comes before the environment.
        let has_env = is_set("AWS_ACCESS_KEY_ID")
            || is_set("AWS_WEB_IDENTITY_TOKEN_FILE")
            || is_set("AWS_SKIP_SIGNATURE");
        if has_env && options.profile.is_none() {
            return Ok(builder);
        }
        with_profile(builder, &profile)
    }

    fn gcs(self, bucket: &str, options: &StoreOptions) -> GoogleCloudStorageBuilder {
        let builder = GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(self.client.clone())
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector());
        let builder = match &options.endpoint_url {
            Some(endpoint) => builder.with_base_url(endpoint),
            None => builder,
        };
        if options.is_unsigned {
            builder.with_skip_signature(true)
        } else {
            builder
        }
    }

    /// Prepares Azure. `container@account` names the account; else the environment does, with the
    /// names of the Azure CLI too.
    fn azure(self, bucket: &str, options: &StoreOptions) -> MicrosoftAzureBuilder {
        let mut builder = MicrosoftAzureBuilder::from_env()
            .with_client_options(self.client.clone())
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector());
        let (container, account) = match bucket.split_once('@') {
            Some((container, account)) => (container, Some(account.to_owned())),
            None => (bucket, env::var("AZURE_STORAGE_ACCOUNT").ok()),
        };
        builder = builder.with_container_name(container);
        if let Some(account) = account {
            let account = account.split('.').next().unwrap_or_default();
            builder = builder.with_account(account);
        }
        if let Ok(key) = env::var("AZURE_STORAGE_KEY") {
            builder = builder.with_access_key(key);
        }
        if let Some(endpoint) = &options.endpoint_url {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if options.is_unsigned {
            builder = builder.with_skip_signature(true);
        }
        builder
    }

    fn web(self, url: &ObjectUrl) -> HttpBuilder {
        HttpBuilder::new()
            .with_url(format!("{}://{}", url.scheme().name(), url.bucket()))
            .with_client_options(self.client.clone())
            .with_retry(self.retry.clone())
            .with_http_connector(self.connector())
    }
}

/// Takes the credentials of a profile.
fn with_profile(builder: AmazonS3Builder, profile: &Profile) -> Result<AmazonS3Builder> {
    if let Some(credential) = profile.static_credential() {
        return Ok(builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential))));
    }
    if let Some(command) = profile.get("credential_process") {
        return Ok(builder.with_credentials(Arc::new(ProcessProvider::new(command))));
    }
    if let (Some(file), Some(role)) = (
        profile.get("web_identity_token_file"),
        profile.get("role_arn"),
    ) {
        let session = profile.get("role_session_name").unwrap_or("folio");
        return Ok(builder
            .with_config(WebIdentityTokenFile, file)
            .with_config(RoleArn, role)
            .with_config(RoleSessionName, session));
    }
    profile.check_supported()?;
    Ok(builder)
}

/// Returns the endpoint as `object_store` expects it: with the bucket in its host name for virtual
/// addressing.
fn host_of(endpoint: &str, bucket: &str, style: Option<AddressingStyle>) -> Result<String> {
    let Some((scheme, host)) = endpoint.split_once("://") else {
        let why = format!("invalid endpoint URL {endpoint:?}: expected http:// or https://");
        return Err(Error::new(Errno::INVAL, why));
    };
    if style != Some(AddressingStyle::Virtual) {
        return Ok(endpoint.to_owned());
    }
    let name = host.split(['/', ':']).next().unwrap_or_default();
    if name.parse::<Ipv4Addr>().is_ok() || host.starts_with('[') {
        let why = format!(
            "the endpoint {endpoint} is an address, which cannot have the bucket in front of it: give \
             its host name, or omit --addressing-style virtual"
        );
        return Err(Error::new(Errno::INVAL, why));
    }
    Ok(format!("{scheme}://{bucket}.{host}"))
}

/// Makes ring the cryptography of TLS, as in the client of registries.
fn install_tls() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // Fails if the program has chosen one, which then serves here too.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

/// One connector for the builders, which take it by value.
#[derive(Debug)]
struct SharedConnector(Arc<CountingConnector>);

impl HttpConnector for SharedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        self.0.connect(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;

    #[test]
    fn bucket_is_never_put_before_an_address() {
        let host = |endpoint| host_of(endpoint, "b", Some(AddressingStyle::Virtual));
        assert_eq!(
            host("https://s3.test:1/x").unwrap(),
            "https://b.s3.test:1/x"
        );
        for endpoint in ["http://127.0.0.1:9000", "http://[::1]:9000", "127.0.0.1"] {
            assert_eq!(host(endpoint).unwrap_err().errno(), Errno::INVAL);
        }
        assert_eq!(host_of("http://[::1]", "b", None).unwrap(), "http://[::1]");
    }

    #[test]
    fn memory_store_is_shared_by_its_name() {
        let open = |text: &str| Store::open(&text.parse().unwrap(), &StoreOptions::default());
        let (one, same) = (open("memory://m/k").unwrap(), open("memory://m/k").unwrap());
        one.run("write", one.objects().put(one.path(), "text".into()))
            .unwrap();
        let read = same.run("read", async {
            same.objects().get(same.path()).await?.bytes().await
        });
        assert_eq!(read.unwrap(), "text");
        let other = open("memory://other/k").unwrap();
        let error = other
            .run("read", other.objects().get(other.path()))
            .err()
            .unwrap();
        assert_eq!(error.errno(), Errno::NOENT);
        assert!(
            error.to_string().starts_with("memory://other/k: read: "),
            "{error}"
        );
    }

    #[test]
    fn endpoint_gets_the_bucket_for_virtual_addressing() {
        let host = host_of("http://h:1", "b", Some(AddressingStyle::Virtual)).unwrap();
        assert_eq!(host, "http://b.h:1");
        assert_eq!(host_of("http://h:1", "b", None).unwrap(), "http://h:1");
        assert_eq!(host_of("h:1", "b", None).unwrap_err().errno(), Errno::INVAL);
    }
}
