//! The service: a socket, and a virtiofs device for each front end that connects.

use super::device::{FileSystemDevice, TAG_LEN};
use crate::server::Server;
use folio::{Errno, Error, Result};
use folio_net::Stopper;
use folio_net::vhost_user::{self, ConnectionEvent};
use std::path::Path;

/// Longest tag in bytes.
pub const TAG_LEN_MAX: usize = TAG_LEN;
/// Most request queues; a guest uses no more than it has processors.
const QUEUES_MAX: usize = 32;

/// ServiceOptions of a virtiofs device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServiceOptions {
    /// The name by which the guest mounts it, for front ends that ask the device. QEMU and
    /// cloud-hypervisor have an option of their own.
    pub tag: Option<String>,
    /// Number of request queues, each with a thread. Linux before 6.11 uses one.
    pub queues: usize,
    /// Whether to end when the first guest disconnects.
    pub once: bool,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            tag: None,
            queues: 1,
            once: false,
        }
    }
}

/// A socket that serves one virtual machine after another; its file is removed with it.
pub struct Service {
    service: vhost_user::Service,
    options: ServiceOptions,
}

impl Service {
    /// Listens on a new Unix socket at `path`; replaces a socket without a server.
    ///
    /// # Errors
    /// EADDRINUSE if a server listens there or a file of another type is there, EINVAL for invalid
    /// options, else the host's.
    pub fn new(path: &Path, options: ServiceOptions) -> Result<Self> {
        let tag_len = options.tag.as_ref().map_or(1, String::len);
        if !(1..=TAG_LEN_MAX).contains(&tag_len) {
            let text = format!("invalid tag of {tag_len} bytes: expected 1 to {TAG_LEN_MAX}");
            return Err(Error::new(Errno::INVAL, text));
        }
        if !(1..=QUEUES_MAX).contains(&options.queues) {
            let text = format!(
                "invalid number of request queues, {}: expected 1 to {QUEUES_MAX}",
                options.queues
            );
            return Err(Error::new(Errno::INVAL, text));
        }
        let service = vhost_user::Service::new(path)?;
        Ok(Self { service, options })
    }

    /// Returns the absolute path of the socket.
    pub fn path(&self) -> &Path {
        self.service.path()
    }

    /// Returns the handle that ends [`Service::serve`].
    pub fn stopper(&self) -> Stopper {
        self.service.stopper()
    }

    /// Serves one front end after another, each with a server of its own from `new_server`, until
    /// it is stopped (or the first disconnects, with [`ServiceOptions::once`]). A virtual machine
    /// that reboots stays connected; one that is started anew connects again. Calls `report` for
    /// each event.
    ///
    /// # Errors
    /// The host's, if the socket fails.
    pub fn serve(
        &self,
        new_server: impl Fn() -> Server,
        report: impl Fn(ConnectionEvent),
    ) -> Result<()> {
        let ServiceOptions { tag, queues, once } = &self.options;
        let new_device = || FileSystemDevice::new(new_server(), tag.as_deref(), *queues);
        self.service.serve(*once, new_device, report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientOptions, PermissionChecks};
    use folio::Fs;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;
    use vhost::vhost_user::{Frontend, VhostUserFrontend};
    use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
    use vmm_sys_util::eventfd::EventFd;

    const MEMORY_LEN: u64 = 1 << 20;
    /// The address of guest memory in the front end, by which it names the parts of a queue.
    const MEMORY: u64 = 0x1000_0000;

    /// Connects as a monitor does, and returns the guest's memory and the notifiers of its queues.
    fn connect(path: &Path) -> (Frontend, File, Vec<EventFd>) {
        let mut monitor = Frontend::connect(path, 2).unwrap();
        monitor.set_owner().unwrap();
        let features = monitor.get_features().unwrap();
        monitor.set_features(features).unwrap();
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&memory, MEMORY_LEN).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY_LEN,
            userspace_addr: MEMORY,
            mmap_offset: 0,
            mmap_handle: memory.as_raw_fd(),
        };
        monitor.set_mem_table(&[region]).unwrap();
        let kicks = (0..2).map(|queue| {
            let place = MEMORY + queue as u64 * 0x20000;
            let config = VringConfigData {
                queue_max_size: 128,
                queue_size: 128,
                flags: 0,
                desc_table_addr: place,
                used_ring_addr: place + 0x4000,
                avail_ring_addr: place + 0x2000,
                log_addr: None,
            };
            let [kick, call] = [(); 2].map(|()| EventFd::new(0).unwrap());
            monitor.set_vring_num(queue, 128).unwrap();
            monitor.set_vring_addr(queue, &config).unwrap();
            monitor.set_vring_base(queue, 0).unwrap();
            monitor.set_vring_call(queue, &call).unwrap();
            monitor.set_vring_kick(queue, &kick).unwrap();
            monitor.set_vring_enable(queue, true).unwrap();
            kick
        });
        let kicks = kicks.collect();
        // Answered after all of these messages.
        monitor.get_features().unwrap();
        (monitor, memory, kicks)
    }

    #[test]
    fn monitor_that_shortens_guest_memory_is_disconnected() {
        let folder = tempfile::tempdir().unwrap();
        let service = Service::new(&folder.path().join("socket"), ServiceOptions::default());
        let service = service.unwrap();
        let (reported, events) = mpsc::channel();
        let fs = Fs::memory();
        let new_server = || {
            let options = ClientOptions::exclusive();
            Server::new(fs.kernel().clone(), PermissionChecks::ByClient, options)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| service.serve(new_server, |event| reported.send(event).unwrap()));
            for _ in 0..2 {
                let (_monitor, memory, kicks) = connect(service.path());
                assert!(matches!(events.recv(), Ok(ConnectionEvent::Connected)));
                ftruncate(&memory, 0).unwrap();
                for kick in kicks {
                    kick.write(1).unwrap();
                }
                let event = events.recv().unwrap();
                assert!(
                    matches!(&event, ConnectionEvent::Failed(why) if why.contains("memory")),
                    "{event:?}"
                );
            }
            service.stopper().stop();
        });
    }
}
