//! gpufs on a GPU: the tests of the device code, and every byte compared while host and kernels
//! write. Skipped, with the reason, where there is none.
#![cfg(feature = "cuda")]

mod skip;
mod stub;
mod world;

use folio::ramfs::{FrameMemory, FrameRead, FrameWrite};
use folio::syscall::Fd;
use folio::vfs::MountOptions;
use folio::{Errno, Kernel, Process};
use folio_cuda::{Absent, CudaDevice, Device, Launch, Target, fill};
use std::sync::{Arc, OnceLock};
use world::{Random, World, keeps_every_byte, matches_model};

/// The GPU; `None` after a report of the skip.
fn device() -> Option<Arc<CudaDevice>> {
    static DEVICE: OnceLock<Result<Arc<CudaDevice>, String>> = OnceLock::new();
    let opened = DEVICE.get_or_init(|| {
        let opened = CudaDevice::open(0).and_then(|device| {
            // Without kernels there is nothing to test.
            device.launch("folio_copy_parts", 1, 32, &[0, 0])?;
            Ok(Arc::new(device))
        });
        opened.map_err(|error| error.to_string())
    });
    match opened {
        Ok(device) => Some(device.clone()),
        Err(reason) => {
            skip::report("gpu", reason);
            None
        }
    }
}

#[test]
fn gpu_calls_match_model_with_4k_pages() {
    let Some(device) = device() else { return };
    matches_model(device, "size=256m,page=4k", usize::MAX, 1 << 16, 11);
}

#[test]
fn gpu_calls_match_model_with_64k_pages() {
    let Some(device) = device() else { return };
    matches_model(device, "size=256m", usize::MAX, 1 << 16, 12);
}

#[test]
fn gpu_calls_match_model_in_small_tables() {
    let Some(device) = device() else { return };
    matches_model(device, "size=256m,page=4k", 400, 3, 13);
}

#[test]
fn gpu_gathers_and_scatters_every_byte() {
    let Some(device) = device() else { return };
    let address = device.allocate(8 << 20).unwrap();
    device.zero(&[(address, 8 << 20)]).unwrap();
    let mut model = vec![0; 8 << 20];
    let mut random = Random(5);
    for round in 0..60 {
        // Below and above the number of parts from which a kernel copies.
        let count = if round % 2 == 0 { 2 } else { 300 };
        let parts: Vec<(usize, Vec<u8>)> = (0..count)
            .map(|_| {
                let len = random.below(20_000) as usize + 1;
                let start = random.below((8 << 20) - 20_001) as usize;
                (start, vec![random.below(256) as u8; len])
            })
            .collect();
        // One by one: parts that overlap have no order within a call.
        for (start, bytes) in &parts {
            model[*start..start + bytes.len()].copy_from_slice(bytes);
            let address = address + *start as u64;
            device.write(&[FrameWrite { address, bytes }]).unwrap();
        }
        let mut read: Vec<Vec<u8>> = parts
            .iter()
            .map(|(_, bytes)| vec![1; bytes.len()])
            .collect();
        let mut gather: Vec<_> = parts
            .iter()
            .zip(&mut read)
            .map(|((start, _), buf)| FrameRead {
                address: address + *start as u64,
                buf,
            })
            .collect();
        device.read(&mut gather).unwrap();
        for ((start, _), bytes) in parts.iter().zip(&read) {
            assert!(model[*start..start + bytes.len()] == bytes[..]);
        }
        // Scattered writes that do not overlap, in one call.
        let bytes: Vec<Vec<u8>> = (0..count).map(|at| vec![at as u8; 5000]).collect();
        let scatter: Vec<_> = bytes
            .iter()
            .zip(0_u64..)
            .map(|(bytes, at)| FrameWrite {
                address: address + at * 9001,
                bytes,
            })
            .collect();
        device.write(&scatter).unwrap();
        for (bytes, at) in bytes.iter().zip(0..) {
            model[at * 9001..][..5000].copy_from_slice(bytes);
        }
    }
    let mut all = vec![0; 8 << 20];
    device
        .read(&mut [FrameRead {
            address,
            buf: &mut all,
        }])
        .unwrap();
    assert!(all == model);
    device.release(address);
}

#[test]
fn concurrent_writes_and_launches_keep_every_byte() {
    let Some(device) = device() else { return };
    keeps_every_byte(device);
}

