//! `folio info`: shows what an image holds: its format, its partitions, its file system.

use crate::arguments::force_share::ForceShare;
use crate::exit::{Failure, Outcome};
use crate::image::open_to_read;
use crate::image_path::{ImagePath, contents_name};
use crate::output::color::heading;
use crate::output::{counted, date_text, human, printable, stamp};
use crate::session::Session;
use crate::verity::{FoundTree, hex};
use clap::Args;
use folio::block::partition::{PartitionDevice, PartitionTable};
use folio::block::tools::ImageInfo;
use folio::block::{self, Device, FileSystemKind, OpenOptions};
use folio::ext4::{self, FieldValue, SuperblockField, SuperblockSummary};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;

const AFTER_HELP: &str = "\
The lines about a file system have the names of dumpe2fs -h. With --json the names are in lower case with _ between
words, numbers are exact, and times are in UTC.

A file system that Folio cannot read for one of its features is shown too. The journal is not replayed. Options and
snapshots of the image format are shown by folio image info.

Examples:
  folio info disk.qcow2
  folio info --json disk.img@2
  folio info --json disk.img | jq -r .file_system.filesystem_uuid";

/// Show format, partitions and file system of an image: UUID, label, features, state, sizes, times
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Info {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    share: ForceShare,
}

/// What an image holds.
struct ImageReport {
    name: String,
    info: ImageInfo,
    /// The partition that the user chose.
    partition: Option<u32>,
    table: Option<PartitionTable>,
    /// What each partition holds.
    contents: Vec<Contents>,
    /// What the whole image or the chosen partition holds.
    whole: Contents,
}

