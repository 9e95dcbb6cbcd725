//! First writes in a virtual machine, as in the article: mkfs and a copy of files onto a disk, by
//! QEMU's own drivers and by Folio's vhost-user-blk.

use super::images::{Images, Kind, TOUCHED_MIB, Tool, cell_name, published_case};
use crate::command::{find, touch_memory};
use crate::outcome::Outcome;
use crate::race::{Race, Run, scratch_in};
use crate::report::{Bound, Report, Sample, Unit, require_space};
use crate::server::Server;
use crate::virtual_machine::Guest;
use std::path::Path;
use std::time::Duration;

/// How long a guest may take.
const LIMIT: Duration = Duration::from_secs(400);
const MEMORY_MIB: u32 = 768;

const KINDS: [Kind; 3] = [Kind::Qcow2, Kind::Sparse, Kind::Written];
const TOOLS: [Tool; 2] = [Tool::Folio, Tool::Qemu];
const MKFS: &str = "mkfs";
const COPY: &str = "copy";
/// The most that a fresh qcow2 may take, as a multiple of the time on a written raw image.
const MOST: f64 = 1.1;

/// The start of a line with a job and the guest's clock before and after it.
const TIMED: &str = "@timed ";

/// Makes the tree in memory, and then each job with what it leaves to a sync. As in the article,
/// mkfs writes its zeros; it discards nothing, so the blocks of a written image keep their place.
const SCRIPT: &str = "\
set -e
mkdir /tmp/tree
cd /tmp/tree
data=$(dd if=/dev/urandom bs=6000 count=1 2>/dev/null | base64)
for f in $(seq $FOLDERS); do mkdir $f; for n in $(seq 256); do echo \"$data\" > $f/$n; done; done
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
for n in $(seq $LARGE); do cat /tmp/data /tmp/data /tmp/data /tmp/data > large$n; done
cd /
now() { read up idle < /proc/uptime; }
export UNIX_IO_NOZEROOUT=1
now; begin=$up
/bin/mke2fs -q -F -t ext4 -i 4096 -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 /dev/vda
sync
now; echo @timed mkfs $begin $up
mount -t ext4 /dev/vda /mnt
now; begin=$up
cp -a /tmp/tree /mnt/tree
sync
now; echo @timed copy $begin $up
umount /mnt
";

const LIMITS: [&str; 4] = [
    "the guest is emulated, without KVM: what its processor does costs many times what it costs on hardware, for all disks alike",
    "mkfs writes the zeros of all inode tables and of the journal, and discards nothing; the copy is 2048 files of 8 KiB \
     and 3 of 32 MiB, fewer in a quick run; each ends with a sync",
    "QEMU's driver has cache=writeback, as Folio; both have one queue",
    "the guest's clock counts hundredths of a second",
];

/// Measures each form of the disk in a guest of its own, in rounds.
pub(super) fn measure(dir: &Path, size_mib: Option<u64>, run: &Run<'_>) -> Outcome<Report> {
    Guest::new()?;
    let folder = scratch_in(dir)?;
    let size_mib = size_mib.unwrap_or_else(|| run.sized(4096, 256));
    require_space(dir, size_mib * 2, "--size-mib")?;
    let what = format!(
        "mkfs and a copy of files in a guest, onto fresh and written images of {size_mib} MiB"
    );
    let mut report = Report::new("first-write", what, dir);
    let images = Images {
        folder: folder.path(),
        size_mib,
    };
    let bases = TOOLS.map(|tool| cell_name(Kind::Written, tool));
    let race = Race::new(title(TOOLS[0]), Unit::Seconds, Some(&bases[0])).table(
        title(TOOLS[1]),
        Unit::Seconds,
        Some(&bases[1]),
    );
    let mut race = race.rounds(3);
    for kind in KINDS {
        for (at, tool) in TOOLS.into_iter().enumerate() {
            let name = cell_name(kind, tool);
            race.contender(&name.clone(), move |turn| {
                (run.step)(&format!("first-write: a guest with a {name}"))?;
                let image = images.prepare(kind)?;
                for (job, seconds) in boot(&image, kind, tool, run)? {
                    turn.add_to(at, &job, Sample::of(seconds));
                }
                images.remove(kind, tool, turn.round)
            });
        }
    }
    race.run(run, &mut report)?;
    let pair = [Kind::Qcow2, Kind::Written].map(|kind| cell_name(kind, Tool::Folio));
    for job in [MKFS, COPY] {
        let aim = format!("{job}: {} at most {MOST} times {}", pair[0], pair[1]);
        let pair = pair.each_ref().map(String::as_str);
        report.judge_pair(aim, title(Tool::Folio), job, pair, Bound::AtMost(MOST));
    }
    let row = |kind: Kind, tool: Tool| report.row(title(tool), MKFS, &cell_name(kind, tool));
    report.story = Some(published_case(row, Kind::Written));
    report.limit(&LIMITS);
    Ok(report)
}

