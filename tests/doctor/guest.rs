//! Inside a Linux guest: whether the disk, an image of the host, allocates at first writes, and the
//! cost of a shared folder.

use super::{DoctorRun, run};
use crate::support::guest::Guest;
use crate::support::{report_skip, requires};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
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

/// A share of a folder of this machine, which ends with the value.
struct Share(Child);

impl Share {
    fn start(folder: &Path, socket: &Path, options: &[&str]) -> Self {
        let mut folio = Command::new(env!("CARGO_BIN_EXE_folio"));
        folio.args(["--quiet", "share"]).arg(folder);
        folio.arg("--socket").arg(socket).args(options);
        let share = Self(folio.spawn().unwrap());
        let start = Instant::now();
        while !socket.exists() {
            assert!(start.elapsed() < LIMIT, "folio share does not listen");
            std::thread::yield_now();
        }
        share
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Examines a file twice: attributes are asked for after the first time, too.
pub(super) const EXAMINE: &str = r#"
examine() {
  /bin/folio doctor --json /mnt/file > /dev/null
  /bin/folio doctor --json /mnt/file > /tmp/report
  echo "report $(tr -d '\n' < /tmp/report)"
}
"#;

/// Mounts the share.
const MOUNT: &str = "mount -t virtiofs share /mnt || exit 1\nexamine\n";

/// Executes the remedy that names vsock. The host of this guest has no /dev/vhost-vsock: the guest
/// takes its part, too, over `vsock_loopback`, whose host is CID 1.
const EXECUTE: &str = r#"
remedy=$(grep -o 'folio share FOLDER .*; here: folio mount vsock:2:5000 /[a-z]*' /tmp/report | head -n 1)
[ -n "$remedy" ] || exit 0
mkdir /tmp/shared && cp /mnt/file /tmp/shared/file || exit 1
share=$(echo "${remedy%%;*}" | sed s,FOLDER,/tmp/shared,)
mount=$(echo "${remedy##*here: }" | sed s,vsock:2:,vsock:1:,)
$share 2> /tmp/said &
for try in $(seq 100000); do grep -q 'until Ctrl-C' /tmp/said && break; done
$mount 2>> /tmp/said &
for try in $(seq 100000); do grep -q ' /mnt fuse.folio' /proc/mounts && break; done
grep -q ' /mnt fuse.folio' /proc/mounts || { cat /tmp/said; exit 1; }
examine
"#;

/// Boots a guest with a share of `folder` with these options; returns the reports of the doctor.
fn examine_share(folder: &Path, options: &[&str], script: &str) -> Result<Vec<DoctorRun>, String> {
    let sockets = TempDir::new().unwrap();
    let socket = sockets.path().join("socket");
    let guest = Guest::new()?
        .size(768, 1)
        .module("vsock_loopback")?
        .share("share", &socket)
        .program(Path::new(env!("CARGO_BIN_EXE_folio")))?;
    let _share = Share::start(folder, &socket, options);
    let ran = guest
        .run(&format!("{EXAMINE}{MOUNT}{script}"), LIMIT, |_| {})
        .unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.explain());
    let reports = ran.lines.iter();
    let reports = reports.filter_map(|line| line.strip_prefix("report "));
    let read = |report: &str| DoctorRun::read(Path::new("/mnt/file"), report.as_bytes());
    Ok(reports.map(read).collect())
}

/// Returns the words after `folio share` of the first remedy.
#[track_caller]
fn options_on_host(fault: &Value) -> Vec<&str> {
    let remedy = fault["remedies"][0].as_str().unwrap_or_default();
    let words = remedy.strip_prefix("on the host: folio share");
    let words = words.unwrap_or_else(|| panic!("{fault:#}"));
    let words = words.split('(').next().unwrap_or_default();
    words.split_whitespace().collect()
}

/// The remedies of a virtiofs share are executed: another option on the host for each fault, and a
/// share over vsock for both.
#[test]
fn remedies_of_a_guest_share_are_executed() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("file"), [7; 300_000]).unwrap();
    let slow = ["-o", "cache=none,push=off,ttl=0"];
    let reports = match examine_share(folder.path(), &slow, EXECUTE) {
        Ok(reports) => reports,
        Err(reason) => return report_skip(&reason),
    };
    let before = &reports[0];
    let faults = ["attributes-not-trusted", "page-cache-bypassed"].map(|cause| before.check(cause));
    let faults: Vec<_> = faults
        .into_iter()
        .filter(|check| check["verdict"] == "fault")
        .collect();
    // An answer may arrive before the guest waits for it: then the doctor sees no wait.
    if faults.is_empty() {
        return report_skip("the answers of the host are too fast to be a fault");
    }
    let Some(by_vsock) = reports.get(1) else {
        panic!("no remedy with vsock: {:#}", before.report);
    };
    for check in faults {
        let cause = check["cause"].as_str().unwrap();
        let on_host = examine_share(folder.path(), &options_on_host(check), "").unwrap();
        for cured in [by_vsock, &on_host[0]] {
            assert_eq!(cured.check(cause)["verdict"], "fine", "{:#}", cured.report);
        }
    }
}
