//! Initial images of workloads: new ones, and variants of qemu-img.

use crate::crash::content::{ContentModel, Effect, Step, fill};
use crate::crash::judge::load;
use crate::crash::program::for_data;
use crate::crash::random::Random;
use crate::support::scratch::scratch;
use crate::support::tools::{command, succeed};
use folio::block::qcow2::Qcow2Device;
use folio::block::{Compat, CreateOptions, Device, MemoryDevice, OpenOptions, open};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// The origin of an image.
pub(crate) enum Origin {
    /// Folio creates it on the recording device.
    New {
        /// Length of the disk in bytes.
        len_bytes: u64,
        options: CreateOptions,
    },
    /// The image exists.
    Image,
}

/// An image, its disk, and its backing file and snapshots.
pub(crate) struct Source {
    pub(crate) origin: Origin,
    /// The file, with room to grow.
    pub(crate) image: Arc<MemoryDevice>,
    pub(crate) backing: Option<Arc<dyn Device>>,
    /// NamespaceModel and bytes of internal snapshots.
    pub(crate) snapshots: Vec<(String, Vec<u8>)>,
    /// The folder of the image's backing file, also used for QEMU.
    pub(crate) folder: TempDir,
    content: Option<(ContentModel, Step)>,
}

impl Source {
    /// Returns a new image on a device of `file_bytes`.
    pub(crate) fn new(file_bytes: u64, len_bytes: u64, cluster_bytes: u32, compat: Compat) -> Self {
        let mut content = ContentModel::new(0);
        content.change(0, Effect::Truncate(len_bytes));
        let options = CreateOptions {
            cluster_bytes,
            compat,
            ..CreateOptions::default()
        };
        Self {
            origin: Origin::New { len_bytes, options },
            image: Arc::new(MemoryDevice::new(file_bytes)),
            backing: None,
            snapshots: Vec::new(),
            folder: scratch(),
            content: Some((content, 0)),
        }
    }

    /// Opens the image on `device` over the same backing file.
    pub(crate) fn open(&self, device: Arc<dyn Device>) -> folio::Result<Qcow2Device> {
        match &self.backing {
            Some(backing) => Qcow2Device::open_over(device, backing.clone()),
            None => Qcow2Device::open_on(device),
        }
    }

    /// Returns the model of the disk, and the last step of its creation.
    pub(crate) fn take_content(&mut self) -> (ContentModel, Step) {
        self.content.take().expect("recorded once")
    }
}

/// Builds an image with qemu-img in its own folder.
pub(crate) struct Maker {
    folder: TempDir,
    content: ContentModel,
    step: Step,
    backing: Option<Arc<dyn Device>>,
    snapshots: Vec<(String, Vec<u8>)>,
}

impl Maker {
    /// Starts with a disk of `len_bytes` zeros.
    pub(crate) fn empty(len_bytes: u64) -> Self {
        let mut content = ContentModel::new(0);
        content.change(0, Effect::Truncate(len_bytes));
        Self {
            folder: scratch(),
            content,
            step: 0,
            backing: None,
            snapshots: Vec::new(),
        }
    }

    /// Starts with a disk of `len_bytes`. In 60 percent of the blocks of 4 KiB, the first half is
    /// pattern bytes.
    pub(crate) fn new(len_bytes: u64, random: &mut Random) -> Self {
        let mut maker = Self::empty(len_bytes);
        for start in (0..len_bytes).step_by(4096) {
            if random.percent(60) {
                maker
                    .content
                    .change(0, Effect::Write(start..(start + 2048).min(len_bytes)));
            }
        }
        maker
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("disk.qcow2")
    }

    /// Runs a program in the image's folder; spaces separate the arguments in `line`.
    fn run(&self, program: &str, line: &str) {
        succeed(
            command(program)
                .args(line.split_whitespace())
                .current_dir(self.folder.path()),
        );
    }

    /// Creates an image of the disk with these options of `qemu-img convert`.
    pub(crate) fn convert(self, options: &str) -> Self {
        std::fs::write(self.folder.path().join("source.raw"), self.content.now()).unwrap();
        self.run(
            "qemu-img",
            &format!("convert -f raw -O qcow2 {options} source.raw disk.qcow2"),
        );
        self
    }

    /// Creates an empty image over a backing file of the disk. The backing file lacks the last
    /// `less` bytes, which are zeros.
    pub(crate) fn overlay(mut self, options: &str, less: usize) -> Self {
        let len = self.content.now().len();
        let end = len as u64;
        self.content
            .change(self.step, Effect::Zero(end - less as u64..end));
        let path = self.folder.path().join("base.raw");
        std::fs::write(&path, &self.content.now()[..len - less]).unwrap();
        self.backing = Some(load(&path));
        self.run(
            "qemu-img",
            &format!("create -f qcow2 -b base.raw -F raw {options} disk.qcow2 {len}"),
        );
        self
    }

    /// Zeroes a range with qemu-io; `flags` say whether it unmaps clusters.
    pub(crate) fn zero(mut self, offset: u64, len_bytes: u64, flags: &str) -> Self {
        let line = format!("write -z {flags} {offset} {len_bytes}");
        succeed(command("qemu-io").args(["-c", &line]).arg(self.path()));
        self.content
            .change(self.step, Effect::Zero(offset..offset + len_bytes));
        self
    }

    /// Creates an internal snapshot, then writes to the disk.
    pub(crate) fn snapshot(mut self, name: &str, random: &mut Random) -> Self {
        self.run("qemu-img", &format!("snapshot -c {name} disk.qcow2"));
        self.snapshots
            .push((name.to_owned(), self.content.now().to_vec()));
        self.step += 1;
        let len = self.content.now().len();
        for _ in 0..3 {
            let offset = random.below(len - 20_000) as u64;
            let device = open(self.path(), &OpenOptions::default()).unwrap();
            let mut bytes = vec![0; 20_000];
            fill(&mut bytes, 0, self.step, offset);
            device.write_at(&bytes, offset).unwrap();
            self.content
                .change(self.step, Effect::Write(offset..offset + 20_000));
        }
        self
    }

    /// Returns the image on a device with `room` more bytes.
    pub(crate) fn source(self, room: u64) -> Source {
        let image = with_room(&self.path(), room);
        let Self {
            folder,
            content,
            step,
            backing,
            snapshots,
        } = self;
        let content = Some((content, step));
        Source {
            origin: Origin::Image,
            image,
            backing,
            snapshots,
            folder,
            content,
        }
    }
}

fn with_room(path: &Path, room: u64) -> Arc<MemoryDevice> {
    let file = load(path);
    let device = MemoryDevice::new((file.len_bytes() + room).next_multiple_of(64 << 10));
    for_data(&*file, |at, bytes| device.write_at(bytes, at).unwrap());
    Arc::new(device)
}
