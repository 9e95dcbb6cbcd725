//! The options of images in object storage.

use crate::value_parsers::size;
use clap::Args;
use folio_object_store::{AddressingStyle, ImageOptions, PartCacheOptions, StoreOptions};
use std::path::PathBuf;
use std::time::Duration;

/// Options of images in object storage.
#[derive(Args)]
#[command(next_help_heading = "Object storage")]
pub(crate) struct ObjectOptions {
    /// Address of an S3-compatible store; default: AWS_ENDPOINT_URL or the profile
    #[arg(long, global = true, value_name = "URL", hide_short_help = true)]
    endpoint_url: Option<String>,
    /// Region of the bucket; the default is that of AWS_REGION or the profile
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    region: Option<String>,
    /// Profile of ~/.aws/config; the default is that of AWS_PROFILE
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    profile: Option<String>,
    /// Send requests without a signature, for public buckets
    #[arg(long, global = true, hide_short_help = true)]
    no_sign_request: bool,
    /// Where requests name the bucket: in the path, or in the host name (virtual)
    #[arg(long, global = true, value_name = "path|virtual", value_parser = style, hide_short_help = true)]
    addressing_style: Option<AddressingStyle>,
    /// Seconds after which a request to a store fails, its retries included
    #[arg(long, global = true, value_name = "SECONDS", default_value = "60", value_parser = seconds, hide_short_help = true)]
    io_timeout: Duration,
    /// Keep fetched parts of objects in this directory, for later commands
    #[arg(long, global = true, value_name = "DIR", hide_short_help = true)]
    part_cache: Option<PathBuf>,
    /// Largest size of the directory of --part-cache
    #[arg(long, global = true, value_name = "SIZE", default_value = "10G", value_parser = size, hide_short_help = true)]
    part_cache_size: u64,
    /// Start of URLs that any image may name as its backing file, such as s3://bucket/base/
    #[arg(long, global = true, value_name = "URL", hide_short_help = true)]
    backing_url: Vec<String>,
}

fn style(text: &str) -> Result<AddressingStyle, String> {
    match text {
        "path" => Ok(AddressingStyle::Path),
        "virtual" => Ok(AddressingStyle::Virtual),
        _ => Err("expected path or virtual".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let invalid = || "expected a number of seconds greater than 0".to_owned();
    let seconds: f64 = text.parse().map_err(|_| invalid())?;
    let found = Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?;
    if found.is_zero() {
        Err(invalid())
    } else {
        Ok(found)
    }
}

impl ObjectOptions {
    /// Returns the options for the images of this process.
    pub(crate) fn image_options(&self) -> ImageOptions {
        let mut store = StoreOptions::default();
        store.io_timeout = self.io_timeout;
        store.endpoint_url = self.endpoint_url.clone();
        store.region = self.region.clone();
        store.profile = self.profile.clone();
        store.is_unsigned = self.no_sign_request;
        store.addressing_style = self.addressing_style;
        ImageOptions {
            store,
            part_cache: self.part_cache.clone().map(|folder| PartCacheOptions {
                folder,
                size_bytes: self.part_cache_size,
            }),
            allowed_urls: self.backing_url.clone(),
        }
    }
}
