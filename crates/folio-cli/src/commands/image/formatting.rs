//! The lines of `qemu-img create` about the options of a new image, and the list of all options.

use super::new_image::GivenOptions;
use folio::block::{CreateOptions, ImageFormat};
use std::path::Path;

/// Options of files of the host, which each format accepts.
const FILE_OPTIONS: [(&str, &str, &str); 4] = [
    (
        "extent_size_hint",
        "size",
        "Allocation unit of the file (XFS); a hint",
    ),
    (
        "nocow",
        "bool (on/off)",
        "No copy-on-write of the file (btrfs); a hint",
    ),
    (
        "preallocation",
        "str",
        "Space to allocate in advance (off, falloc, full)",
    ),
    ("size", "size", "Size of the disk"),
];

/// Options of qcow2, sorted.
const QCOW2_OPTIONS: [(&str, &str, &str); 12] = [
    ("backing_file", "str", "Name of the backing file"),
    ("backing_fmt", "str", "Format of the backing file"),
    ("cluster_size", "size", "Size of a cluster, 512 to 2M"),
    (
        "compat",
        "str",
        "Version of the format: v2 (0.10) or v3 (1.1)",
    ),
    (
        "compression_type",
        "str",
        "Compression of clusters (zlib, zstd)",
    ),
    ("data_file", "str", "Name of the external data file"),
    (
        "data_file_raw",
        "bool (on/off)",
        "The data file is the disk, byte by byte",
    ),
    (
        "extended_l2",
        "bool (on/off)",
        "Subclusters in the L2 tables",
    ),
    (
        "lazy_refcounts",
        "bool (on/off)",
        "Refcounts are written when the image is closed",
    ),
    (
        "preallocation",
        "str",
        "Space to allocate in advance (off, metadata, falloc, full)",
    ),
    (
        "refcount_bits",
        "num",
        "Width of a refcount in bits, 1 to 64",
    ),
    ("size", "size", "Size of the disk"),
];

/// Returns the answer to `-o help`. A target adds the options of files.
pub(crate) fn option_help(format: ImageFormat, has_target: bool) -> String {
    let mut options: Vec<_> = match format {
        ImageFormat::Qcow2 => QCOW2_OPTIONS.into(),
        _ if has_target => FILE_OPTIONS.into(),
        _ => vec![FILE_OPTIONS[3]],
    };
    let is_qcow2 = format == ImageFormat::Qcow2;
    if has_target && is_qcow2 {
        options.extend(&FILE_OPTIONS[..2]);
        options.sort_unstable();
    }
    let title = if has_target {
        "Supported options".to_owned()
    } else {
        format!("Supported {format} options")
    };
    let mut text = list(&title, &options);
    if !has_target {
        text.push_str(
            "\nThe protocol level may support further options.\n\
             Specify the target filename to include those options.\n",
        );
    }
    text
}

/// Returns the answer to `amend -o help`: these options.
pub(super) fn amend_help(keys: &[&str]) -> String {
    let options: Vec<_> = QCOW2_OPTIONS
        .into_iter()
        .filter(|(key, _, _)| keys.contains(key))
        .collect();
    list("Amend options for 'qcow2'", &options)
}

fn list(title: &str, options: &[(&str, &str, &str)]) -> String {
    let mut text = format!("{title}:\n");
    for (key, kind, what) in options {
        text.push_str(&format!("  {:<22} - {what}\n", format!("{key}=<{kind}>")));
    }
    text
}

/// Returns the line that qemu-img prints before it creates an image.
pub(super) fn formatting_line(
    file: &Path,
    format: ImageFormat,
    len_bytes: u64,
    options: &CreateOptions,
    given: &GivenOptions,
) -> String {
    let mut words = vec![format!("fmt={format}")];
    let mut put = |key: &str, value: String| words.push(format!("{key}={value}"));
    let switch = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
    if format == ImageFormat::Raw {
        put("size", len_bytes.to_string());
        for key in ["nocow", "preallocation", "extent_size_hint"] {
            given.get(key).into_iter().for_each(|value| put(key, value));
        }
        return line(file, &words);
    }
    put("cluster_size", options.cluster_bytes.to_string());
    put("extended_l2", switch(options.extended_l2));
    if let Some(mode) = given.get("preallocation") {
        put("preallocation", mode);
    }
    put("compression_type", options.compression.name().to_owned());
    put("size", len_bytes.to_string());
    for key in [
        "compat",
        "backing_file",
        "backing_fmt",
        "data_file",
        "data_file_raw",
    ] {
        given.get(key).into_iter().for_each(|value| put(key, value));
    }
    put("lazy_refcounts", switch(options.lazy_refcounts));
    put("refcount_bits", options.refcount_bits.to_string());
    for key in ["nocow", "extent_size_hint"] {
        given.get(key).into_iter().for_each(|value| put(key, value));
    }
    line(file, &words)
}

fn line(file: &Path, words: &[String]) -> String {
    format!("Formatting '{}', {}\n", file.display(), words.join(" "))
}
