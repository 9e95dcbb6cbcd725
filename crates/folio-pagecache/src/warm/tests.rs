//! Tests of warming.

use super::*;
use crate::residency::{ResidencyReport, residency};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const FILES: u64 = 12;

/// Creates files of 4 MiB each, and drops them from memory.
fn cold(folder: &TempDir) -> Vec<Found> {
    let file = |number: u64| {
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, vec![number as u8; 4 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        Found::whole(path, number)
    };
    (0..FILES).map(file).collect()
}

/// Returns the resident bytes of the files; `None` if unknown.
fn resident(files: &[Found]) -> Option<u64> {
    files.iter().try_fold(0, |sum, found| {
        match residency(&File::open(&found.path).unwrap()).unwrap() {
            ResidencyReport::Known(found) => Some(sum + found.resident_bytes),
            ResidencyReport::Unknown(_) => None,
        }
    })
}

/// Warms files of 48 MiB and checks memory every 2 MiB: 100 MiB in all, of which
/// `available_mib` are available from the check `from_look` on.
fn warm(order: Order, available_mib: u64, from_look: u64) -> Option<Warmed> {
    let folder = TempDir::new_in("/var/tmp").unwrap();
    let files = cold(&folder);
    if resident(&files) != Some(0) {
        return None;
    }
    let looks = AtomicU64::new(0);
    let memory = || {
        let is_taken = looks.fetch_add(1, Ordering::Relaxed) >= from_look;
        let available_bytes = if is_taken {
            available_mib * MIB
        } else {
            100 * MIB
        };
        Memory {
            total_bytes: 100 * MIB,
            available_bytes,
        }
    };
    let progress = Progress::default();
    let warmed = Warm {
        order,
        threads: 3,
        budget_bytes: u64::MAX,
    }
    .run_within(&memory, &files, &progress);
    let left_out = warmed.over_budget_bytes;
    assert_eq!(
        (warmed.files, warmed.read_bytes + left_out),
        (FILES, FILES * 4 * MIB),
        "{warmed:?}"
    );
    assert_eq!(progress.read_bytes.into_inner(), warmed.read_bytes);
    // Pages stay, except those that the kernel evicts by itself, and no further page was read.
    let there = resident(&files).expect("residency was known before");
    assert!(
        (warmed.read_bytes * 3 / 4..=warmed.read_bytes).contains(&there),
        "{there}, {warmed:?}"
    );
    assert_eq!(warmed.is_memory_short, left_out > 0, "{warmed:?}");
    assert!(warmed.failures.is_empty(), "{warmed:?}");
    Some(warmed)
}

#[test]
fn warming_stops_before_it_evicts_warmed_pages() {
    for order in [Order::Inode, Order::Physical] {
        // (available MiB, check from which on), and MiB read: least, most.
        for ((available_mib, from_look), (least, most)) in [
            ((100, 0), (48, 48)),
            ((52, 0), (48, 48)),
            ((30, 0), (20, 30)),
            ((30, 5), (20, 30)),
            ((4, 0), (0, 4)),
            // A check every 2 MiB, or with every piece: at most 4 MiB here.
            ((0, 6), (1, 24)),
            ((0, 0), (0, 2)),
        ] {
            let Some(warmed) = warm(order, available_mib, from_look) else {
                return eprintln!("skipped: files in /var/tmp are always in memory");
            };
            let read_mib = warmed.read_bytes / MIB;
            let what = format!("{order:?}, {available_mib} from look {from_look}: {warmed:?}");
            assert!((least..=most).contains(&read_mib), "{what}");
        }
    }
}
