//! `folio serve nbd`: an image as a network block device.

use super::disk::{self, DiskArgs, OpenDisk};
use crate::control::{ControlServer, ControlledDisk, ServedDisk, obey_while};
use crate::exit::{Failure, Outcome, explain};
use crate::image_path::ImagePath;
use crate::sandbox::{Places, Sandbox, SandboxArgs};
use crate::serving;
use crate::session::Session;
use clap::{ArgGroup, Args};
use folio::block::Device;
use folio_export::nbd::{Export, Limits, Listener, Server};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
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

/// Serve an image as a network block device
#[derive(Args)]
#[command(after_help = NBD_HELP)]
#[command(group(ArgGroup::new("place").required(true).args(["socket", "port"])))]
pub(super) struct Nbd {
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
    #[command(flatten)]
    disk: DiskArgs,
    /// Name of the export
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// Print a line of JSON with the URI once clients can connect
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(nbd: &Nbd, session: &Session) -> Outcome {
    let place = disk::place(&nbd.image)?;
    let prepared = nbd.disk.prepare(&place)?;
    let sockets: Vec<_> = nbd.socket.as_deref().into_iter().collect();
    let places = Places {
        sockets: &sockets,
        ..Places::default()
    };
    let sandbox = Sandbox::begin(nbd.sandbox, nbd.disk.reach(&place), places);
    // A signal ends the command at once until the image is open. Then it stops the server.
    let OpenDisk { device, image } = nbd.disk.open(&place, prepared)?;
    let (size, read_only) = (device.len_bytes(), device.is_read_only());
    let control = ControlServer::bind(nbd.disk.control.as_deref())?;
    let signals = serving::signals()?;
    let listener = match &nbd.socket {
        Some(path) => Listener::unix(path)?,
        None => Listener::tcp(&nbd.bind.to_string(), nbd.port.unwrap_or_default())?,
    };
    let export = Export {
        device: Arc::clone(&device),
        name: nbd.export.clone(),
        // Clients do not learn the host's directories.
        description: place
            .image
            .file_name()
            .map(|name| name.to_string_lossy().into_owned()),
        read_only: nbd.disk.read_only,
    };
    let server = Server::new(listener, export, Limits::default(), |message| {
        eprintln!("folio: serve nbd: {message}");
    })?;
    let uri = server.uri();
    let stopper = server.stopper();
    let served = ServedExport {
        device: &*device,
        ready: ready_line(nbd, &place, &uri, size, read_only),
    };
    let controlled = image.as_deref().map(|image| {
        let name = place.image_name().to_string();
        ControlledDisk::new(name, image, &served)
    });
    let controlled: Vec<_> = controlled.into_iter().collect();
    serving::until_signal(
        signals,
        move || stopper.stop(),
        || {
            // The socket listens, so clients that connect from now on are served.
            report_ready(nbd, session, &place, &uri, &served.ready)?;
            sandbox.close();
            let ended = obey_while(control.as_ref(), &controlled, || server.serve());
            ended.map_err(|error| serve_failure(&place, &error))
        },
    )
}

/// The export, for orders.
struct ServedExport<'a> {
    device: &'a dyn Device,
    ready: Value,
}

impl ServedDisk for ServedExport<'_> {
    fn counts(&self) -> Value {
        // The server of NBD counts none.
        Value::Null
    }

    fn options(&self) -> Value {
        self.ready.clone()
    }

    fn flush(&self) -> folio::Result<()> {
        self.device.flush()
    }

    fn resize(&self, change: &dyn Fn() -> folio::Result<()>) -> folio::Result<()> {
        // The protocol has no message for it: clients connect again.
        change()
    }
}

fn serve_failure(place: &ImagePath, error: &folio::Error) -> Failure {
    Failure::new(format!("{}: {}", place.image_name(), explain(error)))
}

/// Returns what clients need to know.
fn ready_line(nbd: &Nbd, place: &ImagePath, uri: &str, size: u64, read_only: bool) -> Value {
    json!({
        "uri": uri,
        "image": place.image_name(),
        "export": nbd.export,
        "size": size,
        "read_only": read_only,
    })
}

/// Reports that clients can connect, and the address.
fn report_ready(
    nbd: &Nbd,
    session: &Session,
    place: &ImagePath,
    uri: &str,
    line: &Value,
) -> Outcome {
    if nbd.json {
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
