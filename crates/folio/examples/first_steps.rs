//! The program of the README: `cargo run --example first_steps` in an empty directory.

use folio::Image;
use std::io::Write;

fn main() -> std::io::Result<()> {
    let fs = Image::create("disk.img", 64 << 20).mount()?;
    fs.create_dir_all("/etc/app")?;
    fs.write("/etc/app/config.toml", "level = \"debug\"\n")?;
    let mut log = fs.create("/log")?;
    writeln!(log, "started")?;
    log.sync_all()?;
    drop(log);
    for entry in fs.walk("/etc")? {
        println!("{}", entry?.path().display());
    }
    fs.close()
}
