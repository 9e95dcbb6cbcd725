//! The server of a disk: a socket, and one virtual machine after another.

use super::config::{QUEUES_MAX, SERIAL_LEN_MAX};
use super::counts::{QueueCounters, RequestCounts};
use super::device::BlockDevice;
use super::export::{Disk, Export};
use folio::{Errno, Error, Result};
use folio_net::Stopper;
use folio_net::vhost_user::{ConfigNotifier, ConnectionEvent, Service};
use std::sync::Arc;

/// Options of a [`Server`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Number of queues, each with a thread: 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Whether to end when the first virtual machine disconnects.
    pub once: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            queues: 4,
            once: false,
        }
    }
}

/// A server of one disk.
pub struct Server {
    service: Service,
    once: bool,
    export: Arc<Export>,
}

impl Server {
    /// Serves `disk` on a socket. `report` gets messages for the operator.
    ///
    /// # Errors
    /// EINVAL for invalid options.
    pub fn new(
        service: Service,
        disk: Disk,
        options: ServerOptions,
        report: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self> {
        let ServerOptions { queues, once } = options;
        if !(1..=QUEUES_MAX).contains(&queues) {
            let text = format!("invalid number of queues, {queues}: expected 1 to {QUEUES_MAX}");
            return Err(Error::new(Errno::INVAL, text));
        }
        if disk.serial.len() > SERIAL_LEN_MAX {
            let text = format!("the serial number is longer than {SERIAL_LEN_MAX} bytes");
            return Err(Error::new(Errno::INVAL, text));
        }
        let export = Export {
            disk,
            counters: (0..queues).map(|_| QueueCounters::default()).collect(),
            report: Box::new(report),
        };
        Ok(Self {
            service,
            once,
            export: Arc::new(export),
        })
    }

    /// Returns the handle that ends [`Server::serve`].
    pub fn stopper(&self) -> Stopper {
        self.service.stopper()
    }

    /// Returns the handle that informs the virtual machine of a disk whose size has changed.
    pub fn config_notifier(&self) -> ConfigNotifier {
        self.service.config_notifier()
    }

    /// Returns the bytes of the disk that virtual machines see.
    pub fn len_bytes(&self) -> u64 {
        self.export.len_bytes()
    }

    /// Returns the number of requests since the server began.
    pub fn counts(&self) -> RequestCounts {
        let mut sum = RequestCounts::default();
        for queue in &self.export.counters {
            queue.add_to(&mut sum);
        }
        sum
    }

    /// Serves one virtual machine after another until it is stopped, or the first disconnects, with
    /// [`ServerOptions::once`]. Then flushes the disk.
    ///
    /// # Errors
    /// The host's, if the socket or the flush fails.
    pub fn serve(&self) -> Result<()> {
        let new_device = || BlockDevice::new(Arc::clone(&self.export));
        let report = |event| match event {
            ConnectionEvent::Connected | ConnectionEvent::Disconnected => {}
            ConnectionEvent::Failed(why) => {
                (self.export.report)(&format!("disconnected a virtual machine: {why}"));
            }
        };
        let served = self.service.serve(self.once, new_device, report);
        if self.export.is_read_only() {
            return served;
        }
        served.and(self.export.disk.device.flush())
    }
}
