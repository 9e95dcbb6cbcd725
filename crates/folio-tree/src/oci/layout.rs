//! A new image in an OCI layout: one layer, or the difference to a base as one more layer.

use super::blobs::blob_name;
use super::difference::BaseTree;
use super::digest::{ContentHash, Digest, Hashing};
use super::documents::{
    CONFIG, Descriptor, Index, LAYER_GZIP, MANIFEST, Manifest, REF_NAME, parse,
};
use super::image::{ContainerImage, LayerBlob};
use super::reference::Platform;
use crate::compression::{Compression, Encoder};
use crate::entry::{Entry, EntryKind, is_whiteout};
use crate::observer::Observer;
use crate::pack::{PackChoice, Packer};
use crate::source::MountSource;
use crate::write_behind::WriteBehind;
use folio::{Errno, Error, Process, Result, Timespec};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What to store in a layout.
pub struct NewContainerImage<'a> {
    /// The layout's folder; created if it is missing.
    pub folder: PathBuf,
    /// The tag; an image of the same tag is replaced.
    pub tag: Option<String>,
    /// The image whose layers precede the new one, which then holds only the difference.
    pub base: Option<&'a ContainerImage>,
    /// The configuration; by default that of `base`, else an empty one.
    pub config: Option<Vec<u8>>,
    /// The platform, if no configuration has one.
    pub platform: Platform,
    /// The latest modification time.
    pub latest: Option<Timespec>,
    /// The time of creation, as RFC 3339.
    pub created: Option<String>,
    /// Whether to leave out a path, relative to the root; the flag says if it is a directory.
    pub is_excluded: Box<dyn Fn(&[u8], bool) -> bool + 'a>,
}

