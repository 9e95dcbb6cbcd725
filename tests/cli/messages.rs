//! Messages of wrong uses: each names the cause and what to do, and ends with the documented exit
//! code.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{run, text};
use std::process::Stdio;

/// A path below an image file is meant as one in it.
#[test]
fn path_below_an_image_names_the_right_form() {
    let dir = TestDir::new();
    let output = dir.command(&["ls", "disk.img/etc"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("write disk.img:/etc for"), "{printed}");
    let output = dir.command(&["find", "disk.img", "-name", "x"]).output();
    let printed = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    assert!(printed.contains("use '--name PATTERN'"), "{printed}");
}

#[test]
fn copy_without_an_image_path_has_a_hint() {
    let dir = TestDir::new();
    std::fs::write(dir.path("file"), "x").unwrap();
    dir.fails(
        &["cp", "file", "disk.img"],
        2,
        "neither file nor disk.img is a path in an image, IMAGE:/path; to copy into the image \
         disk.img, write disk.img:/",
    );
    dir.fails(
        &["cp", "disk.img", "out"],
        2,
        "to copy out of the image disk.img, write disk.img:/path",
    );
    dir.fails(
        &["cp", "file", "new.img:/"],
        2,
        "new.img:/: the image new.img does not exist; create it with --create SIZE",
    );
    dir.fails(
        &["cp", "dsk.img:/x", "out"],
        2,
        "the image dsk.img does not exist; did you mean disk.img?",
    );
}

#[test]
fn refused_paths_are_named() {
    let dir = TestDir::new();
    std::fs::write(dir.path("file"), "x").unwrap();
    for (words, code, message) in [
        (&["cp", "disk.img:x", "out"][..], 2, "use disk.img:/x"),
        (
            &["cp", "file", "file", "disk.img:/n"],
            1,
            "disk.img:/n: not a directory",
        ),
        (
            &["cp", "file", "disk.img:/a/b"],
            1,
            "disk.img:/a/: No such file or directory; create",
        ),
        (
            &["ln", "disk.img:/x", "disk.img:/y"],
            1,
            "disk.img:/x: No such file",
        ),
        (
            &["mv", "disk.img:/lost+found", "disk.img:/lost+found/x"],
            1,
            "disk.img:/lost+found: cannot move a directory into itself",
        ),
    ] {
        dir.fails(words, code, message);
    }
}

#[test]
fn too_small_image_is_refused_with_the_least_size() {
    let dir = TestDir::new();
    std::fs::write(dir.path("file"), "x").unwrap();
    for words in [
        &["cp", "file", "new.img:/", "--create", "10"][..],
        &["mkfs", "new.img", "--size", "8K"],
        &["mkfs", "new.img", "--size", "8K", "-b", "4096"],
    ] {
        let output = dir.command(words).output().unwrap();
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(!dir.path("new.img").exists());
        // The named size is enough, and less is not.
        let (_, least) = printed.split_once(", at least ").expect(&printed);
        let least: u64 = least.split(' ').next().unwrap().parse().unwrap();
        for (size, code) in [(least - 4096, 2), (least, 0)] {
            let size = size.to_string();
            let position = words.len() - if words.contains(&"-b") { 3 } else { 1 };
            let mut words = words.to_vec();
            words[position] = &size;
            let output = dir.command(&words).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        }
        std::fs::remove_file(dir.path("new.img")).unwrap();
    }
}

#[test]
fn image_in_use_names_its_user() {
    let dir = TestDir::new();
    let options = folio::block::OpenOptions::default();
    let device = folio::block::open(dir.path("disk.img"), &options).unwrap();
    let user = format!("(process {})", std::process::id());
    dir.fails(&["mkdir", "disk.img:/d"], 3, "in use by another process");
    dir.fails(&["mkdir", "disk.img:/d"], 3, &user);
    drop(device);
    dir.ok(&["mkdir", "disk.img:/d"]);
}

#[test]
fn other_contents_are_named() {
    requires!(tool("mkfs.xfs"), tool("mkfs.btrfs"));
    let dir = TestDir::new();
    for kind in ["xfs", "btrfs"] {
        let image = dir.path(kind);
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(400 << 20).unwrap();
        run(
            &format!("mkfs.{kind}"),
            ["-q".into(), image.into_os_string()],
        );
        let holds = format!("no ext4 file system: it holds {kind}");
        for (command, status) in [("ls", 3), ("check", 8), ("resize", 3), ("tune", 3)] {
            dir.fails(&[command, kind], status, &holds);
        }
    }
    let spec = "[[partition]]\ntype = 'linux'\nformat = 'raw'\nsource = 'xfs'\n";
    std::fs::write(dir.path("spec.toml"), spec).unwrap();
    dir.ok(&["disk", "create", "whole.img", "spec.toml"]);
    let reads = "it holds xfs; Folio reads ext4, FAT, squashfs and erofs";
    for image in ["xfs", "whole.img", "whole.img@1"] {
        dir.fails(&["ls", image], 3, reads);
    }
    std::fs::write(dir.path("zeros"), [0; 1 << 20]).unwrap();
    dir.fails(&["ls", "zeros"], 3, "it holds only zeros");
    dir.fails(
        &["ls", "/etc"],
        3,
        "/etc: is a directory of the host, not an image",
    );
}

#[test]
fn invalid_options_are_usage_errors() {
    let dir = TestDir::new();
    let unknown = "unknown mount option \"foo\"";
    dir.fails(&["ls", "disk.img", "-o", "foo"], 2, unknown);
    dir.fails(
        &["ls", "disk.img", "-o", "commit=x"],
        2,
        "expected a number",
    );
    dir.fails(&["mount", "disk.img", "/mnt", "-o", "foo"], 2, unknown);
    dir.fails(
        &["tune", "disk.img", "-o", "discard"],
        2,
        "use --mount-defaults to store default mount options",
    );
    let convert = ["image", "convert", "-O", "qcow2", "disk.img", "new", "-o"];
    for word in ["foo=1", "cluster_size=3", "refcount_bits=3", "compat=2"] {
        let words = [&convert[..], &[word]].concat();
        dir.fails(&words, 2, "folio: image convert: ");
        let create = ["image", "create", "-f", "qcow2", "-o", word, "new", "1M"];
        dir.fails(&create, 2, "folio: image create: ");
        assert!(!dir.path("new").exists());
    }
    // clap suggests '-- --foo', which no user means.
    let output = dir.command(&["ls", "--foo", "disk.img"]).output().unwrap();
    assert!(!text(&output).contains("tip:"), "{}", text(&output));
    dir.fails(&["cp", "--include", "x", "y:/"], 2, "--exclude PATTERN");
}

#[test]
fn full_storage_is_named() {
    requires!(root, tool("mount"));
    let dir = TestDir::new();
    std::fs::write(dir.path("huge"), vec![1; 70 << 20]).unwrap();
    let of_image = "the file system in disk.img is full: see folio df disk.img, and enlarge it \
                    with folio resize disk.img SIZE";
    dir.fails(&["cp", "huge", "disk.img:/"], 1, of_image);
    let input = std::fs::File::open(dir.path("huge")).unwrap();
    let mut write = dir.command(&["write", "disk.img:/w"]);
    let output = write.stdin(input).output().unwrap();
    assert!(text(&output).contains(of_image), "{}", text(&output));
    dir.fails(
        &["cp", "huge", "new.img:/", "--create", "16M"],
        1,
        "the file system in new.img is full: repeat with a larger --create SIZE",
    );
    std::fs::create_dir(dir.path("small")).unwrap();
    let place = dir.path("small").into_os_string();
    let options = ["-t", "tmpfs", "-o", "size=8M", "none"].map(Into::into);
    run("mount", options.into_iter().chain([place.clone()]));
    let outputs = [
        &["mkfs", "small/a.img", "--size", "64M"][..],
        &["cp", "huge", "small/a.img:/"],
        &["image", "convert", "-O", "qcow2", "huge", "small/b"],
        &["image", "convert", "-O", "raw", "huge", "small/b"],
        &[
            "image",
            "create",
            "-o",
            "preallocation=full",
            "small/c",
            "64M",
        ],
    ]
    .map(|words| dir.command(words).output().unwrap());
    run("umount", [place]);
    assert!(outputs[0].status.success(), "{}", text(&outputs[0]));
    for output in &outputs[1..] {
        let printed = text(output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("the host's file system is full"),
            "{printed}"
        );
    }
}

#[test]
fn found_names_are_taken_back() {
    let dir = TestDir::new();
    std::fs::create_dir_all(dir.path("tree/a b")).unwrap();
    for name in ["a b/x.rs", "y:z.rs", "line\nbreak.rs", "-r.rs"] {
        std::fs::write(dir.path("tree").join(name), name).unwrap();
    }
    dir.ok(&["cp", "-a", "tree/.", "disk.img:/srv/"]);
    let found = dir.ok(&["find", "disk.img:/srv", "--name", "*.rs", "--print0"]);
    let names: Vec<_> = found.split_terminator('\0').collect();
    assert_eq!(names.len(), 4, "{found:?}");
    let mut words = vec!["cat"];
    words.extend(names);
    assert_eq!(
        dir.ok(&words).len(),
        "a b/x.rsy:z.rsline\nbreak.rs-r.rs".len()
    );
}

#[test]
fn interrupted_preallocation_removes_its_image() {
    let dir = TestDir::new();
    let options = "preallocation=metadata";
    assert_interrupted(
        &dir,
        &[
            "image",
            "create",
            "-f",
            "qcow2",
            "-o",
            options,
            "new.qcow2",
            "60T",
        ],
    );
}

#[test]
fn interrupted_mkfs_removes_its_image() {
    let dir = TestDir::new();
    assert_interrupted(&dir, &["mkfs", "new.qcow2", "--size", "60T"]);
}

/// Interrupts a command once it has created `new.qcow2`.
fn assert_interrupted(dir: &TestDir, words: &[&str]) {
    let image = dir.path("new.qcow2");
    let mut child = dir.command(words).stderr(Stdio::piped()).spawn().unwrap();
    while !image.exists() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(!image.exists());
}

#[test]
fn several_paths_may_be_in_one_image() {
    let dir = crate::cli::TestDir::new();
    dir.ok(&["mkdir", "disk.img:/a", "disk.img:/b"]);
    dir.ok(&["touch", "disk.img:/a/f", "disk.img:/b/f"]);
    dir.ok(&["chmod", "600", "disk.img:/a/f", "disk.img:/b/f"]);
    dir.ok(&["rm", "-r", "disk.img:/a", "disk.img:/b"]);
    assert_eq!(dir.ok(&["ls", "disk.img:/"]), "lost+found\n");
}