/// What a disk or partition holds.
enum Contents {
    FileSystem(SuperblockSummary),
    /// A hash tree of dm-verity.
    Tree(FoundTree),
    /// The name of another format.
    Other(&'static str),
    Unknown,
}

/// Runs the command.
pub(crate) fn run(info: &Info, session: &Session) -> Outcome {
    session.refuse_options()?;
    let place = ImagePath::parse(&info.image)?;
    if place.path.as_os_str() != "/" {
        return Err(Failure::usage(format!(
            "{place}: info covers a whole image or partition; omit the path"
        )));
    }
    let name = place.image_name();
    let failure = |error: folio::Error| Failure::image(error.at(name.clone()));
    info.share.apply(session);
    let disk = open_to_read(session, &place.image)?;
    // Already open, so the lock of a second open would be refused on some hosts.
    let options = OpenOptions {
        is_shared: true,
        ..OpenOptions::default()
    };
    let found = block::tools::info(&place.image, &options).map_err(Failure::image)?;
    let partition = place.partition_number(&*disk).map_err(failure)?;
    let report = examine(name.clone(), found, disk, partition).map_err(failure)?;
    if info.json {
        return session.print_json_alone(&to_json(&report));
    }
    let text = to_text(&report);
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

fn examine(
    name: String,
    info: ImageInfo,
    disk: Arc<dyn Device>,
    partition: Option<u32>,
) -> folio::Result<ImageReport> {
    // A file system without a table may have bytes of a boot record before its superblock, and a
    // FAT begins with one.
    let is_file_system = FileSystemKind::of(&*disk)?.is_some();
    let has_table = partition.is_some() || !is_file_system;
    let table = if has_table {
        block::partition::partition_table(&*disk)?
    } else {
        None
    };
    let (whole, mut contents) = match partition {
        Some(_) => (
            contents(&block::partition::select(disk.clone(), partition)?)?,
            Vec::new(),
        ),
        None if table.is_some() => (Contents::Unknown, Vec::new()),
        None => (contents(&disk)?, Vec::new()),
    };
    if let (None, Some(table)) = (partition, &table) {
        for entry in &table.partitions {
            let window: Arc<dyn Device> = Arc::new(PartitionDevice::new(
                disk.clone(),
                entry.start_bytes,
                entry.len_bytes,
            )?);
            let at = |error: folio::Error| error.at(format!("partition {}", entry.number));
            contents.push(self::contents(&window).map_err(at)?);
        }
    }
    Ok(ImageReport {
        name,
        info,
        partition,
        table,
        contents,
        whole,
    })
}

fn contents(device: &Arc<dyn Device>) -> folio::Result<Contents> {
    if FileSystemKind::of(&**device)? == Some(FileSystemKind::Ext4) {
        return ext4::summarize(device).map(Contents::FileSystem);
    }
    if let Some(tree) = FoundTree::of(&**device) {
        return Ok(Contents::Tree(tree));
    }
    Ok(contents_name(device)?.map_or(Contents::Unknown, Contents::Other))
}

impl ImageReport {
    /// Returns the file system to show in full: that of the whole image or the chosen partition,
    /// else that of the only partition with one.
    fn file_system(&self) -> Option<&SuperblockSummary> {
        let mut found = std::iter::once(&self.whole)
            .chain(&self.contents)
            .filter_map(Contents::file_system);
        let first = found.next();
        first.filter(|_| found.next().is_none())
    }
}

impl Contents {
    fn file_system(&self) -> Option<&SuperblockSummary> {
        match self {
            Self::FileSystem(summary) => Some(summary),
            Self::Tree(_) | Self::Other(_) | Self::Unknown => None,
        }
    }

    fn tree(&self) -> Option<&FoundTree> {
        match self {
            Self::Tree(tree) => Some(tree),
            _ => None,
        }
    }

    /// Returns the name of the format; empty if it is unknown.
    fn name(&self) -> &'static str {
        match self {
            Self::FileSystem(summary) => summary.type_name,
            Self::Tree(_) => "a verity tree",
            Self::Other(name) => name,
            Self::Unknown => "",
        }
    }
}

fn to_json(report: &ImageReport) -> Value {
    let info = &report.info;
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("image", report.name.clone().into());
    put("format", info.format.name().into());
    put("virtual_size", info.len_bytes.into());
    put("allocated", info.allocated_bytes.into());
    put("partition", report.partition.into());
    put(
        "partition_table",
        report
            .table
            .as_ref()
            .map(|table| table_json(report, table))
            .into(),
    );
    put("contents", report.whole.name().into());
    put("file_system", report.file_system().map(summary_json).into());
    let tree = report.whole.tree();
    put("verity", tree.map(FoundTree::to_json).into());
    object.into()
}

fn table_json(report: &ImageReport, table: &PartitionTable) -> Value {
    let partition = |(index, entry): (usize, &block::partition::Partition)| {
        let mut object = json!({
            "number": entry.number,
            "start": entry.start_bytes,
            "size": entry.len_bytes,
            "type": entry.type_id,
            "type_name": entry.type_name,
            "name": entry.label,
            "uuid": entry.uuid,
            "bootable": entry.is_bootable,
        });
        if let Some(contents) = report.contents.get(index) {
            object["contents"] = contents.name().into();
            if let Some(tree) = contents.tree() {
                object["verity"] = tree.to_json();
            }
            if let Some(summary) = contents.file_system() {
                object["file_system_uuid"] = field_json(summary, "Filesystem UUID");
                object["file_system_label"] = field_json(summary, "Filesystem volume name");
            }
        }
        object
    };
    let partitions: Vec<Value> = table.partitions.iter().enumerate().map(partition).collect();
    json!({ "type": table.scheme.name(), "id": table.id, "partitions": partitions })
}

fn field_json(summary: &SuperblockSummary, name: &str) -> Value {
    summary.field(name).map_or(Value::Null, value_json)
}

fn summary_json(summary: &SuperblockSummary) -> Value {
    let mut object = Map::new();
    object.insert("type".to_owned(), summary.type_name.into());
    for field in &summary.fields {
        object.insert(key(field.name), value_json(&field.value));
    }
    object.into()
}

/// Returns a field's name in JSON: `First error line #` is `first_error_line`.
fn key(name: &str) -> String {
    let words = name.trim_end_matches(" #").split(' ');
    words.collect::<Vec<_>>().join("_").to_lowercase()
}

fn value_json(value: &FieldValue) -> Value {
    match value {
        FieldValue::Number(number) => (*number).into(),
        FieldValue::Signed(number) => (*number).into(),
        FieldValue::Hex(number) => (*number).into(),
        FieldValue::Text(text) => text.clone().into(),
        FieldValue::Words(words) => words.clone().into(),
        FieldValue::Uuid(bytes) => uuid_text(bytes).into(),
        FieldValue::Time(time) => time.map(stamp).into(),
    }
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    for at in [20, 16, 12, 8] {
        text.insert(at, '-');
    }
    text
}

fn to_text(report: &ImageReport) -> String {
    let info = &report.info;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let name = format!("{name}:");
        text.push_str(&format!("{name:<25} {}\n", printable(&value)));
    };
    let bytes = |len: u64| format!("{} ({len} bytes)", human(len));
    line("Image", report.name.clone());
    line("Image format", info.format.name().to_owned());
    line("Virtual size", bytes(info.len_bytes));
    line("Disk size", bytes(info.allocated_bytes));
    if let Some(table) = &report.table {
        line("Partition table", format!("{} {}", table.scheme, table.id));
    }
    match report.whole.name() {
        "" if report.table.is_none() => line("Contents", "unknown".to_owned()),
        "" => {}
        name => line("Contents", name.to_owned()),
    }
    if let Some(tree) = report.whole.tree() {
        let superblock = &tree.superblock;
        line("Verity UUID", uuid_text(&superblock.uuid));
        line("Data blocks", superblock.data_blocks.to_string());
        line("Data block size", superblock.data_block_bytes.to_string());
        line("Hash block size", superblock.hash_block_bytes.to_string());
        line("Salt", hex(&superblock.salt));
        let root_hash = tree.root_hash.map(|root| hex(&root));
        line("Root hash", root_hash.unwrap_or_default());
    }
    if let Some(table) = &report.table {
        text.push_str(&partitions_text(report, table));
    }
    if let Some(summary) = report.file_system() {
        text.push('\n');
        for field in &summary.fields {
            let name = format!("{}:", field.name);
            let value = printable(&value_text(field));
            text.push_str(format!("{name:<25} {value}").trim_end());
            text.push('\n');
        }
    }
    text
}

