//! The specification of a disk, in TOML. docs/disk.md describes it.

use crate::arguments::ownership::Ownership;
use crate::exit::{Failure, Outcome};
use crate::value_parsers::{disk_size, new_size, size};
use folio::block::partition::{PartitionType, TableScheme};
use folio_tree::NewSize;
use folio_tree::oci::{Platform, Reference};
use serde::Deserialize;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Default alignment of partitions.
pub(super) const ALIGNMENT: u64 = 1 << 20;

/// A disk.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DiskSpec {
    #[serde(default)]
    table: TableName,
    /// UUID of the disk; the number of an MBR in base 16.
    #[serde(default)]
    pub(super) uuid: Option<String>,
    #[serde(default)]
    size: Option<SizeText>,
    #[serde(default)]
    alignment: Option<SizeText>,
    #[serde(default)]
    sector_size: Option<SizeText>,
    #[serde(default, rename = "partition")]
    pub(super) partitions: Vec<PartitionSpec>,
}

/// A partition.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct PartitionSpec {
    #[serde(rename = "type")]
    pub(super) type_name: String,
    #[serde(default)]
    pub(super) label: String,
    #[serde(default)]
    pub(super) uuid: Option<String>,
    #[serde(default)]
    start: Option<SizeText>,
    #[serde(default)]
    size: Option<SizeText>,
    /// Names of attributes, or numbers of their bits.
    #[serde(default)]
    attributes: Vec<Attribute>,
    #[serde(default)]
    pub(super) bootable: bool,
    #[serde(default)]
    pub(super) format: ContentFormat,
    /// A path, or the name of a container image.
    #[serde(default)]
    pub(super) source: Option<PathBuf>,
    #[serde(default)]
    pub(super) platform: Option<String>,
    #[serde(default)]
    pub(super) filesystem_label: String,
    #[serde(default)]
    pub(super) filesystem_uuid: Option<String>,
    #[serde(default)]
    pub(super) verity_data: Option<DataPartition>,
    #[serde(default)]
    pub(super) salt: Option<String>,
    #[serde(default)]
    chown: Option<String>,
    #[serde(default)]
    chmod: Option<String>,
    #[serde(default)]
    manifest: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TableName {
    #[default]
    Gpt,
    Mbr,
}

/// What a partition is formatted with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ContentFormat {
    /// Nothing: it reads as zeros
    #[default]
    None,
    /// ext4, empty or with files
    Ext4,
    /// FAT32, empty or with files
    Fat32,
    /// FAT16, empty or with files
    Fat16,
    /// A swap area
    Swap,
    /// The bytes of a file
    Raw,
    /// The hash tree of dm-verity over another partition
    #[value(skip)]
    Verity,
    /// The signature of a root hash, a file in JSON
    VeritySignature,
}

impl ContentFormat {
    /// Whether a partition has the size of its content, also where it could have more.
    pub(super) fn has_own_size(self) -> bool {
        matches!(self, Self::Verity | Self::VeritySignature)
    }
}

/// The partition that a hash tree verifies, by number or label.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum DataPartition {
    Number(usize),
    Label(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SizeText {
    Text(String),
    Bytes(u64),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Attribute {
    Bit(u32),
    Name(String),
}

/// The attribute of a partition that is never written.
const READ_ONLY_BIT: u32 = 60;

/// Attributes of a GPT by name: those of the UEFI specification and of the Discoverable Partitions
/// Specification.
const ATTRIBUTES: [(&str, u32); 7] = [
    ("required", 0),
    ("no-block-io", 1),
    ("legacy-boot", 2),
    ("grow-file-system", 59),
    ("read-only", READ_ONLY_BIT),
    ("hidden", 62),
    ("no-auto", 63),
];

impl fmt::Display for DataPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Label(label) => write!(f, "{label:?}"),
        }
    }
}

impl ContentFormat {
    /// Whether it verifies another partition; such partitions are read-only.
    fn is_verity(self) -> bool {
        matches!(self, Self::Verity | Self::VeritySignature)
    }

    /// Whether it holds files.
    pub(super) fn is_file_system(self) -> bool {
        matches!(self, Self::Ext4 | Self::Fat32 | Self::Fat16)
    }
}

impl SizeText {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => bytes.to_string(),
        }
    }
}

impl DiskSpec {
    /// Reads a specification. Paths in it are below its directory.
    pub(super) fn read(path: &Path) -> Outcome<(Self, String)> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::new(format!("{name}: {}", crate::output::io_reason(&error)))
        })?;
        let mut spec: Self = toml::from_str(&text)
            .map_err(|error| Failure::usage(format!("{name}: {}", error.to_string().trim_end())))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for partition in &mut spec.partitions {
            if let Some(source) = &mut partition.source {
                *source = below(folder, source);
            }
            if let Some(manifest) = &mut partition.manifest {
                *manifest = folder.join(&manifest);
            }
        }
        Ok((spec, text))
    }

    pub(super) fn scheme(&self) -> TableScheme {
        match self.table {
            TableName::Gpt => TableScheme::Gpt,
            TableName::Mbr => TableScheme::Mbr,
        }
    }

    /// Returns the size of the disk; `None` for the least that has room for all partitions.
    pub(super) fn size(&self) -> Outcome<Option<u64>> {
        let parse = |text: &SizeText| disk_size(&text.text());
        self.size
            .as_ref()
            .map(parse)
            .transpose()
            .map_err(Failure::usage)
    }

    /// Returns the bytes per sector of the table.
    pub(super) fn sector_size(&self) -> Outcome<u64> {
        let Some(text) = &self.sector_size else {
            return Ok(512);
        };
        let bytes = size(&text.text()).map_err(Failure::usage)?;
        if bytes == 512 || bytes == 4096 && self.scheme() == TableScheme::Gpt {
            return Ok(bytes);
        }
        let text = format!("invalid sector-size {bytes}: expected 512, or 4096 in a GPT");
        Err(Failure::usage(text))
    }

    /// Returns the alignment of partitions in bytes.
    pub(super) fn alignment(&self) -> Outcome<u64> {
        let sector = self.sector_size()?;
        let Some(text) = &self.alignment else {
            return Ok(ALIGNMENT);
        };
        let bytes = size(&text.text()).map_err(Failure::usage)?;
        if bytes == 0 || bytes % sector != 0 {
            let text = format!("invalid alignment {bytes}: expected a multiple of {sector}");
            return Err(Failure::usage(text));
        }
        Ok(bytes)
    }
}

