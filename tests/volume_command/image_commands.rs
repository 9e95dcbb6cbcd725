//! The commands for images and files on a volume in a directory of the host.

use super::server::Server;
use super::{fail, succeed};
use std::fs;
use tempfile::TempDir;

/// Creates a volume of 256 MiB with the file /a, and returns its URL.
fn volume(server: &Server, folder: &TempDir) -> String {
    let (url, file) = (server.url("disk"), folder.path().join("a"));
    fs::write(&file, "first").expect("a file");
    let file = file.to_str().expect("a name in UTF-8");
    succeed(server, &["volume", "create", &url, "--size", "256M"]);
    succeed(server, &["cp", file, &format!("{url}:/"), "--create"]);
    url
}

#[test]
fn several_paths_of_one_volume_are_changed() {
    let (server, folder) = (Server::directory(), TempDir::new().expect("a folder"));
    let url = volume(&server, &folder);
    let at = |path: &str| format!("{url}:{path}");
    succeed(&server, &["mkdir", &at("/x"), &at("/y")]);
    succeed(&server, &["touch", &at("/x/1"), &at("/y/1"), &at("/z")]);
    succeed(&server, &["chmod", "600", &at("/x/1"), &at("/y/1")]);
    succeed(&server, &["chown", "7:8", &at("/x/1"), &at("/y/1")]);
    let listed = succeed(&server, &["ls", "-l", &at("/x"), &at("/y")]);
    assert_eq!(listed.matches("-rw------- 1 7 8").count(), 2, "{listed}");
    succeed(&server, &["cp", &at("/a"), &at("/x/a")]);
    assert_eq!(succeed(&server, &["cat", &at("/x/a")]), "first");
    succeed(&server, &["rm", "-r", &at("/x"), &at("/y")]);
    fail(&server, &["stat", &at("/x")]);
    succeed(&server, &["check", &url]);
}

#[test]
fn image_commands_take_a_volume() {
    let (server, folder) = (Server::directory(), TempDir::new().expect("a folder"));
    let url = volume(&server, &folder);
    let copy = folder.path().join("copy.qcow2");
    let copy = copy.to_str().expect("a name in UTF-8");
    let info = succeed(&server, &["image", "info", "--json", &url]);
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(info["format"], "raw", "{info}");
    assert_eq!(info["virtual-size"], 256 << 20, "{info}");
    assert!(info["actual-size"].as_u64() < Some(64 << 20), "{info}");
    assert!(succeed(&server, &["info", &url]).contains("ext4"));
    succeed(&server, &["trim", &url]);
    succeed(&server, &["image", "convert", "-O", "qcow2", &url, copy]);
    succeed(&server, &["image", "compare", &url, copy]);
    let cat = succeed(&server, &["cat", &format!("{copy}:/a")]);
    assert_eq!(cat, "first");

    // Back, into the disk of another volume.
    let other = server.url("other");
    succeed(&server, &["volume", "create", &other, "--size", "256M"]);
    succeed(
        &server,
        &["image", "convert", "-n", "-O", "raw", copy, &other],
    );
    succeed(&server, &["image", "compare", &url, &other]);
    succeed(&server, &["volume", "check", "--data", &other]);

    // A local overlay over a volume.
    let overlay = folder.path().join("overlay.qcow2");
    let overlay = overlay.to_str().expect("a name in UTF-8");
    let words = ["image", "create", "-f", "qcow2", "-b", &url, "-F", "raw"];
    let words = [&words[..], &["--backing", "allow", overlay]].concat();
    succeed(&server, &words);
    let cat = ["cat", "--backing-url", &url, &format!("{overlay}:/a")];
    assert_eq!(succeed(&server, &cat), "first");
}

#[test]
fn volume_is_a_disk_whatever_it_holds() {
    let (server, folder) = (Server::directory(), TempDir::new().expect("a folder"));
    let (url, image) = (server.url("disk"), folder.path().join("inner.qcow2"));
    let image = image.to_str().expect("a name in UTF-8");
    succeed(&server, &["image", "create", "-f", "qcow2", image, "1G"]);
    succeed(&server, &["volume", "create", &url, "--size", "64M"]);
    let words = ["image", "convert", "-n", "-f", "raw", "-O", "raw"];
    succeed(&server, &[&words[..], &[image, &url]].concat());
    let info = succeed(&server, &["image", "info", "--json", &url]);
    assert!(
        info.contains("\"raw\"") && !info.contains("qcow2"),
        "{info}"
    );
}

