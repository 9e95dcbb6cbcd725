//! The JSON documents of container images, as far as they are read and written here.
//!
//! Source: the OCI image specification 1.1; Docker's image specification 1.2 and manifest v2.2.

use super::digest::Digest;
use folio::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most bytes of one document. Registries accept manifests of 4 MiB.
pub(super) const DOCUMENT_BYTES_MAX: u64 = 16 << 20;

pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
#[cfg(feature = "registry")]
pub(super) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(super) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// The annotation of a tag in a layout.
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Reference to a blob.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: String,
    #[serde(default)]
    pub(super) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) platform: Option<PlatformDocument>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub(super) fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: digest.to_string(),
            size,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    pub(super) fn digest(&self) -> Result<Digest> {
        Digest::parse(&self.digest)
    }

    /// Whether it refers to a list of images for several platforms.
    pub(super) fn is_index(&self) -> bool {
        self.media_type == INDEX || self.media_type == DOCKER_INDEX
    }

    pub(super) fn tag(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct PlatformDocument {
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) variant: Option<String>,
}

/// A list of images: index.json of a layout, or one image for several platforms.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Index {
    pub(super) schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) media_type: Option<String>,
    pub(super) manifests: Vec<Descriptor>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    pub(super) schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) media_type: Option<String>,
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// The part of an image's configuration that unpacking needs. The platform's fields are listed,
/// because serde keeps all other fields in memory for a flattened structure.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    pub(super) rootfs: RootFs,
}

impl Config {
    pub(super) fn platform(&self) -> PlatformDocument {
        PlatformDocument {
            architecture: self.architecture.clone(),
            os: self.os.clone(),
            variant: self.variant.clone(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct RootFs {
    #[serde(default)]
    pub(super) diff_ids: Vec<String>,
}

/// An image of `docker save`: manifest.json has a list of them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DockerImage {
    pub(super) config: String,
    #[serde(default)]
    pub(super) repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

/// Parses a document; `name` is its place for messages.
pub(super) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], name: &str) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::corrupt(format!("invalid JSON: {error}")).at(name.to_owned()))
}
