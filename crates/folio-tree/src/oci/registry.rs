//! Blobs of a registry: the distribution API over HTTP, without a temporary copy.
//!
//! A busy registry is asked again, and a lost connection continues where it ended, by a range. The
//! digest of each blob is verified above, so that a continued one is never a mixture.
//!
//! Source: the OCI distribution specification 1.1; Docker's token authentication. The client is
//! ureq with rustls: 20 crates. The crate oci-client needs tokio and reqwest, 100 more.

use super::blobs::{BlobReader, Blobs, read_document};
use super::digest::Digest;
use super::documents::{DOCKER_INDEX, DOCKER_MANIFEST, Descriptor, INDEX, Index, MANIFEST, parse};
use super::login::{basic, credential};
use docker_credential::DockerCredential;
use folio::{Errno, Error, Result};
use serde::Deserialize;
use std::io::{self, ErrorKind, Read};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Body, BodyReader, Timeout};

/// Time for a connection and for the headers of a response.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time without a byte of a body after which its connection counts as lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pauses before the further tries of a request.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// The longest pause that a registry may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// An image's repository in a registry.
pub(super) struct Registry(Arc<Client>);

/// The connection to a repository.
struct Client {
    agent: ureq::Agent,
    /// `https://registry-1.docker.io/v2/library/alpine`.
    base: String,
    host: String,
    /// The header Authorization, once the registry wanted one.
    authorization: Mutex<Option<String>>,
}

/// The parts of a name: scheme, host, repository, and tag or digest.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    /// `http` or `https`, if the name has one.
    scheme: Option<&'static str>,
    host: String,
    repository: String,
    reference: String,
}

impl Name {
    /// Parses a name as Docker: `alpine` is `docker.io/library/alpine:latest`.
    fn parse(text: &str) -> Result<Self> {
        let invalid = || {
            let reason =
                format!("invalid name {text:?}: expected [HOST/]NAME[:TAG] (e.g. alpine:3.20)");
            Error::new(Errno::INVAL, reason)
        };
        let schemes = [("https://", "https"), ("http://", "http")];
        let found = schemes
            .into_iter()
            .find_map(|(lead, scheme)| Some((text.strip_prefix(lead)?, scheme)));
        let (text, scheme) = found.map_or((text, None), |(rest, scheme)| (rest, Some(scheme)));
        let (path, reference) = match text.split_once('@') {
            Some((path, digest)) => {
                let path = path.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
                let named = text.split_once('@').map_or(text, |(named, _)| named);
                (path.map_or(named, |(path, _)| path), digest)
            }
            None => match text.rsplit_once(':') {
                Some((path, tag)) if !tag.contains('/') => (path, tag),
                _ => (text, "latest"),
            },
        };
        let (host, repository) = match path.split_once('/') {
            Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
            _ => ("docker.io", path),
        };
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
        let is_reference = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
        if repository.is_empty()
            || !repository.chars().all(is_plain)
            || reference.is_empty()
            || !reference.chars().all(is_reference)
        {
            return Err(invalid());
        }
        let (host, repository) = match (host, repository.contains('/')) {
            ("docker.io" | "index.docker.io", false) => {
                ("registry-1.docker.io", format!("library/{repository}"))
            }
            ("docker.io" | "index.docker.io", true) => {
                ("registry-1.docker.io", repository.to_owned())
            }
            (host, _) => (host, repository.to_owned()),
        };
        Ok(Self {
            scheme,
            host: host.to_owned(),
            repository,
            reference: reference.to_owned(),
        })
    }

    /// Returns the URL of the repository. A registry on this machine needs no TLS, as in Docker,
    /// unless the name starts with `https://`.
    fn base(&self) -> String {
        let usual = if is_local(&self.host) {
            "http"
        } else {
            "https"
        };
        let scheme = self.scheme.unwrap_or(usual);
        format!("{scheme}://{}/v2/{}", self.host, self.repository)
    }
}

/// Whether a host, perhaps with a port, is this machine.
fn is_local(host: &str) -> bool {
    // A port has digits only: behind `localhost:x@` there is another host.
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let is_loopback = |address: Ipv4Addr| address.is_loopback();
    name == "localhost" || name == "[::1]" || name.parse().is_ok_and(is_loopback)
}

