//! The programs of docs/guide. A test of the documents compares their text with this file.

use folio::block::{self, Device, MemoryDevice};
use folio::vfs::MountOptions;
use folio::{Fs, Image, Kernel, KernelOptions};
use std::error::Error;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

type Outcome = Result<(), Box<dyn Error>>;

/// Compiled only: the images do not exist.
#[expect(unused_variables, reason = "a list of ways to open something")]
fn opens_something(device: Arc<dyn Device>) -> Outcome {
    let fs = Image::file("disk.qcow2").read_only().mount()?;
    let fs = Image::file("cloud.img").partition(1).mount()?;
    let fs = Image::create("new.qcow2", 1 << 30).mount()?;
    let fs = Image::device(device).options("noatime")?.mount()?;
    let fs = Fs::host("/srv/data")?;
    let fs = Fs::memory();
    Ok(())
}

/// Compiled only, as above.
fn mounts_an_image_below_ramfs() -> Outcome {
    let kernel = Kernel::new(KernelOptions::default());
    let fs = Fs::new(kernel.clone());
    fs.create_dir_all("/image")?;
    let device = block::open("disk.qcow2", &Default::default())?;
    kernel.mount_ext4(device, "/image", &MountOptions::default())?;
    fs.copy("/image/etc/hostname", "/hostname")?;
    Ok(())
}

const _: fn(Arc<dyn Device>) -> Outcome = opens_something;
const _: fn() -> Outcome = mounts_an_image_below_ramfs;

#[test]
fn guide_programs_succeed() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    write_and_read(&Image::create_on(device).mount().unwrap()).unwrap();
}

fn write_and_read(fs: &Fs) -> Outcome {
    fs.write("/log", vec![0; 41 << 20])?;
    let bytes = [1; 12_288];
    let mut file = fs.open_options().append(true).open("/log")?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    let file = fs.open("/log")?;
    let mut buf = [1; 4096];
    file.read_exact_at(&mut buf, 40 << 20)?;
    assert_eq!(buf, [0; 4096]);

    let error: std::io::Error = fs.read("/none").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(folio::errno_of(&error), Some(folio::Errno::NOENT));
    Ok(())
}
