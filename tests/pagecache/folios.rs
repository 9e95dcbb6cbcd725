//! The folios of warmed pages, and Ctrl-C while the disk is busy.

use super::*;
use crate::support::Mounted;
use crate::support::tools::mke2fs;
use rustix::process::{Pid, Signal, kill_process};

/// Counts the pages of a file that are folios of one page, by /proc/kpageflags.
const SINGLES: &str = r"
import ctypes, mmap, os, struct, sys
with open(sys.argv[1], 'rb') as file:
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    count = len(pages) // 4096
    bytes(pages[at * 4096] for at in range(count))
    def words(path, first, many=1):
        with open(path, 'rb', buffering=0) as table:
            table.seek(first * 8)
            return struct.unpack('%dQ' % many, table.read(8 * many))
    singles = 0
    for word in words('/proc/self/pagemap', start // 4096, count):
        flags = words('/proc/kpageflags', word & ((1 << 55) - 1))[0]
        # KPF_COMPOUND_HEAD, KPF_COMPOUND_TAIL
        singles += flags & (1 << 15 | 1 << 16) == 0
    print(singles)
os._exit(0)
";

fn singles(path: &Path) -> u64 {
    let words = ["-c".as_ref(), SINGLES.as_ref(), path.as_os_str()];
    run("python3", words).trim().parse().expect("a count")
}

/// A reader copies faster from large folios. Warming leaves about as many single pages as cat does.
#[test]
fn warmed_pages_are_folios_as_after_cat() {
    undisturbed(|| {
        requires!(root, tool("python3"), tool("fincore"));
        let bench = Bench::new();
        let file = bench.cold("file", 64 * MIB);
        let script = format!("cat {} > /dev/null", file.display());
        run("sh", ["-c", &script]);
        bench.ok(&["cache", "save", "set", "file"]);
        let after_cat = singles(&file);
        let most = after_cat * 2 + 64 * MIB / PAGE / 8;
        for words in [
            &["warm", "file"][..],
            &["warm", "--order", "physical", "file"],
            &["cache", "restore", "set"],
        ] {
            forget(&file);
            bench.ok(words);
            assert_eq!(resident(&file), 64 * MIB, "{words:?}");
            let found = singles(&file);
            assert!(
                found <= most,
                "{words:?}: {found} single pages, {after_cat} after cat"
            );
        }
    });
}

/// A limit on the bytes that a group of processes reads from a device; dropping it lifts it.
struct Throttle(PathBuf, String);

impl Throttle {
    fn new(device: &str, bytes_per_second: u64) -> Option<Self> {
        let folder =
            Path::new("/sys/fs/cgroup/blkio").join(format!("folio-warm-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let this = Self(folder, device.to_owned());
        this.limit(bytes_per_second).then_some(this)
    }

    fn limit(&self, bytes_per_second: u64) -> bool {
        let file = self.0.join("blkio.throttle.read_bps_device");
        fs::write(file, format!("{} {bytes_per_second}", self.1)).is_ok()
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.limit(0);
        let _ = fs::remove_dir(&self.0);
    }
}

/// A read that is under way is not waited for.
#[test]
fn interrupt_ends_warm_while_the_disk_is_busy() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("findmnt"),
        tool("fincore")
    );
    let bench = Bench::new();
    let image = bench.path("disk.img");
    mke2fs(&image, "256M", &["-b", "4096"]);
    let mounted = Mounted::new(&image, "rw");
    let file = mounted.path().join("file");
    fs::write(&file, vec![1; 128 << 20]).unwrap();
    forget(&file);
    let words = ["-n", "-o", "MAJ:MIN", "--target"].map(AsRef::as_ref);
    let device = run(
        "findmnt",
        words.into_iter().chain([mounted.path().as_os_str()]),
    );
    let Some(throttle) = Throttle::new(device.trim(), 64 << 10) else {
        mounted.unmount();
        return report_skip("needs control groups that limit reads of devices");
    };
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec {} warm {}",
        throttle.0.display(),
        env!("CARGO_BIN_EXE_folio"),
        file.display()
    );
    let mut child = command("sh").args(["-c", &script]).spawn().unwrap();
    while resident(&file) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "warm reads");
        std::thread::yield_now();
    }
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // At this rate the file takes half an hour.
    let found = resident(&file);
    assert!(found < 100 * MIB, "{found}");
    drop(throttle);
    mounted.unmount();
}
