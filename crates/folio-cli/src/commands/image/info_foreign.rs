//! `folio image info` of formats that Folio does not read.

use super::qemu_size::human;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use folio::block::{ForeignFormat, ForeignImage, ImageFormat};
use serde_json::{Map, Value};
use std::path::Path;

/// A format whose facts can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InfoFormat {
    Own(ImageFormat),
    Foreign(ForeignFormat),
}

impl InfoFormat {
    /// Finds a format by its name.
    pub(super) fn find(name: &str) -> Option<Self> {
        let foreign = || {
            ForeignFormat::ALL
                .into_iter()
                .find(|format| format.name() == name)
        };
        let own = name.parse().ok().map(Self::Own);
        own.or_else(|| foreign().map(Self::Foreign))
    }

    /// Returns a parser of the names.
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        let own = ImageFormat::ALL.map(ImageFormat::name);
        let foreign = ForeignFormat::ALL.map(ForeignFormat::name);
        PossibleValuesParser::new(own.into_iter().chain(foreign)).try_map(|name| {
            Self::find(&name).ok_or_else(|| format!("invalid image format {name:?}"))
        })
    }

    /// Returns the format if Folio reads it.
    pub(super) fn own(self) -> Option<ImageFormat> {
        match self {
            Self::Own(format) => Some(format),
            Self::Foreign(_) => None,
        }
    }

    /// Returns the format if Folio does not read it.
    pub(super) fn foreign(self) -> Option<ForeignFormat> {
        match self {
            Self::Own(_) => None,
            Self::Foreign(format) => Some(format),
        }
    }
}

/// Converts to JSON with the keys of qemu-img.
pub(super) fn to_json(name: &Path, image: &ForeignImage, allocated_bytes: u64) -> Value {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("virtual-size", image.len_bytes.into());
    put("filename", name.to_string_lossy().into());
    put("format", image.format.name().into());
    put("actual-size", allocated_bytes.into());
    if let Some(cluster) = image.cluster_bytes {
        put("cluster-size", cluster.into());
    }
    if image.format == ForeignFormat::Luks {
        put("encrypted", true.into());
    }
    put("dirty-flag", false.into());
    object.into()
}

/// Describes the image, as qemu-img does.
pub(super) fn to_text(name: &Path, image: &ForeignImage, allocated_bytes: u64) -> String {
    let mut text = format!(
        "image: {}\nfile format: {}\nvirtual size: {} ({} bytes)\ndisk size: {}\n",
        name.display(),
        image.format.name(),
        human(image.len_bytes),
        image.len_bytes,
        human(allocated_bytes)
    );
    if image.format == ForeignFormat::Luks {
        text.push_str("encrypted: yes\n");
    }
    if let Some(cluster) = image.cluster_bytes {
        text.push_str(&format!("cluster_size: {cluster}\n"));
    }
    text
}
