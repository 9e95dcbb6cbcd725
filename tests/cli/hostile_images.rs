//! Images of strangers: damaged trees, names that control terminals, secret files.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{command, mke2fs, run, text};
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

fn folio(dir: &TestDir, words: &[&str]) -> Output {
    // A timeout ends a command that waits forever.
    let mut command = command("timeout");
    command.args(["-k", "3", "60", env!("CARGO_BIN_EXE_folio")]);
    command.args(words).current_dir(dir.folder.path());
    command.output().unwrap()
}

/// Makes `loop.img`, where the name `link` is one more name of the directory `target`.
fn image_with_directory_loop(dir: &TestDir, target: &str, link: &str) {
    let image = dir.folder.path().join("loop.img");
    let _ = std::fs::remove_file(&image);
    mke2fs(&image, "2M", &["-b", "1024", "-O", "^metadata_csum"]);
    let debugfs = |request: &str| {
        run(
            "debugfs",
            [
                "-w".as_ref(),
                "-R".as_ref(),
                request.as_ref(),
                image.as_os_str(),
            ],
        )
    };
    debugfs("mkdir /x");
    debugfs("mkdir /x/b");
    debugfs(&format!("ln {target} {link}"));
}

#[test]
fn directory_inside_itself_is_an_error() {
    requires!(tool("mke2fs"), tool("debugfs"));
    let dir = TestDir::new();
    for link in ["/x/a", "/x/b/a"] {
        let place = format!("loop.img:{link}");
        let cases: [&[&str]; 7] = [
            &["rm", "-r", "loop.img:/x"],
            &["mv", &place, "loop.img:/y"],
            &["mv", "loop.img:/x", &place],
            &["find", "loop.img:/x"],
            &["du", "loop.img:/x"],
            &["tar", "-cf", "out.tar", "loop.img:/x"],
            &["cp", "-r", "loop.img:/x", "copy"],
        ];
        for words in cases {
            image_with_directory_loop(&dir, "/x", link);
            let output = folio(&dir, words);
            let printed = text(&output);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {printed}");
            let names_the_loop = ["contains itself", "Too many levels of symbolic links"];
            let is_named = names_the_loop.iter().any(|reason| printed.contains(reason));
            assert!(is_named, "{words:?}: {printed}");
        }
    }
}

#[test]
fn edited_file_is_private() {
    let dir = TestDir::new();
    let editor = dir.folder.path().join("editor");
    std::fs::write(
        &editor,
        "#!/bin/sh\nstat -c %a \"$(dirname \"$1\")\" \"$1\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut shell = command("sh");
    shell
        .args(["-c", "umask 0; exec \"$0\" edit disk.img:/secret"])
        .arg(env!("CARGO_BIN_EXE_folio"))
        .env("VISUAL", &editor)
        .current_dir(dir.folder.path());
    let output = shell.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "700\n600\n");
}

#[test]
fn names_do_not_control_the_terminal() {
    requires!(tool("python3"), tool("qemu-img"));
    let dir = TestDir::new();
    let name = "x\u{1b}]0;PWN\u{7}";
    let root = dir.folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join(name), "").unwrap();
    std::os::unix::fs::symlink(name, root.join("link")).unwrap();
    std::fs::create_dir(root.join(format!("d{name}"))).unwrap();
    dir.ok(&["cp", "-a", "root/.", "disk.img:/"]);
    dir.ok(&["tar", "-c", "-f", "tree.tar", "disk.img:/"]);
    dir.ok(&["mkfs", "empty.img", "--size", "16M"]);
    let chain = dir.folder.path().join("i.qcow2");
    let fixed = ["create", "-q", "-u", "-f", "qcow2", "-b", name, "-F", "raw"];
    let words = fixed.into_iter().map(std::ffi::OsStr::new);
    run("qemu-img", words.chain([chain.as_os_str(), "1M".as_ref()]));
    let cases: [&[&str]; 11] = [
        &["ls", "-l", "disk.img:/"],
        &["ls", "-lR", "disk.img:/"],
        &["diff", "disk.img:/", "empty.img:/"],
        &["tar", "-t", "-l", "-f", "tree.tar"],
        &["cache", "status", "root"],
        &["tree", "disk.img:/"],
        &["find", "disk.img:/"],
        &["du", "-a", "disk.img:/"],
        &["stat", "disk.img:/link"],
        &["stat", "disk.img:/x*"],
        &["image", "info", "i.qcow2"],
    ];
    for words in cases {
        let mut python = command("python3");
        let program = "import pty, sys; pty.spawn(sys.argv[1:])";
        python.args(["-c", program, env!("CARGO_BIN_EXE_folio")]);
        let output = python.args(words).current_dir(dir.folder.path()).output();
        let printed = text(&output.unwrap());
        assert!(printed.contains("PWN"), "{words:?}: {printed}");
        assert!(!printed.contains("\u{1b}]0;PWN"), "{words:?}: {printed:?}");
    }
}

/// A name that is both a link out of the destination and a directory: whichever is copied first,
/// the files of the directory stay in the destination.
#[test]
fn copy_writes_through_no_link_of_the_image() {
    requires!(tool("mke2fs"), tool("debugfs"));
    let dir = TestDir::new();
    let folder = dir.folder.path();
    let outside = folder.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(folder.join("payload"), "payload").unwrap();
    for order in [["/link", "/folder"], ["/folder", "/link"]] {
        let image = folder.join("twice.img");
        let _ = std::fs::remove_file(&image);
        mke2fs(&image, "2M", &["-b", "1024", "-O", "^metadata_csum"]);
        let payload = folder.join("payload");
        let requests = [
            "mkdir /folder".to_owned(),
            format!("write {} /folder/file", payload.display()),
            format!("symlink /link {}", outside.display()),
            "mkdir /tree".to_owned(),
            format!("ln {} /tree/name-1", order[0]),
            format!("ln {} /tree/name-2", order[1]),
        ];
        for request in &requests {
            run("debugfs", ["-w", "-R", request, image.to_str().unwrap()]);
        }
        // debugfs makes no name twice.
        let mut bytes = std::fs::read(&image).unwrap();
        let second = bytes.windows(6).position(|name| name == b"name-2").unwrap();
        bytes[second + 5] = b'1';
        std::fs::write(&image, bytes).unwrap();
        let listed = folio(&dir, &["ls", "twice.img:/tree"]);
        assert_eq!(text(&listed).matches("name-1").count(), 2, "{listed:?}");
        let target = folder.join("target");
        let _ = std::fs::remove_dir_all(&target);
        let copied = folio(&dir, &["cp", "-a", "twice.img:/tree", "target"]);
        let left = std::fs::read_dir(&outside).unwrap().count();
        assert_eq!(left, 0, "{copied:?}");
    }
}
