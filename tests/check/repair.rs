//! Repairs: what a repair claims is clean for e2fsck, with the same files; an undo restores all.
//!
//! A long run damages all images; `FOLIO_CHECK_REFUSED=1` prints what is refused.

use crate::check::images::{Image, RECIPES, Recipe, debugfs};
use crate::check::judge::{Verdict, compare, fsck};
use crate::check::map::{ImageMap, Piece, PieceKind};
use crate::check::scenes::SCENES;
use crate::support::requires;
use crate::support::rounds;
use crate::support::tools::mke2fs;
use folio::block::{self, Device, OpenOptions, OverlayDevice};
use folio::ext4::{self, CheckOptions, RepairPlan};
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions, Process};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// One kind of damage.
enum Damage {
    /// Commands of debugfs.
    Script(String),
    /// Changes bytes of the first, or else the last, piece of a kind; seals it or not.
    Bytes(Piece, ByteChange, bool),
}

/// A change of a piece's bytes.
#[derive(Debug, Clone, Copy)]
enum ByteChange {
    Zero,
    FlipAt(usize),
    FlipFromEnd(usize),
}

/// Values of fields by `set_inode_field`, each for several files.
const INODE_FIELDS: [(&str, &[&str]); 14] = [
    ("links_count", &["1", "2", "9", "65535"]),
    ("dtime", &["1000000000", "4000000000"]),
    ("blocks", &["0", "1", "999999"]),
    ("size", &["1024", "65536"]),
    ("size_high", &["1"]),
    (
        "flags",
        &["0x10", "0x1000", "0x40000", "0x100000", "0x40000000"],
    ),
    ("faddr", &["5"]),
    ("file_acl", &["1", "99999999"]),
    ("blocks_high", &["1"]),
    ("file_acl_high", &["1"]),
    ("generation", &["7"]),
    ("checksum", &["0x12345678"]),
    ("extra_isize", &["3", "28", "4000"]),
    ("mode", &["0", "0100600", "0170000", "0140644"]),
];
const FILES: [&str; 6] = ["small", "medium", "folder", "many", "pipe", "slow"];
/// Values of fields by `set_super_value`.
const SUPERBLOCK_FIELDS: [(&str, &[&str]); 20] = [
    ("free_blocks_count", &["0", "1", "99999999"]),
    ("free_inodes_count", &["0", "1", "99999999"]),
    ("state", &["0", "2", "3"]),
    ("error_count", &["5"]),
    ("last_orphan", &["12", "3"]),
    ("magic", &["0"]),
    ("checksum", &["0x1234"]),
    ("min_extra_isize", &["3", "4000"]),
    ("want_extra_isize", &["3", "4000"]),
    ("r_blocks_count", &["5", "99999999"]),
    ("inodes_count", &["7"]),
    ("blocks_count", &["99999999"]),
    ("first_ino", &["3"]),
    ("log_groups_per_flex", &["40"]),
    ("reserved_gdt_blocks", &["1"]),
    ("journal_inum", &["12"]),
    ("feature_incompat", &["0xffffffff"]),
    ("feature_compat", &["0x38"]),
    ("mnt_count", &["500"]),
    ("desc_size", &["48"]),
];
/// Values of fields by `set_block_group`, for group 0 and 1.
const GROUP_FIELDS: [(&str, &[&str]); 9] = [
    ("free_blocks_count", &["0", "77"]),
    ("free_inodes_count", &["0", "77"]),
    ("used_dirs_count", &["0", "77"]),
    ("flags", &["1", "2", "7"]),
    ("itable_unused", &["1", "5000"]),
    ("checksum", &["0x1234"]),
    ("block_bitmap_csum", &["0x1234"]),
    ("inode_bitmap_csum", &["0x1234"]),
    ("inode_table", &["5"]),
];

