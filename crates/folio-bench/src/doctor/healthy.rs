//! Set-ups without a fault: usual commands on usual places.

use super::place::Place;
use super::setup::Setup;

const PLACES: [Place; 9] = [
    Place::Disk,
    Place::Memory,
    Place::fast("ext4", ""),
    Place::fast("ext4", "noauto_da_alloc"),
    Place::fast("ext4", "nodelalloc"),
    Place::fast("xfs", ""),
    Place::fast("btrfs", ""),
    Place::Share(""),
    Place::Image,
];

const TREE: &str = "cp -r /usr/include/linux .";
const REPOSITORY: &str = "git init -q . && cp -r /usr/include/linux . && git add -A && \
                          git -c user.email=a@b -c user.name=a commit -qm first";
const LINES: &str = "seq 300000 > lines";
const ROWS: &str = "{ echo 'create table if not exists t(a, b); begin;'; \
                    seq 50000 | sed 's/.*/insert into t values(&, &);/'; echo 'commit;'; } > rows.sql; \
                    sqlite3 base < rows.sql";

/// Commands: name, the programs that they need, the script that makes their files, the script.
const COMMANDS: [(&str, &[&str], &str, &str); 13] = [
    (
        "tar",
        &["tar"],
        TREE,
        "for n in 1 2 3; do tar -cf tree.tar linux; done",
    ),
    (
        "tar -x",
        &["tar"],
        "tar -C /usr/include -cf tree.tar linux",
        "mkdir -p $$; tar -C $$ -xf tree.tar",
    ),
    ("cp -r", &[], TREE, "cp -r linux $$"),
    (
        "git status",
        &["git"],
        REPOSITORY,
        "for n in 1 2 3; do git status --short > said; done",
    ),
    (
        "git log",
        &["git"],
        REPOSITORY,
        "for n in 1 2 3 4 5; do git log -p > said; done",
    ),
    (
        "grep",
        &[],
        TREE,
        "for n in 1 2 3; do grep -rl ioctl linux > said; done",
    ),
    (
        "find",
        &[],
        TREE,
        "for n in 1 2 3; do find linux -newer linux > said; done",
    ),
    ("sort", &[], LINES, "sort -r lines > sorted"),
    ("gzip", &["gzip"], LINES, "gzip -kf lines"),
    (
        "sha256sum",
        &[],
        LINES,
        "for n in 1 2 3 4 5 6; do sha256sum lines > sum; done",
    ),
    (
        "sqlite, a transaction",
        &["sqlite3"],
        ROWS,
        "sqlite3 base < rows.sql",
    ),
    (
        "sqlite, scans",
        &["sqlite3"],
        ROWS,
        "for n in 1 2 3 4 5; do sqlite3 base 'select sum(a * b) from t' > said; done",
    ),
    ("sleep", &[], "", "sleep 0.3"),
];

/// Returns all.
pub(super) fn setups() -> Vec<Setup> {
    let pairs = PLACES
        .into_iter()
        .flat_map(|place| COMMANDS.map(|command| (place, command)));
    pairs
        .map(|(place, (name, needs, prepare, command))| {
            Setup::new(place, name, prepare, command).needs(needs)
        })
        .collect()
}
