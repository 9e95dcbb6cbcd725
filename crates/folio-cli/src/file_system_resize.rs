//! The resize of an ext4, with progress, and its report.

use crate::exit::{Failure, Outcome};
use crate::output::{counted, human};
use crate::session::{Session, clock};
use folio::block::Device;
use folio::ext4::{self, ResizeOptions, ResizeReport};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Returns the options to fill the device, or to have this size.
pub(crate) fn options(len_bytes: Option<u64>) -> ResizeOptions {
    let mut options = ResizeOptions::default();
    options.len_bytes = len_bytes;
    options.clock = clock();
    options
}

/// Resizes the ext4 on a device, with progress. `name` is the image's, for messages.
pub(crate) fn resize_file_system(
    session: &Session,
    file_system: &Arc<dyn Device>,
    options: &ResizeOptions,
    name: &str,
) -> Outcome<ResizeReport> {
    let bar = bar(session);
    let resized = ext4::resize(file_system, options, &mut |done, wanted| {
        if let Some(bar) = &bar {
            bar.set_length(wanted);
            bar.set_position(done);
        }
        if session.is_interrupted() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    session.check_interrupt()?;
    resized.map_err(|error| Failure::image(error.at(name.to_owned())))
}

fn bar(session: &Session) -> Option<ProgressBar> {
    if !session.shows_progress() {
        return None;
    }
    let bar = session.screen.add(ProgressBar::no_length());
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} blocks, {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    Some(bar)
}

/// Returns the report as JSON.
pub(crate) fn to_json(image: &str, report: &ResizeReport) -> Value {
    let size = |of: &folio::ext4::FileSystemSize| {
        json!({
            "blocks": of.blocks,
            "free_blocks": of.free_blocks,
            "inodes": of.inodes,
            "groups": of.groups,
        })
    };
    json!({
        "image": image,
        "block_size": report.block_size,
        "old": size(&report.old),
        "new": size(&report.new),
    })
}

/// Returns the report as a line.
pub(crate) fn summary(report: &ResizeReport) -> String {
    let (old, new, block_size) = (&report.old, &report.new, u64::from(report.block_size));
    let size = |blocks: u64| human(blocks.saturating_mul(block_size));
    if old == new {
        return format!(
            "already has {} blocks of {block_size} bytes; nothing to do",
            old.blocks
        );
    }
    if new.blocks < old.blocks {
        return format!(
            "{} blocks of {block_size} bytes before, {} now ({} -> {}): removed {}, {}, {}",
            old.blocks,
            new.blocks,
            size(old.blocks),
            size(new.blocks),
            counted(old.blocks - new.blocks, "block"),
            counted((old.inodes - new.inodes).into(), "inode"),
            counted((old.groups - new.groups).into(), "group"),
        );
    }
    format!(
        "{} blocks of {block_size} bytes before, {} now ({} -> {}): added {}, {} of them free, {}, {}",
        old.blocks,
        new.blocks,
        size(old.blocks),
        size(new.blocks),
        counted(new.blocks - old.blocks, "block"),
        new.free_blocks.saturating_sub(old.free_blocks),
        counted((new.inodes - old.inodes).into(), "inode"),
        counted((new.groups - old.groups).into(), "group"),
    )
}
