//! Inside a Linux guest: whether the disk, an image of the host, allocates at first writes.

use super::{DoctorRun, run};
use crate::support::guest::Guest;
use crate::support::{report_skip, requires};
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(300);

/// Makes a file system on each disk, and examines it.
const SCRIPT: &str = "\
for disk in vda vdb vdc; do
  /bin/mke2fs -q -t ext4 /dev/$disk && mount -t ext4 /dev/$disk /mnt || exit 1
  /bin/folio doctor --write-probe --json /mnt > /tmp/report
  echo \"report $(tr -d '\\n' < /tmp/report)\"
  umount /mnt
done
";

/// Returns a guest with three disks: a fresh qcow2 image, a sparse raw one, and a raw one in which
/// all is written.
fn guest(folder: &Path) -> Result<Guest, String> {
    let mut guest = Guest::new()?
        .size(1200, 2)
        .module("virtio_blk")?
        .module("ext4")?
        .program(Path::new("/sbin/mke2fs"))?
        .program(Path::new(env!("CARGO_BIN_EXE_folio")))?;
    for (name, format) in [("fresh", "qcow2"), ("sparse", "raw"), ("written", "raw")] {
        let file = folder.join(name);
        guest = guest.device(
            "-drive",
            &format!("file={},format={format},if=virtio", file.display()),
        );
    }
    Ok(guest)
}

#[test]
fn first_writes_to_the_disk_of_a_guest_are_timed() {
    requires!(tool("qemu-img"), tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let fresh = folder.path().join("fresh");
    let fresh = fresh.to_str().unwrap();
    run("qemu-img", ["create", "-q", "-f", "qcow2", fresh, "512M"]);
    let sparse = std::fs::File::create(folder.path().join("sparse")).unwrap();
    sparse.set_len(512 << 20).unwrap();
    let mut written = std::fs::File::create(folder.path().join("written")).unwrap();
    for _ in 0..512 {
        written.write_all(&[0xa5; 1 << 20]).unwrap();
    }
    let guest = match guest(folder.path()) {
        Ok(guest) => guest,
        Err(reason) => return report_skip(&reason),
    };
    let ran = guest.run(SCRIPT, LIMIT, |_| {}).unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.explain());
    let reports: Vec<_> = ran
        .lines
        .iter()
        .filter_map(|line| line.strip_prefix("report "))
        .collect();
    assert_eq!(reports.len(), 3, "{:?}", ran.lines);
    for (disk, report) in ["vda", "vdb", "vdc"].into_iter().zip(reports) {
        let examined = DoctorRun::read(Path::new("/mnt"), report.as_bytes());
        assert_eq!(examined.chain().last().unwrap(), &format!("disk {disk}"));
        // The verdict depends on timing, the numbers are those of all areas.
        let check = examined.check("allocates-at-first-write");
        assert_eq!(check["numbers"]["places"], 12, "{check:#}");
        let has_remedy = check["remedies"][0].is_string();
        assert_eq!(has_remedy, check["verdict"] == "fault", "{check:#}");
        println!("{disk}: {check:#}");
    }
}
