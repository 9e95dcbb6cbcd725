//! `folio serve`: serves an image as a disk. One subcommand for each protocol.

use crate::arguments::image_options::{BackingOptions, image_failure};
use crate::exit::{Failure, Outcome, explain};
use crate::image_path::ImagePath;
use crate::objects::is_url;
use crate::sandbox::{Places, Reach, Sandbox, SandboxArgs};
use crate::serving;
use crate::session::Session;
use clap::{ArgGroup, Args, Subcommand};
use folio::Errno;
use folio::block::{
    self, BackingName, BackingPolicy, CreateOptions, Device, ImageFormat, OpenOptions,
};
use folio_nbd::{Export, Limits, Listener, Server};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NBD_HELP: &str = "\
The command serves until Ctrl-C or SIGTERM: then it answers all received requests, flushes the image, and exits with 0.
A client may open several connections at once. Meanwhile the image is locked: a second writer (folio or QEMU) is
refused, and readers too unless --read-only is given. At most 64 clients can be connected. A client that takes no
replies for 60 seconds is disconnected.

Any program that can connect can read the image and, without --read-only, write it: there are no passwords and no
encryption. Keep a socket in a private directory, and a port on 127.0.0.1.

IMAGE@2 serves only the second partition. If clients may write to a raw image, specify -f raw here and wherever it is
opened later. Otherwise they could make it look like an image of another format.

Examples:
  folio serve nbd disk.qcow2 --socket /tmp/disk.sock
  qemu-img map 'nbd+unix:///?socket=/tmp/disk.sock'
  folio serve nbd disk.qcow2@1 --read-only --port 10809 --export root
  nbdcopy nbd://localhost/root root.img
  folio serve nbd --overlay local.qcow2 s3://bucket/base.qcow2 --port 10809
  folio serve nbd -f raw disk.img --port 0 --json   a free port, reported as JSON";

/// Serve an image as a disk
#[derive(Args)]
pub(crate) struct Serve {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Subcommand)]
enum Protocol {
    Nbd(Nbd),
}

/// Serve an image as a network block device
#[derive(Args)]
#[command(after_help = NBD_HELP)]
#[command(group(ArgGroup::new("place").required(true).args(["socket", "port"])))]
struct Nbd {
    /// The image; IMAGE@2 is its second partition
    image: OsString,
    /// Listen on a new Unix socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen on a TCP port; 0 selects a free one
    #[arg(long)]
    port: Option<u16>,
    /// The address to listen on with --port
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::LOCALHOST.into(), conflicts_with = "socket")]
    bind: IpAddr,
    /// Write changes to this qcow2 overlay (created if missing); IMAGE is not changed
    #[arg(long, value_name = "FILE", conflicts_with = "read_only")]
    overlay: Option<PathBuf>,
    /// Refuse all changes, and let other programs read the image meanwhile
    #[arg(long)]
    read_only: bool,
    /// Name of the export
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    #[command(flatten)]
    backing: BackingOptions,
    /// Format of the image; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// Print a line of JSON with the URI once clients can connect
    #[arg(long)]
    json: bool,
}

/// Returns the command's name for messages.
pub(crate) fn name(serve: &Serve) -> &'static str {
    match &serve.protocol {
        Protocol::Nbd(_) => "serve nbd",
    }
}

/// Runs the command.
pub(crate) fn run(serve: &Serve, session: &Session) -> Outcome {
    session.refuse_options()?;
    match &serve.protocol {
        Protocol::Nbd(nbd) => serve_nbd(nbd, session),
    }
}

