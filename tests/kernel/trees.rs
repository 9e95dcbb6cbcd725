//! Trees to copy: one of the machine's files, and a generated one with every attribute.

use crate::support::real_tree;
use crate::support::require::{find, report_skip};
use crate::support::rounds;
use crate::support::tools::{command, run, succeed};
use rustix::fs::{AtFlags, Timespec, Timestamps, XattrFlags};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Returns the size of a real tree: large enough to be typical, small enough for a test.
pub(crate) fn real_limits() -> real_tree::Limits {
    real_tree::Limits {
        files_min: rounds::cases(12_000),
        files_max: rounds::cases(24_000),
        bytes_max: rounds::cases(384 << 20),
    }
}

/// Creates a tree of the machine's own files. Returns false and reports a skip if there are too
/// few.
pub(crate) fn real(target: &Path) -> bool {
    fs::create_dir(target).unwrap();
    real_tree::copy_to(target, real_limits())
        .map_err(|reason| report_skip(&reason))
        .is_ok()
}

/// Limits that depend on the block size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockLimits {
    xattr_bytes: usize,
    symlink_bytes: usize,
}

/// Blocks of 4 KiB.
pub(crate) const LARGE_BLOCKS: BlockLimits = BlockLimits {
    xattr_bytes: 3000,
    symlink_bytes: 4095,
};
/// Blocks of 1 KiB.
pub(crate) const SMALL_BLOCKS: BlockLimits = BlockLimits {
    xattr_bytes: 600,
    symlink_bytes: 1023,
};

/// Creates every kind of file and attribute of ext4 in the new folder `target`.
pub(crate) fn attributes(target: &Path, limits: BlockLimits) {
    fs::create_dir(target).unwrap();
    kinds(target, limits.symlink_bytes);
    names(target);
    holes(target);
    xattrs(target, limits.xattr_bytes);
    owners(target);
    times(target);
}

fn kinds(target: &Path, symlink_bytes_max: usize) {
    fs::write(target.join("empty"), "").unwrap();
    fs::write(target.join("one byte"), "x").unwrap();
    fs::create_dir(target.join("empty folder")).unwrap();
    for (name, kind, numbers) in [
        ("pipe", "p", ""),
        ("zero", "c", "1 5"),
        ("disk", "b", "8 1"),
        ("high", "c", "500 70000"),
    ] {
        let path = target.join(name);
        succeed(
            command("mknod")
                .arg(path)
                .arg(kind)
                .args(numbers.split_whitespace()),
        );
    }
    std::os::unix::net::UnixListener::bind(target.join("socket")).unwrap();
    for len in [1, 59, 60, 61, 255, 1023, 1024, 4095]
        .into_iter()
        .filter(|&len| len <= symlink_bytes_max)
    {
        let mut text = "../".repeat(len / 3);
        text.push_str(&"t".repeat(len - text.len()));
        symlink(text, target.join(format!("symlink {len}"))).unwrap();
    }
    symlink("no such file", target.join("dangling")).unwrap();
    for folder in ["a", "b"] {
        fs::create_dir(target.join(folder)).unwrap();
    }
    fs::write(target.join("a/linked"), "one inode, four names").unwrap();
    for name in ["a/again", "b/linked", "linked"] {
        fs::hard_link(target.join("a/linked"), target.join(name)).unwrap();
    }
    fs::hard_link(target.join("symlink 60"), target.join("b/symlink 60")).unwrap();
    fs::hard_link(target.join("pipe"), target.join("b/pipe")).unwrap();
}