/// Returns a source below the directory of the specification.
fn below(folder: &Path, source: &Path) -> PathBuf {
    let path = folder.join(source);
    let name = source.as_os_str().as_bytes();
    let colon = name.iter().position(|byte| *byte == b':');
    match (Reference::parse(source.as_os_str()), colon) {
        (Some(_), _) if path.exists() => path,
        (Some(Reference::Registry(_)), _) => source.to_owned(),
        // A tag stays at the end.
        (Some(_), Some(colon)) if !name[colon..].starts_with(b":-") => {
            let (prefix, place) = name.split_at(colon + 1);
            let mut name = OsStr::from_bytes(prefix).to_owned();
            name.push(folder.join(OsStr::from_bytes(place)));
            name.into()
        }
        (Some(_), _) => source.to_owned(),
        (None, _) => path,
    }
}

impl PartitionSpec {
    /// Returns the platform of the container image, if it is specified.
    pub(super) fn platform(&self) -> Outcome<Option<Platform>> {
        let parse = |text: &String| text.parse();
        let parsed = self.platform.as_ref().map(parse).transpose();
        parsed.map_err(|error: folio::Error| Failure::usage(error.to_string()))
    }

    /// Returns the offset of the first byte, if it is specified.
    pub(super) fn start(&self) -> Outcome<Option<u64>> {
        let parse = |text: &SizeText| size(&text.text());
        self.start
            .as_ref()
            .map(parse)
            .transpose()
            .map_err(Failure::usage)
    }

    /// Returns the size, if it is specified.
    pub(super) fn size(&self) -> Outcome<Option<NewSize>> {
        let parse = |text: &SizeText| new_size(&text.text());
        self.size
            .as_ref()
            .map(parse)
            .transpose()
            .map_err(Failure::usage)
    }

    /// Sets offset and size as text.
    pub(super) fn with_place(self, start: Option<String>, size: Option<String>) -> Self {
        Self {
            start: start.map(SizeText::Text),
            size: size.map(SizeText::Text),
            ..self
        }
    }

    /// Sets owners and modes of the files.
    pub(super) fn with_ownership(self, ownership: &Ownership) -> Self {
        let Ownership {
            chown,
            chmod,
            manifest,
        } = ownership.clone();
        Self {
            chown,
            chmod,
            manifest,
            ..self
        }
    }

    /// Returns owners and modes of the files.
    pub(super) fn ownership(&self) -> Ownership {
        Ownership {
            chown: self.chown.clone(),
            chmod: self.chmod.clone(),
            manifest: self.manifest.clone(),
        }
    }

    pub(super) fn partition_type(&self) -> Outcome<PartitionType> {
        let parsed = self.type_name.parse();
        parsed.map_err(|error: folio::Error| Failure::usage(error.to_string()))
    }

    /// Returns the attribute bits.
    pub(super) fn attributes(&self) -> Outcome<u64> {
        let mut bits = u64::from(self.format.is_verity()) << READ_ONLY_BIT;
        for attribute in &self.attributes {
            let bit = match attribute {
                Attribute::Bit(bit) => Some(*bit).filter(|bit| *bit < 64),
                Attribute::Name(name) => ATTRIBUTES
                    .iter()
                    .find(|(known, _)| known == name)
                    .map(|(_, bit)| *bit),
            };
            let Some(bit) = bit else {
                let names = ATTRIBUTES.map(|(name, _)| name).join(", ");
                let text = format!(
                    "unknown attribute {attribute:?}: expected a bit from 0 to 63, or one of {names}"
                );
                return Err(Failure::usage(text));
            };
            bits |= 1 << bit;
        }
        Ok(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specification_is_strict() {
        let parse = toml::from_str::<DiskSpec>;
        let spec = parse(
            "size = '1G'\n[[partition]]\ntype = 'esp'\nsize = 1048576\nattributes = ['no-auto', 2]",
        )
        .unwrap();
        assert_eq!(spec.size().unwrap(), Some(1 << 30));
        assert_eq!(spec.partitions[0].attributes().unwrap(), 1 << 63 | 4);
        assert_eq!(
            spec.partitions[0].size().unwrap(),
            Some(NewSize::Bytes(1 << 20))
        );
        for (text, word) in [
            ("sise = 1", "sise"),
            ("[[partition]]\nlabel = 'x'", "type"),
            ("[[partition]]\ntype = 'esp'\nformat = 'xfs'", "xfs"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
