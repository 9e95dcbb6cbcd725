//! `folio image map`: shows where the data of a disk is stored, through the chain of backing files.

use crate::arguments::image_options::{
    BackingOptions, OutputOptions, image_failure, whole_sectors,
};
use crate::exit::{Failure, Outcome};
use crate::image_chain::chain_files;
use crate::image_name::{NameOptions, NamedImage};
use crate::session::Session;
use crate::value_parsers::size;
use clap::Args;
use folio::block::{Allocation, Device, ImageFormat, MapEntry};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  folio image map disk.qcow2
  folio image map --output=json overlay.qcow2";

/// Show which parts of a disk are stored, and where
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Map {
    /// The image
    #[arg(value_parser = crate::image_name::value_parser())]
    file: PathBuf,
    /// Format; the default is detected from the first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Offset to start at
    #[arg(short, long, value_name = "OFFSET", value_parser = size, default_value = "0", hide_default_value = true)]
    start_offset: u64,
    /// Length of the range to show
    #[arg(short = 'l', long, value_name = "SIZE", value_parser = size)]
    max_length: Option<u64>,
    /// Read the image even if another process writes it
    #[arg(short = 'U', long)]
    force_share: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
}

/// A range of the disk.
#[derive(Debug)]
struct MapRange {
    start: u64,
    length: u64,
    depth: u32,
    present: bool,
    zero: bool,
    data: bool,
    offset: Option<u64>,
}

impl MapRange {
    fn new(start: u64, length: u64, extent: &MapEntry) -> Self {
        let is_data = extent.kind == Allocation::Data;
        Self {
            start,
            length,
            depth: extent.depth,
            present: extent.is_present,
            zero: extent.is_zero,
            data: is_data,
            offset: extent.host_offset,
        }
    }

    /// Returns the range beyond the end of a raw image, up to a whole sector, as a hole.
    fn beyond_end(start: u64, length: u64) -> Self {
        Self {
            start,
            length,
            depth: 0,
            present: true,
            zero: true,
            data: false,
            offset: Some(start),
        }
    }

    /// Converts to JSON with the keys and the layout of qemu-img.
    fn to_json(&self) -> String {
        let Self {
            start,
            length,
            depth,
            present,
            zero,
            data,
            offset,
        } = self;
        let offset = offset.map_or(String::new(), |offset| format!(", \"offset\": {offset}"));
        format!(
            "{{ \"start\": {start}, \"length\": {length}, \"depth\": {depth}, \
             \"present\": {present}, \"zero\": {zero}, \"data\": {data}{offset}}}"
        )
    }

    /// Extends this range by `next` if that continues it; returns whether it did.
    fn takes(&mut self, next: &Self) -> bool {
        let goes_on = (self.depth, self.present, self.zero, self.data)
            == (next.depth, next.present, next.zero, next.data)
            && self.offset.map(|offset| offset + self.length) == next.offset;
        if goes_on {
            self.length += next.length;
        }
        goes_on
    }
}

/// Runs the command.
pub(crate) fn run(map: &Map, session: &Session) -> Outcome {
    let NamedImage { path: file, format } = map.name.resolve(&map.file, map.format)?;
    let device = map.backing.open(&file, format, map.force_share)?;
    let mut printer = Printer::new(map, &file)?;
    let stored_bytes = device.len_bytes();
    let len_bytes = if session.is_qemu_img() {
        whole_sectors(stored_bytes)?
    } else {
        stored_bytes
    };
    let end = map
        .max_length
        .map_or(len_bytes, |length| map.start_offset.saturating_add(length))
        .min(len_bytes);
    let mut at = map.start_offset;
    let mut line: Option<MapRange> = None;
    while at < end {
        session.check_interrupt()?;
        let next = if at < stored_bytes {
            look(&*device, at, end.min(stored_bytes))
                .map_err(|error| image_failure(error, &file))?
        } else {
            MapRange::beyond_end(at, end - at)
        };
        at += next.length;
        if line.as_mut().is_some_and(|line| line.takes(&next)) {
            continue;
        }
        if let Some(done) = line.replace(next) {
            printer.print(&done)?;
        }
    }
    printer.finish(line)
}

fn look(device: &dyn Device, at: u64, end: u64) -> folio::Result<MapRange> {
    let (extent, count) = device.map_entry(at, end - at)?;
    Ok(MapRange::new(at, count.clamp(1, end - at), &extent))
}

struct Printer {
    is_json: bool,
    is_first: bool,
    /// The files of the chain, by depth.
    names: Vec<PathBuf>,
    out: BufWriter<std::io::StdoutLock<'static>>,
}

impl Printer {
    fn new(map: &Map, file: &Path) -> Outcome<Self> {
        let is_json = map.output.is_json();
        let names = if is_json {
            Vec::new()
        } else {
            chain_files(file, map.force_share)?
        };
        Ok(Self {
            is_json,
            is_first: true,
            names,
            out: BufWriter::new(std::io::stdout().lock()),
        })
    }

    fn print(&mut self, line: &MapRange) -> Outcome {
        if self.is_json {
            let text = line.to_json();
            write!(
                self.out,
                "{}{text}",
                if self.is_first { "[" } else { ",\n" }
            )?;
            self.is_first = false;
            return Ok(());
        }
        if self.is_first {
            writeln!(
                self.out,
                "{:<16}{:<16}{:<16}File",
                "Offset", "Length", "Mapped to"
            )?;
            self.is_first = false;
        }
        // As in qemu-img: preallocated space that nothing was written to is not listed.
        if !line.data || line.zero {
            return Ok(());
        }
        let Some(offset) = line.offset else {
            let text = "the image has compressed clusters, which have no offset in the file; use --output=json";
            return Err(Failure::new(text));
        };
        let name = self
            .names
            .get(line.depth as usize)
            .map(|name| name.display().to_string());
        // As in C, zero has no prefix.
        let hex = |number: u64| match number {
            0 => "0".to_owned(),
            _ => format!("{number:#x}"),
        };
        let (start, length, offset) = (hex(line.start), hex(line.length), hex(offset));
        writeln!(
            self.out,
            "{start:<16}{length:<16}{offset:<16}{}",
            name.unwrap_or_default()
        )?;
        Ok(())
    }

    fn finish(mut self, last: Option<MapRange>) -> Outcome {
        if let Some(line) = last {
            self.print(&line)?;
        }
        if self.is_json {
            let end = if self.is_first { "[]" } else { "]" };
            writeln!(self.out, "{end}")?;
        }
        Ok(self.out.flush()?)
    }
}