/// Returns the title of the table of a tool.
fn title(tool: Tool) -> &'static str {
    match tool {
        Tool::Folio => "in a guest, by folio serve vhost-user-blk",
        Tool::Qemu => "in a guest, by QEMU's own drivers",
    }
}

/// Runs the jobs in one guest, from its boot to its end; returns their seconds.
fn boot(image: &Path, kind: Kind, tool: Tool, run: &Run<'_>) -> Outcome<Vec<(String, f64)>> {
    touch_memory(run.sized(TOUCHED_MIB, 16))?;
    let mke2fs = find("mke2fs").ok_or("mke2fs is not installed")?;
    let guest = Guest::new()?
        .size(MEMORY_MIB, 1)
        .module("virtio_blk")?
        .module("ext4")?
        .program(&mke2fs)?;
    let format = kind.format().name();
    let socket = image.with_extension("socket");
    let mut server = None;
    let guest = match tool {
        Tool::Qemu => {
            let image = image.display();
            let drive = format!("file={image},format={format},if=none,id=disk,cache=writeback");
            guest
                .device("-drive", &drive)
                .device("-device", "virtio-blk-pci,drive=disk,num-queues=1")
        }
        Tool::Folio => {
            server = Some(serve(image, format, &socket, run)?);
            let socket = socket.display();
            guest
                .device("-chardev", &format!("socket,id=disk,path={socket}"))
                .device("-device", "vhost-user-blk-pci,chardev=disk,num-queues=1")
        }
    };
    let ran = guest.run(&script(run), LIMIT, |_| ())?;
    drop(server);
    let figures: Vec<_> = ran.lines.iter().filter_map(|line| seconds(line)).collect();
    if ran.status != Some(0) || figures.len() != 2 {
        return Err(ran.explain().into());
    }
    Ok(figures)
}

/// Starts Folio's server of the image, and waits until it listens.
fn serve(image: &Path, format: &str, socket: &Path, run: &Run<'_>) -> Outcome<Server> {
    let mut folio = run.folio();
    folio
        .args(["serve", "vhost-user-blk", "-f", format])
        .arg(image)
        .arg("--socket")
        .arg(socket);
    Server::start(folio, "the server does not listen", || socket.exists())
}

/// Returns the guest's script, with the sizes of its tree.
fn script(run: &Run<'_>) -> String {
    let (folders, large) = run.sized((8, 3), (1, 1));
    format!("FOLDERS={folders} LARGE={large}\n{SCRIPT}")
}

/// Reads a job and its seconds from a line of the guest.
fn seconds(line: &str) -> Option<(String, f64)> {
    let mut words = line.strip_prefix(TIMED)?.split(' ');
    let job = words.next()?.to_owned();
    let [begin, end] = [words.next()?, words.next()?].map(str::parse::<f64>);
    // The digits of the guest's clock.
    Some((job, ((end.ok()? - begin.ok()?) * 100.0).round() / 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_guest_has_a_job_and_its_seconds() {
        let (job, took) = seconds("@timed copy 10.25 12.50").expect("a figure");
        assert_eq!((job.as_str(), took), ("copy", 2.25));
        assert_eq!(seconds("@timed copy 10.25"), None);
        assert_eq!(seconds("copy 1 2"), None);
    }
}
