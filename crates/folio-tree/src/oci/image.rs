//! A container image: its configuration, and layers to unpack one onto the other.

use super::blobs::{ArchiveFile, BlobReader, Blobs, Folder, blob_error, host_error};
use super::digest::{Digest, Verify};
use super::documents::{Config, Descriptor, DockerImage, Index, Manifest, PlatformDocument, parse};
use super::reference::{Platform, Reference};
use crate::compression::decoder;
use crate::contents::Contents;
use crate::read_ahead::{Counted, InputProgress, MemoryBudget, ReadAhead};
use crate::tar::Reader;
use crate::unpack::Unpacker;
use folio::{Errno, Error, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers of 1 MiB that a layer is decompressed ahead of its turn.
const AHEAD_BUFFERS: usize = 64;
/// Layers that are decompressed at a time.
const AHEAD_LAYERS_MAX: usize = 4;
/// Lists of images within lists.
const INDEX_DEPTH_MAX: usize = 4;
/// Tags or platforms that a message lists.
const LISTED_MAX: usize = 20;

/// A container image, opened for unpacking.
pub struct ContainerImage {
    blobs: Arc<dyn Blobs>,
    name: String,
    config: Vec<u8>,
    pub(super) layers: Vec<Layer>,
    /// Memory for layers between [`ContainerImage::contents`] and [`ContainerImage::unpack`].
    budget: Arc<MemoryBudget>,
    /// The layers that are in memory, verified.
    kept: Mutex<BTreeMap<usize, ReadAhead>>,
    /// Of [`ContainerImage::unpack`].
    progress: InputProgress,
    stop: Arc<AtomicBool>,
}

/// A layer: a tar archive, mostly compressed.
pub(super) struct Layer {
    /// The name in `docker save` archives, or the blob.
    pub(super) blob: LayerBlob,
    /// The digest of the uncompressed archive, if the configuration has it.
    diff_id: Option<Digest>,
}

pub(super) enum LayerBlob {
    Named(String),
    Blob(Descriptor),
}

/// An open layer, and the flag of its verified end.
type OpenLayer = (Reader<ReadAhead>, Arc<AtomicBool>);

impl ContainerImage {
    /// Opens an image. Of several platforms it takes `platform`, else that of this machine.
    ///
    /// # Errors
    ///
    /// EUCLEAN for damage, with digests that differ among it; ENOENT for a missing image, tag,
    /// platform or blob; EOPNOTSUPP.
    pub fn open(reference: &Reference, platform: Option<&Platform>) -> Result<Self> {
        let opened = match reference {
            Reference::Layout(path, tag) => {
                let found = std::fs::metadata(path.join("index.json"));
                found.map_err(|error| host_error(&path.join("index.json"), &error))?;
                Self::layout(Box::new(Folder(path.clone())), tag.as_deref(), platform)
            }
            Reference::LayoutArchive(path, tag) => {
                let archive = ArchiveFile::open(path)?;
                Self::layout(Box::new(archive), tag.as_deref(), platform)
            }
            Reference::DockerArchive(path, tag) => Self::docker(path, tag.as_deref(), platform),
            Reference::Registry(name) => Self::registry(name, platform),
        };
        let mut image = opened.map_err(|error| error.at(reference.to_string()))?;
        image.name = reference.to_string();
        Ok(image)
    }

    /// Opens the image of a layout.
    pub(super) fn layout(
        blobs: Box<dyn Blobs>,
        tag: Option<&str>,
        platform: Option<&Platform>,
    ) -> Result<Self> {
        let bytes = blobs.read("index.json")?;
        let index: Index = parse(&bytes, "index.json")?;
        let all = &index.manifests;
        let tags = || all.iter().filter_map(Descriptor::tag);
        let is_tagged = |one: &&Descriptor| tag.is_none_or(|tag| one.tag() == Some(tag));
        // An image may have several tags.
        let mut known = BTreeSet::new();
        let tagged = all.iter().filter(is_tagged);
        let tagged: Vec<_> = tagged
            .filter(|one| known.insert(one.digest.as_str()))
            .collect();
        let descriptor = match tagged[..] {
            [] => return Err(missing_tag(tag, tags())),
            [one] => one,
            [first, ..] if tagged.iter().any(|one| one.tag() != first.tag()) => {
                return Err(missing_tag(None, tags()));
            }
            _ => match select(&tagged, platform)?[..] {
                [one] => one,
                ref several => return Err(ambiguous(several)),
            },
        };
        let descriptor = descriptor.clone();
        Self::from_descriptor(blobs, descriptor, platform)
    }

    /// Opens the image of a descriptor, which may be a list of images.
    pub(super) fn from_descriptor(
        blobs: Box<dyn Blobs>,
        mut descriptor: Descriptor,
        platform: Option<&Platform>,
    ) -> Result<Self> {
        for _ in 0..INDEX_DEPTH_MAX {
            let bytes = blobs.read_blob(&descriptor)?;
            if descriptor.is_index() {
                let index: Index = parse(&bytes, &descriptor.digest)?;
                let all: Vec<_> = index.manifests.iter().collect();
                descriptor = match select(&all, platform)?[..] {
                    // The first one counts where a list has a platform twice.
                    [one, ..] if one.platform.is_some() => one.clone(),
                    [one] => one.clone(),
                    ref several => return Err(ambiguous(several)),
                };
                continue;
            }
            let manifest: Manifest = parse(&bytes, &descriptor.digest)?;
            let config = blobs.read_blob(&manifest.config)?;
            check_platform(&config, descriptor.platform.as_ref(), platform)?;
            let diff_ids = diff_ids(&config)?;
            if !diff_ids.is_empty() && diff_ids.len() != manifest.layers.len() {
                return Err(Error::corrupt("manifest and config have different layers"));
            }
            let layer = |(at, descriptor)| Layer {
                blob: LayerBlob::Blob(descriptor),
                diff_id: diff_ids.get(at).copied(),
            };
            let sizes = manifest.layers.iter().map(|layer| layer.size);
            let len_bytes = sizes.fold(0, u64::saturating_add);
            let layers = manifest.layers.into_iter().enumerate().map(layer).collect();
            return Ok(Self {
                blobs: blobs.into(),
                name: String::new(),
                config,
                layers,
                budget: Arc::new(MemoryBudget::new(0)),
                kept: Mutex::default(),
                progress: InputProgress::new(len_bytes),
                stop: Arc::default(),
            });
        }
        Err(Error::corrupt("too many lists of images within lists"))
    }

    fn docker(path: &Path, tag: Option<&str>, platform: Option<&Platform>) -> Result<Self> {
        let archive = ArchiveFile::open(path)?;
        if !archive.has("manifest.json") && archive.has("index.json") {
            return Self::layout(Box::new(archive), tag, platform);
        }
        let bytes = archive.read("manifest.json")?;
        let images: Vec<DockerImage> = parse(&bytes, "manifest.json")?;
        let tags = |image: &DockerImage| image.repo_tags.clone().unwrap_or_default();
        let is_tagged = |image: &&DockerImage| {
            tag.is_none_or(|tag| tags(image).iter().any(|known| is_same_name(known, tag)))
        };
        let tagged: Vec<_> = images.iter().filter(is_tagged).collect();
        let [image] = tagged[..] else {
            let known: Vec<_> = images.iter().flat_map(tags).collect();
            let tag = tag.filter(|_| tagged.is_empty());
            return Err(missing_tag(tag, known.iter().map(String::as_str)));
        };
        let config = archive.read(&image.config)?;
        // The name of a configuration is its digest, in both forms of `docker save`.
        let stem = image
            .config
            .rsplit('/')
            .next()
            .unwrap_or("")
            .trim_end_matches(".json");
        if let Some(want) = Digest::parse_hex(stem)
            && Digest::of(&config) != want
        {
            return Err(Error::corrupt("digest mismatch").at(image.config.clone()));
        }
        check_platform(&config, None, platform)?;
        let diff_ids = diff_ids(&config)?;
        if diff_ids.len() != image.layers.len() {
            return Err(Error::corrupt(
                "manifest.json and config have different layers",
            ));
        }
        let named = image
            .layers
            .iter()
            .zip(diff_ids)
            .map(|(name, diff_id)| Layer {
                blob: LayerBlob::Named(name.clone()),
                diff_id: Some(diff_id),
            });
        let layers = named.collect();
        let sizes = image.layers.iter().map(|name| archive.len_bytes(name));
        let len_bytes = sizes.fold(0, u64::saturating_add);
        Ok(Self {
            blobs: Arc::new(archive),
            name: String::new(),
            config,
            layers,
            budget: Arc::new(MemoryBudget::new(0)),
            kept: Mutex::default(),
            progress: InputProgress::new(len_bytes),
            stop: Arc::default(),
        })
    }

    #[cfg(feature = "registry")]
    fn registry(name: &str, platform: Option<&Platform>) -> Result<Self> {
        let (registry, descriptor) = super::registry::Registry::find(name)?;
        Self::from_descriptor(Box::new(registry), descriptor, platform)
    }

    #[cfg(not(feature = "registry"))]
    fn registry(_: &str, _: Option<&Platform>) -> Result<Self> {
        Err(Error::unsupported(
            "this folio was built without the feature registry: \
             cargo install --path crates/folio-cli --features full",
        ))
    }

    /// Lets [`ContainerImage::contents`] keep decompressed layers in this much memory, so that
    /// [`ContainerImage::unpack`] need not decompress them again.
    #[must_use]
    pub fn with_memory(mut self, bytes: u64) -> Self {
        // The other half is for layers that are decompressed before their turn.
        self.budget = Arc::new(MemoryBudget::new(bytes / 2));
        self
    }

    /// Ends work on the layers with EINTR once `stop` is set, also a wait for a registry.
    #[must_use]
    pub fn with_stop(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = stop;
        self
    }

    /// Returns the configuration as JSON: entry point, environment, user, history.
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    /// Returns the progress of [`ContainerImage::unpack`], in bytes of the layers as stored.
    pub fn progress(&self) -> &InputProgress {
        &self.progress
    }

    /// Returns the number of layers.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Unpacks all layers. Threads decompress and verify the next ones meanwhile.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a digest that differs; the errors of [`Unpacker::unpack`].
    pub fn unpack(&self, unpacker: &mut Unpacker<'_>) -> Result<()> {
        self.pass_layers(false, |reader| unpacker.unpack_layer(reader))
    }

    /// Returns the files that unpacking will create, without unpacking: for the size of an image.
    ///
    /// # Errors
    ///
    /// The errors of [`ContainerImage::unpack`].
    pub fn contents(&self) -> Result<Contents> {
        let mut contents = Contents::default();
        self.pass_layers(true, |reader| contents.add_layer(reader))?;
        Ok(contents)
    }

    /// Passes the layers in their order.
    pub(super) fn each_layer(
        &self,
        use_layer: impl FnMut(&mut Reader<ReadAhead>) -> Result<()>,
    ) -> Result<()> {
        self.pass_layers(false, use_layer)
    }

    /// Passes the layers in their order. If they will be read again, keeps those that fit into
    /// memory.
    fn pass_layers(
        &self,
        is_read_again: bool,
        mut use_layer: impl FnMut(&mut Reader<ReadAhead>) -> Result<()>,
    ) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let ahead = cores.clamp(2, AHEAD_LAYERS_MAX);
        let mut open: VecDeque<OpenLayer> = VecDeque::new();
        for at in 0..self.layers.len() {
            let place = |error: Error| {
                error
                    .at(format!("layer {} of {}", at + 1, self.layers.len()))
                    .at(self.name.clone())
            };
            while open.len() < ahead && at + open.len() < self.layers.len() {
                let opened = self.open_layer(at + open.len(), is_read_again);
                open.push_back(opened.map_err(place)?);
            }
            let Some((mut reader, is_verified)) = open.pop_front() else {
                break;
            };
            use_layer(&mut reader).map_err(place)?;
            if !is_verified.load(Ordering::Relaxed) {
                return Err(place(Error::corrupt("bytes after the end of the archive")));
            }
            if let Some(kept) = reader.into_input().rewind() {
                self.kept
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(at, kept);
            }
        }
        Ok(())
    }

    /// Starts reading a layer. A blob's own digest is that of its compressed bytes.
    fn open_layer(&self, at: usize, is_read_again: bool) -> Result<OpenLayer> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.remove(&at) {
            let kept = kept.reporting(&self.progress);
            let reader = Reader::new(kept).accepting_empty();
            return Ok((reader, Arc::new(AtomicBool::new(true))));
        }
        let (count, is_verified) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let open = self.opener(&self.layers[at], count.clone(), is_verified.clone())?;
        let buffers = if is_read_again {
            (self.budget.buffers() / AHEAD_LAYERS_MAX).max(AHEAD_BUFFERS)
        } else {
            AHEAD_BUFFERS
        };
        let ahead = ReadAhead::start_far(open, count, buffers).map_err(blob_error)?;
        let ahead = ahead.with_stop(self.stop.clone());
        let ahead = if is_read_again {
            ahead.keeping(self.budget.clone())
        } else {
            ahead.reporting(&self.progress)
        };
        Ok((Reader::new(ahead).accepting_empty(), is_verified))
    }

    /// Returns the function that opens a layer, decompressed and verified, on the thread that reads
    /// it: a registry may let it wait. `count` counts the bytes of the blob.
    fn opener(
        &self,
        layer: &Layer,
        count: Arc<AtomicU64>,
        is_verified: Arc<AtomicBool>,
    ) -> Result<Box<dyn FnOnce() -> io::Result<BlobReader> + Send>> {
        let blobs = self.blobs.clone();
        Ok(match &layer.blob {
            LayerBlob::Blob(descriptor) => {
                let (descriptor, digest) = (descriptor.clone(), descriptor.digest()?);
                Box::new(move || {
                    let blob = Counted::new(blobs.open_blob(&descriptor)?, count);
                    decoder(Verify::new(blob, digest, is_verified))
                })
            }
            LayerBlob::Named(name) => {
                let name = name.clone();
                let digest = layer
                    .diff_id
                    .ok_or_else(|| Error::corrupt("a layer without digest"))?;
                Box::new(move || {
                    let blob = decoder(Counted::new(blobs.open(&name)?, count))?;
                    Ok(Box::new(Verify::new(blob, digest, is_verified)))
                })
            }
        })
    }

    /// Opens a blob as it is stored, unverified.
    pub(super) fn open_blob(&self, descriptor: &Descriptor) -> Result<ReadAhead> {
        let (blobs, descriptor) = (self.blobs.clone(), descriptor.clone());
        let open = move || Ok(blobs.open_blob(&descriptor)?);
        let ahead = ReadAhead::start_far(open, Arc::default(), AHEAD_BUFFERS);
        Ok(ahead.map_err(blob_error)?.with_stop(self.stop.clone()))
    }

    /// Returns the digests of the uncompressed layers.
    pub(super) fn diff_ids(&self) -> Result<Vec<Digest>> {
        diff_ids(&self.config)
    }
}

