//! Options of new images: `-o` with the names of qemu-img, and long options for the same.

use crate::exit::{Failure, Outcome};
use crate::image_name::split_commas;
use crate::nearest::nearest;
use crate::value_parsers::size;
use clap::{Args, ValueEnum};
use folio::block::{
    BackingName, Compat, Compression, CreateOptions, DataFileName, ImageFormat, Preallocation,
};

const OPTION_NAMES: &str = "cluster_size, compat, backing_file, backing_fmt, preallocation, lazy_refcounts, refcount_bits, \
                     extended_l2, data_file, data_file_raw, compression_type, size, nocow, extent_size_hint";

/// Options of a new image.
#[derive(Args)]
pub(crate) struct NewImageOptions {
    /// Options of the format, with the names of qemu-img, separated by commas:
    /// cluster_size=2M,compat=0.10
    #[arg(short = 'o', value_name = "KEY=VALUE,...")]
    pub(crate) options: Vec<String>,
    /// Space to allocate in advance
    #[arg(long, value_enum)]
    preallocation: Option<PreallocationMode>,
    /// Cluster size of a qcow2 image
    #[arg(long, value_name = "SIZE", value_parser = size)]
    cluster_size: Option<u64>,
    /// Backing file of the new image; a relative path is relative to the new image's directory
    #[arg(short = 'b', short_alias = 'B', long, value_name = "FILE")]
    backing_file: Option<String>,
    /// Format of the backing file
    #[arg(short = 'F', long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    backing_format: Option<ImageFormat>,
    /// Overwrite an existing image
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreallocationMode {
    Off,
    Metadata,
    Falloc,
    Full,
}

impl From<PreallocationMode> for Preallocation {
    fn from(mode: PreallocationMode) -> Self {
        match mode {
            PreallocationMode::Off => Self::Off,
            PreallocationMode::Metadata => Self::Metadata,
            PreallocationMode::Falloc => Self::Falloc,
            PreallocationMode::Full => Self::Full,
        }
    }
}

/// The options of the command line as they were written; of several equal ones the last.
pub(super) struct GivenOptions(Vec<(String, String)>);

impl GivenOptions {
    /// Returns the value of an option, in qemu-img's spelling.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        let (_, value) = self.0.iter().rev().find(|(name, _)| name == key)?;
        Some(match key {
            "nocow" | "data_file_raw" => match switch(value) {
                Ok(true) => "on".to_owned(),
                _ => "off".to_owned(),
            },
            "extent_size_hint" => size(value).unwrap_or(0).to_string(),
            // As it would have to be written in a list of options.
            _ => value.replace(',', ",,"),
        })
    }
}

/// The parsed options of `-o`.
#[derive(Default)]
struct ParsedOptions {
    qcow2: CreateOptions,
    backing_file: Option<String>,
    backing_format: Option<ImageFormat>,
    data_file: Option<String>,
    data_file_raw: bool,
    size: Option<u64>,
    /// The first option that only qcow2 has.
    only_qcow2: Option<String>,
}

impl NewImageOptions {
    /// Returns the options of `-o` alone.
    pub(super) fn of(options: &[String]) -> Self {
        Self {
            options: options.to_vec(),
            preallocation: None,
            cluster_size: None,
            backing_file: None,
            backing_format: None,
            force: false,
        }
    }

    fn words(&self) -> impl Iterator<Item = String> {
        self.options.iter().flat_map(|text| split_commas(text))
    }

    /// Whether `-o help` asks for a list of the options.
    pub(super) fn asks_for_help(&self) -> bool {
        self.words().any(|word| word == "help" || word == "?")
    }