impl Registry {
    /// Finds an image; returns its registry and the descriptor of its manifest.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid name, ENOENT for a missing image, EACCES without a permission, and
    /// failures of the network.
    pub(super) fn find(text: &str) -> Result<(Self, Descriptor)> {
        let name = Name::parse(text)?;
        // The host's certificates, or those that SSL_CERT_FILE names.
        let certificates = RootCerts::PlatformVerifier;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(TlsConfig::builder().root_certs(certificates).build())
            .timeout_connect(Some(TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_per_read(Some(IDLE_TIMEOUT))
            .user_agent(concat!("folio/", env!("CARGO_PKG_VERSION")));
        let client = Client {
            agent: config.build().into(),
            base: name.base(),
            host: name.host.clone(),
            authorization: Mutex::new(None),
        };
        let url = format!("{}/manifests/{}", client.base, name.reference);
        let document = || {
            let body = client.get(&url, 0)?.into_body().into_reader();
            read_document(Box::new(body), &name.reference)
        };
        // It is small: once more, from its start.
        let bytes = document().or_else(|error| match error.errno() {
            Errno::IO => document(),
            _ => Err(error),
        })?;
        let digest = Digest::of(&bytes);
        if let Ok(want) = Digest::parse(&name.reference)
            && want != digest
        {
            return Err(Error::corrupt(format!(
                "digest mismatch: expected {want}, found {digest}"
            )));
        }
        // A list of images has manifests, an image has layers.
        let media_type = match parse::<Index>(&bytes, &name.reference) {
            Ok(_) => INDEX,
            Err(_) => MANIFEST,
        };
        Ok((
            Self(Arc::new(client)),
            Descriptor::new(media_type, digest, bytes.len() as u64),
        ))
    }
}

impl Client {
    /// Requests a URL from the byte `start` on. Logs in where the registry wants it.
    fn get(&self, url: &str, start: u64) -> Result<Response<Body>> {
        for attempt in 0..2 {
            let response = repeat(url, || {
                let mut request = self.agent.get(url);
                for media_type in [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX] {
                    request = request.header("Accept", media_type);
                }
                let known = self.authorization.lock();
                if let Some(value) = known.ok().and_then(|known| known.clone()) {
                    request = request.header("Authorization", value);
                }
                if start > 0 {
                    request = request.header("Range", format!("bytes={start}-"));
                }
                request.call()
            })?;
            match response.status().as_u16() {
                200 | 206 => return Ok(response),
                401 if attempt == 0 => {
                    let value = self.log_in(header(&response, "www-authenticate"))?;
                    if let Ok(mut known) = self.authorization.lock() {
                        *known = Some(value);
                    }
                }
                401 | 403 => return Err(self.denied().at(url.to_owned())),
                404 => {
                    return Err(Error::new(Errno::NOENT, "not in the registry").at(url.to_owned()));
                }
                status => return Err(status_error(url, status, "")),
            }
        }
        Err(Error::from(Errno::ACCESS).at(url.to_owned()))
    }

    /// Returns the header Authorization that the challenge of a response asks for.
    fn log_in(&self, challenge: &str) -> Result<String> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(alias = "access_token")]
            token: String,
        }
        let credential = credential(&self.host)?;
        let Some(parts) = challenge.strip_prefix("Bearer ") else {
            return match credential {
                Some(DockerCredential::UsernamePassword(user, password)) => {
                    Ok(basic(&user, &password))
                }
                _ => Err(self.denied()),
            };
        };
        let value = |key: &str| {
            let start = parts.find(&format!("{key}=\""))? + key.len() + 2;
            let end = parts[start..].find('"')? + start;
            Some(&parts[start..end])
        };
        let realm = value("realm").unwrap_or("");
        check_realm(&self.base, realm)?;
        let named = ["service", "scope"].map(|key| Some((key, value(key)?)));
        let named = named.into_iter().flatten();
        let response = repeat(realm, || match &credential {
            Some(DockerCredential::IdentityToken(token)) => {
                let form = [
                    ("grant_type", "refresh_token"),
                    ("refresh_token", token.as_str()),
                ];
                self.agent
                    .post(realm)
                    .send_form(form.into_iter().chain(named.clone()))
            }
            credential => {
                let mut request = self.agent.get(realm);
                if let Some(DockerCredential::UsernamePassword(user, password)) = credential {
                    request = request.header("Authorization", basic(user, password));
                }
                request.query_pairs(named.clone()).call()
            }
        })?;
        match response.status().as_u16() {
            200 => {}
            401 | 403 => return Err(self.denied().at(realm.to_owned())),
            status => {
                let reason = format!("no token: HTTP status {status}");
                return Err(Error::new(Errno::ACCESS, reason).at(realm.to_owned()));
            }
        }
        let reader: Box<dyn Read + Send> = Box::new(response.into_body().into_reader());
        let bytes = read_document(reader, realm)?;
        Ok(format!("Bearer {}", parse::<Answer>(&bytes, realm)?.token))
    }

    fn denied(&self) -> Error {
        let host = &self.host;
        let reason = format!(
            "the registry denies access: the name may be wrong, or log in with podman, skopeo or \
             docker login {host}"
        );
        Error::new(Errno::ACCESS, reason)
    }
}

