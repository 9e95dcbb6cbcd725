//! The container image that is unpacked: one of several layers that is made here, or a given one.

use super::content::Vocabulary;
use crate::command::{run, tool};
use crate::outcome::{Context, Outcome};
use crate::race::Run;
use crate::random::Random;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Shares of the content that the layers have, in percent.
const LAYER_PERCENTS: [u64; 4] = [58, 25, 14, 3];
/// Files of the first layer that the last one hides.
const HIDDEN: usize = 20;
const SEED: u64 = 0x666f_6c69_6f00_0001;
const TAG: &str = "bench";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// An image in an OCI layout.
pub(super) struct Source {
    /// `oci:DIR:TAG`, as folio and skopeo read it.
    pub(super) reference: OsString,
    /// The compressed layers, the lowest first.
    layers: Vec<PathBuf>,
}

/// The name, the digest and the size of a file in a layout.
struct Blob {
    digest: String,
    len_bytes: u64,
}

impl Source {
    /// Makes an image with `mib` MiB of content in `folder`, by tar and gzip.
    pub(super) fn make(folder: &Path, mib: u64, bench: &Run<'_>) -> Outcome<Self> {
        (bench.step)("making a container image")?;
        let layout = folder.join("layout");
        fs::create_dir_all(layout.join("blobs/sha256")).at(&layout)?;
        let mut random = Random::new(SEED);
        let vocabulary = Vocabulary::new(&mut random);
        let (mut diff_ids, mut layers) = (Vec::new(), Vec::new());
        let mut hidden = Vec::new();
        for (number, percent) in LAYER_PERCENTS.into_iter().enumerate() {
            bench.check()?;
            let tree = folder.join("layer");
            vocabulary.write_tree(&mut random, &tree, (mib << 20) * percent / 100)?;
            if number == 0 {
                hidden = some_files(&tree).at(&tree)?;
            } else if number + 1 == LAYER_PERCENTS.len() {
                hide(&tree, &hidden).at(&tree)?;
            }
            let archive = pack(&tree, folder)?;
            fs::remove_dir_all(&tree).at(&tree)?;
            diff_ids.push(format!("sha256:{}", sha256(&archive)?));
            run(tool("gzip")?.arg("-n").arg(&archive))?;
            layers.push(keep(&archive.with_extension("tar.gz"), &layout)?);
        }
        write_documents(&layout, &diff_ids, &layers)?;
        Self::of_layout(&layout, Some(TAG))
    }

    /// Opens the image that `oci:DIR[:TAG]` names.
    pub(super) fn at(reference: &str) -> Outcome<Self> {
        let expected = || format!("--source {reference}: expected oci:DIR or oci:DIR:TAG");
        let place = reference.strip_prefix("oci:").ok_or_else(expected)?;
        let (folder, tag) = match place.rsplit_once(':') {
            Some((folder, tag)) if !tag.contains('/') => (folder, Some(tag)),
            _ => (place, None),
        };
        Self::of_layout(Path::new(folder), tag)
    }

    /// Reads which layers an image has.
    fn of_layout(layout: &Path, tag: Option<&str>) -> Outcome<Self> {
        let index = read_json(&layout.join("index.json"))?;
        let name = |one: &Value| one["annotations"]["org.opencontainers.image.ref.name"].clone();
        let one = index["manifests"].as_array().into_iter().flatten();
        let mut one = one.filter(|one| tag.is_none_or(|tag| name(one) == tag));
        let manifest = one
            .next()
            .ok_or_else(|| format!("{}: no image {tag:?}", layout.display()))?;
        let manifest = read_json(&blob_path(layout, manifest)?)?;
        let layers = manifest["layers"].as_array().into_iter().flatten();
        let layers: Vec<_> = layers
            .map(|layer| blob_path(layout, layer))
            .collect::<Result<_, _>>()?;
        if layers.is_empty() {
            let list = "a list of images, or an image without layers; skopeo copies one";
            return Err(format!("{}: {list}", layout.display()).into());
        }
        let mut reference = OsString::from("oci:");
        reference.push(layout);
        if let Some(tag) = tag {
            reference.push(":");
            reference.push(tag);
        }
        Ok(Self { reference, layers })
    }

    /// Returns the number of layers and their bytes, compressed.
    pub(super) fn layer_bytes(&self) -> Outcome<(usize, u64)> {
        let len = |path: &PathBuf| Ok(fs::metadata(path).at("layer")?.len());
        let bytes: u64 = self.layers.iter().map(len).sum::<Outcome<_>>()?;
        Ok((self.layers.len(), bytes))
    }

