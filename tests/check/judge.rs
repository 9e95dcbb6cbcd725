//! The verdicts of e2fsck -fn and folio check on the same bytes.

use crate::support::tools::{command, text};
use folio::block::{self, OpenOptions};
use folio::ext4::{self, CheckFinding, CheckOptions, Severity};
use std::path::Path;

/// The result of e2fsck on an image.
pub(crate) struct Fsck {
    /// Exit status; `None` if a signal ended e2fsck.
    pub(crate) status: Option<i32>,
    /// Output.
    pub(crate) output: String,
}

/// Runs `e2fsck -fn`.
pub(crate) fn fsck(image: &Path) -> Fsck {
    let output = command("e2fsck")
        .arg("-fn")
        .arg(image)
        .output()
        .expect("e2fsck runs");
    Fsck {
        status: output.status.code(),
        output: text(&output),
    }
}

impl Fsck {
    /// Returns whether e2fsck found damage: by its status, or by a repair that it offered without
    /// counting damage.
    pub(crate) fn found_damage(&self) -> bool {
        self.status != Some(0) || self.output.lines().any(is_offered_repair)
    }
}

/// Returns whether a line is a question answered with no, except one about the shape of a sound
/// extent tree.
fn is_offered_repair(line: &str) -> bool {
    line.contains("? no") && !line.contains("Optimize? no") && !line.starts_with("Optimize")
}

/// The result of folio check on an image: its findings, or the error that ended it.
pub(crate) struct FolioCheck {
    pub(crate) findings: Result<Vec<CheckFinding>, String>,
}

/// Runs `folio check`.
pub(crate) fn folio_check(image: &Path) -> FolioCheck {
    check_with(image, &CheckOptions::default())
}

/// Runs `folio check --no-replay`.
pub(crate) fn folio_check_without_replay(image: &Path) -> FolioCheck {
    let mut options = CheckOptions::default();
    options.replays_journal = false;
    check_with(image, &options)
}

fn check_with(image: &Path, how: &CheckOptions) -> FolioCheck {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = block::open(image, &options).expect("the image opens");
    let mut findings = Vec::new();
    let checked = ext4::check(&device, how, &mut findings);
    let checked = checked.map(|report| {
        let count = |severity| {
            findings
                .iter()
                .filter(|finding| finding.severity == severity)
                .count() as u64
        };
        if report.unreported == 0 {
            assert_eq!(
                (report.errors, report.warnings),
                (count(Severity::Error), count(Severity::Warning))
            );
        }
    });
    FolioCheck {
        findings: checked
            .map(|()| findings)
            .map_err(|error| error.to_string()),
    }
}

impl FolioCheck {
    /// Returns whether the check found damage or failed.
    pub(crate) fn found_damage(&self) -> bool {
        match &self.findings {
            Ok(findings) => findings
                .iter()
                .any(|finding| finding.severity == Severity::Error),
            Err(_) => true,
        }
    }

    /// Returns whether the check has findings, warnings included, or failed.
    pub(crate) fn has_findings(&self) -> bool {
        self.findings
            .as_ref()
            .map_or(true, |findings| !findings.is_empty())
    }

    /// Returns the findings as text.
    pub(crate) fn text(&self) -> String {
        match &self.findings {
            Ok(findings) => findings
                .iter()
                .map(|f| format!("{}: {f}\n", f.severity.name()))
                .collect(),
            Err(error) => format!("{error}\n"),
        }
    }
}

/// The combined verdict of both programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Neither finds damage.
    Sound,
    /// Both find damage.
    Damaged,
    /// Only folio check finds damage.
    Stricter,
    /// Only e2fsck finds damage.
    Missed,
}

/// Runs both programs; returns the verdict and their output.
pub(crate) fn compare(image: &Path) -> (Verdict, String) {
    let (fsck, check) = (fsck(image), folio_check(image));
    // A repair that e2fsck offers without counting damage may be a warning of folio check.
    let is_mild = fsck.status == Some(0);
    let verdict = if fsck.found_damage() {
        let is_found = check.found_damage() || (is_mild && check.has_findings());
        if is_found {
            Verdict::Damaged
        } else {
            Verdict::Missed
        }
    } else if check.found_damage() {
        Verdict::Stricter
    } else {
        Verdict::Sound
    };
    (
        verdict,
        format!(
            "e2fsck ({:?}):\n{}folio:\n{}",
            fsck.status,
            fsck.output,
            check.text()
        ),
    )
}
