//! The scenario `ext4-ops`: files made and removed, bytes in order and at random, beside the kernel
//! and fuse2fs.

use super::fixture::{Contender, Disk, Fixture};
use super::{Options, judge, scaled};
use crate::hosted::System;
use crate::options::is_wanted;
use crate::outcome::Outcome;
use crate::race::{Race, Run, scratch_in};
use crate::random::{Random, pattern};
use crate::report::{Report, Sample, Unit};
use crate::view::{Access, View};
use folio::block::ImageFormat;

const IMAGE_MIB: u64 = 4096;
const PART_BYTES: usize = 1 << 20;
const OVERWRITES_PER_FSYNC: usize = 100;
const TABLE: &str = "ext4";

/// The operation of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create { len_bytes: usize },
    Delete,
    Write,
    Overwrite,
    Read,
}

/// The jobs, in their order on the same file system.
const JOBS: [(&str, Operation); 7] = [
    ("create 0 B", Operation::Create { len_bytes: 0 }),
    ("delete 0 B", Operation::Delete),
    ("create 4 KiB", Operation::Create { len_bytes: 4096 }),
    ("delete 4 KiB", Operation::Delete),
    ("write 1 GiB", Operation::Write),
    ("overwrite 4 KiB", Operation::Overwrite),
    ("read 1 GiB", Operation::Read),
];

/// Sizes and counts of the jobs.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    files: usize,
    large_bytes: usize,
    overwrites: usize,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let dir = options.disk.path();
    let folder = scratch_in(&dir)?;
    let sizes = Sizes {
        files: scaled(run, 10_000),
        large_bytes: scaled(run, 1 << 30),
        overwrites: scaled(run, 4000),
    };
    let what = "files made and removed, bytes in order and at random, on an image on the disk";
    let mut report = Report::new("ext4-ops", what, &dir);
    report.notes = vec![
        format!(
            "{} files in one folder, by open, write and close; with the sync after them in the time",
            sizes.files
        ),
        format!(
            "write: {} MiB in parts of 1 MiB, with the fsync after them",
            sizes.large_bytes >> 20
        ),
        format!(
            "overwrite: {} times 4 KiB at random places of that file, fsync after each {OVERWRITES_PER_FSYNC}",
            sizes.overwrites
        ),
        "read: in order, after a new mount, the image not in the host's memory".to_owned(),
        "fuse2fs reports no bytes written, and has no journal for its fsync to rely on".to_owned(),
    ];
    let mut race = Race::new(TABLE, Unit::Seconds, Some("kernel")).rounds(3);
    let contenders = [
        (None, ImageFormat::Raw),
        (None, ImageFormat::Qcow2),
        (Some(System::EXT4), ImageFormat::Raw),
        (Some(System::Fuse2fs), ImageFormat::Raw),
    ];
    for (system, format) in contenders {
        let missing = system.as_ref().and_then(System::missing);
        let contender = Contender {
            system,
            disk: Disk::Image(format),
            options: "",
        };
        let name = contender.name();
        if let Some(reason) = missing {
            report.skip(name, reason);
        } else if is_wanted(&options.only, &name) {
            let folder = folder.path();
            race.contender(&name, move |turn| {
                let mut fixture = contender.make_fixture(folder, IMAGE_MIB)?;
                for (job, operation) in JOBS {
                    turn.add(job, operation.measure(&mut fixture, sizes)?);
                }
                fixture.end()
            });
        }
    }
    race.run(run, &mut report)?;
    for (pair, jobs, factor) in [
        (["folio", "kernel"], &JOBS[..], 1.0),
        (["folio, qcow2", "kernel"], &JOBS[..], 1.0),
        (["folio", "fuse2fs"], &JOBS[..4], 5.0),
    ] {
        for (job, _) in jobs {
            judge(&mut report, TABLE, job, pair, factor);
        }
    }
    Ok(report)
}

impl Operation {
    fn measure(self, fixture: &mut Fixture, sizes: Sizes) -> Outcome<Sample> {
        if self == Self::Read {
            fixture.forget()?;
        }
        fixture.timed(|view| match self {
            Self::Create { len_bytes } => {
                let bytes = vec![0x5a; len_bytes];
                (0..sizes.files).try_for_each(|n| view.put(&format!("f{n}"), &bytes))?;
                view.sync()
            }
            Self::Delete => {
                (0..sizes.files).try_for_each(|n| view.remove(&format!("f{n}")))?;
                view.sync()
            }
            Self::Write => write_in_order(view, sizes.large_bytes),
            Self::Overwrite => overwrite(view, sizes),
            Self::Read => read_in_order(view, sizes.large_bytes),
        })
    }
}

fn write_in_order(view: &View, large_bytes: usize) -> Outcome {
    let part = pattern(PART_BYTES);
    let file = view.open("large", Access::Truncate)?;
    for offset in (0..large_bytes).step_by(PART_BYTES) {
        let len = PART_BYTES.min(large_bytes - offset);
        view.write_at(&file, &part[..len], offset as u64)?;
    }
    view.fsync(&file)?;
    view.close(file)
}

fn overwrite(view: &View, sizes: Sizes) -> Outcome {
    let file = view.open("large", Access::Write)?;
    let mut random = Random::new(1);
    for n in 1..=sizes.overwrites {
        let block = random.below(sizes.large_bytes as u64 / 4096);
        view.write_at(&file, &[n as u8; 4096], block * 4096)?;
        if n % OVERWRITES_PER_FSYNC == 0 {
            view.fsync(&file)?;
        }
    }
    view.close(file)
}

fn read_in_order(view: &View, large_bytes: usize) -> Outcome {
    let file = view.open("large", Access::Read)?;
    let mut part = vec![0; PART_BYTES];
    let mut offset = 0;
    while offset < large_bytes {
        match view.read_at(&file, &mut part, offset as u64)? {
            0 => return Err(format!("the file ends at {offset}").into()),
            count => offset += count,
        }
    }
    view.close(file)
}
