//! `folio serve vhost-user-blk`: images as disks of virtual machines.

use super::disk::{self, DiskArgs, OpenDisk};
use crate::control::{ControlServer, ControlledDisk, ServedDisk, obey_while};
use crate::exit::{Failure, Outcome, explain};
use crate::image_path::ImagePath;
use crate::ready;
use crate::sandbox::{Places, Reach, Sandbox, SandboxArgs};
use crate::serving;
use crate::session::Session;
use crate::socket_activation;
use clap::Args;
use folio::block::{Device, LiveImage};
use folio_export::vhost_user_blk::{
    Disk, QUEUES_MAX, RequestCounts, SERIAL_LEN_MAX, Server, ServerOptions, Service, Stopper,
};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const HELP: &str = "\
The command serves until Ctrl-C or SIGTERM: then it answers the requests in progress, flushes the image, and exits with
0. A virtual machine that reboots stays connected; one that is started anew connects again. Each socket serves one
virtual machine at a time. Meanwhile the image is locked: a second writer (folio or QEMU) is refused.

Requests in progress are recorded in memory of the virtual machine monitor. A server that is killed and started anew
goes on with them, if the monitor connects again (QEMU: reconnect=1): the guest sees a pause, and loses nothing.

Several images: give each a socket of its own, in the same order. With systemd (LISTEN_FDS), sockets may be passed
instead. SIGUSR1 prints the number of requests.

Examples:
  folio serve vhost-user-blk disk.qcow2 --socket /run/vm.sock
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=m,size=1G,share=on -machine q35,memory-backend=m \\
    -chardev socket,id=c,path=/run/vm.sock,reconnect=1 -device vhost-user-blk-pci,chardev=c,num-queues=4
  cloud-hypervisor --memory size=1G,shared=on --disk vhost_user=on,socket=/run/vm.sock,num_queues=4
  folio serve vhost-user-blk --throw-away s3://bucket/base.qcow2 --socket /run/vm.sock
  folio serve vhost-user-blk disk.qcow2 --socket /run/vm.sock --control /run/vm.ctl   for folio ctl
  folio serve vhost-user-blk a.qcow2 b.img --socket /run/a.sock --socket /run/b.sock

docs/disks.md has recipes for QEMU, libvirt, cloud-hypervisor, crosvm and Firecracker.";

/// Serve images as disks of virtual machines (vhost-user-blk)
#[derive(Args)]
#[command(after_help = HELP)]
pub(super) struct VhostUserBlk {
    /// The images; IMAGE@2 is the second partition of one
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<OsString>,
    /// Listen on a new Unix socket, one for each image
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
    /// Number of queues of each disk: at best as many as the guest has processors
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = queues())]
    queues: u16,
    /// Serial number, at most 20 bytes, by which the guest finds the disk in /dev/disk/by-id; the
    /// default is the end of the image's name
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
    #[command(flatten)]
    disk: DiskArgs,
    /// Exit when the first virtual machine disconnects
    #[arg(long)]
    once: bool,
    /// Print the number of requests at the end
    #[arg(long)]
    stats: bool,
    /// Write a line to this descriptor once virtual machines can connect
    #[arg(long, value_name = "FD")]
    ready_fd: Option<u32>,
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// Print a line of JSON once virtual machines can connect, and one at the end with --stats
    #[arg(long)]
    json: bool,
}

fn queues() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=QUEUES_MAX as i64)
}

/// One of the disks.
struct Served {
    place: ImagePath,
    socket: PathBuf,
    serial: String,
    queues: u16,
    read_only: bool,
    device: Arc<dyn Device>,
    /// For orders.
    image: Option<Arc<LiveImage>>,
    server: Server,
}

