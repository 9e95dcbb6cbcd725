//! A table of programs: each runs on a folder of the host and in an image, with the same output,
//! exit code and tree.

use crate::support::require::{report_skip, requires};
use crate::support::tools::{command, succeed, text};
use crate::{Fixture, finish};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// For each case a line with its name and the programs that it needs, and then a script of bash.
const CASES: &str = include_str!("programs.txt");

/// The output of a script, without the path of its folder.
fn normalized(output: &Output, place: &Path) -> String {
    text(output).replace(&*place.to_string_lossy(), "PLACE")
}

/// The names, types, modes, targets and contents below a folder of the host.
fn tree(folder: &Path) -> String {
    let script = r"find . ! -path '*/.git/*' -printf '%P %y %m %l\n' | sort
        find . -type f ! -path '*/.git/*' ! -name '*.pyc' -exec sha256sum {} + | sort -k2";
    let output = succeed(command("bash").args(["-c", script]).current_dir(folder));
    text(&output)
}

/// Returns the programs that a case needs, and its script.
fn case(name: &str) -> (&'static str, &'static str) {
    let mut cases = CASES.split("=== ").filter_map(|case| case.split_once('\n'));
    let found = cases.find_map(|(head, script)| Some((head.strip_prefix(name)?, script)));
    let (programs, script) = found.unwrap_or_else(|| panic!("no case {name}"));
    (programs.trim(), script)
}

fn runs_as_on_the_host(name: &str) {
    let (programs, script) = case(&format!("{name} "));
    for program in programs.split(' ') {
        requires!(tool(program));
    }
    let fixture = Fixture::new("256M");
    let folders = fixture.folder.path();
    let host = folders.join("host");
    fs::create_dir(&host).unwrap();
    let file = folders.join("script");
    fs::write(&file, script).unwrap();
    let inside = format!("mkdir t; cd t; . '{}'", file.display());
    let mut native = Command::new("bash");
    native.args(["-c", &format!("cd '{}' && {{ {inside}\n}}", host.display())]);
    native.env("LC_ALL", "C").env("TZ", "UTC");
    let expected = finish(&mut native);
    if text(&expected).contains("Operation not supported") {
        report_skip("needs a folder for temporary files with extended attributes");
        return;
    }
    let found = fixture.bash(&inside);
    assert_eq!(
        normalized(&found, &fixture.place()),
        normalized(&expected, &host),
        "{name}"
    );
    assert_eq!(found.status, expected.status, "{name}");
    fixture.check();
    let copy = folders.join("copy");
    let mut image = fixture.image().into_os_string();
    image.push(":/t");
    let mut copied = Command::new(env!("CARGO_BIN_EXE_folio"));
    succeed(copied.args(["--quiet", "cp", "-a"]).arg(image).arg(&copy));
    if !script.contains("urandom") {
        assert_eq!(tree(&copy), tree(&host.join("t")), "{name}");
    }
}

macro_rules! cases {
    ($($name:ident)*) => {
        mod program {
            $(
                #[test]
                fn $name() {
                    super::runs_as_on_the_host(stringify!($name));
                }
            )*
        }
    };
}

cases! {
    cat cp mv ls dd tar tar_gz tar_xz truncate touch chmod stat find rm du grep sed awk sort bash
    script xargs diff patch git_init git_clone perl python python_subprocess
    python_multiprocessing python_threads sqlite sqlite_many vim zip cpio dpkg_deb gcc registers
    make rustc go busybox flock tail tee ln links split xattr env jobs here rsync node java mkfifo
    sockets fio large
}
