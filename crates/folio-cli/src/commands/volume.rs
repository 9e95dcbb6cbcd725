//! `folio volume`: writable disks on object storage.

use crate::exit::{Failure, Outcome};
use crate::output::{counted, human, printable};
use crate::progress::Progress;
use crate::session::Session;
use crate::value_parsers::size;
use crate::volumes::{create_checked, place, takeover};
use clap::{Args, Subcommand};
use folio_volume::{
    GcOptions, GcReport, Snapshot, StorePlace, Volume as OpenVolume, VolumeInfo, VolumeMeta,
    VolumeReader, WorkProgress, check, clone_snapshot, delete_snapshot, delete_volume, grow_volume,
    info, snapshots,
};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  folio volume create s3://bucket/vol1 --size 1T
  folio cp -a ./tree s3://bucket/vol1:/ --create    folio mount s3://bucket/vol1 /mnt
  folio volume snapshot s3://bucket/vol1 monday     folio volume rollback s3://bucket/vol1 monday
  folio volume clone s3://bucket/vol1 monday s3://bucket/vol2
  folio volume resize s3://bucket/vol1 2T           folio volume gc s3://bucket/vol1";

/// Create and manage writable volumes on object storage
///
/// A volume is a disk with one writer and any number of readers. Every command that takes an image
/// takes the volume's URL.
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Volume {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand)]
enum VolumeCommand {
    /// Create a volume, after a check that the store is safe for it
    Create {
        /// The volume, such as s3://bucket/vol1
        url: PathBuf,
        /// Size of the disk; only what is written is stored
        #[arg(long, value_parser = size)]
        size: u64,
    },
    /// Print a volume's size, stored bytes and writer
    Info {
        /// The volume
        url: PathBuf,
    },
    /// Enlarge a volume; the file system in it is enlarged by folio resize
    Resize {
        /// The volume
        url: PathBuf,
        /// The new size of the disk
        #[arg(value_parser = size)]
        size: u64,
    },
    /// List a volume's snapshots and clones, and the volume that it is a clone of
    List {
        /// The volume
        url: PathBuf,
    },
    /// Create a snapshot, or delete one
    Snapshot {
        /// The volume
        url: PathBuf,
        /// The snapshot's name
        name: String,
        /// Delete the snapshot
        #[arg(long)]
        delete: bool,
    },
    /// Create a volume with the content of a snapshot, without copying data
    Clone {
        /// The volume
        url: PathBuf,
        /// The snapshot's name
        name: String,
        /// The new volume, in the same bucket
        target: PathBuf,
    },
    /// Return a volume to the content of a snapshot
    Rollback {
        /// The volume
        url: PathBuf,
        /// The snapshot's name
        name: String,
    },
    /// Check that all segments of a volume and its snapshots exist
    Check {
        /// The volume
        url: PathBuf,
        /// Read all data and compare it with its checksums
        #[arg(long)]
        data: bool,
    },
    /// Delete what no flush point in use needs, and rewrite sparse segments
    Gc {
        /// The volume
        url: PathBuf,
        /// Keep unused objects for this many hours, for readers and paused writers
        #[arg(long, value_name = "HOURS", default_value_t = 24.0, value_parser = hours)]
        min_age: f64,
    },
    /// Delete a volume with all its snapshots
    Delete {
        /// The volume
        url: PathBuf,
    },
}

fn hours(text: &str) -> Result<f64, String> {
    let hours = text.parse().ok().filter(|h: &f64| (0.0..1e6).contains(h));
    hours.ok_or_else(|| "expected a number of hours from 0 on, such as 24 or 0.5".to_owned())
}

/// Returns the name for messages.
pub(crate) fn name(volume: &Volume) -> &'static str {
    match &volume.command {
        VolumeCommand::Create { .. } => "volume create",
        VolumeCommand::Info { .. } => "volume info",
        VolumeCommand::Resize { .. } => "volume resize",
        VolumeCommand::List { .. } => "volume list",
        VolumeCommand::Snapshot { .. } => "volume snapshot",
        VolumeCommand::Clone { .. } => "volume clone",
        VolumeCommand::Rollback { .. } => "volume rollback",
        VolumeCommand::Check { .. } => "volume check",
        VolumeCommand::Gc { .. } => "volume gc",
        VolumeCommand::Delete { .. } => "volume delete",
    }
}

fn failed(error: folio::Error) -> Failure {
    Failure::image(error)
}

fn open(url: &Path) -> Outcome<OpenVolume> {
    OpenVolume::open(&place(url)?, takeover()).map_err(failed)
}

