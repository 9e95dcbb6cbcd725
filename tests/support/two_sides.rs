//! A directory that a host and its guest change, over any transport: the changes of each side, and
//! the checks that the other side sees them.

use super::guest::{Guest, Run};
use super::require::find;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of a guest. It boots in about ten seconds where QEMU translates its instructions; the
/// limit allows for a machine under load.
pub const LIMIT: Duration = Duration::from_secs(1200);

/// The first lines of every script: a failed check prints its subject and ends the script.
pub const HEAD: &str = "\
fail() { echo \"wrong: $*\"; exit 1; }
same() { [ \"$2\" = \"$3\" ] || fail \"$1: $2, not $3\"; }
";

/// Adds the tools that read and write extended attributes; busybox has none.
pub fn with_attributes(guest: Guest) -> Guest {
    ["setfattr", "getfattr"].iter().fold(guest, |guest, name| {
        guest
            .program(&find(name).unwrap())
            .expect("the program and its libraries")
    })
}

/// Prefix of a line with which the guest asks the host for a change.
const DO: &str = "@@host ";

/// The guest's script: `host N` asks the host for change N, `until_seen` waits until the guest sees
/// the change.
pub const SCRIPT: &str = r#"
host() { echo "@@host $1"; }
until_seen() {
  for try in $(seq 100000); do [ "$(eval "$2" 2>/dev/null)" = "$3" ] && return 0; done
  fail "$1: $(eval "$2") is seen, not $3"
}
same 'the host'"'"'s file' "$(cat from-host)" 'one'
same 'a name that is not there' "$(cat new 2>/dev/null)" ''
exec 3< from-host

host 1; until_seen 'contents' 'cat from-host' 'another one'
host 2; until_seen 'the same length' 'cat from-host' 'a third one'
host 3; until_seen 'a new name' 'cat new' 'here'
host 4; until_seen 'a name that went' 'cat new; echo gone' 'gone'
host 5; until_seen 'a file in place of another' 'cat from-host' 'replaced'
host 6; until_seen 'mode' 'stat -c %a from-host' '640'
host 7; until_seen 'listing' 'ls folder | wc -l' '40'
host 8; until_seen 'appended' 'cat log | tr "\n" " "' 'a b c '

# What the guest does, the host has when the call returns.
echo guest > from-guest; echo more >> from-guest; mkdir made; mv from-guest made/moved; chmod 600 made/moved
ln -s moved made/link; setfattr -n user.color -v blue made/moved; truncate -s 100000 made/long
dd if=/dev/zero of=made/zeroes bs=100000 count=30 2>/dev/null
cp /bin/busybox made/busybox; made/busybox true || fail 'a program does not run'
same sum "$(sha256sum < made/busybox)" "$(sha256sum < /bin/busybox)"
host 9

# Nothing outside: the link is the guest's to follow, the file behind it the guest's own.
echo inside > /tmp/outside; same 'a link that leads out' "$(cat out)" 'inside'
cat up/etc/hostname > /dev/null 2>&1; same 'up' "$(cat up/tmp/outside)" 'inside'
for n in $(seq 100); do echo $n > many-$n; done; rm many-*; same 'all gone' "$(ls | grep -c many)" 0
"#;

/// Makes the change that the guest asks for.
fn do_for_guest(number: u32, folder: &Path) {
    let at = |name: &str| folder.join(name);
    match number {
        1 => fs::write(at("from-host"), "another one").unwrap(),
        2 => fs::write(at("from-host"), "a third one").unwrap(),
        3 => fs::write(at("new"), "here").unwrap(),
        4 => fs::remove_file(at("new")).unwrap(),
        5 => {
            fs::write(at("other"), "replaced").unwrap();
            fs::rename(at("other"), at("from-host")).unwrap();
        }
        6 => fs::set_permissions(at("from-host"), fs::Permissions::from_mode(0o640)).unwrap(),
        7 => (0..40).for_each(|number| fs::write(at(&format!("folder/{number}")), "").unwrap()),
        8 => fs::write(at("log"), "a\nb\nc\n").unwrap(),
        9 => {
            assert_eq!(
                fs::read_to_string(at("made/moved")).unwrap(),
                "guest\nmore\n"
            );
            let moved = fs::metadata(at("made/moved")).unwrap();
            assert_eq!((moved.mode() & 0o7777, moved.uid()), (0o600, 0));
            assert_eq!(fs::read_link(at("made/link")).unwrap(), Path::new("moved"));
            assert_eq!(fs::metadata(at("made/long")).unwrap().len(), 100_000);
            assert!(fs::read(at("made/zeroes")).unwrap() == vec![0; 3_000_000]);
        }
        _ => panic!("the guest asks for {number}"),
    }
}

/// Makes the shared directory in its first state, below a folder with files that are not shared.
pub fn directory(parent: &TempDir) -> PathBuf {
    let folder = parent.path().join("shared");
    fs::create_dir_all(folder.join("folder")).unwrap();
    fs::write(folder.join("from-host"), "one").unwrap();
    fs::write(folder.join("log"), "a\nb\n").unwrap();
    fs::write(parent.path().join("outside"), "outside").unwrap();
    symlink("/tmp/outside", folder.join("out")).unwrap();
    symlink("..", folder.join("up")).unwrap();
    folder
}

/// Runs a script in a guest and makes in `folder` the changes that it asks for; panics unless the
/// script succeeds.
#[track_caller]
pub fn run(guest: Guest, script: &str, folder: &Path) -> Run {
    let run = guest.run(&format!("{HEAD}{script}"), LIMIT, |line| {
        if let Some(number) = line.strip_prefix(DO) {
            do_for_guest(number.trim().parse().unwrap(), folder);
        }
    });
    let run = run.expect("the guest starts");
    let said = run.lines.join("\n");
    assert_eq!(
        run.status,
        Some(0),
        "the guest said:\n{said}\nQEMU said:\n{}",
        run.errors
    );
    run
}