fn names(target: &Path) {
    let names: [&[u8]; 8] = [
        &[b'n'; 255],
        b"\xff\xfe not UTF-8 \x80",
        b"new\nline",
        b" spaces ",
        b"-rf",
        b"\xe2\x82\xac",
        b"back\\slash",
        b"colon: x@1",
    ];
    for name in names {
        fs::write(target.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let mut path = target.to_path_buf();
    for depth in 0..60 {
        path.push(format!("depth {depth} {}", "d".repeat(20)));
        fs::create_dir(&path).unwrap();
    }
    fs::write(path.join("bottom"), "deep").unwrap();
    let many = target.join("many");
    fs::create_dir(&many).unwrap();
    for index in 0..3000 {
        fs::write(
            many.join(format!("entry number {index:05} of a folder with an index")),
            "",
        )
        .unwrap();
    }
}

fn holes(target: &Path) {
    let unit = 64 << 10;
    let data = vec![0x5a; unit];
    let sizes = [
        ("hole in front", 3, &[2][..]),
        ("hole behind", 5, &[0]),
        ("all hole", 64, &[]),
    ];
    let many: Vec<usize> = (0..700).step_by(2).collect();
    for (name, units, written) in sizes.into_iter().chain([("many holes", 701, &many[..])]) {
        let mut file = File::create(target.join(name)).unwrap();
        file.set_len((units * unit) as u64).unwrap();
        for &at in written {
            file.seek(SeekFrom::Start((at * unit) as u64)).unwrap();
            file.write_all(&data).unwrap();
        }
    }
    let file = File::create(target.join("huge hole")).unwrap();
    file.set_len(20 << 30).unwrap();
    let odd: Vec<u8> = (0..1_234_567_u32).map(|at| (at % 251) as u8).collect();
    fs::write(target.join("odd size"), odd).unwrap();
}

/// Sets access and modification time without following a symbolic link.
fn set_time(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn times(target: &Path) {
    let moments = [
        ("1901", -2_147_483_648, 0),
        ("1969", -1, 999_999_999),
        ("1970", 0, 1),
        ("2026", 1_767_225_600, 123_456_789),
        ("2038", 2_147_483_648, 1),
        ("2106", 4_294_967_296, 999_999_999),
        ("2400", 13_569_465_600, 5),
        ("2446", 15_032_385_535, 7),
    ];
    for (year, seconds, nanoseconds) in moments {
        let path = target.join(format!("year {year}"));
        fs::write(&path, year).unwrap();
        set_time(&path, seconds, nanoseconds);
    }
    set_time(&target.join("dangling"), 1_000_000_000, 42);
    set_time(&target.join("empty folder"), 1_000_000_001, 43);
    set_time(&target.join("a"), 1_000_000_002, 44);
}

fn xattrs(target: &Path, large_bytes: usize) {
    let set = |name: &str, attribute: &str, value: &[u8]| {
        rustix::fs::lsetxattr(target.join(name), attribute, value, XattrFlags::empty())
            .unwrap_or_else(|error| panic!("{attribute} of {name}: {error}"));
    };
    for name in [
        "xattr small",
        "xattr large",
        "xattr many",
        "xattr empty",
        "acl",
        "capable",
    ] {
        fs::write(target.join(name), name).unwrap();
    }
    set("xattr small", "user.small", b"tiny");
    set(
        "xattr large",
        "user.large",
        &(0..large_bytes).map(|at| at as u8).collect::<Vec<_>>(),
    );
    set("xattr empty", "user.empty", b"");
    for index in 0..20 {
        set(
            "xattr many",
            &format!("user.number.{index:02}"),
            format!("value {index}").as_bytes(),
        );
    }
    set("empty folder", "user.folder", b"folders too");
    set("dangling", "trusted.symlink", b"and symlinks");
    set("xattr small", "trusted.kept", b"root's");
    set("xattr small", "security.folio", b"a label");
    let path = |name: &str| target.join(name).into_os_string().into_string().unwrap();
    if find("setfacl").is_some() {
        run("setfacl", ["-m", "u:1234:rwx,g:4321:r-x", &path("acl")]);
        run("setfacl", ["-d", "-m", "u:99:rx", &path("b")]);
    }
    if find("setcap").is_some() {
        run("setcap", ["cap_net_raw,cap_chown+ep", &path("capable")]);
    }
}

fn owners(target: &Path) {
    let modes = [
        ("mode setuid", 0o4755),
        ("mode setgid", 0o2711),
        ("mode none", 0),
        ("mode all", 0o7777),
    ];
    for (name, mode) in modes {
        let path = target.join(name);
        fs::write(&path, name).unwrap();
        std::os::unix::fs::lchown(&path, Some(1000), Some(100_000)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let sticky = target.join("mode sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o3777)).unwrap();
    std::os::unix::fs::lchown(target.join("dangling"), Some(4_000_000_000), Some(65_535)).unwrap();
}
