//! The selection of images and files in OCI layouts: by tags, platforms and patterns.

use super::TestDir;
use super::container::{PLATFORM, file, layer, put_image, put_index};
use crate::support::requires;
use crate::support::tools::fsck;
use folio_tree::Compression;
use serde_json::{Value, json};

const FORMATS: [Compression; 1] = [Compression::Gzip];

/// Stores an image with one file, whose name is `content`. The list has its platform, a text such
/// as `linux/arm/v7`; the configuration lacks the variant.
fn image(dir: &TestDir, tag: Option<&str>, platform: &str, content: &str) -> Value {
    let parts: Vec<_> = platform.split('/').collect();
    let config = json!({ "os": parts[0], "architecture": parts[1] });
    let layers = [layer(&[file(content, content)])];
    let mut image = put_image(&dir.path("lay"), &layers, &FORMATS, &config);
    image["platform"] = config;
    if let Some(variant) = parts.get(2) {
        image["platform"]["variant"] = json!(variant);
    }
    if let Some(tag) = tag {
        image["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
    }
    image
}

/// Asserts that a copy of `source` has the file `content`.
#[track_caller]
fn holds(dir: &TestDir, source: &str, platform: &str, content: &str) {
    let image = "out.img:/";
    let words = ["cp", "-a", source, image, "--create", "auto"];
    dir.ok(&[&words[..], &["--platform", platform]].concat());
    assert_eq!(dir.ok(&["cat", &format!("{image}{content}")]), content);
    std::fs::remove_file(dir.path("out.img")).unwrap();
}

/// Asserts that a copy of `source` fails with a message.
#[track_caller]
fn refuses(dir: &TestDir, source: &str, platform: &str, message: &str) {
    let words = ["cp", "-a", source, "out.img:/", "--create", "auto"];
    let words = [&words[..], &["--platform", platform]].concat();
    dir.fails(&words, 1, message);
    assert!(!dir.path("out.img").exists());
}

#[test]
fn repeated_tag_selects_by_platform() {
    let dir = TestDir::new();
    let images = [
        image(&dir, Some("a"), "linux/amd64", "a-amd"),
        image(&dir, Some("b"), "linux/amd64", "b-amd"),
        image(&dir, Some("b"), "linux/arm64", "b-arm"),
    ];
    put_index(&dir.path("lay"), &images);
    holds(&dir, "oci:lay:a", "linux/amd64", "a-amd");
    holds(&dir, "oci:lay:b", "linux/amd64", "b-amd");
    holds(&dir, "oci:lay:b", "linux/arm64", "b-arm");
    let tags = "name one by its tag; there are: a, b";
    refuses(&dir, "oci:lay", "linux/amd64", tags);
    refuses(&dir, "oci:lay", "linux/arm64", tags);
    refuses(
        &dir,
        "oci:lay:b",
        "linux/s390x",
        "there are: linux/amd64, linux/arm64",
    );
    refuses(&dir, "oci:lay:c", "linux/amd64", "there are: a, b");
    // Two images with the tag conflict; one image may have two tags.
    let mut second = images[0].clone();
    second["annotations"] = images[1]["annotations"].clone();
    put_index(&dir.path("lay"), &[images[1].clone(), second.clone()]);
    refuses(
        &dir,
        "oci:lay:b",
        "linux/amd64",
        "several images fit: sha256:",
    );
    put_index(&dir.path("lay"), &[images[0].clone(), second]);
    holds(&dir, "oci:lay", "linux/amd64", "a-amd");
    // Without platforms neither is certain.
    let plain = images.map(|mut image| {
        image.as_object_mut().unwrap().remove("platform");
        image
    });
    put_index(&dir.path("lay"), &plain);
    refuses(&dir, "oci:lay:b", "linux/amd64", "several images fit");
    holds(&dir, "oci:lay:a", "linux/amd64", "a-amd");
}

#[test]
fn untagged_images_select_by_platform() {
    let dir = TestDir::new();
    let platforms = ["linux/arm/v6", "linux/arm/v7", "linux/arm64/v8"];
    let images = platforms.map(|platform| image(&dir, None, platform, &platform.replace('/', "-")));
    put_index(&dir.path("lay"), &images);
    for (wanted, content) in [
        ("linux/arm/v6", "linux-arm-v6"),
        ("linux/arm/v7", "linux-arm-v7"),
        ("linux/arm", "linux-arm-v7"),
        ("linux/arm64", "linux-arm64-v8"),
        ("linux/arm64/v8", "linux-arm64-v8"),
    ] {
        holds(&dir, "oci:lay", wanted, content);
    }
    refuses(&dir, "oci:lay", "linux/arm/v5", "no image for linux/arm/v5");
    // The configuration has no variant; without a list it is the usual one.
    let mut plain = images[2].clone();
    plain.as_object_mut().unwrap().remove("platform");
    put_index(&dir.path("lay"), &[plain]);
    holds(&dir, "oci:lay", "linux/arm64/v8", "linux-arm64-v8");
    refuses(&dir, "oci:lay", "linux/arm", "the image is for linux/arm64");
}

#[test]
fn excluded_names_stay_out_of_images() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    let large = "x".repeat(4 << 20);
    let layers = [
        layer(&[
            file("etc/keep.conf", "k"),
            file("etc/low", "l"),
            file("var/cache/large", &large),
            file("var/log/a.log", &large),
        ]),
        // A whiteout has the name of the file that it removes.
        layer(&[file("etc/.wh.low", ""), file("var/cache/.wh.large", "")]),
    ];
    let amd64 = json!({ "os": "linux", "architecture": "amd64" });
    let image = put_image(&dir.path("lay"), &layers, &FORMATS, &amd64);
    put_index(&dir.path("lay"), &[image]);
    std::fs::write(dir.path("patterns"), "*.log\n").unwrap();
    let excludes = [
        "--exclude",
        "/var/cache",
        "--exclude",
        ".*",
        "--exclude-from",
        "patterns",
    ];
    let copy = ["cp", "-a", "oci:lay", "out.img:/", "--create", "auto"];
    dir.ok(&[&copy[..], &excludes[..], &PLATFORM[..]].concat());
    fsck(&dir.path("out.img"));
    let found = dir.ok(&["find", "out.img", "--type", "f"]);
    assert_eq!(found, "out.img:/etc/keep.conf\n");
    // Neither do excluded files count for the size.
    assert!(std::fs::metadata(dir.path("out.img")).unwrap().len() < 2 << 20);
    for (name, content) in [("keep", "k"), ("a.log", "l"), (".hidden", "h")] {
        dir.write(&format!("out.img:/{name}"), content);
    }
    dir.ok(&[
        &["cp", "-a", "out.img:/", "oci:back:app"][..],
        &excludes[..],
    ]
    .concat());
    let copy = ["cp", "-a", "oci:back:app", "back.img:/", "--create", "auto"];
    dir.ok(&copy);
    let found = dir.ok(&["find", "back.img", "--type", "f"]);
    assert_eq!(found, "back.img:/etc/keep.conf\nback.img:/keep\n");
}

#[test]
fn image_in_use_is_stored_with_force_share() {
    let dir = TestDir::new();
    let options = folio::block::OpenOptions::default();
    let open = folio::block::open(dir.path("disk.img"), &options).unwrap();
    let copy = ["cp", "-a", "disk.img:/", "oci:out:app"];
    dir.fails(&copy, 3, "in use");
    dir.ok(&[&copy[..], &["-U"]].concat());
    drop(open);
}

#[test]
fn whiteout_name_in_a_tree_is_refused() {
    let dir = TestDir::new();
    dir.ok(&["mkdir", "disk.img:/d"]);
    dir.write("disk.img:/d/.wh.evil", "x");
    let copy = ["cp", "-a", "disk.img:/", "oci:out:app"];
    dir.fails(&copy, 1, "disk.img:/d/.wh.evil: not stored: ");
    dir.ok(&[&copy[..], &["--exclude", ".wh.*"]].concat());
}
