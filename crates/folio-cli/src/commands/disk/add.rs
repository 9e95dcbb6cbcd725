//! `folio disk add`: one more partition in the free space of a disk.

use super::content::Content;
use super::layout::new_partition;
use super::spec::{ALIGNMENT, ContentFormat, PartitionSpec};
use crate::arguments::ownership::Ownership;
use crate::exit::{Failure, Outcome};
use crate::identity::IdentitySource;
use crate::image::{Access, open_device};
use crate::image_path::ImagePath;
use crate::output::human;
use crate::session::Session;
use crate::value_parsers::uuid;
use clap::Args;
use folio::block;
use folio::ext4::ExtraSpace;
use folio_tree::NewSize;
use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Without --size the partition fills the largest free space; one for a signature has 16 KiB.

Examples:
  folio disk add disk.img --type linux --label data --size 1G --format ext4
  folio disk add disk.qcow2 --type linux --format ext4 --source ./data --size auto+20%
  folio disk add disk.qcow2 --type linux-root-x86-64 --format ext4 --source oci:layout:app --size auto
  folio disk add disk.img --type linux-root-x86-64-verity-sig --format verity-signature --source root.sig --size auto";

/// Add a partition to a disk image
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Add {
    /// The image
    image: OsString,
    /// Type: a name such as esp, linux or swap, a UUID, or a number of an MBR such as 0x83
    #[arg(long = "type", value_name = "TYPE")]
    type_name: String,
    /// Size; auto is what the content needs, auto+20% and auto+64M leave room
    #[arg(long)]
    size: Option<String>,
    /// Offset of its first byte; the default is the first free space that is large enough
    #[arg(long, value_name = "OFFSET")]
    start: Option<String>,
    /// Label in a GPT
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: String,
    /// UUID; the default is random
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<String>,
    /// What to format it with
    #[arg(long, value_enum, default_value = "none")]
    format: ContentFormat,
    /// What to fill it with: a directory, a tar archive or a container image (oci:DIR:TAG,
    /// docker-archive:FILE, registry:NAME:TAG) for a file system, a file for raw, JSON with
    /// rootHash, certificateFingerprint and signature for verity-signature
    #[arg(long, value_name = "SOURCE")]
    source: Option<PathBuf>,
    /// The container image of this platform, e.g. linux/arm64
    #[arg(long, value_name = "OS/ARCHITECTURE", requires = "source")]
    platform: Option<String>,
    /// Label of the file system
    #[arg(
        long,
        value_name = "LABEL",
        default_value = "",
        hide_default_value = true
    )]
    filesystem_label: String,
    #[command(flatten)]
    ownership: Ownership,
}

/// Runs the command.
pub(super) fn run(add: &Add, session: &Session) -> Outcome {
    let place = ImagePath::parse(&add.image)?;
    if place.partition.is_some() || place.path.as_os_str() != "/" {
        let text =
            format!("{place}: a partition is added to a whole disk; omit partition and path");
        return Err(Failure::usage(text));
    }
    let name = place.image_name();
    let mut spec = PartitionSpec::default()
        .with_place(add.start.clone(), add.size.clone())
        .with_ownership(&add.ownership);
    spec.type_name.clone_from(&add.type_name);
    spec.label.clone_from(&add.label);
    spec.uuid.clone_from(&add.uuid);
    spec.format = add.format;
    spec.source.clone_from(&add.source);
    spec.platform.clone_from(&add.platform);
    spec.filesystem_label.clone_from(&add.filesystem_label);
    let content = Content::new(session, &spec)?;
    let failed = |error: folio::Error| Failure::image(error.at(name.clone()));
    let disk = open_device(&place.image, Access::Write)?;
    let free = block::partition::free_space(&*disk).map_err(failed)?;
    let table = block::partition::partition_table(&*disk).map_err(failed)?;
    let sector = table.as_ref().map_or(512, |table| table.sector_bytes);
    let wanted = match spec.size()? {
        None if add.format.has_own_size() => Some(
            content
                .size(session, ExtraSpace::None)?
                .next_multiple_of(4096),
        ),
        None => None,
        Some(NewSize::Bytes(bytes)) => Some(bytes.next_multiple_of(sector)),
        Some(NewSize::Auto(extra)) => Some(content.size(session, extra)?.next_multiple_of(4096)),
    };
    let (start, len) = find_place(&free, spec.start()?, wanted)
        .ok_or_else(|| Failure::new(format!("{name}: no free space that is large enough")))?;
    content.check_len(len)?;
    let ids = table.iter().flat_map(|table| &table.partitions);
    let ids: Vec<_> = ids.filter_map(|known| uuid(&known.uuid).ok()).collect();
    content.check_signed(&ids)?;
    let partition = new_partition(&spec, start, len, "", 0)?;
    // The table gets the partition last, so that it has no incomplete one after a failure.
    let addition = block::partition::PartitionAddition::new(&*disk, &partition).map_err(failed)?;
    let number = addition.number();
    let window =
        block::partition::PartitionDevice::new(disk.clone(), start, len).map_err(failed)?;
    block::Device::write_zeroes(&window, 0, len).map_err(failed)?;
    let mut identity = IdentitySource::new("", 0);
    let place = ImagePath {
        partition: Some(block::partition::PartitionName::Number(number)),
        ..place
    };
    content.write(session, &disk, &place, &partition, &mut identity)?;
    if session.has_failures() {
        let text = format!("{name}: the partition would be incomplete and is not added");
        return Err(Failure::new(text));
    }
    disk.flush().map_err(failed)?;
    addition.write(&*disk).map_err(failed)?;
    disk.flush().map_err(failed)?;
    if !session.quiet {
        writeln!(
            std::io::stdout(),
            "{name}@{number}: {} from byte {start}",
            human(len)
        )?;
    }
    Ok(())
}

/// Returns start and length of a new partition.
fn find_place(free: &[Range<u64>], start: Option<u64>, wanted: Option<u64>) -> Option<(u64, u64)> {
    let mut gaps = free.iter().filter_map(|range| {
        let first = range.start.next_multiple_of(ALIGNMENT);
        // Whole pages, as file systems.
        let len = range.end.saturating_sub(first) / 4096 * 4096;
        (len > 0).then_some((first, len))
    });
    match (start, wanted) {
        (Some(start), Some(len)) => Some((start, len)),
        (Some(start), None) => gaps
            .find(|(first, len)| (*first..first + len).contains(&start))
            .map(|(first, len)| (start, first + len - start)),
        (None, Some(wanted)) => gaps
            .find(|(_, len)| *len >= wanted)
            .map(|(first, _)| (first, wanted)),
        (None, None) => gaps.max_by_key(|(_, len)| *len),
    }
}