fn diff_ids(config: &[u8]) -> Result<Vec<Digest>> {
    let config: Config = parse(config, "config")?;
    config
        .rootfs
        .diff_ids
        .iter()
        .map(|text| Digest::parse(text))
        .collect()
}

/// Whether two names of Docker are the same: `docker.io/library/app:1` is `app:1`, and the tag
/// `latest` may be omitted.
fn is_same_name(a: &str, b: &str) -> bool {
    let short = |name: &str| {
        let name = name.strip_prefix("docker.io/").unwrap_or(name);
        let name = name.strip_prefix("library/").unwrap_or(name);
        let has_tag = name
            .rsplit('/')
            .next()
            .is_some_and(|last| last.contains(':'));
        if has_tag {
            name.to_owned()
        } else {
            format!("{name}:latest")
        }
    };
    short(a) == short(b)
}

fn missing_tag<'a>(tag: Option<&str>, known: impl Iterator<Item = &'a str>) -> Error {
    let known: BTreeSet<_> = known.take(LISTED_MAX).collect();
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    let reason = match tag {
        Some(tag) => format!("no image with the tag {tag}; there are: {known}"),
        None => format!("several images or none: name one by its tag; there are: {known}"),
    };
    Error::new(Errno::NOENT, reason)
}

fn ambiguous(several: &[&Descriptor]) -> Error {
    let names = several
        .iter()
        .take(LISTED_MAX)
        .map(|one| match &one.platform {
            Some(platform) => format!("{} ({})", one.digest, Platform::from(platform)),
            None => one.digest.clone(),
        });
    let names: Vec<_> = names.collect();
    let reason = format!(
        "several images fit: {}; copy one of them to a tag of its own with skopeo",
        names.join(", ")
    );
    Error::new(Errno::INVAL, reason)
}