    /// Returns the options as written.
    pub(super) fn given(&self) -> GivenOptions {
        let pair = |word: String| match word.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (word, "on".to_owned()),
        };
        let mut given: Vec<_> = self.words().map(pair).collect();
        if let Some(mode) = self.preallocation.and_then(|mode| mode.to_possible_value()) {
            given.push(("preallocation".to_owned(), mode.get_name().to_owned()));
        }
        if let Some(name) = &self.backing_file {
            given.push(("backing_file".to_owned(), name.clone()));
        }
        if let Some(format) = self.backing_format {
            given.push(("backing_fmt".to_owned(), format.name().to_owned()));
        }
        GivenOptions(given)
    }

    /// Fails if a backing file is given without its format, which qemu-img requires.
    pub(super) fn require_backing_format(&self) -> Outcome {
        let given = self.given();
        if given.get("backing_file").is_some() && given.get("backing_fmt").is_none() {
            return Err(Failure::usage(
                "Use of backing file requires explicit backing format",
            ));
        }
        Ok(())
    }

    /// Returns the options for the library, and the size if `-o` has one.
    pub(crate) fn create_options(
        &self,
        format: ImageFormat,
    ) -> Outcome<(CreateOptions, Option<u64>)> {
        let mut parsed = ParsedOptions::default();
        for word in self.words() {
            let (key, value) = word.split_once('=').unwrap_or((&word, "on"));
            parsed
                .take(key, value)
                .map_err(|why| Failure::usage(format!("-o {word}: {why}")))?;
        }
        if let Some(preallocation) = self.preallocation {
            parsed.qcow2.preallocation = preallocation.into();
        }
        if let Some(size) = self.cluster_size {
            parsed
                .take("cluster_size", &size.to_string())
                .map_err(Failure::usage)?;
        }
        let backing_file = self.backing_file.clone().or(parsed.backing_file);
        let backing_format = self.backing_format.or(parsed.backing_format);
        if backing_file.is_none() && backing_format.is_some() {
            return Err(Failure::usage(
                "-F: the format of a backing file requires its name (-b)",
            ));
        }
        if let (ImageFormat::Raw, Some(word)) = (format, &parsed.only_qcow2) {
            return Err(Failure::usage(format!(
                "{word}: invalid option for a raw image; only qcow2 has it"
            )));
        }
        let mut options = parsed.qcow2;
        options.backing = backing_file.map(|name| BackingName {
            name,
            format: backing_format,
        });
        if parsed.data_file_raw && parsed.data_file.is_none() {
            return Err(Failure::usage(
                "-o data_file_raw: requires the name of the data file (-o data_file=NAME)",
            ));
        }
        options.data_file = parsed.data_file.map(|name| DataFileName {
            name,
            is_raw: parsed.data_file_raw,
        });
        Ok((options, parsed.size))
    }
}

impl ParsedOptions {
    fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        if !matches!(
            key,
            "size"
                | "preallocation"
                | "backing_file"
                | "backing_fmt"
                | "nocow"
                | "extent_size_hint"
        ) {
            self.only_qcow2.get_or_insert_with(|| key.to_owned());
        }
        match key {
            "cluster_size" => {
                self.qcow2.cluster_bytes =
                    u32::try_from(size(value)?).map_err(|_| "expected at most 2M".to_owned())?;
            }
            "compat" => {
                self.qcow2.compat = match value {
                    "0.10" | "v2" => Compat::V0_10,
                    "1.1" | "v3" => Compat::V1_1,
                    _ => return Err("expected 0.10 or 1.1".to_owned()),
                }
            }
            "backing_file" => self.backing_file = Some(value.to_owned()),
            "backing_fmt" => {
                self.backing_format = Some(
                    value
                        .parse()
                        .map_err(|_| "expected raw or qcow2".to_owned())?,
                )
            }
            "preallocation" => {
                self.qcow2.preallocation = PreallocationMode::from_str(value, false)?.into()
            }
            "lazy_refcounts" => self.qcow2.lazy_refcounts = switch(value)?,
            "refcount_bits" => {
                self.qcow2.refcount_bits = value
                    .parse()
                    .map_err(|_| "expected a power of two from 1 to 64".to_owned())?;
            }
            "extended_l2" => self.qcow2.extended_l2 = switch(value)?,
            "data_file" => self.data_file = Some(value.to_owned()),
            "data_file_raw" => self.data_file_raw = switch(value)?,
            "compression_type" => {
                self.qcow2.compression = match value {
                    "zlib" => Compression::Zlib,
                    "zstd" => Compression::Zstd,
                    _ => return Err("expected zlib or zstd".to_owned()),
                }
            }
            "size" => self.size = Some(size(value)?),
            // Hints for the host's file system. The image is the same without them.
            "nocow" => drop(switch(value)?),
            "extent_size_hint" => drop(size(value)?),
            _ => {
                let hint = nearest(key, OPTION_NAMES.split(", "))
                    .map(|word| format!("; did you mean {word}?"));
                return Err(format!(
                    "unknown option; expected one of {OPTION_NAMES}{}",
                    hint.unwrap_or_default()
                ));
            }
        }
        Ok(())
    }
}

/// Parses on or off.
pub(super) fn switch(value: &str) -> Result<bool, String> {
    match value {
        "on" | "yes" | "true" | "y" => Ok(true),
        "off" | "no" | "false" | "n" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}
