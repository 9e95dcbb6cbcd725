//! Damaged images: every call returns a result or an error, without a panic, a hang or a huge
//! allocation. `FOLIO_HOSTILE_CASES` sets the number of cases.

use super::{WIDTHS, assert_errno, bytes_of, formatted, mounted, try_mount};
use crate::fuzz_corpus::targets::fat::{NAMES_MAX, change, walk};
use crate::support::random::Random;
use crate::support::rounds;
use folio::Errno;
use folio::block::{Device, MemoryDevice};
use folio::fat::FatWidth;
use std::sync::Arc;

const CASES: u64 = 100;

/// Makes a tree with each kind of structure; returns the image.
fn image(width: FatWidth, len_bytes: u64) -> Vec<u8> {
    let device = formatted(width, len_bytes);
    let fs = mounted(&device);
    fs.create_dir_all("/folder/below/deep").unwrap();
    for number in 0..60 {
        let name = format!("/folder/a rather long name {number}");
        fs.write(name, vec![0xda; number * 500]).unwrap();
    }
    fs.write("/SHORT.TXT", vec![0xda; 50_000]).unwrap();
    fs.close().unwrap();
    bytes_of(&device)
}

fn device_of(bytes: &[u8]) -> Arc<dyn Device> {
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(bytes, 0).unwrap();
    Arc::new(device)
}

#[test]
fn damaged_images_give_errors() {
    let cases = std::env::var("FOLIO_HOSTILE_CASES").ok();
    let cases = cases.map_or(rounds::cases(CASES), |cases| cases.parse().unwrap());
    for (width, len_bytes) in WIDTHS {
        let whole = image(width, len_bytes);
        let used = whole.iter().rposition(|byte| *byte == 0xda).unwrap();
        for seed in 0..cases {
            let mut random = Random::new(seed);
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(40u32) {
                // Metadata is at the start, and among the data.
                let end = random.pick(&[64, 600, 40_000, used]);
                let at = random.below(end);
                if bytes[at] != 0xda {
                    bytes[at] = random.pick(&[0, 1, 0xff, 0xe5, 1 << (seed % 8), bytes[at] ^ 0x20]);
                }
            }
            if seed % 10 == 0 {
                bytes.truncate(random.below(used) / 512 * 512);
            }
            if let Ok(fs) = try_mount(&device_of(&bytes)) {
                let found = walk(&fs);
                change(&fs, &found);
                walk(&fs);
                let _ = fs.close();
            }
        }
    }
}

#[test]
fn chains_that_loop_or_leave_are_reported() {
    let (width, len_bytes) = WIDTHS[1];
    let whole = image(width, len_bytes);
    let sector = |at: usize| usize::from(u16::from_le_bytes([whole[at], whole[at + 1]])) * 512;
    let (table, table_bytes) = (sector(14), sector(22));
    let root = table + 2 * table_bytes;
    // The label's slot is first.
    let slot = (0..64)
        .map(|slot| root + slot * 32)
        .find(|at| whole[*at..].starts_with(b"SHORT   TXT"))
        .unwrap();
    let cluster = u16::from_le_bytes([whole[slot + 26], whole[slot + 27]]);
    let entry = table + 2 * usize::from(cluster + 1);
    for next in [cluster, 1, 0, 0xfff0] {
        let mut bytes = whole.clone();
        bytes[entry..entry + 2].copy_from_slice(&next.to_le_bytes());
        let fs = mounted(&device_of(&bytes));
        assert_errno(fs.read("/SHORT.TXT"), Errno::UCLEAN);
        let file = fs.open("/SHORT.TXT").unwrap();
        let mut buf = [0; 512];
        assert_eq!(fs.process().pread(file.fd(), &mut buf, 0).unwrap(), 512);
        assert_eq!(buf, [0xda; 512]);
        drop(file);
        fs.remove_file("/SHORT.TXT").unwrap();
    }
    // Ends before the file does.
    let mut bytes = whole.clone();
    bytes[entry..entry + 2].copy_from_slice(&0xffffu16.to_le_bytes());
    let fs = mounted(&device_of(&bytes));
    assert_errno(fs.read("/SHORT.TXT"), Errno::UCLEAN);
}

#[test]
fn directory_that_contains_itself_is_reported() {
    let (width, len_bytes) = WIDTHS[1];
    let mut bytes = image(width, len_bytes);
    let word =
        |bytes: &[u8], at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let root = 512 * (word(&bytes, 14) + 2 * word(&bytes, 22));
    let find = |bytes: &[u8], from: usize, name: &[u8]| {
        (from..bytes.len())
            .step_by(32)
            .find(|at| bytes[*at..].starts_with(name))
            .unwrap()
    };
    let folder = find(&bytes, root, b"FOLDER     ");
    let below = find(&bytes, root, b"BELOW      ");
    bytes.copy_within(folder + 26..folder + 28, below + 26);
    let fs = mounted(&device_of(&bytes));
    assert_errno(fs.metadata("/folder/below/below"), Errno::LOOP);
    assert!(walk(&fs).len() < NAMES_MAX);
    assert_errno(fs.rename("/folder", "/folder/below/new"), Errno::INVAL);
}
