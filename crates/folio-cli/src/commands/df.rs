//! `folio df`: shows the space and the inodes of file systems.

use crate::arguments::usage_options::UsageOptions;
use crate::exit::Outcome;
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::output::color::heading;
use crate::session::Session;
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;
use std::io::Write;

/// Show used and free space
#[derive(Args)]
#[command(
    after_help = "Example:\n  folio df -h disk.qcow2",
    disable_help_flag = true
)]
pub(crate) struct Df {
    /// Images
    #[arg(required = true)]
    images: Vec<OsString>,
    /// Print inodes instead of space
    #[arg(short)]
    inodes: bool,
    #[command(flatten)]
    share: crate::arguments::force_share::ForceShare,
    #[command(flatten)]
    options: UsageOptions,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct FileSystemUsage {
    /// As the user named it.
    image: String,
    /// Bytes.
    block_size: u32,
    /// Bytes.
    size: u64,
    /// Bytes.
    used: u64,
    /// Bytes.
    free: u64,
    /// Bytes not reserved for root.
    available: u64,
    inodes: u64,
    inodes_free: u64,
}

/// Runs the command.
pub(crate) fn run(df: &Df, session: &Session) -> Outcome {
    df.share.apply(session);
    let mut lines = Vec::new();
    for word in &df.images {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Read, |image| {
            let found = image
                .process()
                .statfs(&place.path)
                .map_err(|error| image.name(error))?;
            let bytes = |blocks: u64| blocks.saturating_mul(found.block_size.into());
            lines.push(FileSystemUsage {
                image: image.name.clone(),
                block_size: found.block_size,
                size: bytes(found.blocks),
                used: bytes(found.blocks.saturating_sub(found.blocks_free)),
                free: bytes(found.blocks_free),
                available: bytes(found.blocks_available),
                inodes: found.inodes,
                inodes_free: found.inodes_free,
            });
            Ok(())
        })?;
    }
    if df.options.json {
        return session.print_json(&lines);
    }
    let mut out = std::io::stdout().lock();
    let width = lines
        .iter()
        .map(|line| line.image.len())
        .max()
        .unwrap_or(0)
        .max(10);
    let titles = if df.inodes {
        ["Inodes", "IUsed", "IFree", "IUse%"]
    } else {
        ["Size", "Used", "Avail", "Use%"]
    };
    let [a, b, c, d] = titles;
    let titles = format!("{:<width$} {a:>12} {b:>12} {c:>12} {d:>5}", "Image");
    writeln!(out, "{}", heading(titles))?;
    for line in &lines {
        let (size, used, free) = if df.inodes {
            (
                line.inodes,
                line.inodes.saturating_sub(line.inodes_free),
                line.inodes_free,
            )
        } else {
            (line.size, line.used, line.available)
        };
        let text = |value: u64| {
            if df.inodes {
                value.to_string()
            } else {
                df.options.size(value)
            }
        };
        let percent = (used as u128 * 100).div_ceil((used as u128 + free as u128).max(1));
        let (size, used, free) = (text(size), text(used), text(free));
        writeln!(
            out,
            "{:<width$} {size:>12} {used:>12} {free:>12} {percent:>4}%",
            line.image
        )?;
    }
    Ok(out.flush()?)
}