/// Returns all kinds of damage of an image, with a name each.
fn kinds(map: &ImageMap) -> Vec<(String, Damage)> {
    let mut scripts: Vec<String> = SCENES.iter().map(|scene| (*scene).to_owned()).collect();
    for (field, values) in INODE_FIELDS {
        for (value, file) in values.iter().zip(FILES.iter().cycle().skip(field.len())) {
            scripts.push(format!("sif {file} {field} {value}"));
            scripts.push(format!("sif <2> {field} {value}"));
        }
    }
    for (field, values) in SUPERBLOCK_FIELDS {
        scripts.extend(values.iter().map(|value| format!("ssv {field} {value}")));
    }
    for (field, values) in GROUP_FIELDS {
        for (value, group) in values.iter().zip([0, 1].iter().cycle()) {
            scripts.push(format!("set_block_group {group} {field} {value}"));
        }
    }
    scripts.extend(
        [
            "freeb 3000 1",
            "setb 6000 1",
            "freei <12>",
            "seti <1000>",
            "freei <11>",
            "setb 6000 50\nseti <901>\nssv free_blocks_count 3",
            "kill_file medium",
            "kill_file many/a-name-of-some-length-7",
            "ln small folder/another",
            "unlink many/a-name-of-some-length-9",
            "sif short size 5\nsif slow size 7",
            "sif disk flags 0x80000",
        ]
        .map(str::to_owned),
    );
    let mut kinds: Vec<(String, Damage)> = scripts
        .into_iter()
        .map(|script| (script.clone(), Damage::Script(script)))
        .collect();
    let mut seen = std::collections::HashSet::new();
    for piece in map.pieces.iter().rev() {
        let is_live = !matches!(piece.kind, PieceKind::Inode(number) if number < 11 && number != 2);
        if !is_live || !seen.insert(std::mem::discriminant(&piece.kind)) {
            continue;
        }
        for change in [
            ByteChange::Zero,
            ByteChange::FlipAt(0),
            ByteChange::FlipAt(10),
            ByteChange::FlipFromEnd(1),
            ByteChange::FlipFromEnd(4),
        ] {
            for is_sealed in [false, true] {
                let name = format!("{:?} {change:?} sealed {is_sealed}", piece.kind);
                kinds.push((name, Damage::Bytes(*piece, change, is_sealed)));
            }
        }
    }
    kinds
}

impl Damage {
    /// Damages the image, whose sound bytes are `sound`.
    fn apply(&self, image: &Image, map: &ImageMap, sound: &[u8]) {
        match self {
            Self::Script(script) => {
                debugfs(&image.path, image.path.parent().expect("a folder"), script);
            }
            Self::Bytes(piece, change, is_sealed) => {
                let mut bytes = sound.to_vec();
                let part = &mut bytes[piece.offset..piece.offset + piece.len];
                match change {
                    ByteChange::Zero => part.fill(0),
                    ByteChange::FlipAt(at) => part[*at] ^= 1,
                    ByteChange::FlipFromEnd(at) => part[piece.len - at] ^= 1,
                }
                if *is_sealed {
                    map.seal(&mut bytes, piece);
                }
                std::fs::write(&image.path, bytes).expect("the image");
            }
        }
    }
}

/// Reads all files below `folder` that can be read.
fn collect(process: &Process, folder: &str, depth: usize, files: &mut BTreeMap<String, Vec<u8>>) {
    let flags = OpenFlags::DIRECTORY;
    let Ok(fd) = process.open(folder, flags, 0) else {
        return;
    };
    let mut names = Vec::new();
    while let Ok(entries) = process.getdents(fd, 512) {
        if entries.is_empty() {
            break;
        }
        names.extend(entries.into_iter().map(|entry| entry.name));
    }
    process.close(fd).expect("the directory closes");
    for name in names {
        let name = String::from_utf8_lossy(&name).into_owned();
        let path = format!("{folder}/{name}");
        if matches!(name.as_str(), "." | "..") || depth > 6 {
            continue;
        }
        let Ok(attributes) = process.lstat(&path) else {
            continue;
        };
        if attributes.file_type == folio::vfs::FileType::Directory {
            collect(process, &path, depth + 1, files);
        } else if attributes.file_type == folio::vfs::FileType::Regular
            && attributes.size_bytes < 4 << 20
            && let Ok(fd) = process.open(&path, OpenFlags::empty(), 0)
        {
            let mut bytes = vec![0; attributes.size_bytes as usize];
            if process
                .pread(fd, &mut bytes, 0)
                .is_ok_and(|len| len == bytes.len())
            {
                files.insert(path, bytes);
            }
            process.close(fd).expect("the file closes");
        }
    }
}

