//! `info` of images that Folio does not read, beside qemu-img's: format, sizes, and damaged
//! headers.

use super::qemu_img::{Pair, words};
use super::support::random::Random;
use super::support::requires;
use super::support::rounds;
use serde_json::Value;

/// The format, the name of a file, and the options of `qemu-img create`.
const IMAGES: [(&str, &str, &str); 14] = [
    ("vmdk", "a.vmdk", ""),
    ("vmdk", "flat.vmdk", "subformat=monolithicFlat"),
    ("vmdk", "parts.vmdk", "subformat=twoGbMaxExtentFlat"),
    ("vmdk", "stream.vmdk", "subformat=streamOptimized"),
    ("vdi", "a.vdi", ""),
    ("vdi", "static.vdi", "static=on"),
    ("vpc", "a.vhd", ""),
    ("vpc", "fixed.vhd", "subformat=fixed"),
    ("vpc", "exact.vhd", "force_size=on"),
    ("vhdx", "a.vhdx", ""),
    ("vhdx", "fixed.vhdx", "subformat=fixed,block_size=1M"),
    ("qed", "a.qed", ""),
    ("parallels", "a.hds", ""),
    ("qcow", "a.qcow", ""),
];

fn create(pair: &Pair, format: &str, name: &str, options: &str, size: &str) {
    let mut line = vec!["create", "-q", "-f", format];
    if !options.is_empty() {
        line.extend(["-o", options]);
    }
    line.extend([name, size]);
    pair.both("qemu-img", &line);
}

fn json(pair: &Pair, side: &str, line: &str) -> Value {
    let output = pair.run(side, &words(line));
    assert!(output.status.success(), "{side}: {line}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn info_of_foreign_format_matches_qemu_img() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    for size in ["10M", "5G"] {
        for (format, name, options) in IMAGES {
            create(&pair, format, name, options, size);
            // Without -f a fixed vhd is a raw image to both programs.
            for line in [
                format!("info --output=json {name}"),
                format!("info --output=json -f {format} {name}"),
            ] {
                let (own, real) = (json(&pair, "own", &line), json(&pair, "real", &line));
                for key in ["format", "virtual-size", "cluster-size", "filename"] {
                    assert_eq!(own[key], real[key], "{line}: {key}");
                }
                // qemu-img omits it for parallels.
                assert_eq!(own["dirty-flag"], false);
            }
            if format != "vmdk" {
                pair.same(&["info", name]);
            }
        }
    }
    for line in [
        "info -f vdi a.vhd",
        "info -f vpc a.vdi",
        "check a.vdi",
        "map a.vdi",
    ] {
        let codes = ["own", "real"].map(|side| pair.run(side, &words(line)).status.success());
        assert!(!codes[0], "{line}");
        assert!(
            !codes[1] || line.starts_with("check") || line.starts_with("map"),
            "{line}"
        );
    }
}

#[test]
fn damaged_foreign_header_never_panics() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    let mut random = Random::new(17);
    for (format, name, options) in IMAGES {
        create(&pair, format, name, options, "10M");
        let path = pair.path("own", name);
        let good = std::fs::read(&path).unwrap();
        // The numbers are in the first bytes, at 64 KiB steps (vhdx), and in a footer.
        let mut damaged: Vec<Vec<u8>> = [0, 4, 8, 40, 64, 72, 200, 511, 512, 196_700]
            .into_iter()
            .filter(|len| *len < good.len())
            .map(|len| good[..len].to_vec())
            .collect();
        for _ in 0..rounds::cases(25) {
            let mut bytes = good.clone();
            let end = good.len().saturating_sub(512);
            let starts = [0, 0, 192 << 10, 2 << 20, end];
            let start = starts[random.below(5) as usize].min(end);
            for _ in 0..1 + random.below(8) {
                let at = (start + random.below(400) as usize).min(good.len() - 1);
                bytes[at] = [0, 0xff, 0x80, bytes[at] ^ 1][random.below(4) as usize];
            }
            damaged.push(bytes);
        }
        for bytes in damaged {
            std::fs::write(&path, &bytes).unwrap();
            for line in [
                format!("info {name}"),
                format!("info -f {format} --json {name}"),
            ] {
                let output = pair.run("own", &words(&line));
                let printed = String::from_utf8_lossy(&output.stderr);
                let code = output.status.code();
                assert!(matches!(code, Some(0 | 1)), "{line}: {code:?}: {printed}");
                assert!(!printed.contains("panicked"), "{line}: {printed}");
            }
        }
    }
}

