//! `folio check`: checks the file system in an image, or verifies it against a root hash.
//!
//! ```text
//!   mod.rs      the check of an ext4, and its repair
//!     |-- erofs.rs    the check of an EROFS
//!     |-- verity.rs   the check against a root hash
//!     v
//!   findings.rs   findings on the terminal and in JSON, and progress
//! ```

#[cfg(feature = "squashfs-erofs")]
mod erofs;
mod findings;
mod verity;

use self::verity::{VerityCheck, VerityOptions};
use crate::arguments::force_share::ForceShare;
use crate::exit::{Exit, Failure, Outcome, explain};
use crate::image::{Access, open_device, open_to_read};
use crate::image_path::ImagePath;
use crate::output::{counted, human};
use crate::session::{Session, clock};
use crate::value_parsers::size;
use clap::Args;
use findings::{FindingPrinter, FindingRecord};
use folio::block::{self, Device, FileSystemKind};
use folio::ext4::{self, CheckOptions, CheckReport, RepairPlan, Severity};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const AFTER_HELP: &str = "\
Without --repair nothing is written.

--repair replays the journal, releases orphans and fixes each error that has only one possible fix: in bitmaps, counts,
links, checksums, sizes, entries and indices of directories, and the journal and the superblock from their backups.
Files without a name get one in lost+found. It repairs in memory first, checks the result, and writes only if no error
is left. Otherwise it writes nothing, and names the errors and the e2fsck command to use. The bytes it replaces are
saved first, in IMAGE.undo or --undo-file; --undo restores them. Changes that e2fsck -p leaves to e2fsck -y are
confirmed on the terminal, or by --yes. Images of all formats are repaired in place.

A journal with transactions is replayed in memory first, so that the check sees what a mount would see. With
--no-replay the check reads the image as it is, like e2fsck -fn; it may then report errors that a mount would repair.

An EROFS is checked like fsck.erofs --extract does: names, links, places, attributes, and that compressed contents decode.
It is not repaired.

With --root-hash, the check is that of dm-verity: every block of data, and of the hash tree over it, against the root
hash. The file system, of any kind, is not looked at.

Exit codes, as e2fsck's:
  0    no errors (there may be warnings)
  1    all errors were repaired
  4    errors, not repaired
  8    the check failed to run: neither ext4 nor EROFS, an unknown feature, or an unusable image
  16   usage error

Examples:
  folio check disk.img
  folio check --json disk.qcow2@2
  folio check root.erofs
  folio check --repair --yes disk.qcow2
  folio check --undo disk.qcow2.undo disk.qcow2
  folio check --quiet disk.img && echo clean
  folio check disk.img --root-hash HASH            the partitions whose UUIDs are the halves of HASH
  folio check root.img --root-hash HASH --hash-file root.verity";

/// Check all structures of a file system, and repair them
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Check {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// Ignore the journal and check the image as it is
    #[arg(long)]
    no_replay: bool,
    /// Repair, if every error has exactly one possible fix
    #[arg(long, conflicts_with = "no_replay")]
    repair: bool,
    /// Repair without a question
    #[arg(short, long, requires = "repair")]
    yes: bool,
    /// Save the replaced bytes in this new file; the default is IMAGE.undo
    #[arg(long, value_name = "FILE", requires = "repair")]
    undo_file: Option<PathBuf>,
    /// Restore the bytes that a repair replaced
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repair", "no_replay", "json"])]
    undo: Option<PathBuf>,
    /// Print at most this many findings; the rest are only counted
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = size)]
    findings: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verity: VerityOptions,
    #[command(flatten)]
    share: ForceShare,
}