impl NewContainerImage<'_> {
    /// Packs the directory `root` of a file system as the new layer, and stores the image. Equal
    /// trees give equal bytes. Returns the digest of the manifest.
    ///
    /// # Errors
    ///
    /// The tree cannot be read, or the layout not written.
    pub fn store(&self, process: &Process, root: &Path, observer: &dyn Observer) -> Result<Digest> {
        let config = self
            .config
            .as_deref()
            .or(self.base.map(ContainerImage::config));
        let config: Value = config.map_or(Ok(json!({})), |bytes| parse(bytes, "config"))?;
        let index = self.index()?;
        let tree = self.base.map(BaseTree::read).transpose()?;
        fs::create_dir_all(self.folder.join("blobs/sha256")).map_err(failed(&self.folder))?;
        let mut layers = Vec::new();
        let mut diff_ids = Vec::new();
        if let Some(base) = self.base {
            layers = self.copy_layers(base)?;
            diff_ids = base.diff_ids()?;
        }
        let (layer, diff_id) = self.pack(process, root, observer, tree)?;
        layers.push(layer);
        diff_ids.push(diff_id);
        let config = self.config(config, &diff_ids);
        let config = self.put_json(CONFIG, &config)?;
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(MANIFEST.to_owned()),
            config,
            layers,
        };
        let manifest = serde_json::to_value(manifest).map_err(|error| json_error(&error))?;
        let mut manifest = self.put_json(MANIFEST, &manifest)?;
        let digest = manifest.digest()?;
        if let Some(tag) = &self.tag {
            manifest
                .annotations
                .insert(REF_NAME.to_owned(), tag.clone());
        }
        self.put_index(index, manifest)?;
        Ok(digest)
    }

    /// Reads the layout's index before its first change.
    fn index(&self) -> Result<Index> {
        let path = self.folder.join("index.json");
        match fs::read(&path) {
            Ok(bytes) => parse(&bytes, "index.json"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Index::default()),
            Err(error) => Err(failed(&path)(error)),
        }
    }

    fn put_index(&self, mut index: Index, manifest: Descriptor) -> Result<()> {
        index.schema_version = 2;
        let tag = manifest.tag().map(str::to_owned);
        index
            .manifests
            .retain(|known| known.tag() != tag.as_deref());
        index.manifests.push(manifest);
        index.manifests.sort_by(|a, b| a.tag().cmp(&b.tag()));
        let layout = json!({ "imageLayoutVersion": "1.0.0" });
        self.put_file("oci-layout", layout.to_string().as_bytes())?;
        let index = serde_json::to_vec(&index).map_err(|error| json_error(&error))?;
        self.put_file("index.json", &index)
    }

    /// Replaces a file of the layout at once.
    fn put_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).map_err(failed(&path))?;
        file.write_all(bytes).map_err(failed(&path))?;
        persist(file, &path)
    }

    fn put_json(&self, media_type: &str, value: &Value) -> Result<Descriptor> {
        let bytes = serde_json::to_vec(value).map_err(|error| json_error(&error))?;
        let digest = Digest::of(&bytes);
        self.put_file(&blob_name(&digest), &bytes)?;
        Ok(Descriptor::new(media_type, digest, bytes.len() as u64))
    }

    fn config(&self, mut config: Value, diff_ids: &[Digest]) -> Value {
        let Value::Object(all) = &mut config else {
            return config;
        };
        let mut default = |key: &str, value: Value| {
            all.entry(key).or_insert(value);
        };
        default("architecture", json!(self.platform.architecture));
        default("os", json!(self.platform.os));
        if let Some(variant) = &self.platform.variant {
            default("variant", json!(variant));
        }
        default("config", json!({}));
        if self.base.is_none() {
            all.remove("history");
        }
        let created = self.created.as_ref().map(|time| json!(time));
        if let Some(created) = &created {
            all.insert("created".to_owned(), created.clone());
        } else {
            // The time of this run would make equal trees differ.
            all.remove("created");
        }
        let mut step = json!({ "created_by": "folio cp" });
        if let Some(created) = created {
            step["created"] = created;
        }
        match all.get_mut("history").and_then(Value::as_array_mut) {
            Some(history) => history.push(step),
            None if self.base.is_none() => drop(all.insert("history".to_owned(), json!([step]))),
            None => {}
        }
        let digests: Vec<_> = diff_ids.iter().map(Digest::to_string).collect();
        all.insert(
            "rootfs".to_owned(),
            json!({ "type": "layers", "diff_ids": digests }),
        );
        config
    }

    /// Copies the layers of the base that the layout lacks.
    fn copy_layers(&self, base: &ContainerImage) -> Result<Vec<Descriptor>> {
        let mut layers = Vec::new();
        for layer in &base.layers {
            let LayerBlob::Blob(descriptor) = &layer.blob else {
                return Err(Error::unsupported(
                    "--base needs an image of an OCI layout or a registry: copy it with skopeo",
                ));
            };
            let digest = descriptor.digest()?;
            let path = self.folder.join(blob_name(&digest));
            if !path.exists() {
                let folder = self.folder.join("blobs/sha256");
                let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed(&path))?;
                let mut blob = base.open_blob(descriptor)?;
                io::copy(&mut blob, &mut file).map_err(failed(&path))?;
                persist(file, &path)?;
            }
            let mut descriptor = descriptor.clone();
            descriptor.platform = None;
            layers.push(descriptor);
        }
        Ok(layers)
    }

    /// Packs the new layer into a blob.
    fn pack(
        &self,
        process: &Process,
        root: &Path,
        observer: &dyn Observer,
        tree: Option<BaseTree>,
    ) -> Result<(Descriptor, Digest)> {
        let folder = self.folder.join("blobs/sha256");
        let file = tempfile::NamedTempFile::new_in(&folder).map_err(failed(&folder))?;
        let encoder =
            Encoder::new(Hashing::new(file), Compression::Gzip).map_err(failed(&folder))?;
        let behind = WriteBehind::start(encoder).map_err(failed(&folder))?;
        let latest = self.latest;
        let is_root = root == Path::new("/");
        let tree = tree.map(RefCell::new);
        let source = MountSource::new(process);
        let mut packer = Packer::new(&source, observer, Hashing::new(behind));
        packer = packer.with_select(Box::new(|entry, content| {
            // mke2fs makes it, and no container has it.
            let is_lost = is_root && entry.path == b"lost+found/";
            let is_directory = entry.kind == EntryKind::Directory;
            if is_lost || (self.is_excluded)(&entry.path, is_directory) {
                return Ok(PackChoice::Prune);
            }
            if is_whiteout(&entry.path) {
                let reason = "not stored: in a layer this name removes a file; --exclude it";
                return Err(Error::new(Errno::INVAL, reason));
            }
            if let Some(latest) = latest {
                entry.modified = entry.modified.min(latest);
            }
            if let Some(tree) = &tree {
                let mut digest = || {
                    let mut hash = ContentHash::new();
                    content.read(&mut |offset, bytes| hash.update(offset, bytes))?;
                    Ok(hash.finish())
                };
                if !tree.borrow_mut().differs(entry, &mut digest)? {
                    return Ok(PackChoice::Skip);
                }
            }
            if entry.path.is_empty() {
                entry.path = b"./".to_vec();
            }
            Ok(PackChoice::Pack)
        }));
        packer.pack(root, b"")?;
        let whiteouts = tree.iter().flat_map(|tree| tree.borrow().whiteouts());
        for path in whiteouts.collect::<Vec<_>>() {
            packer.append(&whiteout(path), None)?;
        }
        let (behind, diff_id, _) = packer.finish()?.finish();
        let encoder = behind.finish().map_err(failed(&folder))?;
        let (file, digest, len_bytes) = encoder.finish().map_err(failed(&folder))?.finish();
        persist(file, &self.folder.join(blob_name(&digest)))?;
        Ok((Descriptor::new(LAYER_GZIP, digest, len_bytes), diff_id))
    }
}

fn whiteout(path: Vec<u8>) -> Entry {
    Entry {
        path,
        kind: EntryKind::File { size_bytes: 0 },
        mode: 0,
        uid: 0,
        gid: 0,
        modified: Timespec::new(0, 0),
        accessed: None,
        xattrs: Vec::new(),
        unreadable: Vec::new(),
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error {
    let place = path.display().to_string();
    move |error| match error.downcast::<Error>() {
        // A blob of the base could not be read.
        Ok(error) => error,
        Err(error) => Error::io("write", error).at(place.clone()),
    }
}

fn json_error(error: &serde_json::Error) -> Error {
    Error::corrupt(error.to_string())
}

/// Renames a complete file to its name, readable for all.
fn persist(file: tempfile::NamedTempFile, path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let readable = fs::Permissions::from_mode(0o644);
    file.as_file()
        .set_permissions(readable)
        .map_err(failed(path))?;
    file.persist(path)
        .map(drop)
        .map_err(|error| failed(path)(error.error))
}
