//! ext4 on a volume: a crash at any request leaves a file system that e2fsck accepts, with every
//! file that a sync acknowledged.

use crate::model::{Fault, ModelStore, place};
use folio::Image;
use folio::block::Device;
use folio_volume::{Takeover, Volume, VolumeReader};
use object_store::memory::InMemory;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const SIZE: u64 = 16 << 20;
const FILES: usize = 10;

fn content(file: usize) -> Vec<u8> {
    vec![file as u8 + 1; 3000 + file * 60_000]
}

/// Writes files one after the other, each synced, and returns the number of those acknowledged.
fn write_files(volume: Arc<Volume>) -> usize {
    let Ok(fs) = Image::device(volume).mount() else {
        return 0;
    };
    for file in 0..FILES {
        let done = fs
            .write(format!("/file{file}"), content(file))
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

/// Crashes at request `at`, takes over, and checks; returns the number of requests.
fn case(at: u64, fault: Option<Fault>, image: &Path) -> u64 {
    let content_of = |n| content(n);
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    let healthy = place(content.clone(), "vol");
    let volume: Arc<Volume> = Arc::new(Volume::create(&healthy, SIZE).unwrap());
    Image::create_on(volume.clone())
        .mount()
        .unwrap()
        .close()
        .unwrap();
    drop(volume);

    let store = ModelStore::new(&content, fault.map(|fault| (at, fault)));
    let acknowledged = match Volume::open(&place(store.clone(), "vol"), Takeover::Fence) {
        Ok(volume) => write_files(Arc::new(volume)),
        Err(_) => 0,
    };
    store.kill();

    let case = format!("request {at}, {fault:?}");
    let volume = Arc::new(Volume::open(&healthy, Takeover::Fence).unwrap());
    let fs = Image::device(volume.clone()).mount().unwrap();
    for n in 0..acknowledged {
        let found = fs.read(format!("/file{n}")).unwrap_or_default();
        assert!(found == content_of(n), "{case}: file{n} of {acknowledged}");
    }
    fs.close().unwrap();
    drop(volume);
    let reader = VolumeReader::open(&healthy, None).unwrap();
    if let Err(problems) = e2fsck(&reader, image) {
        panic!("{case}: e2fsck: {problems}");
    }
    store.requests()
}

#[test]
fn crash_at_any_request_keeps_synced_files() {
    if Command::new("e2fsck").arg("-V").output().is_err() {
        eprintln!("skipped: e2fsck is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("volume.img");
    let requests = case(0, None, &image);
    assert!(requests > FILES as u64);
    let faults = [Fault::CrashBefore, Fault::CrashAfter, Fault::AnswerLost];
    for at in 0..requests {
        case(at, Some(faults[at as usize % faults.len()]), &image);
    }
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
