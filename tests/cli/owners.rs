//! Owners and modes without root: `--chown`, `--chmod`, `--manifest`, `find --mtree`, `mknod`.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{command, fsck, run, succeed};
use std::os::unix::fs::PermissionsExt;

/// Writes a tree as a builder has it: all files are its own.
fn tree(dir: &TestDir) {
    let root = dir.path("tree");
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::create_dir(root.join("bin")).unwrap();
    let passwd = "root:x:0:0::/:/bin/sh\njoe:x:1000:100::/:/bin/sh\n";
    std::fs::write(root.join("etc/passwd"), passwd).unwrap();
    std::fs::write(root.join("etc/group"), "root:x:0:\nusers:x:100:\n").unwrap();
    std::fs::write(root.join("bin/su"), "su").unwrap();
    std::os::unix::fs::symlink("su", root.join("bin/link")).unwrap();
}

const TABLE: &str = "# makedevs and mksquashfs\n\
    /dev d 755 0 0 - - - - -\n\
    /dev/tty c 666 0 5 5 0 0 1 3\n\
    /bin/su m 4755 0 0\n\
    /home/joe d 700 joe users\n\
    /etc r - 0 0 - - - - -\n";

/// Returns the lines of a manifest without times and sizes.
fn owners(dir: &TestDir, image: &str) -> Vec<String> {
    let text = dir.ok(&["find", image, "--mtree"]);
    let lines = text.lines().filter(|line| !line.contains("lost+found"));
    let short = |line: &str| {
        let words = line
            .split(' ')
            .filter(|word| !word.starts_with("time=") && !word.starts_with("size="));
        words.collect::<Vec<_>>().join(" ")
    };
    lines.map(short).collect()
}

#[test]
fn table_sets_owners_and_makes_device_nodes() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    tree(&dir);
    std::fs::write(dir.path("table"), TABLE).unwrap();
    let options = [
        "--chown",
        "500:600",
        "--chmod",
        "u=rwX,go=rX",
        "--manifest",
        "table",
    ];
    dir.ok(&[
        &["cp", "-a", "tree/.", "a.img:/", "--create", "16M"],
        &options[..],
    ]
    .concat());
    fsck(&dir.path("a.img"));
    let want = [
        "#mtree",
        ". type=dir mode=0755 uid=500 gid=600",
        "./bin type=dir mode=0755 uid=500 gid=600",
        "./bin/link type=link mode=0777 uid=500 gid=600 link=su",
        "./bin/su type=file mode=4755 uid=0 gid=0",
        "./dev type=dir mode=0755 uid=0 gid=0",
        "./dev/tty0 type=char mode=0666 uid=0 gid=5 device=linux,5,0",
        "./dev/tty1 type=char mode=0666 uid=0 gid=5 device=linux,5,1",
        "./dev/tty2 type=char mode=0666 uid=0 gid=5 device=linux,5,2",
        "./etc type=dir mode=0755 uid=0 gid=0",
        "./etc/group type=file mode=0644 uid=0 gid=0",
        "./etc/passwd type=file mode=0644 uid=0 gid=0",
        "./home type=dir mode=0755 uid=0 gid=0",
        "./home/joe type=dir mode=0700 uid=1000 gid=100",
    ];
    assert_eq!(owners(&dir, "a.img"), want);
    // The written manifest makes the same of the plain tree, also through an archive.
    let manifest = dir.ok(&["find", "a.img", "--mtree"]);
    std::fs::write(dir.path("a.mtree"), &manifest).unwrap();
    dir.ok(&[
        "cp",
        "-r",
        "tree/.",
        "b.img:/",
        "--create",
        "16M",
        "--manifest",
        "a.mtree",
    ]);
    assert_eq!(dir.ok(&["find", "b.img", "--mtree"]), manifest);
    dir.ok(&["tar", "-cf", "a.tar", "b.img"]);
    dir.ok(&[
        "tar",
        "-xf",
        "a.tar",
        "c.img:/",
        "--create",
        "16M",
        "--manifest",
        "table",
        "--chown",
        "7",
    ]);
    assert!(owners(&dir, "c.img").contains(&"./dev type=dir mode=0755 uid=0 gid=0".to_owned()));
}

