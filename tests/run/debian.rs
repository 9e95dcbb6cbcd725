//! A Debian root in a qcow2 image: packages with scripts, accounts, archives, compilers, git, an
//! interactive shell. On request, since it needs a package mirror and minutes: FOLIO_DEBIAN_ROOT
//! names the tar archive of the root, which mmdebstrap makes if it is missing.

use crate::support::tools::{command, run, succeed, text, write_program};
use crate::support::{Mounted, Need, report_skip};
use crate::{Caller, Fixture, for_each_caller};
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;

const VARIABLE: &str = "FOLIO_DEBIAN_ROOT";
const PACKAGES: &str = "gcc,libc6-dev,git,python3-venv,ca-certificates";
const RELEASE: &str = "bookworm";
/// Kills during the installation of a package; FOLIO_RUN_KILLS overrides it.
const KILLS: u32 = 10;

for_each_caller! {
    debian_works_as_on_a_machine;
    killed_package_manager_leaves_a_consistent_image;
}

/// Makes `debian.qcow2`, which belongs to the caller; false if it was not requested.
fn make(fixture: &Fixture) -> bool {
    let Some(archive) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        report_skip(&format!(
            "needs {VARIABLE}: the path of a tar archive to use or to make"
        ));
        return false;
    };
    static ARCHIVE: Mutex<()> = Mutex::new(());
    let made = ARCHIVE.lock().unwrap();
    if !archive.exists() {
        let include = format!("--include={PACKAGES}");
        let words = ["--variant=apt", "--format=tar", &include, RELEASE, "-"];
        let part = archive.with_extension("part");
        let file = std::fs::File::create(&part).unwrap();
        assert!(
            command("mmdebstrap")
                .args(words)
                .stdout(file)
                .status()
                .unwrap()
                .success()
        );
        std::fs::rename(part, &archive).unwrap();
    }
    drop(made);
    let tree = fixture.path("debian");
    std::fs::create_dir(&tree).unwrap();
    let flags = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xf"];
    succeed(
        command("tar")
            .arg("-C")
            .arg(&tree)
            .args(flags)
            .arg(&archive),
    );
    fixture.folio(&[
        "cp",
        "-a",
        "-q",
        "debian/.",
        "debian.qcow2:/",
        "--create",
        "4G",
    ]);
    fixture.give(&fixture.path("debian.qcow2"));
    true
}

/// Without subordinate ids the user of apt-get's downloads does not exist, and owners of packages'
/// files cannot be set.
fn apt(fixture: &Fixture) -> &'static str {
    match fixture.caller {
        Caller::WithoutIds => "apt-get -o APT::Sandbox::User=root",
        _ => "apt-get",
    }
}

