//! Images: warming reads only the used blocks of a disk, or the blocks of files inside it.

use super::{Bench, MIB, PAGE, forget, pages, resident, touch, undisturbed};
use crate::support::requires;
use crate::support::tools::{run, succeed};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Returns the pages of a raw image that hold a file of 2 MiB, as debugfs reports them.
fn blocks(image: &Path, path: &str) -> Vec<u64> {
    let request = format!("blocks {path}");
    let arguments = ["-R", &request].map(OsStr::new);
    let said = run("debugfs", arguments.into_iter().chain([image.as_os_str()]));
    let blocks: Vec<u64> = said
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let in_a_page = (blocks.len() as u64 * PAGE / (2 * MIB)).max(1);
    let mut pages: Vec<u64> = blocks.into_iter().map(|block| block / in_a_page).collect();
    pages.dedup();
    pages
}

fn bench_with_files() -> Bench {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("tree/srv")).unwrap();
    for (name, byte) in [("srv/wanted", 1_u8), ("other", 2)] {
        let bytes: Vec<u8> = (0..2 << 20)
            .map(|at: u32| (at >> 12) as u8 ^ byte)
            .collect();
        fs::write(bench.path("tree").join(name), bytes).unwrap();
    }
    bench
}

#[test]
fn files_inside_raw_image_are_warmed_alone() {
    undisturbed(|| {
        requires!(tool("debugfs"), tool("fincore"));
        let bench = bench_with_files();
        bench.ok(&["cp", "-a", "tree/.", "disk.img:/", "--create", "64M"]);
        let image = bench.path("disk.img");
        let wanted = blocks(&image, "/srv/wanted");
        assert!(wanted.len() >= 512);
        let other = blocks(&image, "/other");
        forget(&image);
        let report = bench.json(&["warm", "disk.img:/srv"]);
        // The command also reads the image's own tables, and the kernel's readahead reads the pages
        // around them.
        assert_eq!(report["size_bytes"], wanted.len() as u64 * PAGE);
        let there = pages(&image);
        assert!(
            wanted.iter().all(|page| there[*page as usize]),
            "all of the file"
        );
        let report = bench.json(&["warm", "--dry-run", "--include", "oth*", "disk.img:/"]);
        assert_eq!(report["size_bytes"], other.len() as u64 * PAGE);
        let (output, stderr) = bench.output(&["warm", "disk.img:/none"]);
        assert!(
            output.status.code() == Some(1) && stderr.contains("No such file"),
            "{stderr}"
        );
    });
}

#[test]
fn qcow2_warm_reads_used_clusters_only() {
    undisturbed(|| {
        requires!(tool("qemu-img"), tool("qemu-io"), tool("fincore"));
        let bench = Bench::new();
        let make = |arguments: &[&str]| {
            let mut command = crate::support::tools::command(arguments[0]);
            succeed(
                command
                    .args(&arguments[1..])
                    .current_dir(bench.folder.path()),
            );
        };
        make(&["qemu-img", "create", "-q", "-f", "qcow2", "base.img", "1G"]);
        make(&[
            "qemu-io",
            "-f",
            "qcow2",
            "-c",
            "write -q -P 1 0 4M",
            "-c",
            "write -q -P 2 900M 2M",
            "base.img",
        ]);
        // Written and then discarded clusters are unused.
        make(&[
            "qemu-io",
            "-f",
            "qcow2",
            "-c",
            "discard -q 1M 3M",
            "base.img",
        ]);
        make(&[
            "qemu-img", "create", "-q", "-f", "qcow2", "-b", "base.img", "-F", "qcow2", "top",
        ]);
        make(&[
            "qemu-io",
            "-f",
            "qcow2",
            "-c",
            "write -q -P 3 900M 1M",
            "top",
        ]);
        // Detection uses the content, not the file name.
        let files = ["base.img", "top"].map(|name| bench.path(name));
        files.iter().for_each(|file| forget(file));
        let report = bench.json(&["warm", "top"]);
        assert_eq!(
            (&report["files"], &report["size_bytes"]),
            (&2.into(), &(3 * MIB).into()),
            "{report}"
        );
        // The command also reads the tables.
        let most = [2, 1].map(|mib| mib * MIB + 100 * PAGE);
        for ((file, least), most) in files.iter().zip([2 * MIB, MIB]).zip(most) {
            let there = resident(file);
            assert!(
                least <= there && there <= most,
                "{}: {there}",
                file.display()
            );
        }
        assert_eq!(bench.json(&["warm", "top"])["read_bytes"], 0);
    });
}

#[test]
fn image_detection_reads_no_pages() {
    undisturbed(|| {
        requires!(tool("fincore"));
        let bench = Bench::new();
        let short = bench.cold("short", 3);
        assert_eq!(bench.json(&["warm", "--dry-run", "short"])["size_bytes"], 3);
        assert_eq!(resident(&short), 0);
        for name in ["long", "named.qcow2"] {
            let file = bench.cold(name, MIB);
            assert_eq!(bench.json(&["warm", "--dry-run", name])["size_bytes"], MIB);
            assert_eq!(resident(&file), 0, "{name}");
            // Resident pages stay in memory.
            touch(&file, [0]);
            bench.ok(&["warm", "--dry-run", name]);
            assert_eq!(resident(&file), PAGE, "{name}");
        }
    });
}

#[test]
fn files_inside_qcow2_are_found_through_chain() {
    undisturbed(|| {
        requires!(tool("qemu-img"), tool("fincore"));
        let bench = bench_with_files();
        bench.ok(&["cp", "-a", "tree/.", "base.qcow2:/", "--create", "64M"]);
        bench.ok(&[
            "image",
            "create",
            "-f",
            "qcow2",
            "-b",
            "base.qcow2",
            "-F",
            "qcow2",
            "top.qcow2",
        ]);
        fs::write(bench.path("new"), vec![9; 1 << 20]).unwrap();
        bench.ok(&["cp", "new", "top.qcow2:/srv/new"]);
        for name in ["base.qcow2", "top.qcow2"] {
            forget(&bench.path(name));
        }
        let report = bench.json(&["warm", "top.qcow2:/srv"]);
        assert_eq!(report["files"], 2, "{report}");
        // Blocks of 1 KiB may begin and end within a page.
        let size_bytes = report["size_bytes"].as_u64().unwrap();
        assert!(
            (3 * MIB..3 * MIB + 64 * PAGE).contains(&size_bytes),
            "{report}"
        );
        let there = ["base.qcow2", "top.qcow2"].map(|name| resident(&bench.path(name)));
        assert!(
            there[0] >= 2 * MIB && there[1] >= MIB,
            "{there:?}: {report}"
        );
        // No range of the image holds compressed clusters in plain form.
        bench.ok(&[
            "image",
            "convert",
            "-c",
            "-O",
            "qcow2",
            "base.qcow2",
            "small.qcow2",
        ]);
        forget(&bench.path("small.qcow2"));
        let report = bench.json(&["warm", "small.qcow2:/srv"]);
        assert!(
            report["size_bytes"].as_u64().unwrap() > 4096,
            "all of it: {report}"
        );
        assert_eq!(bench.json(&["warm", "small.qcow2"])["read_bytes"], 0);
    });
}
