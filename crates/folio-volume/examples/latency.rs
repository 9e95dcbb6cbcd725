//! Measures a volume on a store with the latency of a remote one: PUT 60 ms, GET 30 ms.
//!
//! `cargo run --release -p folio-volume --example latency`

use folio::block::{Device, MemoryDevice};
use folio::{Fs, Image};
use folio_volume::{GcOptions, StorePlace, Takeover, Volume, info};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PUT: Duration = Duration::from_millis(60);
const GET: Duration = Duration::from_millis(30);
const FILES: usize = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let latency = ThrottleConfig {
        wait_put_per_call: PUT,
        wait_get_per_call: GET,
        wait_list_per_call: GET,
        wait_list_with_delimiter_per_call: GET,
        wait_delete_per_call: PUT,
        ..ThrottleConfig::default()
    };
    let store: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(InMemory::new(), latency));
    let handle = runtime.handle().clone();
    let place = |root: &str| StorePlace::new(store.clone(), root.into(), handle.clone(), root);

    flushes(&runtime, &store, &place("fsync"))?;
    tree(&runtime, &store, &place("tree"))
}

fn flushes(
    runtime: &tokio::runtime::Runtime,
    store: &Arc<dyn ObjectStore>,
    place: &StorePlace,
) -> Result<(), Box<dyn Error>> {
    let one_put = median(|n| {
        let path = Path::from(format!("plain/{n}"));
        runtime.block_on(store.put(&path, vec![1; 256 << 10].into()))?;
        Ok(())
    })?;
    println!("one PUT of 256 KiB            {one_put:>8.1?}");

    let volume = Volume::create(place, 1 << 30)?;
    for bytes in [4096, 256 << 10] {
        let fsync = median(|n| {
            volume.write_at(&vec![n as u8 + 1; bytes], (n as u64 % 4) << 20)?;
            Ok(volume.flush()?)
        })?;
        let times = fsync.as_secs_f64() / one_put.as_secs_f64();
        println!(
            "fsync of {:>3} KiB              {fsync:>8.1?}  {times:.2}x",
            bytes >> 10
        );
    }
    let started = Instant::now();
    let taken = Volume::open(place, Takeover::Fence)?;
    println!("takeover                      {:>8.1?}", started.elapsed());
    drop((volume, taken));
    Ok(())
}

fn tree(
    runtime: &tokio::runtime::Runtime,
    store: &Arc<dyn ObjectStore>,
    place: &StorePlace,
) -> Result<(), Box<dyn Error>> {
    let volume = Arc::new(Volume::create(place, 2 << 30)?);
    let started = Instant::now();
    let fs = Image::create_on(volume.clone()).mount()?;
    let mounted = started.elapsed();
    let (bytes, _) = write_tree(&fs)?;
    let written = started.elapsed();
    fs.close()?;
    let tree = started.elapsed();
    let flushes = volume.flush_number();
    println!("  made {mounted:.2?}, written {written:.2?}, {flushes} flushes");
    let memory = Arc::new(MemoryDevice::new(2 << 30));
    let in_memory = write_tree(&Image::create_on(memory).mount()?)?.1;
    println!("  the same tree in memory {in_memory:.2?}");
    let started = Instant::now();
    let parts = bytes.div_ceil(8 << 20);
    runtime.block_on(async {
        let puts = (0..parts).map(|n| {
            let path = Path::from(format!("parts/{n}"));
            let store = store.clone();
            async move { store.put(&path, vec![2; 8 << 20].into()).await }
        });
        let mut puts =
            futures_util::StreamExt::buffer_unordered(futures_util::stream::iter(puts), 8);
        while let Some(put) = futures_util::StreamExt::next(&mut puts).await {
            put?;
        }
        Ok::<_, object_store::Error>(())
    })?;
    let plain = started.elapsed();
    let times = tree.as_secs_f64() / plain.as_secs_f64();
    println!(
        "tree of {FILES} files, durable {tree:>8.1?}  {times:.1}x of {plain:.1?} for {parts} parts"
    );

    let now = GcOptions {
        min_age: Duration::ZERO,
        ..GcOptions::default()
    };
    volume.collect_garbage(&now, &mut |_| ())?;
    let info = info(place)?;
    let share = info.stored_bytes as f64 / info.logical_bytes as f64;
    println!("stored bytes after gc         {share:>8.2}x logical");
    Ok(())
}

/// Writes the tree; returns its bytes and the time.
fn write_tree(fs: &Fs) -> Result<(usize, Duration), Box<dyn Error>> {
    let started = Instant::now();
    let mut bytes = 0;
    for n in 0..FILES {
        if n.is_multiple_of(200) {
            fs.create_dir_all(format!("/d{}", n / 200))?;
        }
        let len = 500 + (n * 7919) % 16_000;
        fs.write(format!("/d{}/f{n}", n / 200), vec![n as u8; len])?;
        bytes += len;
    }
    Ok((bytes, started.elapsed()))
}

/// Returns the median duration of 21 runs.
fn median(
    mut run: impl FnMut(usize) -> Result<(), Box<dyn Error>>,
) -> Result<Duration, Box<dyn Error>> {
    let mut times = Vec::new();
    for n in 0..21 {
        let started = Instant::now();
        run(n)?;
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}
