//! `--create auto`: the image is as small as its content needs.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{fsck, run};
use std::ffi::OsString;
use std::path::Path;

/// Trees whose size depends on different parts of the estimate.
const TREES: [(&str, fn(&Path)); 6] = [
    ("empty", |_| {}),
    ("small", |root| {
        for number in 0_usize..1500 {
            let dir = root.join(format!("{:02}", number % 40));
            std::fs::create_dir_all(&dir).unwrap();
            let len = [0, 10, 1000, 3000, 5000, 9000][number % 6];
            std::fs::write(dir.join(number.to_string()), vec![7; len]).unwrap();
        }
    }),
    ("names", |root| {
        for number in 0..4000 {
            std::fs::write(root.join(format!("a rather long name {number}")), "").unwrap();
        }
    }),
    ("links", |root| {
        for number in 0..300 {
            let first = root.join(format!("first {number}"));
            std::fs::write(&first, vec![1; 20_000]).unwrap();
            for link in 0..5 {
                std::fs::hard_link(&first, root.join(format!("{number} {link}"))).unwrap();
            }
            std::os::unix::fs::symlink("x".repeat(number + 1), root.join(format!("s{number}")))
                .unwrap();
        }
    }),
    ("sparse", |root| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(root.join("holes")).unwrap();
        for at in 0..400 {
            file.write_all_at(&[9; 5000], at * 65536).unwrap();
        }
    }),
    ("large", |root| {
        std::fs::write(root.join("file"), vec![3; 20 << 20]).unwrap()
    }),
];

#[test]
fn auto_size_fits_the_content_closely() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    for (name, make) in TREES {
        let tree = dir.path(name);
        std::fs::create_dir(&tree).unwrap();
        make(&tree);
        let image = format!("{name}.img");
        let (from, to) = (format!("{name}/."), format!("{image}:/"));
        dir.ok(&["cp", "-a", &from, &to, "--create", "auto"]);
        fsck(&dir.path(&image));
        dir.ok(&["cp", "-a", &to, &format!("{name} back")]);
        let back = dir.path(&format!("{name} back"));
        let words = ["-r", "--no-dereference", "-x", "lost+found"].map(OsString::from);
        run("diff", words.into_iter().chain([tree.into(), back.into()]));
        let len = std::fs::metadata(dir.path(&image)).unwrap().len();
        if ["empty", "names"].contains(&name) {
            // Inodes per group have a limit and a unit.
            continue;
        }
        let less = (len * 97 / 100).to_string();
        dir.fails(
            &["cp", "-a", &from, "less.img:/", "--create", &less],
            1,
            "full",
        );
    }
}

#[test]
fn auto_size_leaves_the_requested_room() {
    let dir = TestDir::new();
    std::fs::write(dir.path("file"), vec![3; 5 << 20]).unwrap();
    let len = |size: &str| {
        let image = format!("{size}.qcow2");
        dir.ok(&[
            "cp",
            "file",
            &format!("{image}:/a/b/file"),
            "--create",
            size,
        ]);
        let info = dir.ok(&["df", "--json", &image]);
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        info[0]["free"].as_u64().unwrap()
    };
    let least = len("auto");
    assert!(least < 100 << 10, "{least}");
    assert!(len("auto+64M") >= least + (60 << 20));
    assert!(len("auto+50%") >= least + (2 << 20));
    dir.fails(
        &["cp", "file", "x.img:/", "--create", "auto-5%"],
        2,
        "auto+20%",
    );
}

#[test]
fn auto_size_holds_attributes_and_images() {
    requires!(tool("setfattr"));
    let dir = TestDir::new();
    let tree = dir.path("tree");
    std::fs::create_dir(&tree).unwrap();
    for number in 0..200 {
        let file = tree.join(number.to_string());
        std::fs::write(&file, "x").unwrap();
        let words = ["-n", "user.value", "-v", &"v".repeat(number * 4)].map(OsString::from);
        run("setfattr", words.into_iter().chain([file.into_os_string()]));
    }
    dir.ok(&["cp", "-a", "tree/.", "a.img:/", "--create", "auto"]);
    dir.ok(&["cp", "-a", "a.img:/.", "b.img:/", "--create", "auto"]);
    fsck(&dir.path("b.img"));
    dir.ok(&["cp", "-a", "b.img:/.", "back"]);
    assert_eq!(dir.ok(&["ls", "b.img:/"]).lines().count(), 201);
}

#[test]
fn auto_size_holds_the_files_of_a_manifest() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("tree")).unwrap();
    let table = "/dev d 755 0 0 - - - - -\n/dev/tty c 620 0 5 4 0 0 1 400\n\
        /srv/a/b/link s 777 0 0 target\n";
    std::fs::write(dir.path("table"), table).unwrap();
    let options = ["--create", "auto", "--manifest", "table"];
    dir.ok(&[&["cp", "-a", "tree/.", "a.img:/"], &options[..]].concat());
    fsck(&dir.path("a.img"));
    assert_eq!(dir.ok(&["ls", "a.img:/dev"]).lines().count(), 400);
    // What the copy creates is not counted again.
    let manifest = dir.ok(&["find", "a.img", "--mtree"]);
    std::fs::write(dir.path("table"), manifest).unwrap();
    dir.ok(&[&["cp", "-a", "a.img:/.", "b.img:/"], &options[..]].concat());
    dir.ok(&["cp", "-a", "a.img:/.", "c.img:/", "--create", "auto"]);
    let len = |name: &str| std::fs::metadata(dir.path(name)).unwrap().len();
    assert_eq!(len("b.img"), len("c.img"));
    // An archive.
    dir.ok(&["tar", "-cf", "empty.tar", "disk.img"]);
    std::fs::write(dir.path("table"), table).unwrap();
    dir.ok(&[&["tar", "-xf", "empty.tar", "d.img:/"], &options[..]].concat());
    fsck(&dir.path("d.img"));
    assert_eq!(dir.ok(&["ls", "d.img:/dev"]).lines().count(), 400);
}