/// The header of a LUKS volume of version 1 without keys. `qemu-img create` measures the machine to
/// make one, which fails on a busy machine.
fn luks_header(payload_sectors: u32) -> Vec<u8> {
    let mut header = b"LUKS\xba\xbe\0\x01".to_vec();
    for (name, end) in [("aes", 40), ("xts-plain64", 72), ("sha256", 104)] {
        header.extend(name.as_bytes());
        header.resize(end, 0);
    }
    header.extend([payload_sectors.to_be_bytes(), 64u32.to_be_bytes()].concat());
    header.extend([1; 52]);
    header.extend(1000u32.to_be_bytes());
    header.extend(b"00d31dc1-9f44-4165-b3cb-333d1b2f5eaf\0\0\0\0");
    for slot in 0..8u32 {
        header.extend([0xdead, 1000u32].map(u32::to_be_bytes).concat());
        header.extend([3; 32]);
        header.extend([8 + slot * 504, 4000].map(u32::to_be_bytes).concat());
    }
    header
}

#[test]
fn encrypted_image_shows_its_size_without_a_key() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    let mut volume = luks_header(4040);
    volume.resize(4040 * 512 + (10 << 20), 0);
    pair.file("a.luks", &volume);
    let line = "info --output=json a.luks";
    let (own, real) = (json(&pair, "own", line), json(&pair, "real", line));
    for key in [
        "format",
        "virtual-size",
        "cluster-size",
        "encrypted",
        "dirty-flag",
    ] {
        assert_eq!(own[key], real[key], "{key}");
    }
    // The encryption method of a qcow2 header; the first extension is that of the LUKS header.
    pair.both("qemu-img", &words("create -q -f qcow2 a.qcow2 10M"));
    let mut image = std::fs::read(pair.path("own", "a.qcow2")).unwrap();
    image[35] = 2;
    image[112..144].fill(0);
    image[112..120].copy_from_slice(&[0x05, 0x37, 0xbe, 0x77, 0, 0, 0, 16]);
    image[120..128].copy_from_slice(&(4u64 << 16).to_be_bytes());
    image[128..136].copy_from_slice(&592u64.to_be_bytes());
    image.resize(5 << 16, 0);
    image[4 << 16..(4 << 16) + 592].copy_from_slice(&luks_header(4040));
    pair.file("a.qcow2", &image);
    let line = "info --output=json a.qcow2";
    let (own, real) = (json(&pair, "own", line), json(&pair, "real", line));
    for key in [
        "format",
        "virtual-size",
        "cluster-size",
        "encrypted",
        "dirty-flag",
    ] {
        assert_eq!(own[key], real[key], "{key}");
    }
    assert_eq!(own["format-specific"]["data"]["encrypt"]["format"], "luks");
    assert_eq!(real["format-specific"]["data"]["encrypt"]["format"], "luks");
    for name in ["a.luks", "a.qcow2"] {
        let text = pair.run("own", &["info", name]);
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.contains("\nencrypted: yes\n"), "{text}");
    }
    pair.same(&words("convert -O raw a.qcow2 x"));
    let refused = pair.run("own", &words("convert -O raw a.qcow2 x"));
    let printed = String::from_utf8(refused.stderr).unwrap();
    assert!(
        printed.contains("encryption (LUKS) is not supported"),
        "{printed}"
    );
}