impl Blobs for Registry {
    fn open(&self, name: &str) -> Result<BlobReader> {
        let url = format!("{}/{name}", self.0.base);
        Ok(Box::new(BlobBody::open(self.0.clone(), url, 0)?))
    }

    fn open_blob(&self, descriptor: &Descriptor) -> Result<BlobReader> {
        let digest = descriptor.digest()?;
        let is_manifest = descriptor.is_index()
            || matches!(descriptor.media_type.as_str(), MANIFEST | DOCKER_MANIFEST);
        let folder = if is_manifest { "manifests" } else { "blobs" };
        let url = format!("{}/{folder}/{digest}", self.0.base);
        let blob = BlobBody::open(self.0.clone(), url, descriptor.size)?;
        Ok(Box::new(blob))
    }
}

/// The bytes of a blob, over as many connections as they need.
struct BlobBody {
    client: Arc<Client>,
    url: String,
    body: BodyReader<'static>,
    at: u64,
    /// The size of the blob; 0 if the registry does not say it.
    len_bytes: u64,
    /// Connections that were lost since the last byte.
    losses: usize,
}

impl BlobBody {
    fn open(client: Arc<Client>, url: String, len_bytes: u64) -> Result<Self> {
        let response = client.get(&url, 0)?;
        let stated = header(&response, "content-length").parse().unwrap_or(0);
        Ok(Self {
            client,
            url,
            body: response.into_body().into_reader(),
            at: 0,
            len_bytes: if len_bytes == 0 { stated } else { len_bytes },
            losses: 0,
        })
    }

    /// Continues on a new connection.
    fn resume(&mut self, mut cause: String) -> Result<()> {
        let (at, len_bytes) = (self.at, self.len_bytes);
        let lost = |cause: &str, why: &str| {
            let reason = format!("connection lost after {at} of {len_bytes} bytes: {cause}{why}");
            Error::new(Errno::IO, reason).at(self.url.clone())
        };
        while let Some(pause) = PAUSES.get(self.losses) {
            self.losses += 1;
            pause_for(*pause);
            let response = match self.client.get(&self.url, at) {
                Err(error) if error.errno() == Errno::IO => {
                    cause = error.to_string();
                    continue;
                }
                response => response?,
            };
            let range = header(&response, "content-range");
            let is_rest = range.starts_with(&format!("bytes {at}-"));
            if response.status() == 206 && is_rest || at == 0 {
                self.body = response.into_body().into_reader();
                return Ok(());
            }
            return Err(lost(&cause, "; the registry cannot continue it"));
        }
        Err(lost(&cause, "; repeated without success"))
    }
}

impl BlobBody {
    /// Returns 0 at the end of the body.
    ///
    /// # Errors
    ///
    /// A body that is longer than the blob: a broken registry could send bytes without end.
    fn expect_end(&mut self) -> io::Result<usize> {
        match self.body.read(&mut [0]) {
            // A connection that fails after the last byte has lost nothing.
            Ok(0) | Err(_) => Ok(0),
            Ok(_) => {
                let (url, len_bytes) = (&self.url, self.len_bytes);
                Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("{url}: longer than the {len_bytes} bytes that its manifest states"),
                ))
            }
        }
    }
}

impl Read for BlobBody {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.len_bytes > 0 && self.at == self.len_bytes {
                return self.expect_end();
            }
            let limit = match self.len_bytes {
                0 => u64::MAX,
                len_bytes => len_bytes - self.at,
            };
            let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(buf.len());
            let buf = &mut buf[..limit];
            let cause = match self.body.read(buf) {
                Ok(0) if !buf.is_empty() && self.at < self.len_bytes => "it ended early".to_owned(),
                Ok(count) => {
                    self.at += count as u64;
                    self.losses = if count > 0 { 0 } else { self.losses };
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => error.to_string(),
            };
            self.resume(cause)?;
        }
    }
}

