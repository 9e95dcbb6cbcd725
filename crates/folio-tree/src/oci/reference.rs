//! Names of container images: where they are, which tag, which platform.

use super::documents::PlatformDocument;
use folio::{Errno, Error, Result};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A container image, named as skopeo(1) names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// `oci:DIR[:TAG]`: an OCI layout in a folder.
    Layout(PathBuf, Option<String>),
    /// `oci-archive:FILE[:TAG]`: an OCI layout in a tar archive.
    LayoutArchive(PathBuf, Option<String>),
    /// `docker-archive:FILE[:NAME:TAG]`: an archive of `docker save`; `-` is standard input.
    DockerArchive(PathBuf, Option<String>),
    /// `registry:NAME[:TAG]`: an image in a registry.
    Registry(String),
}

impl Reference {
    /// Parses a name; `None` if it has none of the prefixes.
    pub fn parse(word: &OsStr) -> Option<Self> {
        let bytes = word.as_bytes();
        let colon = bytes.iter().position(|byte| *byte == b':')?;
        let (prefix, rest) = (&bytes[..colon], &bytes[colon + 1..]);
        if rest.is_empty() {
            return None;
        }
        let text = || String::from_utf8_lossy(rest).into_owned();
        Some(match prefix {
            b"oci" => {
                let (path, tag) = split_tag(rest, Path::is_dir);
                Self::Layout(path, tag)
            }
            b"oci-archive" => {
                let (path, tag) = split_tag(rest, Path::exists);
                Self::LayoutArchive(path, tag)
            }
            b"docker-archive" => {
                let (path, tag) = split_tag(rest, Path::exists);
                Self::DockerArchive(path, tag)
            }
            b"registry" => Self::Registry(text()),
            _ => return None,
        })
    }
}

/// Splits a tag off a path: at the first colon after which the path exists, else the last one.
fn split_tag(rest: &[u8], exists: fn(&Path) -> bool) -> (PathBuf, Option<String>) {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
    if exists(&path(rest)) || rest == b"-" {
        return (path(rest), None);
    }
    let colons: Vec<_> = (0..rest.len()).filter(|at| rest[*at] == b':').collect();
    let is_path = |at: &usize| exists(&path(&rest[..*at])) || &rest[..*at] == b"-";
    match colons
        .iter()
        .copied()
        .find(is_path)
        .or(colons.last().copied())
    {
        Some(at) if !rest[at + 1..].contains(&b'/') || is_path(&at) => {
            (path(&rest[..at]), text(&rest[at + 1..]))
        }
        _ => (path(rest), None),
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, path, tag) = match self {
            Self::Layout(path, tag) => ("oci", path, tag),
            Self::LayoutArchive(path, tag) => ("oci-archive", path, tag),
            Self::DockerArchive(path, tag) => ("docker-archive", path, tag),
            Self::Registry(name) => return write!(f, "registry:{name}"),
        };
        write!(f, "{prefix}:{}", path.display())?;
        match tag {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

/// An operating system and architecture: `linux/amd64`, `linux/arm/v7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// As Go's GOOS.
    pub os: String,
    /// As Go's GOARCH.
    pub architecture: String,
    /// For example `v7`; any without it.
    pub variant: Option<String>,
}

impl Platform {
    /// Returns the platform of this machine, with Linux as its system.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            other => other,
        };
        Self {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        }
    }

    /// Whether images of a platform run on this one. Without a variant any will do.
    pub(super) fn matches(&self, document: &PlatformDocument) -> bool {
        self.os == document.os
            && self.architecture == document.architecture
            && (self.variant.is_none() || self.is_exactly(document))
    }

    /// Whether a platform is the same. An omitted variant is the usual one, as in containerd.
    pub(super) fn is_exactly(&self, document: &PlatformDocument) -> bool {
        let variant = |variant: &Option<String>| -> String {
            let usual = match self.architecture.as_str() {
                "amd64" => "v1",
                "arm" => "v7",
                "arm64" => "v8",
                _ => "",
            };
            variant.as_deref().unwrap_or(usual).to_owned()
        };
        self.os == document.os
            && self.architecture == document.architecture
            && variant(&self.variant) == variant(&document.variant)
    }
}

impl std::str::FromStr for Platform {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<_> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => ("", "", None),
        };
        if os.is_empty() || architecture.is_empty() {
            let reason = format!(
                "invalid platform {text:?}: expected OS/ARCHITECTURE[/VARIANT] (e.g. linux/arm64)"
            );
            return Err(Error::new(Errno::INVAL, reason));
        }
        Ok(Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant,
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

impl From<&PlatformDocument> for Platform {
    fn from(document: &PlatformDocument) -> Self {
        Self {
            os: document.os.clone(),
            architecture: document.architecture.clone(),
            variant: document.variant.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_path_and_tag_are_split() {
        let folder = tempfile::tempdir().unwrap();
        let layout = folder.path().join("a:b");
        std::fs::create_dir(&layout).unwrap();
        let parse = |word: String| Reference::parse(OsStr::new(&word)).unwrap();
        let tag = |tag: &str| Some(tag.to_owned());
        let shown = layout.display();
        assert_eq!(
            parse(format!("oci:{shown}")),
            Reference::Layout(layout.clone(), None)
        );
        assert_eq!(
            parse(format!("oci:{shown}:x")),
            Reference::Layout(layout.clone(), tag("x"))
        );
        assert_eq!(
            parse("oci:./new:t".into()),
            Reference::Layout("./new".into(), tag("t"))
        );
        assert_eq!(
            parse("docker-archive:-".into()),
            Reference::DockerArchive("-".into(), None)
        );
        assert_eq!(
            parse("docker-archive:-:app:1".into()),
            Reference::DockerArchive("-".into(), tag("app:1"))
        );
        assert_eq!(
            parse("registry:alpine:3".into()),
            Reference::Registry("alpine:3".into())
        );
        for word in ["tree", "disk.img:/", "oci:", "nbd:x"] {
            assert!(Reference::parse(OsStr::new(word)).is_none(), "{word}");
        }
    }

    #[test]
    fn platform_has_two_or_three_parts() {
        let arm: Platform = "linux/arm/v7".parse().unwrap();
        assert_eq!(
            (arm.variant.as_deref(), arm.to_string().as_str()),
            (Some("v7"), "linux/arm/v7")
        );
        assert!("linux".parse::<Platform>().is_err() && "/x".parse::<Platform>().is_err());
    }

    #[test]
    fn omitted_variant_is_the_usual_one() {
        let document = |text: &str| {
            let platform: Platform = text.parse().unwrap();
            PlatformDocument {
                architecture: platform.architecture,
                os: platform.os,
                variant: platform.variant,
            }
        };
        for (wanted, found, matches, is_exact) in [
            ("linux/arm64/v8", "linux/arm64", true, true),
            ("linux/arm64", "linux/arm64/v8", true, true),
            ("linux/arm/v7", "linux/arm", true, true),
            ("linux/arm/v6", "linux/arm", false, false),
            ("linux/arm", "linux/arm/v6", true, false),
            ("linux/amd64", "linux/amd64/v3", true, false),
            ("linux/amd64", "linux/arm64", false, false),
        ] {
            let (wanted, document): (Platform, _) = (wanted.parse().unwrap(), document(found));
            assert_eq!(wanted.matches(&document), matches, "{wanted} {found}");
            assert_eq!(wanted.is_exactly(&document), is_exact, "{wanted} {found}");
        }
    }
}