/// Runs the command.
pub(crate) fn run(check: &Check, session: &Session) -> Outcome {
    let not_checked = |failure: Failure| Failure {
        exit: Exit::NotChecked,
        ..failure
    };
    let place = place(check)?;
    let disk = open(check, session, &place).map_err(not_checked)?;
    if let Some(root) = &check.verity.root_hash {
        session.refuse_options()?;
        let verity = VerityCheck {
            options: &check.verity,
            place: &place,
            root,
            findings_max: check.findings,
            prints_json: check.json,
        };
        return verity.run(session, &disk);
    }
    let name = place.image_name();
    let device = place
        .partition_number(&*disk)
        .and_then(|number| selected(disk.clone(), number))
        .map_err(|error| not_checked(Failure::image(error.at(name.clone()))))?;
    if let Some(saved) = &check.undo {
        return undo(&name, &*device, saved, session);
    }
    let mut options = CheckOptions::default();
    options.replays_journal = !check.no_replay;
    options.findings_max = usize::try_from(check.findings).unwrap_or(usize::MAX);
    options.clock = clock();
    let mut printer = FindingPrinter::new(session, check.json);
    let is_erofs =
        FileSystemKind::of(&*device).is_ok_and(|kind| kind == Some(FileSystemKind::Erofs));
    let checked = check_device(check, &device, &options, &mut printer);
    if let Some(bar) = &printer.bar {
        bar.finish_and_clear();
    }
    if let Some(error) = printer.failed {
        return Err(error.into());
    }
    session.refuse_options()?;
    session.check_interrupt()?;
    let checked = checked.map_err(|error| not_checked(Failure::image(error.at(name.clone()))))?;
    let plan = match checked {
        Checked::Reported(report) => {
            let wants_advice = report.errors > 0 && printer.lines.is_none() && !is_erofs;
            let advice = wants_advice.then(|| advice(&device, &options, || e2fsck(&place, &*disk)));
            let lines = printer.lines.as_deref();
            return conclude(&name, &report, advice.as_deref(), lines, session);
        }
        Checked::Planned(plan) => plan,
    };
    let repair = Repair {
        name,
        place,
        disk,
        plan,
    };
    repair.run(check, printer.lines.as_deref(), session)
}

/// Checks the file system on a device, or plans its repair.
fn check_device(
    check: &Check,
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    printer: &mut FindingPrinter<'_>,
) -> folio::Result<Checked> {
    #[cfg(feature = "squashfs-erofs")]
    if FileSystemKind::of(&**device)? == Some(FileSystemKind::Erofs) {
        if check.repair {
            let reason = "repair of an erofs; make it again with folio mkfs --type erofs";
            return Err(folio::Error::unsupported(reason));
        }
        return erofs::report(device, options.findings_max, printer).map(Checked::Reported);
    }
    if check.repair {
        return ext4::plan_repair(device, options, printer).map(Checked::Planned);
    }
    ext4::check(device, options, printer).map(Checked::Reported)
}

/// Returns the image and the partition to check.
fn place(check: &Check) -> Outcome<ImagePath> {
    let place = ImagePath::parse(&check.image).and_then(|place| {
        if place.path.as_os_str() == "/" {
            return Ok(place);
        }
        Err(Failure::usage(format!(
            "{place}: the check covers a whole file system; omit the path"
        )))
    });
    place.map_err(|failure| Failure {
        exit: Exit::CheckUsage,
        ..failure
    })
}

fn open(check: &Check, session: &Session, place: &ImagePath) -> Outcome<Arc<dyn Device>> {
    if check.repair || check.undo.is_some() {
        return open_device(&place.image, Access::Write);
    }
    check.share.apply(session);
    open_to_read(session, &place.image)
}

/// The result of a check, or of one that plans a repair.
enum Checked {
    Reported(CheckReport),
    Planned(RepairPlan),
}

/// Returns which repair of the errors would be complete; plans Folio's in memory.
fn advice(
    device: &Arc<dyn Device>,
    options: &CheckOptions,
    e2fsck: impl FnOnce() -> String,
) -> String {
    let mut options = options.clone();
    options.findings_max = 0;
    match ext4::plan_repair(device, &options, &mut Vec::new()) {
        Ok(plan) if plan.is_clean() => "run folio check --repair".to_owned(),
        _ => format!("repair it with {}", e2fsck()),
    }
}

/// Prints the report of a check without repair, and what to do.
fn conclude(
    name: &str,
    report: &CheckReport,
    advice: Option<&str>,
    lines: Option<&[FindingRecord]>,
    session: &Session,
) -> Outcome {
    match lines {
        Some(lines) => session.print_json_alone(&to_json(name, report, lines))?,
        None if !session.quiet => {
            writeln!(std::io::stdout(), "{name}: {}", summary(report, advice))?
        }
        None => {}
    }
    if report.is_clean() {
        Ok(())
    } else {
        Err(Failure::exiting(Exit::ErrorsLeft, String::new()))
    }
}

