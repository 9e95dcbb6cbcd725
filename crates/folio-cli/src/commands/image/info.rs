//! `folio image info`: shows the format, size and options of an image.

use super::info_foreign::{self, InfoFormat};
use super::qemu_size::human;
use super::snapshot_table::{heading_row, row};
use crate::arguments::image_options::{
    BackingOptions, OutputOptions, image_failure, whole_sectors,
};
use crate::exit::Outcome;
use crate::image_name::{NameOptions, NamedImage};
use crate::output::{NamePrinter, printable};
use crate::session::Session;
use clap::Args;
use folio::Errno;
use folio::block::qcow2::{DirtyBitmap, Snapshot};
use folio::block::tools::ImageInfo;
use folio::block::{self, BackingPolicy, Compat, ForeignImage, OpenOptions, Qcow2Info};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Of formats that Folio does not read (vmdk, vhdx, vpc, vdi, qed, parallels, qcow, luks), format and size are shown.

Examples:
  folio image info disk.qcow2
  folio image info -f vpc fixed.vhd
  folio image info --output=json --backing-chain overlay.qcow2";

/// Show an image's format, size and options
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Info {
    /// The image
    #[arg(value_parser = crate::image_name::value_parser())]
    file: PathBuf,
    /// Format; the default is detected from the first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = InfoFormat::parser())]
    format: Option<InfoFormat>,
    /// Show its backing files too
    #[arg(long)]
    backing_chain: bool,
    /// Read the image even if another process writes it
    #[arg(short = 'U', long)]
    force_share: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    image_name: NameOptions,
}

/// One image of a chain.
struct ChainImage {
    name: PathBuf,
    facts: ImageFacts,
}

enum ImageFacts {
    Own(ImageInfo),
    /// With its space on the disk, in bytes.
    Foreign(ForeignImage, u64),
}

impl ChainImage {
    fn to_json(&self) -> Value {
        match &self.facts {
            ImageFacts::Own(info) => to_json(&self.name, info),
            ImageFacts::Foreign(image, space) => info_foreign::to_json(&self.name, image, *space),
        }
    }

    fn to_text(&self) -> String {
        match &self.facts {
            ImageFacts::Own(info) => to_text(&self.name, info),
            ImageFacts::Foreign(image, space) => info_foreign::to_text(&self.name, image, *space),
        }
    }
}

/// Runs the command.
pub(crate) fn run(info: &Info, session: &Session) -> Outcome {
    let mut chain = chain(info)?;
    if session.is_qemu_img() {
        for image in &mut chain {
            if let ImageFacts::Own(info) = &mut image.facts {
                info.len_bytes = whole_sectors(info.len_bytes)?;
            }
        }
    }
    if info.output.is_json() {
        let mut values: Vec<Value> = chain.iter().map(ChainImage::to_json).collect();
        return match (info.backing_chain, values.pop()) {
            (false, Some(value)) => session.print_json(&value),
            (_, last) => {
                values.extend(last);
                session.print_json(&values)
            }
        };
    }
    let names = NamePrinter::on_stdout();
    let mut out = std::io::stdout().lock();
    for (index, image) in chain.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        out.write_all(names.text(&image.to_text()).as_bytes())?;
    }
    Ok(())
}

/// Returns the image, and its backing files if requested.
fn chain(info: &Info) -> Outcome<Vec<ChainImage>> {
    let own = info.format.and_then(InfoFormat::own);
    let NamedImage { path: file, format } = info.image_name.resolve(&info.file, own)?;
    let wanted = info.format.or(format.map(InfoFormat::Own));
    if let Some(image) = foreign(info, &file, wanted)? {
        return Ok(vec![image]);
    }
    if info.backing_chain && info.backing.policy() != BackingPolicy::Refuse {
        // This open follows the whole chain by the policy for backing files, and detects loops.
        drop(info.backing.open(&file, format, info.force_share)?);
    }
    let mut chain = Vec::new();
    let mut seen = HashSet::new();
    let mut next = Some((file, format));
    while let Some((name, format)) = next.take() {
        let options = OpenOptions {
            format,
            is_shared: info.force_share,
            ..OpenOptions::default()
        };
        let found =
            block::tools::info(&name, &options).map_err(|error| image_failure(error, &name))?;
        if !seen.insert(name.clone()) {
            return Err(image_failure(Errno::LOOP.into(), &name));
        }
        if info.backing_chain
            && let Some(path) = &found.backing_path
        {
            let format = found
                .qcow2
                .as_ref()
                .and_then(|qcow2| qcow2.backing_format.as_deref());
            let format = format
                .map(str::parse)
                .transpose()
                .map_err(|error| image_failure(error, path))?;
            next = Some((path.clone(), format));
        }
        let facts = ImageFacts::Own(found);
        chain.push(ChainImage { name, facts });
    }
    Ok(chain)
}

