//! Shrinking an ext4: every file stays as it was, e2fsck agrees, the size is near that of
//! resize2fs -M, and a power cut at any write loses nothing.

use super::*;
use crate::support::random::Random;

/// Returns a device with files at its end: those before them are deleted.
fn fill_high(device: &Arc<dyn Device>, fillers: usize, filler_len: usize) {
    mounted(device, |process| {
        process.mkdir("/filler", 0o755).unwrap();
        let bytes = vec![0xF1; filler_len];
        for number in 0..fillers {
            write(process, &format!("/filler/{number}"), &bytes);
        }
        for (number, (name, bytes)) in files().iter().enumerate() {
            let dir = format!("/dir-{}", number % 5);
            if number < 5 {
                process.mkdir(&dir, 0o755).unwrap();
                process.mkdir(format!("{dir}/inner"), 0o755).unwrap();
            }
            let path = format!("{dir}/inner/{name}");
            write(process, &path, bytes);
            process.link(&path, format!("/link-{number}")).unwrap();
            let target = "t".repeat(number * 9 + 1);
            process.symlink(&target, format!("{dir}/{number}")).unwrap();
            let flags = folio::vfs::XattrFlags::empty();
            process
                .setxattr(&path, b"user.large", &vec![number as u8; 400], flags)
                .unwrap();
        }
        for number in 0..400 {
            write(
                process,
                &format!("/dir-3/a longer name for many {number}"),
                b"",
            );
        }
        for number in 0..fillers {
            process.unlink(format!("/filler/{number}")).unwrap();
        }
    });
}

fn check_high(device: &Arc<dyn Device>) {
    mounted(device, |process| {
        for (number, (name, want)) in files().iter().enumerate() {
            let path = format!("/dir-{}/inner/{name}", number % 5);
            for path in [path.clone(), format!("/link-{number}")] {
                let fd = process.open(&path, OpenFlags::empty(), 0).unwrap();
                let mut bytes = vec![0; want.len() + 1];
                let mut len = 0;
                while let count @ 1.. = process.read(fd, &mut bytes[len..]).unwrap() {
                    len += count;
                }
                process.close(fd).unwrap();
                assert!(bytes[..len] == want[..], "{path}");
            }
            let value = process.getxattr(&path, b"user.large").unwrap();
            assert_eq!(value, vec![number as u8; 400]);
            let target = process
                .readlink(format!("/dir-{}/{number}", number % 5))
                .unwrap();
            assert_eq!(target.len(), number * 9 + 1);
        }
        for number in 0..400 {
            let name = format!("/dir-3/a longer name for many {number}");
            process.access(name, 0).unwrap();
        }
        // Each `..` leads back.
        process
            .access("/dir-2/inner/../../dir-3/inner/..", 0)
            .unwrap();
    });
}

fn shrink(device: &Arc<dyn Device>, len_bytes: Option<u64>) -> folio::Result<ResizeReport> {
    let mut options = ResizeOptions::default();
    options.len_bytes = len_bytes;
    options.to_minimum = len_bytes.is_none();
    ext4::resize(device, &options, &mut |_, _| ControlFlow::Continue(()))
}

fn high_image(image: &Path, len_mib: u64, options: &[&str]) -> Arc<dyn Device> {
    mke2fs(image, &format!("{len_mib}M"), options);
    let device = open(image);
    fill_high(&device, 400, (len_mib * MIB / 800) as usize);
    device
}

