//! Two judges of the same bytes: e2fsck -fn and folio check.

use crate::support::tools::{command, text};
use folio::block::{self, OpenOptions};
use folio::kernel::{CheckFinding, CheckOptions, Severity, check_ext4};
use std::path::Path;

/// What e2fsck says of an image.
pub(crate) struct Fsck {
    /// Its exit status; `None` if a signal ended it.
    pub(crate) status: Option<i32>,
    /// Its words.
    pub(crate) said: String,
}

/// `e2fsck -fn`.
pub(crate) fn fsck(image: &Path) -> Fsck {
    let output = command("e2fsck")
        .arg("-fn")
        .arg(image)
        .output()
        .expect("e2fsck runs");
    Fsck {
        status: output.status.code(),
        said: text(&output),
    }
}

impl Fsck {
    /// Whether it found damage: it says so by its status, or would mend something that it does not
    /// count as damage.
    pub(crate) fn complains(&self) -> bool {
        self.status != Some(0) || self.said.lines().any(is_complaint)
    }
}

/// A question that was answered with no, unless it is about the shape of a sound extent tree.
fn is_complaint(line: &str) -> bool {
    line.contains("? no") && !line.contains("Optimize? no") && !line.starts_with("Optimize")
}

/// What folio check says of an image: its findings, or why there are none.
pub(crate) struct Own {
    pub(crate) findings: Result<Vec<CheckFinding>, String>,
}

/// `folio check`.
pub(crate) fn own(image: &Path) -> Own {
    own_with(image, &CheckOptions::default())
}

/// `folio check --no-replay`.
pub(crate) fn own_without_replay(image: &Path) -> Own {
    own_with(
        image,
        &CheckOptions {
            replays_journal: false,
            ..CheckOptions::default()
        },
    )
}

fn own_with(image: &Path, how: &CheckOptions) -> Own {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = block::open(image, &options).expect("the image opens");
    let mut findings = Vec::new();
    let checked = check_ext4(&device, how, &mut findings);
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
    Own {
        findings: checked
            .map(|()| findings)
            .map_err(|error| error.to_string()),
    }
}

impl Own {
    /// Whether it found damage, or refused to check.
    pub(crate) fn complains(&self) -> bool {
        match &self.findings {
            Ok(findings) => findings
                .iter()
                .any(|finding| finding.severity == Severity::Error),
            Err(_) => true,
        }
    }

    /// Whether it said anything at all.
    pub(crate) fn speaks(&self) -> bool {
        self.findings
            .as_ref()
            .map_or(true, |findings| !findings.is_empty())
    }

    /// Its words.
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

/// How the two judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Neither finds damage.
    Sound,
    /// Both find damage.
    Damaged,
    /// Only folio check does.
    Stricter,
    /// Only e2fsck does.
    Missed,
}

/// Lets both judge, and shows what they said if they differ.
pub(crate) fn compare(image: &Path) -> (Verdict, String) {
    let (fsck, own) = (fsck(image), own(image));
    // What e2fsck asks about and does not count as damage may be a warning here.
    let is_mild = fsck.status == Some(0);
    let verdict = match (fsck.complains(), own.complains()) {
        (true, false) if !(is_mild && own.speaks()) => Verdict::Missed,
        (false, true) => Verdict::Stricter,
        (true, _) => Verdict::Damaged,
        (false, false) => Verdict::Sound,
    };
    (
        verdict,
        format!(
            "e2fsck ({:?}):\n{}folio:\n{}",
            fsck.status,
            fsck.said,
            own.text()
        ),
    )
}