/// Returns the facts of an image that Folio does not read.
fn foreign(info: &Info, path: &Path, format: Option<InfoFormat>) -> Outcome<Option<ChainImage>> {
    if format.is_some_and(|format| format.own().is_some()) {
        return Ok(None);
    }
    let format = format.and_then(InfoFormat::foreign);
    let found = block::tools::foreign_image(path, format, info.force_share);
    let found = found.map_err(|error| image_failure(error, path))?;
    let space = std::fs::metadata(path).map_or(0, |found| found.blocks().saturating_mul(512));
    Ok(found.map(|image| ChainImage {
        name: path.to_owned(),
        facts: ImageFacts::Foreign(image, space),
    }))
}

/// Converts to JSON with the keys of qemu-img.
fn to_json(file: &Path, info: &ImageInfo) -> Value {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("virtual-size", info.len_bytes.into());
    put("filename", name(file).into());
    put("format", info.format.name().into());
    put("actual-size", info.allocated_bytes.into());
    put(
        "dirty-flag",
        info.qcow2
            .as_ref()
            .is_some_and(|qcow2| qcow2.is_dirty)
            .into(),
    );
    if let Some(qcow2) = &info.qcow2 {
        put("cluster-size", qcow2.cluster_bytes.into());
        if qcow2.encryption.is_some() {
            put("encrypted", true.into());
        }
        put(
            "format-specific",
            json!({ "type": "qcow2", "data": specific(qcow2, &info.bitmaps) }),
        );
        if let Some(backing) = &qcow2.backing_name {
            put("backing-filename", backing.clone().into());
        }
        if let Some(format) = &qcow2.backing_format {
            put("backing-filename-format", format.clone().into());
        }
    }
    if !info.snapshots.is_empty() {
        let snapshots: Vec<Value> = info.snapshots.iter().map(snapshot_json).collect();
        put("snapshots", snapshots.into());
    }
    if let Some(path) = &info.backing_path {
        put("full-backing-filename", name(path).into());
    }
    object.into()
}

fn specific(qcow2: &Qcow2Info, bitmaps: &[DirtyBitmap]) -> Value {
    let mut data =
        json!({ "compat": qcow2.compat.name(), "compression-type": qcow2.compression.name() });
    if qcow2.compat == Compat::V0_10 {
        // As in qemu-img: version 2 has no other options.
        data["refcount-bits"] = qcow2.refcount_bits.into();
        encryption(qcow2, &mut data);
        return data;
    }
    data["lazy-refcounts"] = qcow2.lazy_refcounts.into();
    data["refcount-bits"] = qcow2.refcount_bits.into();
    data["corrupt"] = qcow2.is_corrupt.into();
    encryption(qcow2, &mut data);
    data["extended-l2"] = qcow2.extended_l2.into();
    if !bitmaps.is_empty() {
        let bitmap = |bitmap: &DirtyBitmap| {
            json!({
                "name": bitmap.name,
                "granularity": bitmap.granularity_bytes,
                "flags": bitmap_flags(bitmap),
            })
        };
        data["bitmaps"] = bitmaps.iter().map(bitmap).collect();
    }
    if let Some(file) = &qcow2.data_file {
        data["data-file"] = file.name.clone().into();
        data["data-file-raw"] = file.is_raw.into();
    }
    data
}

