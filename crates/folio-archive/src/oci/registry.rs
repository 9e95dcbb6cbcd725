//! Blobs of a registry: the distribution API over HTTP, without a temporary copy.
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
use std::io::Read;
use std::sync::Mutex;
use std::time::Duration;
use ureq::tls::{RootCerts, TlsConfig};

/// Time for a connection and for the headers of a response.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An image's repository in a registry.
pub(super) struct Registry {
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
        let name = self
            .host
            .rsplit_once(':')
            .map_or(self.host.as_str(), |(name, _)| name);
        let is_local = name == "localhost" || name.starts_with("127.") || name == "[::1]";
        let usual = if is_local { "http" } else { "https" };
        let scheme = self.scheme.unwrap_or(usual);
        format!("{scheme}://{}/v2/{}", self.host, self.repository)
    }
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
            .user_agent(concat!("folio/", env!("CARGO_PKG_VERSION")));
        let registry = Self {
            agent: config.build().into(),
            base: name.base(),
            host: name.host.clone(),
            authorization: Mutex::new(None),
        };
        let path = format!("manifests/{}", name.reference);
        let bytes = read_document(registry.get(&path)?, &name.reference)?;
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
            registry,
            Descriptor::new(media_type, digest, bytes.len() as u64),
        ))
    }

    /// Reads a path of the repository. Logs in where the registry wants it.
    fn get(&self, path: &str) -> Result<BlobReader> {
        let url = format!("{}/{path}", self.base);
        for attempt in 0..2 {
            let mut request = self.agent.get(&url);
            for media_type in [MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX] {
                request = request.header("Accept", media_type);
            }
            if let Some(value) = self
                .authorization
                .lock()
                .ok()
                .and_then(|known| known.clone())
            {
                request = request.header("Authorization", value);
            }
            let response = request
                .call()
                .map_err(|error| network_error(&url, &error))?;
            let status = response.status().as_u16();
            match status {
                200 => return Ok(Box::new(response.into_body().into_reader())),
                401 if attempt == 0 => {
                    let challenge = response.headers().get("www-authenticate");
                    let challenge = challenge.and_then(|value| value.to_str().ok());
                    let value = self.log_in(challenge.unwrap_or(""))?;
                    if let Ok(mut known) = self.authorization.lock() {
                        *known = Some(value);
                    }
                }
                401 | 403 => return Err(self.denied().at(url)),
                404 => return Err(Error::new(Errno::NOENT, "not in the registry").at(url)),
                _ => {
                    let reason = format!("the registry answers with HTTP status {status}");
                    return Err(Error::new(Errno::IO, reason).at(url));
                }
            }
        }
        Err(Error::from(Errno::ACCESS).at(url))
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
        let named = ["service", "scope"].map(|key| Some((key, value(key)?)));
        let named = named.into_iter().flatten();
        let response = match &credential {
            Some(DockerCredential::IdentityToken(token)) => {
                let form = [
                    ("grant_type", "refresh_token"),
                    ("refresh_token", token.as_str()),
                ];
                self.agent
                    .post(realm)
                    .send_form(form.into_iter().chain(named))
            }
            credential => {
                let mut request = self.agent.get(realm);
                if let Some(DockerCredential::UsernamePassword(user, password)) = credential {
                    request = request.header("Authorization", basic(user, password));
                }
                request.query_pairs(named).call()
            }
        };
        let response = response.map_err(|error| network_error(realm, &error))?;
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
        self.get(name)
    }

    fn open_blob(&self, descriptor: &Descriptor) -> Result<BlobReader> {
        let digest = descriptor.digest()?;
        let is_manifest = descriptor.is_index()
            || matches!(descriptor.media_type.as_str(), MANIFEST | DOCKER_MANIFEST);
        let folder = if is_manifest { "manifests" } else { "blobs" };
        self.get(&format!("{folder}/{digest}"))
    }
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