#[test]
fn gpu_fill_copies_every_byte() {
    let Some(device) = device() else { return };
    let world = World::new(device, "size=256m");
    let bytes: Vec<u8> = (0..70_000_001_u32).map(|at| (at / 5) as u8).collect();
    let source = world.open("/source");
    world.process.pwrite(source, &bytes, 0).unwrap();
    let fd = world.open("/gpu/f");
    fill(&world.process, &*world.device, &world.files, source, fd, 8).unwrap();
    assert!(world.content(fd) == bytes);
}

#[test]
fn gpu_copy_in_is_seen_by_later_calls() {
    let Some(device) = device() else { return };
    let address = device.allocate(70_000).unwrap();
    for byte in [3, 4] {
        device.copy_in(address, &[byte; 70_000]).unwrap();
        let mut buf = [0; 70_000];
        device
            .read(&mut [FrameRead {
                address,
                buf: &mut buf,
            }])
            .unwrap();
        assert!(buf == [byte; 70_000]);
    }
    device.release(address);
}

#[test]
fn gpu_kernel_with_too_few_arguments_fails() {
    let Some(device) = device() else { return };
    let error = device.start("folio_copy_parts", 1, 32, &[0]).unwrap_err();
    assert_eq!(error.errno(), Errno::INVAL);
}

/// The host's side of the driver, without a GPU: all tests of this file on a driver that delays
/// what it may delay.
#[test]
fn stub_driver_passes_every_test() {
    let every = ["--test-threads", "1", "--skip", "stub_driver"];
    let Some((output, skipped)) = stub::run(&every, &[], &[]) else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    // Without NVRTC there are no kernels.
    if !skipped.is_empty() {
        skip::report("gpu", &skipped);
    }
}

#[test]
fn stub_driver_that_is_old_is_refused() {
    if stub::is_here() {
        let error = CudaDevice::open(0).err().unwrap();
        assert_eq!(error.errno(), Errno::NODEV);
        assert!(error.to_string().contains("it has CUDA 12.2, install 12.8"));
        return;
    }
    passes_with_stub(
        "stub_driver_that_is_old_is_refused",
        &[("STUB_VERSION", "12020")],
        &["-DSTUB_OLD"],
    );
}

#[test]
fn stub_driver_without_memory_leaks_nothing() {
    const NAME: &str = "stub_driver_without_memory_leaks_nothing";
    if let Ok(function) = std::env::var("STUB_FAIL") {
        let device = match CudaDevice::open(0) {
            Ok(device) => device,
            Err(error) => return assert_eq!(error.errno(), Errno::NOSPC),
        };
        let staged = device.staging(4096).map(drop);
        match function.as_str() {
            "cuMemHostAlloc" => assert_eq!(staged.unwrap_err().errno(), Errno::NOMEM),
            "cuEventCreate" => assert!(staged.is_err()),
            _ => staged.unwrap(),
        }
        assert_eq!(device.len_bytes().is_err(), function == "cuMemGetInfo_v2");
        return;
    }
    for function in [
        "none",
        "cuCtxSetCurrent",
        "cuStreamCreate",
        "cuMemHostAlloc",
        "cuEventCreate",
        "cuMemGetInfo_v2",
    ] {
        passes_with_stub(NAME, &[("STUB_FAIL", function), ("STUB_CHECK", "1")], &[]);
    }
}

/// Runs one test of this file with the stub.
fn passes_with_stub(name: &str, variables: &[(&str, &str)], options: &[&str]) {
    let Some((output, _)) = stub::run(&["--exact", name], variables, options) else {
        return;
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{variables:?}: {text}");
    assert!(text.contains("1 passed"), "{text}");
}

/// The programs of docs/gpu.md, compiled only: the kernel is the reader's.
fn launches_own_kernel(
    kernel: &Arc<Kernel>,
    process: Process,
    text: &str,
    fd: Fd,
) -> folio::Result<()> {
    let device = folio_cuda::open(0)?;
    let options = MountOptions::parse("size=50%,page=64k")?;
    let files = kernel.mount_gpufs("/gpu", device.clone(), &options)?;

    let (blocks, lanes, buf) = (1, 32, device.allocate(4096)?);
    let device = Arc::new(CudaDevice::open(0)?);
    let code = folio_cuda::compile(text, Target::Cubin(90))?;
    device.load(&code)?;
    Launch::new(&process, &*device, &files)
        .file(fd, Absent::Zeros)
        .run(&mut |dev| device.launch("my_kernel", blocks, lanes, &[dev, buf]))?;
    Ok(())
}

const _: fn(&Arc<Kernel>, Process, &str, Fd) -> folio::Result<()> = launches_own_kernel;
