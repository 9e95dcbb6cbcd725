//! ext4 on a volume: a crash at any request leaves a file system that e2fsck accepts, with every
//! file that a sync acknowledged.

use crate::model::{FAULTS, Fault, ModelStore, each_case, place};
use folio::Image;
use folio::block::Device;
use folio_volume::{Takeover, Volume, VolumeReader};
use object_store::memory::InMemory;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const SIZE: u64 = 16 << 20;
const FILES: usize = 10;

fn file_content(file: usize) -> Vec<u8> {
    vec![file as u8 + 1; 3000 + file * 60_000]
}

/// Writes files one after the other, each synced, and returns the number of those acknowledged.
fn write_files(volume: Arc<Volume>) -> usize {
    let Ok(fs) = Image::device(volume).mount() else {
        return 0;
    };
    for file in 0..FILES {
        let done = fs
            .write(format!("/file{file}"), file_content(file))
            .and_then(|()| fs.sync());
        if done.is_err() {
            return file;
        }
    }
    FILES
}

fn e2fsck(device: &dyn Device, image: &Path) -> Result<(), String> {
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(&mut bytes, 0).map_err(|e| e.to_string())?;
    std::fs::write(image, bytes).unwrap();
    let output = Command::new("e2fsck").arg("-fn").arg(image).output();
    let output = output.unwrap();
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Returns a store with a volume that holds an empty file system.
fn template() -> InMemory {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    let volume = Arc::new(Volume::create(&place(content.clone(), "vol"), SIZE).unwrap());
    let fs = Image::create_on(volume.clone()).mount().unwrap();
    fs.close().unwrap();
    volume.close().unwrap();
    content.fork()
}

/// Stops at a request, takes over, and checks; returns the number of requests.
fn case(template: &InMemory, plan: Option<(u64, Fault)>) -> u64 {
    let content = Arc::new(template.fork());
    let healthy = place(content.clone(), "vol");
    let store = ModelStore::new(&content, plan);
    let acknowledged = match Volume::open(&place(store.clone(), "vol"), Takeover::Fence) {
        Ok(volume) => write_files(Arc::new(volume)),
        Err(_) => 0,
    };
    store.kill();

    let volume = Arc::new(Volume::open(&healthy, Takeover::Fence).unwrap());
    let fs = Image::device(volume.clone()).mount().unwrap();
    for n in 0..acknowledged {
        let found = fs.read(format!("/file{n}")).unwrap_or_default();
        assert!(found == file_content(n), "file{n} of {acknowledged}");
    }
    fs.close().unwrap();
    drop(volume);
    let reader = VolumeReader::open(&healthy, None).unwrap();
    let image = tempfile::NamedTempFile::new().unwrap();
    if let Err(problems) = e2fsck(&reader, image.path()) {
        panic!("e2fsck: {problems}");
    }
    store.requests()
}

/// Every request with every fault: e2fsck judges each case.
#[test]
fn fault_at_any_request_keeps_synced_files() {
    if Command::new("e2fsck").arg("-V").output().is_err() {
        eprintln!("skipped: e2fsck is not installed");
        return;
    }
    let template = template();
    let requests = case(&template, None);
    assert!(requests > FILES as u64);
    let cases: Vec<(u64, Fault)> = (0..requests)
        .flat_map(|at| FAULTS.map(|fault| (at, fault)))
        .collect();
    each_case(&cases, |&plan| {
        case(&template, Some(plan));
    });
    eprintln!("{} cases", cases.len());
}

#[test]
fn unmount_of_new_files_is_one_put() {
    let store = ModelStore::new(&Arc::new(InMemory::new()), None);
    let volume = Arc::new(Volume::create(&place(store.clone(), "vol"), SIZE).unwrap());
    let fs = Image::create_on(volume.clone()).mount().unwrap();
    fs.write("/a", vec![1; 100_000]).unwrap();
    let before = store.writes();
    fs.close().unwrap();
    assert_eq!(store.writes() - before, 1);
    drop(volume);
}

#[test]
fn reader_mounts_while_writer_continues() {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    let place = place(content, "vol");
    let volume: Arc<Volume> = Arc::new(Volume::create(&place, SIZE).unwrap());
    let fs = Image::create_on(volume).mount().unwrap();
    fs.write("/a", "first").unwrap();
    fs.sync().unwrap();
    let reader = Arc::new(VolumeReader::open(&place, None).unwrap());
    fs.write("/a", "second").unwrap();
    fs.sync().unwrap();
    let seen = Image::device(reader).read_only().mount().unwrap();
    assert_eq!(seen.read("/a").unwrap(), b"first");
    let later = Arc::new(VolumeReader::open(&place, None).unwrap());
    let seen = Image::device(later).read_only().mount().unwrap();
    assert_eq!(seen.read("/a").unwrap(), b"second");
}
