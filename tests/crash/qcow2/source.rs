//! The images that workloads start from: new ones, and qemu-img's in its variants.

use crate::crash::content::{Content, Effect, Step, fill};
use crate::crash::judge::load;
use crate::crash::random::Random;
use crate::crash::world::for_data;
use crate::support::tools::{command, succeed};
use folio::block::{Compat, CreateOptions, Device, MemoryDevice, OpenOptions, Qcow2Device, open};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// How an image comes to be.
pub(crate) enum Origin {
    /// Folio makes it on the recording device.
    New {
        /// Bytes of the disk.
        len_bytes: u64,
        options: CreateOptions,
    },
    /// It is there.
    Image,
}

/// An image, the disk in it, and what belongs to it.
pub(crate) struct Source {
    pub(crate) origin: Origin,
    /// The file, with room to grow.
    pub(crate) image: Arc<MemoryDevice>,
    pub(crate) backing: Option<Arc<dyn Device>>,
    /// Names and bytes of internal snapshots.
    pub(crate) snapshots: Vec<(String, Vec<u8>)>,
    /// Where the image's backing file is, and where QEMU may look at it.
    pub(crate) folder: TempDir,
    content: Option<(Content, Step)>,
}

/// A folder in memory where there is one.
fn scratch() -> TempDir {
    let prefix = "folio-crash-";
    TempDir::with_prefix_in(prefix, "/dev/shm")
        .or_else(|_| TempDir::with_prefix(prefix))
        .unwrap()
}

impl Source {
    /// A new image on a device of `file_bytes`.
    pub(crate) fn new(file_bytes: u64, len_bytes: u64, cluster_bytes: u32, compat: Compat) -> Self {
        let mut content = Content::new(0);
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

    /// Opens what the device holds, over the same backing file.
    pub(crate) fn open(&self, device: Arc<dyn Device>) -> folio::Result<Qcow2Device> {
        match &self.backing {
            Some(backing) => Qcow2Device::open_over(device, backing.clone()),
            None => Qcow2Device::open_on(device),
        }
    }

    /// What the disk holds, and the last step of its making.
    pub(crate) fn take_content(&mut self) -> (Content, Step) {
        self.content.take().expect("recorded once")
    }
}

/// An image in the making, by qemu-img, in a folder of its own.
pub(crate) struct Maker {
    folder: TempDir,
    content: Content,
    step: Step,
    backing: Option<Arc<dyn Device>>,
    snapshots: Vec<(String, Vec<u8>)>,
}

impl Maker {
    /// A disk of `len_bytes` zeros.
    pub(crate) fn empty(len_bytes: u64) -> Self {
        let mut content = Content::new(0);
        content.change(0, Effect::Truncate(len_bytes));
        Self {
            folder: scratch(),
            content,
            step: 0,
            backing: None,
            snapshots: Vec::new(),
        }
    }

    /// A disk of `len_bytes`: of each 4 KiB half are bytes that tell where they are from, if they
    /// are there at all.
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

    /// Runs a program with words that have no spaces in them, in the image's folder.
    fn run(&self, program: &str, line: &str) {
        succeed(
            command(program)
                .args(line.split_whitespace())
                .current_dir(self.folder.path()),
        );
    }

    /// The disk's bytes in an image of these options, as `qemu-img convert` takes them.
    pub(crate) fn convert(self, options: &str) -> Self {
        std::fs::write(self.folder.path().join("source.raw"), self.content.now()).unwrap();
        self.run(
            "qemu-img",
            &format!("convert -f raw -O qcow2 {options} source.raw disk.qcow2"),
        );
        self
    }

    /// An empty image over the disk's bytes, of which the backing file has all but the last `less`
    /// zeros.
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

    /// Has qemu-io make a range zero, and keep its clusters or not.
    pub(crate) fn zero(mut self, offset: u64, len_bytes: u64, flags: &str) -> Self {
        let line = format!("write -z {flags} {offset} {len_bytes}");
        succeed(command("qemu-io").args(["-c", &line]).arg(self.path()));
        self.content
            .change(self.step, Effect::Zero(offset..offset + len_bytes));
        self
    }

    /// An internal snapshot; then some of the disk is written.
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

    /// The image, on a device with room for `room` bytes more.
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