/// Restores the bytes in an undo file.
fn undo(name: &str, device: &dyn Device, saved: &Path, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let not_restored = |message: String| Failure::exiting(Exit::NotChecked, message);
    let file =
        File::open(saved).map_err(|error| not_restored(format!("{}: {error}", saved.display())))?;
    let report = ext4::undo_repair(device, &mut BufReader::new(file))
        .map_err(|error| not_restored(format!("{name}: {}", explain(&error))))?;
    if !session.quiet {
        let bytes = human(report.restored_bytes);
        writeln!(std::io::stdout(), "{name}: {bytes} restored")?;
    }
    Ok(())
}

/// A planned repair of an image.
struct Repair {
    name: String,
    place: ImagePath,
    disk: Arc<dyn Device>,
    plan: RepairPlan,
}

impl Repair {
    fn run(&self, check: &Check, lines: Option<&[FindingRecord]>, session: &Session) -> Outcome {
        let plan = &self.plan;
        let is_needed = plan.changed_bytes() > 0;
        let refusal = self.refusal(check)?;
        let mut undo_file = None;
        if is_needed && refusal.is_none() {
            undo_file = Some(self.write(check)?);
        }
        let is_repaired = plan.before.errors > 0 && refusal.is_none();
        if let Some(lines) = lines {
            let mut json = to_json(&self.name, &plan.before, lines);
            json["repaired"] = json!(is_repaired);
            json["written_bytes"] = json!(undo_file.as_ref().map_or(0, |_| plan.changed_bytes()));
            json["undo_file"] = json!(undo_file.as_ref().map(|file| file.display().to_string()));
            session.print_json_alone(&json)?;
        } else if !session.quiet && refusal.is_none() {
            self.print(undo_file.as_deref())?;
        }
        match refusal {
            Some(message) => Err(Failure::exiting(Exit::ErrorsLeft, message)),
            None if is_repaired => Err(Failure::exiting(Exit::Repaired, String::new())),
            None => Ok(()),
        }
    }

    /// Returns why nothing is written: errors without a single answer, or no consent.
    fn refusal(&self, check: &Check) -> Outcome<Option<String>> {
        let plan = &self.plan;
        if !plan.is_clean() {
            const SHOWN: usize = 5;
            let errors = plan
                .remaining
                .iter()
                .filter(|finding| finding.severity == Severity::Error);
            let mut text = format!(
                "{}: {} of {} errors have no single answer; nothing was written; use {}",
                self.name,
                plan.after.errors,
                plan.before.errors.max(plan.after.errors),
                e2fsck(&self.place, &*self.disk)
            );
            for finding in errors.take(SHOWN) {
                text.push_str(&format!("\n  not repaired: {finding}"));
            }
            return Ok(Some(text));
        }
        if plan.beyond_preen == 0 || check.yes {
            return Ok(None);
        }
        let changes = plan.beyond_preen;
        let has_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if has_terminal && !check.json {
            eprint!(
                "{}: repair, with {changes} changes beyond e2fsck -p? [y/N] ",
                self.name
            );
            let mut answer = String::new();
            std::io::stdin().read_line(&mut answer)?;
            if answer.trim().eq_ignore_ascii_case("y") {
                return Ok(None);
            }
            return Ok(Some(format!("{}: nothing was written", self.name)));
        }
        Ok(Some(format!(
            "{}: changes beyond e2fsck -p: {changes}; nothing was written; use --yes",
            self.name
        )))
    }

