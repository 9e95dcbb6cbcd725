//! Credentials of registries, as `podman login`, `skopeo login` and `docker login` store them.
//!
//! Source: containers-auth.json(5); Docker's config.json, with its credential helpers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use docker_credential::{
    CredentialRetrievalError, DockerCredential, get_credential, get_podman_credential,
};
use folio::{Errno, Error, Result};

/// The host of Docker's own registry, and its keys in the two files.
const DOCKER_HOST: &str = "registry-1.docker.io";
const DOCKER_KEYS: [&str; 2] = ["docker.io", "https://index.docker.io/v1/"];

/// Returns the credential for a registry's host, if there is one.
///
/// # Errors
///
/// EACCES if a file or a helper with the credential cannot be used.
pub(super) fn credential(host: &str) -> Result<Option<DockerCredential>> {
    let [podman_key, docker_key] = if host == DOCKER_HOST {
        DOCKER_KEYS
    } else {
        [host, host]
    };
    match get_podman_credential(podman_key).or_else(|_| get_credential(docker_key)) {
        Ok(credential) => Ok(Some(credential)),
        Err(
            CredentialRetrievalError::NoCredentialConfigured
            | CredentialRetrievalError::ConfigNotFound
            | CredentialRetrievalError::ConfigReadError,
        ) => Ok(None),
        Err(error) => Err(Error::new(
            Errno::ACCESS,
            format!("the credentials of {host} cannot be read: {error}"),
        )),
    }
}

/// Returns the value of the header Authorization for a name and a password (RFC 7617).
pub(super) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}
