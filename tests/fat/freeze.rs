//! Freezes: a copy of the device needs no repair, although another thread writes.

use super::{WIDTHS, assert_clean, bytes_of, formatted, mounted};
use crate::support::requires;
use folio::block::{Device, MemoryDevice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn copies_of_a_frozen_device_are_clean() {
    requires!(tool("fsck.vfat"));
    for (width, len_bytes) in WIDTHS {
        let device = formatted(width, len_bytes);
        let fs = mounted(&device);
        let is_done = AtomicBool::new(false);
        let copies: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0_usize.. {
                    if is_done.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("/f{}", round % 20);
                    fs.write(name, vec![5; round % 9000]).unwrap();
                }
            });
            let freeze = |_| fs.kernel().freeze_while("/", || Ok(bytes_of(&device)));
            let copies = (0..4).map(freeze).collect();
            is_done.store(true, Ordering::Relaxed);
            copies
        });
        for bytes in copies {
            let copy = MemoryDevice::new(len_bytes);
            copy.write_at(&bytes.unwrap(), 0).unwrap();
            let copy: Arc<dyn Device> = Arc::new(copy);
            assert_clean(&copy);
        }
        drop(fs);
        assert_clean(&device);
    }
}