#[test]
fn object_and_volume_never_share_a_url() {
    let (server, folder) = (Server::directory(), TempDir::new().expect("a folder"));
    let url = volume(&server, &folder);
    let image = folder.path().join("disk.img");
    let image = image.to_str().expect("a name in UTF-8");
    succeed(&server, &["mkfs", image, "--size", "16M"]);
    for words in [&["cp", image, &url][..], &["image", "convert", image, &url]] {
        let refused = fail(&server, words);
        assert!(refused.contains("a volume is there"), "{refused}");
    }
    let object = server.url("object");
    succeed(&server, &["cp", image, &object]);
    let refused = fail(&server, &["volume", "create", &object, "--size", "64M"]);
    assert!(refused.contains("an object is there"), "{refused}");
    succeed(&server, &["volume", "snapshot", &url, "s"]);
    let refused = fail(&server, &["volume", "clone", &url, "s", &object]);
    assert!(refused.contains("an object is there"), "{refused}");
    assert_eq!(succeed(&server, &["cat", &format!("{url}:/a")]), "first");
}

#[test]
fn mkfs_formats_a_new_volume() {
    let server = Server::directory();
    let url = server.url("disk");
    succeed(&server, &["volume", "create", &url, "--size", "64M"]);
    succeed(&server, &["mkfs", &url, "-L", "data"]);
    let refused = fail(&server, &["mkfs", &url]);
    assert!(refused.contains("use --force"), "{refused}");
    succeed(&server, &["mkfs", &url, "-L", "more", "--force"]);
    assert!(succeed(&server, &["info", &url]).contains("more"));
    succeed(&server, &["check", &url]);
}

#[test]
fn open_writer_is_refused_before_its_first_flush() {
    let (server, folder) = (Server::directory(), TempDir::new().expect("a folder"));
    let url = volume(&server, &folder);
    let mount = super::Mounted::new(&server, &url);
    let refused = fail(&server, &["touch", &format!("{url}:/b")]);
    assert!(refused.contains("--takeover"), "{refused}");
    drop(mount);
    succeed(&server, &["touch", "--takeover", &format!("{url}:/b")]);
}

#[test]
fn commit_keeps_what_a_volume_has_gained() {
    let (server, folder) = (Server::directory(), TempDir::new().expect("a folder"));
    let url = volume(&server, &folder);
    let (overlay, file) = (folder.path().join("overlay.qcow2"), folder.path().join("a"));
    let overlay = overlay.to_str().expect("a name in UTF-8");
    let file = file.to_str().expect("a name in UTF-8");
    let words = ["image", "create", "-f", "qcow2", "-b", &url, "-F", "raw"];
    let words = [&words[..], &["--backing", "allow", overlay]].concat();
    succeed(&server, &words);
    let write = |name: &str| {
        let inside = format!("{overlay}:/{name}");
        succeed(&server, &["cp", "--backing-url", &url, file, &inside]);
    };
    let commit = ["image", "commit", "--backing-url", &url, overlay];
    write("x");
    succeed(&server, &commit);
    assert_eq!(succeed(&server, &["cat", &format!("{url}:/x")]), "first");
    // The overlay goes on until the volume changes.
    write("y");
    succeed(&server, &["cp", file, &format!("{url}:/gained")]);
    let refused = fail(&server, &commit);
    assert!(refused.contains("has changed since"), "{refused}");
    assert_eq!(
        succeed(&server, &["cat", &format!("{url}:/gained")]),
        "first"
    );
}

#[test]
fn volume_needs_a_plain_name_and_keeps_objects_out() {
    let (server, folder) = (Server::directory(), TempDir::new().expect("a folder"));
    let url = volume(&server, &folder);
    let file = folder.path().join("a");
    let file = file.to_str().expect("a name in UTF-8");
    for name in ["\u{fc}", "a%23x", "a~b"] {
        let create = ["volume", "create", &server.url(name), "--size", "64M"];
        let refused = fail(&server, &create);
        assert!(refused.contains("beyond ASCII"), "{refused}");
    }
    let refused = fail(&server, &["cp", file, &format!("{url}/map/x")]);
    assert!(refused.contains("a volume is there"), "{refused}");
}
