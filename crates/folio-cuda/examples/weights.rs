//! Load weights from an image into a GPU: `cargo run --release --example weights --features cuda`.
//!
//! Builds a safetensors file in an ext4 image, and loads it into device memory in three ways: the
//! file in the image by `folio_cuda::fill`, and the same bytes in a host file by read(2) and one
//! copy, as cudaMemcpy does it, and by kvikio where it is installed. Then a kernel reads each
//! tensor from the device file, and every byte is compared. Without a GPU the device is this
//! processor, whose times have no meaning.

use folio::Image;
use folio::ramfs::FrameRead;
use folio::syscall::OpenFlags;
use folio::vfs::MountOptions;
use folio_cuda::{Absent, Device, HostDevice, Launch, fill};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// Threads that read while the device copies.
const THREADS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let size_mib: u64 = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--size-mib"), Some(number)) => number.parse()?,
        _ => 8,
    };
    let device = match folio_cuda::open(0) {
        Ok(device) => device,
        Err(reason) => {
            println!("{reason}: using this processor");
            Arc::new(HostDevice::new((size_mib * 3 + 64) << 20)?)
        }
    };
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("weights.img");
    let file = folder.path().join("weights");
    let bytes = weights(size_mib)?;
    std::fs::write(&file, &bytes)?;
    let len_bytes = (bytes.len() as u64 * 5 / 4).next_multiple_of(1 << 20) + (64 << 20);
    let fs = Image::create(&image, len_bytes).mount()?;
    fs.create_dir("/gpu")?;
    fs.write("/model.safetensors", &bytes)?;
    fs.close()?;

    // The image, with the files of the device below /gpu.
    let cache_bytes = len_bytes + (64 << 20);
    let fs = Image::file(&image)
        .read_only()
        .cache_bytes(cache_bytes)
        .mount()?;
    let options = MountOptions::parse("size=60%")?;
    let files = fs.kernel().mount_gpufs("/gpu", device.clone(), &options)?;
    let process = fs.process();
    let source = process.open("/model.safetensors", OpenFlags::empty(), 0)?;
    let target = process.open("/gpu/model", OpenFlags::CREAT | OpenFlags::RDWR, 0o644)?;
    let rate = |start: Instant| bytes.len() as f64 / start.elapsed().as_secs_f64() / 1e9;
    for state in ["first", "cached"] {
        let start = Instant::now();
        fill(process, &*device, &files, source, target, THREADS)?;
        println!(
            "fill from ext4 in an image, {state}: {:.2} GB/s",
            rate(start)
        );
    }
    by_read_and_copy(&*device, &file, &rate)?;
    by_kvikio(&file)?;

    // The header says where each tensor is; a kernel reads it from there.
    let (header, metadata) = SafeTensors::read_metadata(&bytes)?;
    let mut launch = Launch::new(process, &*device, &files).file(target, Absent::Zeros);
    for (name, tensor) in metadata.tensors() {
        let start = header as u64 + 8 + tensor.data_offsets.0 as u64;
        let len = tensor.data_offsets.1 - tensor.data_offsets.0;
        let on_device = device.allocate(len as u64)?;
        launch.run(&mut |table| {
            let arguments = [table, start, on_device, len as u64];
            device.launch("folio_read_block", 1, 1024, &arguments)
        })?;
        let mut read = vec![0; len];
        device.read(&mut [FrameRead {
            address: on_device,
            buf: &mut read,
        }])?;
        device.release(on_device);
        assert!(read == bytes[start as usize..][..len], "{name} differs");
        println!("{name}: {len} bytes on {}, as in the file", device.name());
    }
    Ok(())
}

/// Loads a host file by read(2) and one copy.
fn by_read_and_copy(
    device: &dyn Device,
    file: &Path,
    rate: &dyn Fn(Instant) -> f64,
) -> Result<(), Box<dyn Error>> {
    for state in ["first", "cached"] {
        let start = Instant::now();
        let bytes = std::fs::read(file)?;
        let address = device.allocate(bytes.len() as u64)?;
        device.copy_in(address, &bytes)?;
        device.wait()?;
        println!(
            "read() and one copy from a host file, {state}: {:.2} GB/s",
            rate(start)
        );
        device.release(address);
    }
    Ok(())
}

/// Loads a host file by kvikio, a Python package, if that is installed.
fn by_kvikio(file: &Path) -> Result<(), Box<dyn Error>> {
    let script = include_str!("kvikio.py");
    let run = Command::new("python3")
        .args(["-c", script])
        .arg(file)
        .status();
    match run {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("kvikio: {status}").into()),
        Err(error) => {
            println!("kvikio: not measured: python3: {error}");
            Ok(())
        }
    }
}

/// Returns a safetensors file of about this size: three tensors.
fn weights(size_mib: u64) -> Result<Vec<u8>, Box<dyn Error>> {
    let total = (size_mib as usize) << 20;
    let data: Vec<u8> = (0..total / 4)
        .flat_map(|at| (at as f32 * 0.001).sin().to_le_bytes())
        .collect();
    let parts = [
        ("embedding", 0..total / 2),
        ("attention", total / 2..total / 4 * 3),
        ("output", total / 4 * 3..total),
    ];
    let tensors = parts.map(|(name, range)| {
        let part = &data[range];
        TensorView::new(Dtype::F32, vec![part.len() / 4], part).map(|view| (name, view))
    });
    let tensors = tensors.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(serialize(tensors, None)?)
}
