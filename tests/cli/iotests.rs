//! QEMU's own iotests, with `folio` in the place of qemu-img. The tests come from QEMU's source
//! package, whose folder `tests/qemu-iotests` the variable FOLIO_IOTESTS names. docs/iotests.md
//! lists the allowed differences.

use super::support::tools::command;
use super::support::{report_skip, requires};
use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// The table of allowed differences.
const DOCUMENT: &str = include_str!("../../docs/iotests.md");
/// Longest run of a test, in seconds.
const TIMEOUT_SECS: &str = "300";

/// The tests of qcow2 that use qemu-img, qemu-io and qemu-nbd only, and pass with qemu-img 7.2.
const QCOW2: &str = "\
    001 002 003 004 005 008 009 010 011 012 013 014 015 017 018 019 020 021 022 023 024 025 \
    026 027 029 031 032 033 034 035 036 037 038 039 042 043 046 047 048 049 050 052 053 054 \
    058 061 062 063 066 069 072 073 074 079 080 089 090 097 098 103 104 105 107 110 111 112 \
    114 115 121 122 125 126 133 134 137 138 150 154 158 159 162 170 174 177 178 179 187 188 \
    189 190 197 198 204 209 214 215 217 220 226 243 250 251 252 261 263 265 268 270 271 272 \
    277 279 284 287 289 290 292 293 302 303 305 313 qemu-img-bitmaps";
/// The same of raw images.
const RAW: &str = "\
    001 002 003 004 005 008 009 010 011 012 021 025 032 033 048 052 063 077 101 104 106 113 \
    150 159 160 162 170 171 178 197 215 221 226 251 253 277";

/// A test in a format.
type Case = (String, &'static str);

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    NotRun,
    Failed,
}

/// Runs single tests of the suite.
struct Suite {
    source: PathBuf,
    folder: TempDir,
}

impl Suite {
    fn new(source: PathBuf) -> Self {
        // The tests expect the allocation of a file system with pages of 4 KiB.
        let folder = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
        let folder = folder.unwrap();
        symlink(env!("CARGO_BIN_EXE_folio"), folder.path().join("qemu-img")).unwrap();
        // The suite asks it for its machines; none of these tests starts one.
        let machine = folder.path().join("qemu-system");
        std::fs::write(&machine, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&machine, PermissionsExt::from_mode(0o755)).unwrap();
        Self { source, folder }
    }

    /// Runs a test with this qemu-img; returns how it ended, and its output.
    fn run(&self, (name, format): &Case, qemu_img: &Path) -> (Verdict, String) {
        let folder = TempDir::new_in(self.folder.path()).unwrap();
        let path = |name: &str| folder.path().join(name);
        // Called through a link, the suite writes nothing into its own folder.
        symlink(self.source.join("check"), path("check")).unwrap();
        let tool = |name| super::support::require::find(name).unwrap();
        let machine = self.folder.path().join("qemu-system");
        let output = command("timeout")
            .arg(TIMEOUT_SECS)
            .args(["./check", &format!("-{format}"), name])
            .current_dir(folder.path())
            .env("QEMU_IMG_PROG", qemu_img)
            .env("QEMU_IO_PROG", tool("qemu-io"))
            .env("QEMU_NBD_PROG", tool("qemu-nbd"))
            .env("QEMU_PROG", &machine)
            .env("QSD_PROG", &machine)
            .env("TEST_DIR", path("t"))
            .env("SOCK_DIR", path("s"))
            .env("TZ", "UTC")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let verdict = if text.contains("\nNot run: ") {
            Verdict::NotRun
        } else if output.status.success() && text.contains("\nPassed all 1 iotests") {
            Verdict::Passed
        } else {
            Verdict::Failed
        };
        (verdict, text)
    }

    /// Compares a test with the table; returns what is wrong.
    fn judge(&self, case: &Case, is_listed: bool) -> Option<String> {
        let (verdict, text) = self.run(case, &self.folder.path().join("qemu-img"));
        let (name, format) = case;
        match (verdict, is_listed) {
            (Verdict::Passed, false) | (Verdict::NotRun | Verdict::Failed, true) => None,
            (Verdict::Passed, true) => Some(format!(
                "{name} {format}: passes, so its row in docs/iotests.md goes"
            )),
            (Verdict::NotRun | Verdict::Failed, false) => {
                let real = super::support::require::find("qemu-img").unwrap();
                let (with_real, _) = self.run(case, &real);
                if with_real != Verdict::Passed {
                    report_skip(&format!(
                        "{name} {format}: does not pass here with qemu-img either"
                    ));
                    return None;
                }
                let changes = text.find("\n---").map_or("", |at| &text[at..]);
                let changes: Vec<_> = changes.lines().take(60).collect();
                Some(format!(
                    "{name} {format}: {verdict:?}{}",
                    changes.join("\n")
                ))
            }
        }
    }
}

/// Returns the allowed differences with their reasons.
fn allowed() -> BTreeMap<Case, &'static str> {
    let mut allowed = BTreeMap::new();
    for row in DOCUMENT.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, test, formats, reason, _] = cells[..] else {
            continue;
        };
        for format in ["qcow2", "raw"] {
            if formats.split(", ").any(|word| word == format) {
                allowed.insert((test.to_owned(), format), reason);
            }
        }
    }
    allowed
}

fn cases() -> Vec<Case> {
    let of = |names: &'static str, format| {
        let names = names.split_whitespace();
        names.map(move |name| (name.to_owned(), format))
    };
    of(QCOW2, "qcow2").chain(of(RAW, "raw")).collect()
}

#[test]
fn listed_differences_are_tests_with_reasons() {
    let (allowed, cases) = (allowed(), cases());
    assert!(!allowed.is_empty());
    for (case, reason) in &allowed {
        assert!(cases.contains(case), "{case:?} is not run");
        assert!(!reason.is_empty(), "{case:?}");
    }
}

#[test]
fn iotests_pass_but_for_listed_differences() {
    requires!(
        tool("qemu-img"),
        tool("qemu-io"),
        tool("qemu-nbd"),
        tool("python3"),
        tool("timeout")
    );
    let Some(source) = std::env::var_os("FOLIO_IOTESTS").map(PathBuf::from) else {
        report_skip("needs FOLIO_IOTESTS: the folder tests/qemu-iotests of QEMU 7.2's source");
        return;
    };
    let (allowed, cases) = (allowed(), cases());
    let suite = Suite::new(source);
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = suite.judge(case, allowed.contains_key(case));
            wrong.lock().unwrap().extend(found);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