    /// Returns a command that decompresses the layers one after the other, and nothing else.
    pub(super) fn decompression(&self) -> Outcome<(&'static str, Command)> {
        let (first, mut start) = (&self.layers[0], [0; 4]);
        let read = File::open(first).and_then(|mut file| file.read_exact(&mut start));
        read.at(first)?;
        let name = match start {
            start if start.starts_with(&GZIP_MAGIC) => "gzip -dc",
            ZSTD_MAGIC => "zstd -dcq",
            _ => "cat",
        };
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            &format!("for f; do {name} \"$f\" >/dev/null || exit; done"),
            "sh",
        ]);
        shell.args(&self.layers);
        Ok((name, shell))
    }
}

/// Returns some files of a tree, below it.
fn some_files(tree: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![tree.to_owned()]);
    while let Some(folder) = folders.pop() {
        let mut paths: Vec<_> = fs::read_dir(folder)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        paths.sort();
        let (below, here): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| path.is_dir());
        folders.extend(below);
        let here = here.into_iter().take(1);
        files.extend(here.filter_map(|path| Some(path.strip_prefix(tree).ok()?.to_owned())));
        if files.len() >= HIDDEN {
            break;
        }
    }
    Ok(files)
}

/// Writes whiteouts of files into a layer.
fn hide(tree: &Path, files: &[PathBuf]) -> std::io::Result<()> {
    for file in files {
        let mut name = OsString::from(".wh.");
        name.push(file.file_name().unwrap_or_default());
        let whiteout = tree.join(file).with_file_name(name);
        fs::create_dir_all(whiteout.parent().unwrap_or(tree))?;
        fs::write(whiteout, "")?;
    }
    Ok(())
}

/// Packs a layer; equal trees give equal archives.
fn pack(tree: &Path, folder: &Path) -> Outcome<PathBuf> {
    let archive = folder.join("layer.tar");
    let mut tar = tool("tar")?;
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mtime=@1700000000", "-C"]).arg(tree);
    run(tar.arg("-cf").arg(&archive).arg("."))?;
    Ok(archive)
}

fn sha256(path: &Path) -> Outcome<String> {
    let said = run(tool("sha256sum")?.arg(path))?;
    let digest = said.split_whitespace().next().map(str::to_owned);
    Ok(digest.ok_or_else(|| format!("sha256sum: unexpected output {said:?}"))?)
}

/// Moves a file among the blobs of a layout.
fn keep(path: &Path, layout: &Path) -> Outcome<Blob> {
    let digest = sha256(path)?;
    let len_bytes = fs::metadata(path).at(path)?.len();
    fs::rename(path, layout.join("blobs/sha256").join(&digest)).at(path)?;
    Ok(Blob { digest, len_bytes })
}

fn keep_document(document: &Value, layout: &Path) -> Outcome<Blob> {
    let path = layout.join("document");
    fs::write(&path, document.to_string()).at("document")?;
    keep(&path, layout)
}

fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({
        "mediaType": media_type,
        "digest": format!("sha256:{}", blob.digest),
        "size": blob.len_bytes,
    })
}

/// Writes configuration, manifest and index.
fn write_documents(layout: &Path, diff_ids: &[String], layers: &[Blob]) -> Outcome {
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Cmd": ["/bin/sh"] },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let config = keep_document(&config, layout)?;
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| descriptor(LAYER_TYPE, layer))
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, &config),
        "layers": layers,
    });
    let manifest = keep_document(&manifest, layout)?;
    let mut named = descriptor(MANIFEST_TYPE, &manifest);
    named["annotations"] = json!({ "org.opencontainers.image.ref.name": TAG });
    let index = json!({ "schemaVersion": 2, "manifests": [named] });
    let documents = [
        ("index.json", index.to_string()),
        ("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#.to_owned()),
    ];
    for (name, text) in documents {
        fs::write(layout.join(name), text).at(name)?;
    }
    Ok(())
}

fn read_json(path: &Path) -> Outcome<Value> {
    let bytes = fs::read(path).at(path)?;
    serde_json::from_slice(&bytes).at(path)
}

/// Returns the path of a described file.
fn blob_path(layout: &Path, descriptor: &Value) -> Outcome<PathBuf> {
    let digest = descriptor["digest"].as_str().unwrap_or_default();
    let hex = digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let hex = hex.ok_or_else(|| format!("{}: invalid digest {digest:?}", layout.display()))?;
    Ok(layout.join("blobs/sha256").join(hex))
}