/// Fails if an image is for another platform than `wanted`. A list of images that gave the image
/// the platform `listed` decides; many configurations lack the variant.
fn check_platform(
    config: &[u8],
    listed: Option<&PlatformDocument>,
    wanted: Option<&Platform>,
) -> Result<()> {
    let Some(wanted) = wanted else {
        return Ok(());
    };
    let config: Config = parse(config, "config")?;
    let own = config.platform();
    let found = listed.unwrap_or(&own);
    if wanted.matches(found) {
        return Ok(());
    }
    let found = Platform::from(found);
    let reason = format!("the image is for {found}, not for {wanted}");
    Err(Error::new(Errno::NOENT, reason))
}

/// Returns the images of a list that fit a platform best: those of its variant, else those of its
/// architecture, else those without a platform.
fn select<'a>(all: &[&'a Descriptor], platform: Option<&Platform>) -> Result<Vec<&'a Descriptor>> {
    let host = Platform::host();
    let wanted = platform.unwrap_or(&host);
    // Attestations have the platform unknown/unknown.
    let is_image = |found: &PlatformDocument| found.os != "unknown";
    let images = all
        .iter()
        .filter(|one| one.platform.as_ref().is_none_or(is_image));
    let images: Vec<_> = images.copied().collect();
    let those = |fits: &dyn Fn(Option<&PlatformDocument>) -> bool| -> Vec<_> {
        let fitting = images.iter().filter(|one| fits(one.platform.as_ref()));
        fitting.copied().collect()
    };
    let best = [
        those(&|found| found.is_some_and(|found| wanted.is_exactly(found))),
        those(&|found| found.is_some_and(|found| wanted.matches(found))),
        those(&|found| found.is_none()),
    ];
    if let Some(found) = best.into_iter().find(|found| !found.is_empty()) {
        return Ok(found);
    }
    let known = images.iter().filter_map(|one| one.platform.as_ref());
    let known = known.map(|one| Platform::from(one).to_string());
    let known: Vec<_> = known.take(LISTED_MAX).collect();
    let reason = format!("no image for {wanted}; there are: {}", known.join(", "));
    Err(Error::new(Errno::NOENT, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layout whose only file is its index.
    struct IndexOnly(Vec<u8>);

    impl Blobs for IndexOnly {
        fn open(&self, _: &str) -> Result<BlobReader> {
            Ok(Box::new(io::Cursor::new(self.0.clone())))
        }
    }

    #[test]
    fn index_of_many_images_is_read_in_a_short_time() {
        // A search in the list for each image takes minutes.
        let images: Vec<_> = (0..300_000)
            .map(|number| format!("{{\"digest\":\"sha256:{number}\"}}"))
            .collect();
        let text = format!(
            "{{\"schemaVersion\":2,\"manifests\":[{}]}}",
            images.join(",")
        );
        let opened = ContainerImage::layout(Box::new(IndexOnly(text.into_bytes())), None, None);
        let error = opened.err().unwrap();
        assert_eq!(error.errno(), Errno::INVAL);
        assert!(
            error.to_string().len() < 2000,
            "the message lists all images"
        );
    }

    #[test]
    fn platform_of_a_configuration_is_read() {
        let text = br#"{"architecture":"arm","os":"linux","variant":"v7","x":[1,2]}"#;
        let config: Config = parse(text, "config").unwrap();
        let platform = Platform::from(&config.platform());
        assert_eq!(platform.to_string(), "linux/arm/v7");
        let empty: Config = parse(b"{}", "config").unwrap();
        assert_eq!(empty.platform().os, "");
    }

    #[test]
    fn docker_names_are_compared_in_short_form() {
        assert!(is_same_name("docker.io/library/app:1", "app:1"));
        assert!(
            is_same_name("app", "app:latest") && is_same_name("host:5000/app", "host:5000/app")
        );
        assert!(!is_same_name("app:1", "app:2") && !is_same_name("a/app", "app"));
    }
}