/// Adds the kind of encryption.
fn encryption(qcow2: &Qcow2Info, data: &mut Value) {
    if let Some(kind) = qcow2.encryption {
        data["encrypt"] = json!({ "format": kind });
    }
}

/// Returns the flags of a bitmap, with the names of qemu-img.
fn bitmap_flags(bitmap: &DirtyBitmap) -> Vec<&'static str> {
    let flags = [(bitmap.is_in_use, "in-use"), (bitmap.is_auto, "auto")];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set);
    set.map(|(_, name)| name).collect()
}

/// Converts to JSON with the keys of qemu-img.
fn snapshot_json(snapshot: &Snapshot) -> Value {
    let mut value = json!({
        "id": snapshot.id,
        "name": snapshot.name,
        "vm-state-size": snapshot.vm_state_bytes,
        "date-sec": snapshot.date_secs,
        "date-nsec": snapshot.date_nanos,
        "vm-clock-sec": snapshot.vm_clock_nanos / 1_000_000_000,
        "vm-clock-nsec": snapshot.vm_clock_nanos % 1_000_000_000,
    });
    if let Some(count) = snapshot.instructions {
        value["icount"] = count.into();
    }
    value
}

fn name(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn to_text(file: &Path, info: &ImageInfo) -> String {
    let mut text = format!(
        "image: {}\nfile format: {}\nvirtual size: {} ({} bytes)\ndisk size: {}\n",
        file.display(),
        info.format,
        human(info.len_bytes),
        info.len_bytes,
        human(info.allocated_bytes)
    );
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let Some(qcow2) = &info.qcow2 else {
        return text;
    };
    if qcow2.encryption.is_some() {
        line("encrypted: yes".to_owned());
    }
    line(format!("cluster_size: {}", qcow2.cluster_bytes));
    if qcow2.is_dirty {
        line("cleanly shut down: no".to_owned());
    }
    if let (Some(backing), Some(path)) = (&qcow2.backing_name, &info.backing_path) {
        let path = name(path);
        let actual = if path == *backing {
            String::new()
        } else {
            format!(" (actual path: {path})")
        };
        line(format!("backing file: {backing}{actual}"));
        if let Some(format) = &qcow2.backing_format {
            line(format!("backing file format: {format}"));
        }
    }
    if !info.snapshots.is_empty() {
        line("Snapshot list:".to_owned());
        line(heading_row());
        for snapshot in &info.snapshots {
            line(row(snapshot));
        }
    }
    line("Format specific information:".to_owned());
    line(format!("    compat: {}", qcow2.compat.name()));
    line(format!(
        "    compression type: {}",
        qcow2.compression.name()
    ));
    if qcow2.compat == Compat::V1_1 {
        line(format!("    lazy refcounts: {}", qcow2.lazy_refcounts));
    }
    bitmap_lines(&info.bitmaps, &mut line);
    line(format!("    refcount bits: {}", qcow2.refcount_bits));
    if let Some(kind) = qcow2.encryption {
        line("    encrypt:".to_owned());
        line(format!("        format: {kind}"));
    }
    if qcow2.compat == Compat::V1_1 {
        if let Some(file) = &qcow2.data_file {
            line(format!("    data file: {}", file.name));
            line(format!("    data file raw: {}", file.is_raw));
        }
        line(format!("    corrupt: {}", qcow2.is_corrupt));
        line(format!("    extended l2: {}", qcow2.extended_l2));
    }
    text
}

/// Describes the bitmaps, as qemu-img does.
fn bitmap_lines(bitmaps: &[DirtyBitmap], line: &mut impl FnMut(String)) {
    if bitmaps.is_empty() {
        return;
    }
    line("    bitmaps:".to_owned());
    for (index, bitmap) in bitmaps.iter().enumerate() {
        line(format!("        [{index}]:"));
        line("            flags:".to_owned());
        for (index, flag) in bitmap_flags(bitmap).iter().enumerate() {
            line(format!("                [{index}]: {flag}"));
        }
        line(format!("            name: {}", printable(&bitmap.name)));
        line(format!(
            "            granularity: {}",
            bitmap.granularity_bytes
        ));
    }
}