#[test]
fn owner_names_come_with_the_files() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    tree(&dir);
    let su = dir.path("tree/bin/su");
    std::fs::set_permissions(&su, std::fs::Permissions::from_mode(0o4755)).unwrap();
    dir.ok(&["cp", "-a", "tree/.", "plain.img:/", "--create", "16M"]);
    dir.ok(&["tar", "-cf", "tree.tar", "plain.img"]);
    dir.ok(&["cp", "-a", "plain.img:/", "oci:./layout:a"]);
    let sources: [(&str, &[&str]); 4] = [
        ("a.img", &["cp", "-a", "tree/.", "a.img:/"]),
        ("b.img", &["cp", "-a", "plain.img:/.", "b.img:/"]),
        ("c.img", &["tar", "-xf", "tree.tar", "c.img:/"]),
        ("d.img", &["cp", "-a", "oci:./layout:a", "d.img:/"]),
    ];
    for (image, words) in sources {
        dir.ok(&[words, &["--create", "16M", "--chown", "joe:users"]].concat());
        fsck(&dir.path(image));
        let found = owners(&dir, image);
        let is_joe = |line: &&String| line.contains("uid=1000 gid=100");
        assert_eq!(found.iter().skip(1).filter(|line| !is_joe(line)).count(), 0);
        let su = "./bin/su type=file mode=4755 uid=1000 gid=100".to_owned();
        assert!(found.contains(&su), "{image}: {found:?}");
    }
    // The manifest wins, and the user root needs no table.
    std::fs::write(dir.path("table"), "/bin m 700 7 8\n").unwrap();
    let words = ["cp", "-r", "tree/.", "e.img:/", "--create", "16M"];
    let owned = ["--chown", ":users", "--manifest", "table"];
    dir.ok(&[&words[..], &owned].concat());
    let bin = "./bin type=dir mode=0700 uid=7 gid=8".to_owned();
    assert!(owners(&dir, "e.img").contains(&bin));
    let words = ["cp", "-r", "tree/bin", "f.img:/", "--create", "16M"];
    dir.ok(&[&words[..], &["--chown", "root:root"]].concat());
    let fails = ["cp", "-r", "tree/bin", "g.img:/", "--create", "16M"];
    dir.fails(
        &[&fails[..], &["--chown", "joe"]].concat(),
        1,
        "joe: unknown",
    );
    assert!(!dir.path("g.img").exists());
}

#[test]
fn table_of_buildroot_is_applied() {
    requires!(root, tool("setcap"));
    let dir = TestDir::new();
    tree(&dir);
    let table = "/bin r -1 7 8 - - - - -\n/bin/su F 755 -1 0 - - - - -\n|xattr cap_net_raw+ep\n\
        /bin/none F 755 0 0 - - - - -\n|xattr cap_kill=p\n";
    std::fs::write(dir.path("table"), table).unwrap();
    let words = ["cp", "-r", "tree/.", "a.img:/", "--create"];
    dir.ok(&[&words[..], &["--manifest", "table"]].concat());
    let found = owners(&dir, "a.img:/bin");
    assert_eq!(
        found[1..],
        [
            ". type=dir mode=0755 uid=7 gid=8",
            "./link type=link mode=0777 uid=7 gid=8 link=su",
            "./su type=file mode=0755 uid=7 gid=0",
        ]
    );
    dir.ok(&["cp", "-a", "a.img:/bin/su", "su"]);
    let listed = run("getcap", [dir.path("su")]);
    assert!(listed.contains("cap_net_raw=ep"), "{listed}");
}

#[test]
fn manifest_of_bsdtar_is_read() {
    requires!(tool("bsdtar"));
    let dir = TestDir::new();
    tree(&dir);
    let format = "--format=mtree";
    let mut bsdtar = command("bsdtar");
    bsdtar.args(["-c", format, "-f", "tree.mtree", "-C", "tree", "."]);
    succeed(bsdtar.current_dir(dir.path("")));
    let text = std::fs::read_to_string(dir.path("tree.mtree")).unwrap();
    let text: String = text
        .lines()
        .map(|line| {
            let words = line.split(' ').filter(|word| !word.starts_with("gname="));
            let words = words.filter(|word| !word.starts_with("uname="));
            let is_id = |word: &str| word.starts_with("uid=") || word.starts_with("gid=");
            let words = words.map(|word| {
                if is_id(word) {
                    format!("{}=42", &word[..3])
                } else {
                    word.into()
                }
            });
            words.collect::<Vec<_>>().join(" ") + "\n"
        })
        .collect();
    std::fs::write(dir.path("tree.mtree"), text).unwrap();
    dir.ok(&[
        "cp",
        "-r",
        "tree/.",
        "a.img:/",
        "--create",
        "16M",
        "--manifest",
        "tree.mtree",
    ]);
    let found = owners(&dir, "a.img:/bin");
    assert!(
        found
            .iter()
            .skip(1)
            .all(|line| line.contains("uid=42 gid=42")),
        "{found:?}"
    );
}