impl Served {
    fn new(
        blk: &VhostUserBlk,
        place: ImagePath,
        open: OpenDisk,
        service: Service,
    ) -> Outcome<Self> {
        let OpenDisk { device, image } = open;
        let socket = service.path().to_owned();
        let serial = blk
            .serial
            .clone()
            .unwrap_or_else(|| serial_of(&place.image));
        let read_only = blk.disk.read_only || device.is_read_only();
        let name = place.image_name().to_string();
        let disk = Disk {
            device: Arc::clone(&device),
            name: blk.disk.content_name(&place),
            serial: serial.clone(),
            read_only,
        };
        let mut options = ServerOptions::default();
        options.queues = blk.queues.into();
        options.once = blk.once;
        let server = Server::new(service, disk, options, move |message| {
            eprintln!("folio: serve vhost-user-blk: {name}: {message}");
        })?;
        Ok(Self {
            place,
            socket,
            serial,
            queues: blk.queues,
            read_only,
            device,
            image,
            server,
        })
    }
}

impl ServedDisk for Served {
    fn counts(&self) -> Value {
        let RequestCounts {
            reads,
            read_bytes,
            writes,
            written_bytes,
            flushes,
            discards,
            zeroes,
            failures,
            ..
        } = self.server.counts();
        json!({
            "reads": reads,
            "read_bytes": read_bytes,
            "writes": writes,
            "written_bytes": written_bytes,
            "flushes": flushes,
            "discards": discards,
            "zeroes": zeroes,
            "failures": failures,
        })
    }

    fn options(&self) -> Value {
        json!({
            "image": self.place.image_name(),
            "socket": self.socket,
            "serial": self.serial,
            "size": self.server.len_bytes(),
            "queues": self.queues,
            "read_only": self.read_only,
        })
    }

    fn flush(&self) -> folio::Result<()> {
        self.device.flush()
    }

    fn resize(&self, change: &dyn Fn() -> folio::Result<()>) -> folio::Result<()> {
        change()?;
        self.server.config_notifier().notify();
        Ok(())
    }
}

/// Runs the command.
pub(super) fn run(blk: &VhostUserBlk, session: &Session) -> Outcome {
    let places = places(blk)?;
    let prepared = places.iter().map(|place| blk.disk.prepare(place));
    let prepared = prepared.collect::<Outcome<Vec<_>>>()?;
    let sockets: Vec<_> = blk.sockets.iter().map(PathBuf::as_path).collect();
    let sandbox = confine(blk, &places, &sockets);
    let mut services = if sockets.is_empty() {
        passed_services()?
    } else {
        Vec::new()
    };
    check_count(places.len(), sockets.len().max(services.len()))?;
    let devices = places.iter().zip(prepared);
    let devices = devices.map(|(place, prepared)| blk.disk.open(place, prepared));
    let devices = devices.collect::<Outcome<Vec<_>>>()?;
    // A signal ends the command at once until the sockets exist. Then it stops the servers.
    let signals = serving::signals()?;
    let count_signal = serving::count_signal()?;
    for socket in sockets {
        services.push(Service::new(socket)?);
    }
    let opened = places.into_iter().zip(devices).zip(services);
    let disks = opened.map(|((place, disk), service)| Served::new(blk, place, disk, service));
    let disks = disks.collect::<Outcome<Vec<_>>>()?;
    let control = ControlServer::bind(blk.disk.control.as_deref())?;
    let controlled: Vec<_> = disks
        .iter()
        .filter_map(|disk| {
            let name = disk.place.image_name().to_string();
            Some(ControlledDisk::new(name, disk.image.as_deref()?, disk))
        })
        .collect();
    let stoppers: Vec<_> = disks.iter().map(|disk| disk.server.stopper()).collect();
    let stop = move || stoppers.iter().for_each(Stopper::stop);
    let served = serving::until_signal(signals, stop, || {
        serving::with_counts(
            count_signal,
            || print_counts(&disks, session),
            || {
                report_ready(blk, session, &disks)?;
                sandbox.close();
                obey_while(control.as_ref(), &controlled, || serve(&disks))
            },
        )
    });
    ready::notify_stopping();
    if blk.stats {
        report_counts(blk, session, &disks)?;
    }
    served
}