#[test]
fn minimum_is_near_that_of_resize2fs() {
    requires!(
        tool("mke2fs"),
        tool("e2fsck"),
        tool("resize2fs"),
        tool("dumpe2fs")
    );
    let scratch = Scratch::new();
    let sets: [&[&str]; 6] = [
        &["-b", "1024"],
        &["-b", "4096"],
        &["-b", "1024", "-O", "^has_journal,^flex_bg"],
        &["-b", "1024", "-O", "meta_bg,^resize_inode"],
        &["-t", "ext3", "-b", "1024"],
        &["-b", "1024", "-g", "1024", "-N", "2000", "-G", "2"],
    ];
    for (number, options) in sets.into_iter().enumerate() {
        let image = scratch.path(&format!("{number}.img"));
        let device = high_image(&image, 60, options);
        let theirs = scratch.path("theirs.img");
        copy_to_file(&*device, &theirs);
        command("e2fsck").arg("-fy").arg(&theirs).output().unwrap();
        run("resize2fs", ["-M".as_ref(), theirs.as_os_str()]);
        let report = shrink(&device, None).unwrap();
        assert!(report.new.blocks < report.old.blocks);
        check_high(&device);
        check_clean(&device);
        drop(device);
        fsck(&image);
        let their_len = run("dumpe2fs", ["-h".as_ref(), theirs.as_os_str()])
            .lines()
            .find_map(|line| {
                line.strip_prefix("Block count:")?
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .unwrap();
        assert!(
            report.new.blocks <= their_len * 105 / 100,
            "{options:?}: {report:?}, {their_len}"
        );
        // What is smaller can grow again.
        let device = open(&image);
        assert!(shrink(&device, Some(60 * MIB)).unwrap().new.blocks >= report.old.blocks - 8);
        check_high(&device);
        drop(device);
        fsck(&image);
    }
}

#[test]
fn empty_file_system_shrinks_to_its_metadata() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    // mke2fs has the block of the resize inode far behind.
    mke2fs(&image, "150M", &["-b", "1024", "-O", "^has_journal"]);
    let report = shrink(&open(&image), None).unwrap();
    assert!(report.new.blocks < 3000, "{report:?}");
    fsck(&image);
    assert_eq!(
        shrink(&open(&image), Some(150 * MIB)).unwrap().new.blocks,
        report.old.blocks
    );
    fsck(&image);
}

/// FOLIO_SHRINKS=1000 for a long run.
#[test]
fn random_shrinks_keep_all_files() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let count = std::env::var("FOLIO_SHRINKS").map_or(6, |count| count.parse().unwrap());
    let scratch = Scratch::new();
    let mut random = Random::new(19);
    for round in 0..count {
        let image = scratch.path("disk.img");
        let (options, _, _) = SETS[round % SETS.len()];
        if options
            .iter()
            .any(|option| option.contains("sparse_super2"))
        {
            continue;
        }
        let len_mib = 30 + random.below(60);
        let device = high_image(&image, len_mib, options);
        let mut len = len_mib * MIB;
        for _ in 0..3 {
            let wanted = len / 3 + random.below(len * 2 / 3);
            match shrink(&device, Some(wanted)) {
                Ok(report) => {
                    assert!(report.new.blocks * u64::from(report.block_size) <= wanted);
                    len = wanted;
                }
                Err(error) => assert_eq!(error.errno(), Errno::INVAL, "{error}"),
            }
            fsck(&image);
        }
        check_high(&device);
    }
}

#[test]
fn impossible_shrink_changes_nothing() {
    requires!(tool("mke2fs"));
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let device = high_image(&image, 30, &["-b", "1024"]);
    let before = std::fs::read(&image).unwrap();
    let error = shrink(&device, Some(MIB)).unwrap_err();
    assert!(error.to_string().contains("at least"), "{error}");
    assert!(std::fs::read(&image).unwrap() == before);
}

/// Cuts the power after writes of a shrink, with all or some of the unflushed writes.
fn cut_shrink(options: &[&str], cuts_max: usize, may_repair: bool) {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let file = high_image(&image, 20, options);
    let memory = Arc::new(MemoryDevice::new(20 * MIB));
    memory.write_at(&std::fs::read(&image).unwrap(), 0).unwrap();
    drop(file);
    let before: Arc<dyn Device> = memory;
    let recorder = Arc::new(RecordDevice::new(Arc::new(OverlayDevice::new(
        before.clone(),
    ))));
    let device: Arc<dyn Device> = recorder.clone();
    let done = shrink(&device, None).unwrap();
    let record = recorder.recorded();
    let mut random = Random::new(7);
    let mut repaired = 0;
    let step = (record.len() / cuts_max).max(1);
    for at in (0..=record.len()).step_by(step) {
        for lossy in [false, true] {
            let bits = random.next();
            let left = cut(&before, &record, at, |index| {
                !lossy || bits >> (index % 64) & 1 == 1
            });
            copy_to_file(&*left, &image);
            let output = command("e2fsck").arg("-fy").arg(&image).output().unwrap();
            let said = text(&output);
            assert!(
                output.status.code().is_some_and(|code| code <= 1),
                "{at}: {said}"
            );
            // Only differences of bitmaps and counts, and the resize inode, are repaired.
            repaired += usize::from(said.contains("? yes"));
            assert!(
                !said.contains("lost+found") && !said.contains("Clear"),
                "{at}: {said}"
            );
            check_high(&open(&image));
            fsck(&image);
            assert!(shrink(&open(&image), None).unwrap().new.blocks <= done.new.blocks + 8);
            fsck(&image);
            check_high(&open(&image));
        }
    }
    assert!(
        may_repair || repaired * 10 <= record.len() / step,
        "{repaired} of {} cuts",
        record.len()
    );
}

#[test]
fn power_cut_while_shrinking_loses_nothing() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let cuts = std::env::var("FOLIO_SHRINKS").map_or(16, |count| count.parse().unwrap());
    cut_shrink(&["-b", "1024", "-G", "2"], cuts, false);
}

#[test]
fn power_cut_without_journal_loses_nothing() {
    requires!(tool("mke2fs"), tool("e2fsck"));
    let cuts = std::env::var("FOLIO_SHRINKS").map_or(8, |count| count.parse().unwrap());
    cut_shrink(&["-b", "1024", "-O", "^has_journal"], cuts, true);
}