#[test]
fn invalid_manifest_is_refused_before_the_copy() {
    let dir = TestDir::new();
    tree(&dir);
    std::fs::write(dir.path("bad"), "/bin/su m 4755 0 0\n/x f 644 0 0 cat\n").unwrap();
    let copy = ["cp", "-r", "tree/.", "a.img:/", "--create", "16M"];
    dir.fails(
        &[&copy[..], &["--manifest", "bad"]].concat(),
        1,
        "bad: line 2: files made by commands",
    );
    dir.fails(
        &[&copy[..], &["--manifest", "none"]].concat(),
        1,
        "none: No such file",
    );
    dir.fails(
        &[&copy[..], &["--chmod", "rwx"]].concat(),
        2,
        "invalid mode",
    );
    dir.fails(
        &[&copy[..], &["--chown", "ann"]].concat(),
        1,
        "ann: unknown name in the image's",
    );
    assert!(!dir.path("a.img").exists());
    dir.fails(
        &["cp", "-r", "disk.img:/", "back", "--chown", "0"],
        2,
        "must be IMAGE:/path",
    );
    dir.fails(&["tar", "-tf", "x.tar", "--chown", "0"], 2, "only with -x");
    // Lines that do not fit are reported, and the remaining ones are applied.
    let text = "#mtree\n./nope type=dir mode=0700 uid=9\n./bin/su uname=ann\n./bin type=file\n\
        ./gone mode=0600\n./missing optional mode=0600\n./../up type=dir\n";
    std::fs::write(
        dir.path("odd.mtree"),
        text.replace("./../up type=dir\n", ""),
    )
    .unwrap();
    let copy = [
        "cp",
        "-r",
        "tree/.",
        "disk.img:/",
        "--manifest",
        "odd.mtree",
    ];
    dir.fails(
        &copy,
        1,
        "disk.img:bin/su: manifest: line 3: ann: unknown name",
    );
    dir.fails(&copy, 1, "disk.img:gone: manifest: line 5: No such file");
    assert!(
        dir.ok(&["ls", "-ld", "disk.img:/nope"])
            .starts_with("drwx------ 2 9")
    );
    std::fs::write(dir.path("odd.mtree"), text).unwrap();
    dir.fails(&copy, 1, "line 7: the name has '..'");
}

#[test]
fn mknod_and_chown_set_special_bits() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    dir.ok(&["mknod", "-m", "600", "disk.img:/null", "c", "1", "3"]);
    dir.ok(&["mknod", "disk.img:/disk", "b", "259", "70000"]);
    dir.ok(&["mknod", "disk.img:/pipe", "p"]);
    let listed = dir.ok(&[
        "ls",
        "-l",
        "disk.img:/null",
        "disk.img:/disk",
        "disk.img:/pipe",
    ]);
    assert!(
        listed.contains("crw-------") && listed.contains("259, 70000"),
        "{listed}"
    );
    dir.fails(
        &["mknod", "disk.img:/null", "p"],
        1,
        "disk.img:/null: File exists",
    );
    dir.fails(
        &["mknod", "disk.img:/x", "c", "1"],
        2,
        "needs MAJOR and MINOR",
    );
    dir.fails(
        &["mknod", "disk.img:/x", "p", "1", "2"],
        2,
        "no device numbers",
    );
    dir.write("disk.img:/su", "su");
    let mode = || dir.json(&["stat", "--json", "disk.img:/su"])[0]["mode"].clone();
    dir.ok(&["chmod", "4755", "disk.img:/su"]);
    dir.ok(&["chown", "-R", "--keep-setuid", "7:7", "disk.img:/"]);
    assert_eq!(mode(), "4755");
    dir.ok(&["chown", "8", "disk.img:/su"]);
    assert_eq!(mode(), "0755");
    fsck(&dir.path("disk.img"));
}