/// Sends a request until it succeeds or fails for good, at most as often as there are pauses.
fn repeat(
    url: &str,
    mut send: impl FnMut() -> std::result::Result<Response<Body>, ureq::Error>,
) -> Result<Response<Body>> {
    let mut pauses = PAUSES.iter();
    loop {
        let (failure, wanted) = match send() {
            Ok(response) => {
                let status = response.status().as_u16();
                if !matches!(status, 408 | 429 | 500 | 502..=504) {
                    return Ok(response);
                }
                let wanted = header(&response, "retry-after").parse().ok();
                let wanted = wanted.map(Duration::from_secs);
                if let Some(wanted) = wanted.filter(|wanted| *wanted > RETRY_AFTER_MAX) {
                    let advice = format!("; try again in {} seconds", wanted.as_secs());
                    return Err(status_error(url, status, &advice));
                }
                (
                    status_error(url, status, "; repeated without success"),
                    wanted,
                )
            }
            Err(error) if is_passing(&error) => (network_error(url, &error), None),
            Err(error) => return Err(network_error(url, &error)),
        };
        let Some(pause) = pauses.next() else {
            return Err(failure);
        };
        pause_for(wanted.unwrap_or(*pause));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a busy registry sends no event; it asks for a pause"
)]
fn pause_for(time: Duration) {
    std::thread::sleep(time);
}

/// Whether a request may succeed if it is repeated.
fn is_passing(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Timeout(phase) => !matches!(phase, Timeout::Resolve | Timeout::Connect),
        ureq::Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
                | ErrorKind::UnexpectedEof
                | ErrorKind::TimedOut
        ),
        _ => false,
    }
}

/// Returns a header's value, empty if it is missing.
fn header<'a>(response: &'a Response<Body>, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.and_then(|value| value.to_str().ok()).unwrap_or("")
}

fn status_error(url: &str, status: u16, advice: &str) -> Error {
    let reason = format!("the registry answers with HTTP status {status}{advice}");
    Error::new(Errno::IO, reason).at(url.to_owned())
}

/// Refuses the address `realm` that a registry at `base` asks a login for, if it moves credentials
/// to a connection without TLS.
fn check_realm(base: &str, realm: &str) -> Result<()> {
    let is_plain = match realm.strip_prefix("http://") {
        Some(rest) => !is_local(rest.split('/').next().unwrap_or("")),
        None => !realm.starts_with("https://"),
    };
    if base.starts_with("https://") && is_plain {
        let reason = "the registry uses TLS and asks for a login without it";
        return Err(Error::new(Errno::ACCESS, reason).at(realm.to_owned()));
    }
    Ok(())
}

fn network_error(url: &str, error: &ureq::Error) -> Error {
    Error::new(Errno::IO, error.to_string()).at(url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> (String, String) {
        let name = Name::parse(text).unwrap();
        (name.base(), name.reference)
    }

    #[test]
    fn login_does_not_move_to_plain_http() {
        let allowed = |base: &str, realm: &str| check_realm(base, realm).is_ok();
        let tls = "https://ghcr.io/v2/a/b";
        assert!(allowed(tls, "https://auth.ghcr.io/token"));
        for host in [
            "localhost:5001",
            "localhost",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(allowed(tls, &format!("http://{host}/token")), "{host}");
        }
        for realm in [
            "http://auth.ghcr.io/token",
            "http://localhost.evil.example/token",
            "http://127.0.0.1.evil.example/token",
            "http://localhost:x@evil.example/token",
            "http://user@evil.example/localhost",
            "HTTP://auth.ghcr.io/token",
            "auth.ghcr.io/token",
            "",
        ] {
            let refused = check_realm(tls, realm).unwrap_err();
            assert_eq!(refused.errno(), Errno::ACCESS, "{realm}");
        }
        assert!(allowed(
            "http://lab.example/v2/a",
            "http://auth.lab.example/token"
        ));
    }

    #[test]
    fn names_are_completed_as_docker_does() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let hub = "https://registry-1.docker.io/v2/library/alpine";
        assert_eq!(name("alpine"), pair(hub, "latest"));
        assert_eq!(name("docker.io/alpine:3.20"), pair(hub, "3.20"));
        assert_eq!(
            name("localhost:5000/a/b:c"),
            pair("http://localhost:5000/v2/a/b", "c")
        );
        assert_eq!(
            name("ghcr.io/a/b"),
            pair("https://ghcr.io/v2/a/b", "latest")
        );
        assert_eq!(
            name("ghcr.io/a/b:t@sha256:12"),
            pair("https://ghcr.io/v2/a/b", "sha256:12")
        );
        assert_eq!(
            name("https://localhost:5000/a:b"),
            pair("https://localhost:5000/v2/a", "b")
        );
        assert_eq!(
            name("http://lab.example/a"),
            pair("http://lab.example/v2/a", "latest")
        );
        for bad in ["", "A/b", "a:", "../x", "a b"] {
            assert!(Name::parse(bad).is_err() || bad == "../x", "{bad}");
        }
    }
}
