//! fio in a guest, over an overlay that was partly written before: 16 jobs write, read back and
//! compare checksums, while two more discard and allocate.
//!
//! The load of cloud-hypervisor#8621, where several queues lost data of such overlays. Each job has
//! a region of the disk; the end of each region stays as it was.

use super::BlockServer;
use super::guest::guest;
use crate::support::guest::Guest;
use crate::support::require::find;
use crate::support::rounds::is_long;
use crate::support::tools::{command, qemu_check, succeed, to_qcow2, to_raw};
use crate::support::{report_skip, requires};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Regions of the disk: one for each writer, the last one for the jobs that discard and allocate.
const REGIONS: u64 = 17;
/// fio's libraries take 84 MB of the guest's memory, twice while it boots.
const GUEST_MIB: u32 = 768;
/// How long booting, and verifying after the end, may take.
const AROUND: Duration = Duration::from_secs(400);

/// Sizes and time of a run.
struct Load {
    region_mib: u64,
    seconds: u64,
}

impl Load {
    fn new() -> Self {
        if is_long() {
            Self {
                region_mib: 64,
                seconds: 30 * 60,
            }
        } else {
            Self {
                region_mib: 16,
                seconds: 20,
            }
        }
    }

    /// The part of a region that its job writes.
    fn used_mib(&self) -> u64 {
        self.region_mib * 3 / 4
    }

    /// Returns the jobs. Writes that overlap one in progress wait for it: fio cannot know which of
    /// both is last.
    fn jobs(&self) -> String {
        let Self {
            region_mib,
            seconds,
        } = self;
        let used_mib = self.used_mib();
        let last_mib = region_mib * (REGIONS - 1);
        let writers = REGIONS - 1;
        format!(
            "[global]\nfilename=/dev/vda\ndirect=1\nioengine=libaio\niodepth=32\nthread\n\
             time_based\nruntime={seconds}\ngroup_reporting\n\
             [verify]\nrw=randrw\nrwmixwrite=70\nbssplit=4k/40:8k/30:16k/20:64k/10\n\
             numjobs={writers}\nsize={used_mib}M\noffset_increment={region_mib}M\n\
             norandommap\nserialize_overlap=1\n\
             verify=crc32c\nverify_backlog=20\nverify_fatal=1\nverify_state_save=0\n\
             [discard]\nnew_group\nrw=randtrim\nbs=64k\nsize={used_mib}M\noffset={last_mib}M\n\
             [allocate]\nrw=randwrite\nbs=16k\nsize={used_mib}M\noffset={last_mib}M\n"
        )
    }

    /// Makes a backing file full of data and, over it, an overlay with writes into every second
    /// cluster.
    fn create(&self, [raw, backing, overlay]: [&Path; 3]) {
        let size = (self.region_mib * REGIONS) << 20;
        let mut random = File::open("/dev/urandom").unwrap().take(size);
        std::io::copy(&mut random, &mut File::create(raw).unwrap()).unwrap();
        to_qcow2(raw, backing);
        let mut create = command("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"]);
        succeed(create.arg(backing).arg(overlay));
        let mut write = command("qemu-io");
        for at in (0..size).step_by(128 << 10) {
            write.args(["-c", &format!("write -q -P 90 {} 4k", at + (20 << 10))]);
        }
        succeed(write.arg(overlay));
        to_raw(overlay, raw);
    }

    /// Asserts that the end of each region is what it was before.
    #[track_caller]
    fn check_ends(&self, before: &Path, after: &Path) {
        let [before, after] = [before, after].map(|path| File::open(path).unwrap());
        let end_mib = self.region_mib - self.used_mib();
        let mut bytes = [0, 1].map(|_| vec![0; (end_mib as usize) << 20]);
        for region in 0..REGIONS {
            let at = (self.region_mib * region + self.used_mib()) << 20;
            before.read_exact_at(&mut bytes[0], at).unwrap();
            after.read_exact_at(&mut bytes[1], at).unwrap();
            assert!(bytes[0] == bytes[1], "the end of region {region} changed");
        }
    }
}

#[test]
fn warm_overlay_under_fio_loses_nothing() {
    requires!(tool("qemu-img"), tool("qemu-io"), tool("fio"));
    let load = Load::new();
    let folder = TempDir::new().unwrap();
    let names = ["before.raw", "backing.qcow2", "overlay.qcow2", "after.raw"];
    let [before, backing, overlay, after] = names.map(|name| folder.path().join(name));
    load.create([&before, &backing, &overlay]);
    let server = BlockServer::new(&[&overlay], &[]);
    let fio = find("fio").unwrap();
    let guest = guest(&server.sockets[0], GUEST_MIB).and_then(|guest: Guest| guest.program(&fio));
    let guest = match guest {
        Ok(guest) => guest.file("/jobs", 0o644, load.jobs().as_bytes()),
        Err(reason) => return report_skip(&reason),
    };
    let limit = AROUND + Duration::from_secs(load.seconds);
    let script = "ls /sys/block/vda/mq | wc -l; fio --eta=never /jobs\n";
    let ran = guest.run(script, limit, |line| println!("{line}")).unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.explain());
    assert_eq!(ran.lines[0], "4", "queues");
    let groups = ran.lines.iter().filter(|line| line.contains("err= 0"));
    assert_eq!(groups.count(), 2, "{:?}", ran.lines);
    server.stop();
    qemu_check(&overlay);
    qemu_check(&backing);
    to_raw(&overlay, &after);
    load.check_ends(&before, &after);
}