fn serve_nbd(nbd: &Nbd, session: &Session) -> Outcome {
    let place = ImagePath::parse(&nbd.image)?;
    if place.path.as_os_str() != "/" {
        let text = format!(
            "{place}: an image is served as a whole: use {}",
            place.image_name()
        );
        return Err(Failure::usage(text));
    }
    if let Some(overlay) = &nbd.overlay {
        create_overlay(overlay, &place.image, nbd.format).map_err(Failure::image)?;
    }
    let places = Places {
        socket: nbd.socket.as_deref(),
        ..Places::default()
    };
    let reach = match nbd.backing.policy() {
        // A backing file may be an object.
        BackingPolicy::Anywhere => Reach::ObjectStore,
        _ => Reach::of_image(&place),
    };
    let sandbox = Sandbox::begin(nbd.sandbox, reach, places);
    // A signal ends the command at once until the image is open. Then it stops the server.
    let device = open(nbd, &place)?;
    let (size, read_only) = (device.len_bytes(), device.is_read_only());
    let signals = serving::signals()?;
    let listener = match &nbd.socket {
        Some(path) => Listener::unix(path)?,
        None => Listener::tcp(&nbd.bind.to_string(), nbd.port.unwrap_or_default())?,
    };
    let export = Export {
        device,
        name: nbd.export.clone(),
        // Clients do not learn the host's directories.
        description: place
            .image
            .file_name()
            .map(|name| name.to_string_lossy().into_owned()),
        read_only: nbd.read_only,
    };
    let server = Server::new(listener, export, Limits::default(), |message| {
        eprintln!("folio: serve nbd: {message}");
    })?;
    let uri = server.uri();
    let stopper = server.stopper();
    serving::until_signal(
        signals,
        move || stopper.stop(),
        || {
            // The socket listens, so clients that connect from now on are served.
            let reported = report_ready(nbd, session, &place, &uri, size, read_only);
            reported.and_then(|()| {
                sandbox.close();
                server
                    .serve()
                    .map_err(|error| serve_failure(&place, &error))
            })
        },
    )
}

fn open(nbd: &Nbd, place: &ImagePath) -> Outcome<Arc<dyn Device>> {
    let options = OpenOptions {
        read_only: nbd.read_only,
        format: nbd.format,
        backing: nbd.backing.policy(),
        ..OpenOptions::default()
    };
    let device = match &nbd.overlay {
        None => block::open(&place.image, &options)
            .map_err(|error| image_failure(error, &place.image))?,
        Some(overlay) => open_overlay(overlay, &place.image, &options).map_err(Failure::image)?,
    };
    match place.partition {
        None => Ok(device),
        Some(_) => place
            .select(device)
            .map_err(|error| Failure::image(error.at(place.image_name()))),
    }
}

/// Creates the overlay of an image if it is missing.
fn create_overlay(overlay: &Path, base: &Path, format: Option<ImageFormat>) -> folio::Result<()> {
    if overlay.exists() {
        return Ok(());
    }
    let base = base_of_overlay(base)?;
    let options = OpenOptions {
        read_only: true,
        format,
        ..OpenOptions::default()
    };
    let len_bytes = block::open(&base, &options)?.len_bytes();
    let format = match format {
        Some(format) => format,
        None => block::format_of(&base)?,
    };
    let options = CreateOptions {
        backing: Some(BackingName {
            name: base.display().to_string(),
            format: Some(format),
        }),
        ..CreateOptions::default()
    };
    block::create_with(overlay, ImageFormat::Qcow2, len_bytes, &options).map(drop)
}

/// Returns the name of an image in its overlay, which does not depend on the working directory.
fn base_of_overlay(base: &Path) -> folio::Result<PathBuf> {
    if is_url(base.as_os_str()) {
        return Ok(base.to_owned());
    }
    base.canonicalize()
        .map_err(|error| folio::Error::io("open", error).at(base.display().to_string()))
}

/// Opens the overlay of an image.
fn open_overlay(
    overlay: &Path,
    base: &Path,
    options: &OpenOptions,
) -> folio::Result<Arc<dyn Device>> {
    let base = base_of_overlay(base)?;
    let info = block::tools::info(overlay, &OpenOptions::default())?;
    if info.backing_path.as_deref() != Some(&*base) {
        let found = info.backing_path.unwrap_or_default();
        let why = format!("its backing file is {:?}, not {}", found, base.display());
        return Err(folio::Error::new(Errno::INVAL, why).at(overlay.display().to_string()));
    }
    // Of this image alone: the command names it.
    let options = OpenOptions {
        format: Some(ImageFormat::Qcow2),
        backing: BackingPolicy::Within(base),
        ..options.clone()
    };
    block::open(overlay, &options)
}

fn serve_failure(place: &ImagePath, error: &folio::Error) -> Failure {
    Failure::new(format!("{}: {}", place.image_name(), explain(error)))
}

/// Reports that clients can connect, and the address.
fn report_ready(
    nbd: &Nbd,
    session: &Session,
    place: &ImagePath,
    uri: &str,
    size: u64,
    read_only: bool,
) -> Outcome {
    if nbd.json {
        let line = json!({
            "uri": uri,
            "image": place.image_name(),
            "export": nbd.export,
            "size": size,
            "read_only": read_only,
        });
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()?;
    } else if !session.quiet {
        session.note(format_args!(
            "{} is served at {uri} until Ctrl-C",
            place.image_name()
        ));
    }
    Ok(())
}