/// Returns the readable files of an image.
fn readable_files(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(open(path, true)));
    let kernel = Kernel::new(KernelOptions {
        background_writeback: false,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.mkdir("/disk", 0o755).expect("a mount point");
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    if kernel.mount_ext4(device, "/disk", &options).is_ok() {
        collect(&process, "/disk", 0, &mut files);
    }
    files
}

fn open(path: &Path, read_only: bool) -> Arc<dyn Device> {
    let options = OpenOptions {
        read_only,
        ..OpenOptions::default()
    };
    block::open(path, &options).expect("the image opens")
}

fn plan(device: &Arc<dyn Device>) -> Result<RepairPlan, folio::Error> {
    ext4::plan_repair(device, &CheckOptions::default(), &mut Vec::new())
}

/// The results of one image.
#[derive(Default)]
pub(super) struct Tally {
    kinds: usize,
    damaged: usize,
    pub(super) repaired: usize,
    pub(super) refused: Vec<String>,
    pub(super) failures: Vec<String>,
}

/// Repairs a damaged image, if a repair is claimed, and judges the result.
pub(super) fn judge_repair(path: &Path, name: &str, is_damaged: bool, tally: &mut Tally) {
    let damaged = std::fs::read(path).expect("the image");
    let before = readable_files(path);
    let device = open(path, false);
    let plan = match plan(&device) {
        Ok(plan) => plan,
        Err(error) => return tally.refused.push(format!("{name}: {error}")),
    };
    if !plan.is_clean() {
        let left = plan.remaining.iter().map(|f| format!("\n    {f}"));
        tally
            .refused
            .push(format!("{name}{}", left.take(3).collect::<String>()));
        drop((plan, device));
        if std::fs::read(path).expect("the image") != damaged {
            tally.failures.push(format!("{name}: refused, but written"));
        }
        return;
    }
    let mut saved = Vec::new();
    plan.save_undo(&mut saved).expect("an undo file in memory");
    plan.write().expect("the repair is written");
    drop((plan, device));
    tally.repaired += usize::from(is_damaged);
    let after = fsck(path);
    if after.found_damage() {
        tally
            .failures
            .push(format!("{name}: claimed, but e2fsck:\n{}", after.output));
    }
    let files = readable_files(path);
    for (file, bytes) in &before {
        // A size below the data grows to its end, as e2fsck -p has it.
        let is_longer = |after: &Vec<u8>| name.contains(" size ") && after.starts_with(bytes);
        let after = files.get(file);
        if after != Some(bytes) && !after.is_some_and(is_longer) {
            tally
                .failures
                .push(format!("{name}: {file} differs after the repair"));
        }
    }
    ext4::undo_repair(&*open(path, false), &mut &saved[..]).expect("the undo");
    if std::fs::read(path).expect("the image") != damaged {
        tally
            .failures
            .push(format!("{name}: the undo restored other bytes"));
    }
}

fn repair_all(recipe: &Recipe) -> Tally {
    let image = recipe.filled();
    let sound = std::fs::read(&image.path).expect("the image");
    let map = ImageMap::new(&sound);
    let mut tally = Tally::default();
    for (name, damage) in kinds(&map) {
        damage.apply(&image, &map, &sound);
        let name = format!("{}: {}", recipe.name, name.replace('\n', "; "));
        tally.kinds += 1;
        let (verdict, output) = compare(&image.path);
        tally.damaged += usize::from(verdict == Verdict::Damaged);
        if verdict == Verdict::Missed {
            tally.failures.push(format!("{name}: missed\n{output}"));
        }
        judge_repair(&image.path, &name, verdict == Verdict::Damaged, &mut tally);
        std::fs::write(&image.path, &sound).expect("the image");
    }
    tally
}

#[test]
fn claimed_repairs_are_clean_for_e2fsck() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let mut failures = Vec::new();
    let recipes = if rounds::is_long() {
        RECIPES.iter().collect()
    } else {
        vec![&RECIPES[8]]
    };
    for recipe in recipes {
        let tally = repair_all(recipe);
        println!(
            "{}: {} kinds of damage, {} found by both, {} repaired, {} refused",
            recipe.name,
            tally.kinds,
            tally.damaged,
            tally.repaired,
            tally.refused.len()
        );
        if std::env::var_os("FOLIO_CHECK_REFUSED").is_some() {
            println!("{}", tally.refused.join("\n"));
        }
        assert!(tally.kinds >= 150, "only {} kinds", tally.kinds);
        assert!(
            tally.repaired * 3 > tally.damaged,
            "{} of {} repaired",
            tally.repaired,
            tally.damaged
        );
        failures.extend(tally.failures);
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// A descriptor that says of inodes with names that they were never written, an orphan whose
/// truncation has not ended, and files without a name.
#[test]
fn unread_short_and_lost_inodes_are_repaired() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("disk.img");
    let large = folder.path().join("large");
    std::fs::write(&large, vec![7; 200_000]).unwrap();
    for (features, script) in [
        (
            "metadata_csum",
            "set_bg 0 itable_unused 52\nset_bg 0 checksum calc",
        ),
        (
            "uninit_bg,^metadata_csum",
            "set_bg 0 itable_unused 52\nset_bg 0 checksum calc",
        ),
        (
            "metadata_csum",
            "ssv last_orphan 12\nsif <12> size 0\nsif <12> links_count 0",
        ),
    ] {
        mke2fs(&path, "8M", &["-O", features, "-N", "64", "-b", "1024"]);
        let fill: String = (0..6)
            .map(|number| format!("write {} f{number}\n", large.display()))
            .chain(["symlink link f0\n".to_owned()])
            .collect();
        let orphan = if script.contains("orphan") {
            "unlink f0\n"
        } else {
            ""
        };
        debugfs(&path, folder.path(), &format!("{fill}{orphan}{script}"));
        let (verdict, output) = compare(&path);
        assert_eq!(verdict, Verdict::Damaged, "{script}: {output}");
        let mut tally = Tally::default();
        judge_repair(&path, script, true, &mut tally);
        assert_eq!(
            (tally.repaired, &tally.refused),
            (1, &Vec::new()),
            "{script}"
        );
        assert_eq!(tally.failures, [""; 0], "{script}");
    }
}
