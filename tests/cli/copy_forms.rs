//! The forms of `folio cp` into existing files, links and directories, compared with GNU cp.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{command, succeed};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

const OPTIONS: [&str; 5] = ["-p", "-r", "-a", "-T", "-rT"];
const SOURCES: [&str; 6] = ["f", "d", "lf", "ld", "d/.", "f/"];
const TARGETS: [&str; 14] = [
    "missing", "file", "dir", "full", "odd", "tofile", "todir", "dangling", "hard", "missing/",
    "file/", "todir/", "tofile/", "dir/.",
];

/// Creates `src` and `dst` in `base`, and an image with both.
fn fixture() -> TestDir {
    let dir = TestDir::new();
    for folder in [
        "base/src/d",
        "base/dst/dir",
        "base/dst/full/d",
        "base/dst/odd/f",
    ] {
        fs::create_dir_all(dir.path(folder)).unwrap();
    }
    for (name, text) in [
        ("src/f", "new"),
        ("src/d/x", "in d"),
        ("dst/file", "old content"),
        ("dst/hard", "two names"),
        ("dst/full/f", "old f"),
        ("dst/full/d/x", "old x"),
        ("dst/odd/d", "a file"),
    ] {
        fs::write(dir.path("base").join(name), text).unwrap();
    }
    for (target, name) in [
        ("f", "src/lf"),
        ("d", "src/ld"),
        ("gone", "src/lg"),
        ("file", "dst/tofile"),
        ("dir", "dst/todir"),
        ("gone", "dst/dangling"),
        ("nowhere", "dst/full/lf"),
        ("f", "dst/full/ld"),
    ] {
        symlink(target, dir.path("base").join(name)).unwrap();
    }
    fs::hard_link(dir.path("base/dst/hard"), dir.path("base/dst/hard2")).unwrap();
    dir.ok(&["-q", "cp", "-a", "base/.", "base.img:/", "--create", "8M"]);
    dir
}

/// Returns kind and content of each file below `folder`, and the names that share an inode.
fn tree(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    let mut first_names = BTreeMap::new();
    while let Some(next) = open.pop() {
        let mut entries: Vec<_> = fs::read_dir(&next)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        entries.sort();
        for path in entries {
            let name = path
                .strip_prefix(folder)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            let metadata = path.symlink_metadata().unwrap();
            let what = if metadata.is_dir() {
                open.push(path);
                "directory".to_owned()
            } else if metadata.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else {
                let first = first_names
                    .entry(metadata.ino())
                    .or_insert_with(|| name.clone());
                format!(
                    "{:?}, first name {first}",
                    fs::read_to_string(&path).unwrap()
                )
            };
            found.insert(name, what);
        }
    }
    found
}

/// Copies the fixture to a folder of its own.
fn copy_base(dir: &TestDir, name: &str) {
    let _ = fs::remove_dir_all(dir.path(name));
    succeed(
        command("cp")
            .arg("-a")
            .arg(dir.path("base"))
            .arg(dir.path(name)),
    );
}

/// Runs one form with GNU cp, out of an image and into an image; all have the same result.
fn compare(dir: &TestDir, options: &str, source: &str, target: &str, lane: usize) {
    let form = format!("cp {options} {source} {target}");
    let (work, image, back) = (
        format!("w{lane}"),
        format!("i{lane}.img"),
        format!("o{lane}"),
    );
    let (host_source, host_target) = (
        format!("{work}/src/{source}"),
        format!("{work}/dst/{target}"),
    );
    copy_base(dir, &work);
    let mut gnu = command("cp");
    gnu.args([options, &host_source, &host_target])
        .current_dir(dir.path(""));
    let wanted = (
        gnu.output().unwrap().status.success(),
        tree(&dir.path(&work).join("dst")),
    );
    let folio = |source: &str, target: &str| {
        let output = dir.command(&["-q", "cp", options, source, target]).output();
        output.unwrap().status.success()
    };
    copy_base(dir, &work);
    let is_ok = folio(&format!("base.img:/src/{source}"), &host_target);
    let found = (is_ok, tree(&dir.path(&work).join("dst")));
    assert_eq!(found, wanted, "out of an image: {form}");
    copy_base(dir, &work);
    fs::copy(dir.path("base.img"), dir.path(&image)).unwrap();
    let is_ok = folio(&host_source, &format!("{image}:/dst/{target}"));
    let _ = fs::remove_dir_all(dir.path(&back));
    dir.ok(&["-q", "cp", "-a", &format!("{image}:/dst"), &back]);
    assert_eq!(
        (is_ok, tree(&dir.path(&back))),
        wanted,
        "into an image: {form}"
    );
}

#[test]
fn forms_of_cp_give_the_trees_of_gnu_cp() {
    requires!(tool("cp"));
    let dir = fixture();
    std::thread::scope(|scope| {
        for (lane, options) in OPTIONS.iter().enumerate() {
            let dir = &dir;
            scope.spawn(move || {
                for source in SOURCES {
                    for target in TARGETS {
                        compare(dir, options, source, target, lane);
                    }
                }
            });
        }
    });
}

#[test]
fn file_does_not_replace_a_node() {
    requires!(tool("mkfifo"));
    let dir = fixture();
    succeed(command("mkfifo").arg(dir.path("fifo")));
    symlink("fifo", dir.path("link")).unwrap();
    for name in ["fifo", "link"] {
        dir.fails(
            &["cp", "base.img:/src/f", name],
            1,
            "cannot overwrite a FIFO",
        );
    }
    let kind = fs::symlink_metadata(dir.path("fifo")).unwrap().file_type();
    assert!(kind.is_fifo());
    dir.ok(&["-q", "cp", "-a", "fifo", "base.img:/dst/fifo"]);
    let copy = ["cp", "base/src/f", "base.img:/dst/fifo"];
    dir.fails(&copy, 1, "cannot overwrite a FIFO");
}