/// Runs the command.
pub(crate) fn run(volume: &Volume, session: &Session) -> Outcome {
    session.refuse_options()?;
    let report = Report {
        session,
        is_json: volume.json,
    };
    match &volume.command {
        VolumeCommand::Create { url, size } => {
            let created = create_checked(&place(url)?, *size)?;
            let id = created.meta().id;
            created.close().map_err(failed)?;
            let text = format!("a volume of {}", human(*size));
            report.done(url, &text, json!({"id": id, "size_bytes": size}))
        }
        VolumeCommand::Info { url } => report.info(url, &info(&place(url)?).map_err(failed)?),
        VolumeCommand::Resize { url, size } => {
            let before = grow_volume(&place(url)?, *size, takeover()).map_err(failed)?;
            let text = format!("enlarged from {} to {}", human(before), human(*size));
            report.done(url, &text, json!({"size_bytes": size}))
        }
        VolumeCommand::List { url } => {
            let place = place(url)?;
            let meta = VolumeReader::open(&place, None).map_err(failed)?.meta();
            report.list(&meta, &snapshots(&place).map_err(failed)?)
        }
        VolumeCommand::Snapshot { url, name, delete } => snapshot(&report, url, name, *delete),
        VolumeCommand::Clone { url, name, target } => {
            let (source, new) = clone_places(url, target)?;
            let clone = clone_snapshot(&source, name, &new).map_err(failed)?;
            let id = clone.meta().id;
            clone.close().map_err(failed)?;
            let text = format!("a clone of snapshot {name:?}");
            report.done(target, &text, json!({"id": id}))
        }
        VolumeCommand::Rollback { url, name } => {
            let volume = open(url)?;
            volume.rollback(name).map_err(failed)?;
            volume.close().map_err(failed)?;
            let text = format!("rolled back to snapshot {name:?}");
            report.done(url, &text, json!({"snapshot": name}))
        }
        VolumeCommand::Check { url, data } => report.check(url, &place(url)?, *data),
        VolumeCommand::Gc { url, min_age } => collect(&report, url, *min_age),
        VolumeCommand::Delete { url } => {
            let count = delete_volume(&place(url)?, takeover()).map_err(failed)?;
            let text = format!("deleted, {}", counted(count, "object"));
            report.done(url, &text, json!({"objects": count}))
        }
    }
}

fn snapshot(report: &Report<'_>, url: &Path, name: &str, deletes: bool) -> Outcome {
    if deletes {
        delete_snapshot(&place(url)?, name).map_err(failed)?;
        return report.done(url, &format!("deleted snapshot {name:?}"), json!({}));
    }
    let volume = open(url)?;
    volume.snapshot(name).map_err(failed)?;
    volume.close().map_err(failed)?;
    report.done(
        url,
        &format!("snapshot {name:?}"),
        json!({"snapshot": name}),
    )
}

fn collect(report: &Report<'_>, url: &Path, hours: f64) -> Outcome {
    let volume = open(url)?;
    let mut options = GcOptions::default();
    options.min_age = Duration::from_secs_f64(hours * 3600.0);
    let collected = report.follow(|progress| volume.collect_garbage(&options, progress))?;
    volume.close().map_err(failed)?;
    report.collected(url, collected)
}

/// Returns the places of a clone's source and target, which share a bucket.
fn clone_places(url: &Path, target: &Path) -> Outcome<(StorePlace, StorePlace)> {
    let bucket = |path: &Path| {
        let text = path.to_string_lossy().into_owned();
        let rest = text.split_once("://").map_or("", |(_, rest)| rest);
        let host = rest.split('/').next().unwrap_or("").len();
        text[..text.len() - rest.len() + host].to_owned()
    };
    if bucket(url) != bucket(target) {
        return Err(Failure::usage(format!(
            "{}: a clone shares segments with {}: give a URL in the same bucket",
            target.display(),
            url.display()
        )));
    }
    Ok((place(url)?, place(target)?))
}

/// The output of a command.
struct Report<'a> {
    session: &'a Session,
    is_json: bool,
}

