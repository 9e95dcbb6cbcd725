//! Build an image from memory, twice, and compare the bytes: `cargo run --example build_image`.

use folio::{Image, Timespec};
use std::error::Error;
use std::io;
use std::path::Path;

/// Path, permission bits, content.
const FILES: [(&str, u16, &str); 3] = [
    ("/etc/hostname", 0o644, "device-1\n"),
    ("/init", 0o755, "#!/bin/sh\nexec /bin/sh\n"),
    ("/root/.profile", 0o600, "export PS1='# '\n"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (first, second) = (folder.path().join("1.img"), folder.path().join("2.img"));
    build(&first)?;
    build(&second)?;
    if std::fs::read(&first)? != std::fs::read(&second)? {
        return Err("two builds differ".into());
    }
    println!("two builds of {} files are byte-identical", FILES.len());
    Ok(())
}

fn build(path: &Path) -> io::Result<()> {
    let uuid = *b"sixteen bytes id";
    let release = Timespec::new(1_700_000_000, 0);
    let fs = Image::create(path, 64 << 20)
        .reproducible(uuid, release)
        .mount()?;
    for (path, mode, content) in FILES {
        if let Some(parent) = Path::new(path).parent() {
            fs.create_dir_all(parent)?;
        }
        fs.write(path, content)?;
        fs.set_mode(path, mode)?;
    }
    fs.close()
}