fn debian_works_as_on_a_machine(fixture: &Fixture) {
    if !make(fixture) {
        return;
    }
    let apt = apt(fixture);
    // Packages whose scripts change no owners where none can be changed.
    let packages = match fixture.caller {
        Caller::WithoutIds => "less tree",
        _ => "nginx-light cron",
    };
    let own_programs = own_programs(fixture);
    let mut script = format!(
        "set -ex; {apt} update -qq; {apt} install -y -qq --no-install-recommends {packages}; \
         test -z \"$(dpkg --audit)\"; tar -cf /var/all.tar --one-file-system /usr /etc; \
         tar -tf /var/all.tar >/dev/null; python3 -m venv /srv/venv; \
         /srv/venv/bin/python -c 'print(1)'; cd /srv; \
         printf '#include <stdio.h>\\nint main() {{ puts(\"C\"); }}' >a.c; gcc -o a a.c; ./a; \
         git init -q one; cd one; echo x >f; git add f; \
         git -c user.name=a -c user.email=b commit -qm m; cd ..; git clone -q one two; cat two/f; "
    );
    if fixture.caller != Caller::WithoutIds {
        script.push_str("useradd -m bob; su bob -c 'touch ~/b; ! touch /root/x'; ");
    }
    for program in &own_programs {
        script.push_str(&format!("/own/{program}; "));
    }
    let bind = format!("{}:/own:ro", fixture.path("own").display());
    let words = ["--bind", &bind, "debian.qcow2", "--", "bash", "-c", &script];
    let output = fixture
        .command(&words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    succeed(
        command(env!("CARGO_BIN_EXE_folio"))
            .arg("check")
            .arg(fixture.path("debian.qcow2")),
    );
    compare_with_the_kernel(fixture);
}

/// Compares the tree as the command sees it with the kernel's mount of the image.
fn compare_with_the_kernel(fixture: &Fixture) {
    const FORMAT: &str = "%P|%y|%m|%U|%G|%s|%n|%T@|%l\\n";
    let folders = ["etc", "usr", "var", "srv", "root", "home"];
    let words = [
        "debian.qcow2",
        "--",
        "find",
        "/",
        "-xdev",
        "-printf",
        FORMAT,
    ];
    let inside = succeed(&mut fixture.command(&words));
    let raw = checked_raw(fixture);
    let mounted = Mounted::new(&raw, "ro");
    let mut find = command("find");
    let outside = succeed(
        find.current_dir(mounted.path())
            .args([".", "-xdev", "-printf", FORMAT]),
    );
    let lines = |output: &[u8]| {
        let text = String::from_utf8_lossy(output).into_owned();
        let mut lines: Vec<_> = text
            .lines()
            .filter(|line| {
                folders
                    .iter()
                    .any(|folder| line.starts_with(&format!("{folder}/")))
            })
            // Inside it is the host's.
            .filter(|line| !line.starts_with("etc/resolv.conf|"))
            .map(|line| without_unmapped_owners(line, fixture.caller))
            .collect();
        lines.sort();
        lines
    };
    let (inside, outside) = (lines(&inside.stdout), lines(&outside.stdout));
    assert!(inside.len() > 5000, "{}", inside.len());
    let differs = inside
        .iter()
        .zip(&outside)
        .find(|(inside, outside)| inside != outside);
    assert_eq!(differs, None);
    assert_eq!(inside.len(), outside.len());
}

/// Converts the image to raw, and checks it with e2fsck.
fn checked_raw(fixture: &Fixture) -> PathBuf {
    let formats = ["-O", "raw", "debian.qcow2", "debian.raw"];
    fixture.folio(&[&["image", "convert", "-q", "--force"][..], &formats].concat());
    let raw = fixture.path("debian.raw");
    crate::fsck(&raw);
    raw
}

/// Removes the owners from a line if all files are presented as root's.
fn without_unmapped_owners(line: &str, caller: Caller) -> String {
    let fields = line.split('|').enumerate();
    let hides = caller == Caller::WithoutIds;
    let kept: Vec<_> = fields
        .filter(|(at, _)| !hides || ![3, 4].contains(at))
        .map(|(_, field)| field)
        .collect();
    kept.join("|")
}

/// Makes a Go program and a static one with musl in `own`, where their compilers are.
fn own_programs(fixture: &Fixture) -> Vec<&'static str> {
    let own = fixture.path("own");
    std::fs::create_dir(&own).unwrap();
    let mut programs = Vec::new();
    if Need::Tool("go").met().is_ok() {
        write_program(
            &own.join("a.go"),
            b"package main\nfunc main() { println(\"Go\") }\n",
        );
        let mut go = command("go");
        go.args(["build", "-o", "go", "a.go"])
            .current_dir(&own)
            .env("CGO_ENABLED", "0");
        succeed(&mut go);
        programs.push("go");
    }
    if Need::Tool("musl-gcc").met().is_ok() {
        write_program(
            &own.join("a.c"),
            b"#include <stdio.h>\nint main() { return puts(\"musl\") < 0; }\n",
        );
        succeed(
            command("musl-gcc")
                .args(["-static", "-o", "musl", "a.c"])
                .current_dir(&own),
        );
        programs.push("musl");
    }
    programs
}

fn killed_package_manager_leaves_a_consistent_image(fixture: &Fixture) {
    if fixture.caller == Caller::WithoutIds || !make(fixture) {
        return;
    }
    let download =
        "apt-get update -qq; apt-get install -y -qq -d --no-install-recommends nginx-light cron";
    succeed(&mut fixture.command(&["debian.qcow2", "--", "bash", "-c", download]));
    let count = std::env::var("FOLIO_RUN_KILLS").ok();
    let count: u32 = count.and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let install = "while :; do dpkg --configure -a; \
                   apt-get install -y --reinstall --no-install-recommends nginx-light cron; \
                   apt-get purge -y nginx-light cron; done";
    for number in 0..count {
        let mut program = fixture.command(&["debian.qcow2", "--", "bash", "-c", install]);
        let mut child = program
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A number of lines of progress, not a time.
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        for _ in 0..10 + number * 7 % 60 {
            std::io::BufRead::read_line(&mut output, &mut String::new()).unwrap();
        }
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        std::io::Read::read_to_end(&mut output, &mut Vec::new()).unwrap();
        let seen = fixture.run(&["debian.qcow2", "--", "true"]);
        assert!(seen.status.success(), "{}", text(&seen));
        checked_raw(fixture);
    }
    let folder = fixture.folder.path().to_str().unwrap();
    assert!(!run("ps", ["axww"]).contains(folder));
}