impl Report<'_> {
    fn done(&self, url: &Path, text: &str, mut fields: Value) -> Outcome {
        if self.is_json {
            fields["url"] = json!(url.to_string_lossy());
            return self.session.print_json(&fields);
        }
        if !self.session.quiet {
            self.session.note(format_args!("{}: {text}", url.display()));
        }
        Ok(())
    }

    fn info(&self, url: &Path, info: &VolumeInfo) -> Outcome {
        let writer = info.writer.as_ref();
        if self.is_json {
            return self.session.print_json(&json!({
                "url": url.to_string_lossy(),
                "id": info.meta.id,
                "format": info.meta.format,
                "size_bytes": info.meta.size_bytes,
                "logical_bytes": info.logical_bytes,
                "stored_bytes": info.stored_bytes,
                "objects": info.objects,
                "segments": info.segments,
                "flush": info.flush,
                "clone_of": info.meta.origins.get(1),
                "writer": writer.map(|w| json!({
                    "is_open": w.is_open,
                    "host": w.host,
                    "process_id": w.process_id,
                    "epoch": w.epoch,
                })),
            }));
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "volume   {} ({})", url.display(), info.meta.id)?;
        writeln!(out, "size     {}", human(info.meta.size_bytes))?;
        let (logical, stored) = (human(info.logical_bytes), human(info.stored_bytes));
        writeln!(
            out,
            "stored   {stored} in {}, for {logical} of the disk",
            counted(info.objects, "object")
        )?;
        writeln!(out, "flushes  {}", info.flush)?;
        if let Some(parent) = info.meta.origins.get(1) {
            writeln!(out, "clone of {}", printable(parent))?;
        }
        if let Some(writer) = writer {
            let state = if writer.is_open {
                "open, or crashed"
            } else {
                "closed"
            };
            let host = printable(&writer.host);
            writeln!(
                out,
                "writer   {state}: process {} on {host}",
                writer.process_id
            )?;
        }
        Ok(())
    }

    /// Shows the progress of `work`.
    fn follow<T>(
        &self,
        work: impl FnOnce(&mut dyn FnMut(WorkProgress)) -> folio::Result<T>,
    ) -> Outcome<T> {
        let progress = Progress::new(self.session);
        let done = work(&mut |step| match step {
            WorkProgress::Expected(len_bytes) => progress.expect(len_bytes),
            WorkProgress::Done(len_bytes) => progress.add(len_bytes),
            _ => {}
        });
        progress.finish();
        done.map_err(failed)
    }

    fn list(&self, meta: &VolumeMeta, snapshots: &[Snapshot]) -> Outcome {
        let parent = meta.origins.get(1);
        if self.is_json {
            let list: Vec<Value> = snapshots
                .iter()
                .map(|s| json!({"name": s.name, "is_clone": s.is_clone, "created_s": s.created_s}))
                .collect();
            let list = json!({ "clone_of": parent, "snapshots": list });
            return self.session.print_json(&list);
        }
        let mut out = std::io::stdout().lock();
        if let Some(parent) = parent {
            writeln!(out, "clone of  {}", printable(parent))?;
        }
        for snapshot in snapshots {
            let kind = if snapshot.is_clone {
                "clone"
            } else {
                "snapshot"
            };
            writeln!(out, "{kind:<9} {}", printable(&snapshot.name))?;
        }
        Ok(())
    }

    fn check(&self, url: &Path, place: &StorePlace, reads_data: bool) -> Outcome {
        let checked = self.follow(|progress| check(place, reads_data, progress))?;
        if self.is_json {
            self.session.print_json(&json!({
                "url": url.to_string_lossy(),
                "states": checked.states,
                "blocks": checked.blocks,
                "read_blocks": checked.read_blocks,
                "problems": checked.problems,
            }))?;
        } else {
            let mut out = std::io::stdout().lock();
            for problem in &checked.problems {
                writeln!(out, "{}", printable(problem))?;
            }
            let states = counted(checked.states, "state");
            let blocks = counted(checked.blocks, "block");
            writeln!(out, "{}: {states}, {blocks}", url.display())?;
        }
        match checked.problems.len() {
            0 => Ok(()),
            count => {
                let problems = counted(count as u64, "problem");
                Err(Failure::new(format!("{}: {problems}", url.display())))
            }
        }
    }

    fn collected(&self, url: &Path, report: GcReport) -> Outcome {
        let text = format!(
            "deleted {} segments ({}), rewrote {}, {} wait for their age",
            report.deleted_segments,
            human(report.deleted_bytes),
            human(report.rewritten_bytes),
            report.waiting_segments
        );
        self.done(
            url,
            &text,
            json!({
                "deleted_segments": report.deleted_segments,
                "deleted_bytes": report.deleted_bytes,
                "rewritten_bytes": report.rewritten_bytes,
                "waiting_segments": report.waiting_segments,
            }),
        )
    }
}