    /// Saves the old bytes, then writes the repair; returns the undo file.
    fn write(&self, check: &Check) -> Outcome<PathBuf> {
        let path = check.undo_file.clone().unwrap_or_else(|| {
            let mut name = self.place.image.clone().into_os_string();
            name.push(".undo");
            name.into()
        });
        let failed = |what: String| Failure::exiting(Exit::NotChecked, what);
        let io = |error: std::io::Error| {
            let hint = if error.kind() == std::io::ErrorKind::AlreadyExists {
                "; move it away or use --undo-file"
            } else {
                ""
            };
            failed(format!(
                "{}: {error}{hint}; nothing was written",
                path.display()
            ))
        };
        let file = File::create_new(&path).map_err(io)?;
        let mut out = BufWriter::new(file);
        let saved = self.plan.save_undo(&mut out);
        saved.map_err(|error| failed(format!("{}: {}", path.display(), explain(&error))))?;
        let file = out.into_inner().map_err(|error| io(error.into_error()))?;
        file.sync_all().map_err(io)?;
        // The name of the file is durable with its directory.
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))
            .and_then(|directory| directory.sync_all())
            .map_err(io)?;
        self.plan.write().map_err(|error| {
            let text = explain(&error);
            let undo = path.display();
            failed(format!("{}: {text}; use --undo {undo}", self.name))
        })?;
        Ok(path)
    }

    fn print(&self, undo_file: Option<&Path>) -> Outcome {
        let plan = &self.plan;
        let mut out = std::io::stdout();
        let Some(undo_file) = undo_file else {
            writeln!(out, "{}: {}", self.name, summary(&plan.after, None))?;
            return Ok(());
        };
        let replayed = match plan.before.replayed_transactions {
            Some(count) => format!("{} replayed, ", counted(count.into(), "transaction")),
            None => String::new(),
        };
        writeln!(
            out,
            "{}: {replayed}{} repaired, {} written; undo: folio check --undo {} {}",
            self.name,
            counted(plan.before.errors, "error"),
            human(plan.changed_bytes()),
            undo_file.display(),
            self.name
        )?;
        Ok(())
    }
}

/// Returns the device to check: the whole disk, too, if it has neither a superblock nor partitions.
/// A backup of the superblock may still be intact.
fn selected(disk: Arc<dyn Device>, partition: Option<u32>) -> folio::Result<Arc<dyn Device>> {
    let is_bare = partition.is_none()
        && FileSystemKind::of(&*disk)? != Some(FileSystemKind::Ext4)
        && block::partition::partitions(&*disk)?.is_empty();
    if is_bare {
        Ok(disk)
    } else {
        block::partition::select(disk, partition)
    }
}

/// Returns the e2fsck command for the same file system.
fn e2fsck(place: &ImagePath, disk: &dyn Device) -> String {
    let path = place.image.display();
    let mut magic = [0; 4];
    let is_read = File::open(&place.image)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    let is_qcow2 = is_read.is_ok() && magic == *b"QFI\xfb";
    let Ok(Some(number)) = place.partition_number(disk) else {
        return if is_qcow2 {
            format!("qemu-nbd -c /dev/nbd0 {path} && e2fsck -fy /dev/nbd0")
        } else {
            format!("e2fsck -fy {path}")
        };
    };
    if is_qcow2 {
        return format!("qemu-nbd -c /dev/nbd0 {path} && e2fsck -fy /dev/nbd0p{number}");
    }
    let start = block::partition::partitions(disk)
        .unwrap_or_default()
        .iter()
        .find(|partition| partition.number == number)
        .map_or(0, |partition| partition.start_bytes);
    format!("e2fsck -fy '{path}?offset={start}'")
}

fn to_json(image: &str, report: &CheckReport, findings: &[FindingRecord]) -> Value {
    json!({
        "image": image,
        "clean": report.is_clean(),
        "complete": report.is_complete,
        "errors": report.errors,
        "warnings": report.warnings,
        "findings": findings,
        "findings_untold": report.unreported,
        "replayed_transactions": report.replayed_transactions,
        "inodes": report.inode_count,
        "inodes_used": report.inodes_used,
        "directories": report.directories,
        "block_size": report.block_size,
        "blocks": report.block_count,
        "blocks_used": report.blocks_used,
    })
}

fn summary(report: &CheckReport, advice: Option<&str>) -> String {
    let mut text = match (report.errors, report.is_complete) {
        (0, true) => "clean".to_owned(),
        (errors, true) => counted(errors, "error"),
        (errors, false) => format!("{}; the check stopped early", counted(errors, "error")),
    };
    if report.warnings > 0 {
        text.push_str(&format!(", {}", counted(report.warnings, "warning")));
    }
    if report.unreported > 0 {
        text.push_str(&format!(", {} not shown", report.unreported));
    }
    if let Some(advice) = advice {
        text.push_str(&format!("; {advice}"));
    }
    if !report.is_complete {
        return text;
    }
    let bytes = |blocks: u64| human(blocks.saturating_mul(report.block_size.into()));
    let (used, all) = (bytes(report.blocks_used), bytes(report.block_count));
    let inodes = counted(report.inodes_used, "inode");
    let directories = counted(report.directories, "directory");
    format!("{text}; {inodes} in use, {directories}, {used} of {all}")
}