/// Fails unless there is a socket for each image.
fn check_count(images: usize, sockets: usize) -> Outcome {
    if images == sockets {
        return Ok(());
    }
    let counted = |count, noun| match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    };
    Err(Failure::usage(format!(
        "{}, but {}: give each image a socket of its own, by --socket PATH or by LISTEN_FDS",
        counted(images, "image"),
        counted(sockets, "socket")
    )))
}

/// Returns the services on the sockets of a service manager.
fn passed_services() -> Outcome<Vec<Service>> {
    let listeners = socket_activation::listeners()?;
    let services = listeners.into_iter().map(Service::from_listener);
    Ok(services.collect::<folio::Result<_>>()?)
}

fn places(blk: &VhostUserBlk) -> Outcome<Vec<ImagePath>> {
    if blk.images.len() > 1 && blk.disk.has_overlay() {
        return Err(Failure::usage("--overlay is for one image".to_owned()));
    }
    blk.images.iter().map(|image| disk::place(image)).collect()
}

/// Limits the files that the server can reach.
fn confine(blk: &VhostUserBlk, places: &[ImagePath], sockets: &[&Path]) -> Sandbox {
    let mut reaches = places.iter().map(|place| blk.disk.reach(place));
    let reach = match reaches.find(|reach| *reach != Reach::Image) {
        Some(reach) => reach,
        None => Reach::Image,
    };
    let files = Places {
        sockets,
        ready_fd: blk.ready_fd,
        ..Places::default()
    };
    Sandbox::begin(blk.sandbox, reach, files)
}

/// Returns the end of an image's name, as a serial number.
fn serial_of(image: &Path) -> String {
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    let letters: Vec<char> = name.chars().filter(char::is_ascii_graphic).collect();
    let start = letters.len().saturating_sub(SERIAL_LEN_MAX);
    letters[start..].iter().collect()
}

/// Serves all disks, each until it is stopped. One that fails does not end the rest.
fn serve(disks: &[Served]) -> Outcome {
    std::thread::scope(|scope| {
        let serve_one = |disk: &Served| {
            let served = disk.server.serve();
            served.map_err(|error| {
                let name = disk.place.image_name();
                Failure::new(format!("{name}: {}", explain(&error)))
            })
        };
        let threads: Vec<_> = disks
            .iter()
            .map(|disk| scope.spawn(move || serve_one(disk)))
            .collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(served) => served,
            Err(_) => Err(Failure::new("a server ended unexpectedly")),
        });
        ended.fold(Ok(()), Outcome::and)
    })
}

/// Reports that virtual machines can connect.
fn report_ready(blk: &VhostUserBlk, session: &Session, disks: &[Served]) -> Outcome {
    for disk in disks {
        let status = format!(
            "{} is served at {}",
            disk.place.image_name(),
            disk.socket.display()
        );
        if !blk.json && !session.quiet {
            session.note(format_args!("{status} until Ctrl-C"));
        }
        let rest = disk.device.len_bytes() - disk.server.len_bytes();
        if rest != 0 {
            session.note(format_args!(
                "{}: the last {rest} bytes are not visible: a disk has whole sectors of 512 bytes",
                disk.place.image_name()
            ));
        }
    }
    if blk.json {
        let list: Vec<_> = disks.iter().map(Served::options).collect();
        print_line(&json!({ "disks": list }))?;
    }
    ready::notify_ready(blk.ready_fd, &format!("serving {} disks", disks.len()))
}

fn print_line(line: &serde_json::Value) -> Outcome {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

fn print_counts(disks: &[Served], session: &Session) {
    for disk in disks {
        let counts = disk.server.counts();
        session.note(format_args!("{}: {counts}", disk.place.image_name()));
    }
}

/// Reports the requests of each disk: `--stats`.
fn report_counts(blk: &VhostUserBlk, session: &Session, disks: &[Served]) -> Outcome {
    if !blk.json {
        print_counts(disks, session);
        return Ok(());
    }
    let list: Vec<_> = disks
        .iter()
        .map(|disk| json!({ "image": disk.place.image_name(), "requests": disk.counts() }))
        .collect();
    print_line(&json!({ "stats": list }))
}
