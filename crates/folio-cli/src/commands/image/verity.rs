//! `folio image verity`: the hash tree of dm-verity, behind an image or in a file of its own.

use crate::exit::{Failure, Outcome};
use crate::identity::IdentitySource;
use crate::image::{Access, open_device, open_to_read};
use crate::image_path::{ImagePath, refuse_partition, refuse_protocol};
use crate::objects::{is_url, refuse_new};
use crate::session::Session;
use crate::verity::{self, Salt, TreeIdentity, WrittenTree, hex};
use clap::Args;
use folio::block::tools::ResizeImage;
use folio::block::tools::verity::{
    BLOCK_BYTES, VeritySuperblock, appended_data_blocks, hash_area_bytes,
};
use folio::block::{self, Device, ImageFormat};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const AFTER_HELP: &str = "\
Superblock and tree are as veritysetup format writes them: version 1, SHA-256, blocks of 4096 bytes. Without HASH_FILE
they are appended to the image, from the next whole block on. The image must not change afterwards.

With SOURCE_DATE_EPOCH, salt and UUID follow from the number of blocks; else they are random.

Examples:
  folio image verity root.erofs                    appended; folio check --root-hash HASH root.erofs verifies it
  folio image verity root.erofs root.verity        in a file of its own
  folio image verity disk.img@2 root.verity --json
  veritysetup open root.erofs root root.erofs HASH --hash-offset OFFSET";

/// Add the hash tree of dm-verity to an image
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Verity {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// The new file for superblock and tree; the default appends them to the image
    hash_file: Option<PathBuf>,
    /// Salt in hexadecimal digits, - for none; the default is 32 random bytes
    #[arg(long, value_name = "HEX", allow_hyphen_values = true, value_parser = verity::salt)]
    salt: Option<Salt>,
    /// UUID of the superblock; the default is random
    #[arg(short = 'U', long, value_name = "UUID", value_parser = crate::value_parsers::uuid)]
    uuid: Option<[u8; 16]>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(verity: &Verity, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let place = ImagePath::parse(&verity.image)?;
    if place.path.as_os_str() != "/" {
        let text = format!("{place}: a whole image is hashed; omit the path");
        return Err(Failure::usage(text));
    }
    let (tree, offset) = match &verity.hash_file {
        Some(path) => (beside(verity, session, &place, path)?, 0),
        None => append(verity, session, &place)?,
    };
    let name = place.image_name();
    if verity.json {
        let mut object = verity::to_json(&tree.superblock, Some(&tree.root_hash));
        object["image"] = json!(name);
        object["hash_file"] = json!(
            verity
                .hash_file
                .as_ref()
                .map(|path| path.display().to_string())
        );
        object["hash_offset"] = json!(offset);
        return session.print_json(&object);
    }
    let superblock = &tree.superblock;
    let uuid = uuid::Uuid::from_bytes(superblock.uuid);
    if !session.quiet {
        let mut out = std::io::stdout().lock();
        writeln!(out, "UUID:         {uuid}")?;
        writeln!(out, "Data blocks:  {}", superblock.data_blocks)?;
        writeln!(out, "Hash offset:  {offset}")?;
        writeln!(out, "Salt:         {}", hex(&superblock.salt))?;
        writeln!(out, "Root hash:    {}", hex(&tree.root_hash))?;
    }
    Ok(())
}

/// Writes the tree into a new file.
fn beside(
    verity: &Verity,
    session: &Session,
    place: &ImagePath,
    path: &Path,
) -> Outcome<WrittenTree> {
    let file = path.display();
    refuse_protocol(path).map_err(Failure::usage)?;
    refuse_new(path).map_err(Failure::usage)?;
    refuse_partition(path)?;
    if path.exists() {
        return Err(Failure::new(format!("{file}: already exists")));
    }
    let name = place.image_name();
    let disk = open_to_read(session, &place.image)?;
    let failed = |error: folio::Error| Failure::image(error.at(name.clone()));
    let data = match place.partition_number(&*disk).map_err(failed)? {
        Some(number) => block::partition::select(disk, Some(number)).map_err(failed)?,
        None => disk,
    };
    let len_bytes = data.len_bytes();
    if len_bytes == 0 || !len_bytes.is_multiple_of(BLOCK_BYTES) {
        let whole = len_bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        return Err(Failure::usage(format!(
            "{name}: {len_bytes} bytes, but a hash tree needs whole blocks of {BLOCK_BYTES}; use folio image \
             resize {name} {whole}, or append the tree"
        )));
    }
    let blocks = len_bytes / BLOCK_BYTES;
    let failed = |error: folio::Error| Failure::new(format!("{file}: {error}"));
    let format = ImageFormat::of_name(path);
    let hash = block::create(path, format, hash_area_bytes(blocks)).map_err(failed)?;
    let written = write(verity, session, &data, &*hash, blocks, 0);
    drop(hash);
    if written.is_err() {
        // The cause of the failure is reported, and an incomplete tree is useless.
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Enlarges the image, and writes the tree behind its content; returns its offset, too.
fn append(verity: &Verity, session: &Session, place: &ImagePath) -> Outcome<(WrittenTree, u64)> {
    let (path, name) = (&place.image, place.image_name());
    if place.partition.is_some() || is_url(path.as_os_str()) {
        return Err(Failure::usage(format!(
            "{name}: a tree is appended to a whole local image; name a file for the tree"
        )));
    }
    let disk = open_device(path, Access::Write)?;
    let len_bytes = disk.len_bytes();
    if len_bytes == 0 {
        return Err(Failure::usage(format!("{name}: the image is empty")));
    }
    if let Some(blocks) = appended_data_blocks(len_bytes) {
        let offset = blocks * BLOCK_BYTES;
        // A superblock of another version is one, too.
        if !matches!(VeritySuperblock::read(&*disk, offset), Ok(None)) {
            return Err(Failure::new(format!(
                "{name}: has a hash tree already, at byte {offset}"
            )));
        }
    }
    drop(disk);
    let blocks = len_bytes.div_ceil(BLOCK_BYTES);
    let offset = blocks * BLOCK_BYTES;
    let resize = |len_bytes: u64| {
        let options = ResizeImage {
            may_shrink: true,
            ..ResizeImage::default()
        };
        block::tools::resize(path, len_bytes, &options)
    };
    let failed = |error: folio::Error| Failure::image(error.at(name.clone()));
    resize(offset + hash_area_bytes(blocks)).map_err(failed)?;
    let written = open_device(path, Access::Write)
        .and_then(|disk| write(verity, session, &disk, &*disk, blocks, offset));
    if written.is_err() {
        // The cause of the failure is reported; the image is as before.
        let _ = resize(len_bytes);
    }
    Ok((written?, offset))
}

fn write(
    verity: &Verity,
    session: &Session,
    data: &Arc<dyn Device>,
    hash: &dyn Device,
    blocks: u64,
    offset: u64,
) -> Outcome<WrittenTree> {
    let given = TreeIdentity {
        salt: verity.salt.as_ref(),
        uuid: verity.uuid,
    };
    let text = format!("{blocks} blocks");
    let mut identity = IdentitySource::new(&text, 0);
    let tree = verity::write_tree(session, data, blocks, hash, offset, &given, &mut identity)?;
    hash.flush()?;
    Ok(tree)
}
