//! Read a file from a disk image: `cargo run --example read_from_image -- disk.qcow2 /etc/fstab`.
//!
//! Without arguments the example builds a small image first.

use folio::Image;
use std::error::Error;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (image, path) = match (arguments.next(), arguments.next()) {
        (Some(image), Some(path)) => (image, path),
        _ => (sample(folder.path())?, "/etc/motd".into()),
    };

    // A read-only mount writes nothing, replays a journal in memory, and lets other readers in.
    let fs = Image::file(image).read_only().mount()?;
    stdout().write_all(&fs.read(path)?)?;
    Ok(fs.close()?)
}

fn sample(folder: &Path) -> std::io::Result<PathBuf> {
    let path = folder.join("sample.qcow2");
    let fs = Image::create(&path, 64 << 20).mount()?;
    fs.create_dir("/etc")?;
    fs.write("/etc/motd", "Hello from inside an image.\n")?;
    fs.close()?;
    Ok(path)
}