fn partitions_text(report: &ImageReport, table: &PartitionTable) -> String {
    let head = format!(
        "{:>3} {:>14} {:>8}  {:<22} {:<16} {:<8} {}",
        "", "start", "size", "type", "name", "contents", "UUID"
    );
    let mut text = format!("\n{}\n", heading(head.trim_end()));
    for (index, entry) in table.partitions.iter().enumerate() {
        let contents = report.contents.get(index).map_or("", Contents::name);
        let line = format!(
            "{:>3} {:>14} {:>8}  {:<22} {:<16} {:<8} {}",
            entry.number,
            entry.start_bytes,
            human(entry.len_bytes),
            entry.type_name,
            entry.label,
            contents,
            entry.uuid
        );
        text.push_str(printable(&line).trim_end());
        text.push('\n');
    }
    text
}

/// Formats a field as dumpe2fs does.
fn value_text(field: &SuperblockField) -> String {
    match (&field.value, field.name) {
        (FieldValue::Number(number), name) => number_text(name, *number),
        (FieldValue::Signed(number), _) => number.to_string(),
        (FieldValue::Hex(number), "Filesystem magic number") => {
            format!("{number:#06X}").replace('X', "x")
        }
        (FieldValue::Hex(number), "Journal device") => format!("{number:#06x}"),
        (FieldValue::Hex(number), _) => format!("{number:#010x}"),
        (FieldValue::Text(text), "Filesystem volume name") if text.is_empty() => {
            "<none>".to_owned()
        }
        (FieldValue::Text(text), "Last mounted on") if text.is_empty() => {
            "<not available>".to_owned()
        }
        (FieldValue::Text(text), _) => text.clone(),
        (FieldValue::Words(words), _) if words.is_empty() => "(none)".to_owned(),
        (FieldValue::Words(words), _) => words.join(" "),
        (FieldValue::Uuid(bytes), _) if *bytes == [0; 16] => "<none>".to_owned(),
        (FieldValue::Uuid(bytes), _) => uuid_text(bytes),
        (FieldValue::Time(None), _) => "n/a".to_owned(),
        (FieldValue::Time(Some(time)), _) => date_text(*time),
    }
}

fn number_text(name: &str, number: u64) -> String {
    match name {
        "Filesystem revision #" => match number {
            0 => "0 (original)".to_owned(),
            1 => "1 (dynamic)".to_owned(),
            number => format!("{number} (unknown)"),
        },
        "Check interval" => format!("{number} ({})", interval_text(number)),
        "Lifetime writes" => lifetime_text(number),
        "Total journal size" if number >> 10 < 8192 => format!("{}k", number >> 10),
        "Total journal size" => format!("{}M", number >> 20),
        _ => number.to_string(),
    }
}

/// Formats a number of seconds as `2 weeks, 1 day`.
fn interval_text(seconds: u64) -> String {
    let units = [
        (7 * 24 * 3600, "week"),
        (24 * 3600, "day"),
        (3600, "hour"),
        (60, "minute"),
        (1, "second"),
    ];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (unit, name) in units {
        let count = left / unit;
        left %= unit;
        if count > 0 {
            parts.push(counted(count, name));
        }
    }
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(", ")
    }
}

/// Formats a number of KiB as `118 GB`: rounded, and with four digits at most.
fn lifetime_text(kib: u64) -> String {
    let mut unit = 0;
    while unit < 4 && kib >> (10 * unit + 13) > 0 {
        unit += 1;
    }
    let half = if unit == 0 { 0 } else { 1 << (10 * unit - 1) };
    let rounded = kib.saturating_add(half) >> (10 * unit);
    format!("{rounded} {}", ["kB", "MB", "GB", "TB", "PB"][unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_totals_match_dumpe2fs() {
        assert_eq!(interval_text(0), "<none>");
        assert_eq!(interval_text(1_209_600), "2 weeks");
        assert_eq!(interval_text(90_061), "1 day, 1 hour, 1 minute, 1 second");
        assert_eq!(lifetime_text(279), "279 kB");
        assert_eq!(lifetime_text(123_456_789), "118 GB");
        assert_eq!(lifetime_text(u64::MAX), "16777215 PB");
    }

    #[test]
    fn keys_are_names_in_lower_case() {
        assert_eq!(key("First error line #"), "first_error_line");
        assert_eq!(key("Filesystem UUID"), "filesystem_uuid");
    }
}
