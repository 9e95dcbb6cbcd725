//! ext4 on a volume: a crash at any request leaves a file system that e2fsck accepts, with every
//! file that a sync acknowledged.

use crate::model::{FAULTS, Fault, ModelStore, each_case, place};
use crate::support::random::Random;
use crate::support::requires;
use crate::support::rounds;
use crate::support::tools::command;
use folio::block::Device;
use folio::{Fs, Image};
use folio_volume::{Takeover, Volume, VolumeReader};
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const SIZE: u64 = 16 << 20;
const STEPS: usize = 10;

/// A change of a file: its new content, or none if it is removed.
type Step = (String, Option<Vec<u8>>);

/// Returns the changes of a workload: files that are written, replaced and removed.
fn steps(workload: u64) -> Vec<Step> {
    let mut random = Random::new(workload);
    let mut files = BTreeMap::new();
    let mut steps = Vec::new();
    for n in 0..STEPS {
        let path = format!("/file{}", random.below(6));
        let is_removed = files.contains_key(&path) && random.below(3) == 0;
        let content = (!is_removed).then(|| vec![n as u8 + 1; random.below(600_000)]);
        apply(&mut files, &(path.clone(), content.clone()));
        steps.push((path, content));
    }
    steps
}

fn apply(files: &mut BTreeMap<String, Vec<u8>>, (path, content): &Step) {
    match content {
        Some(content) => files.insert(path.clone(), content.clone()),
        None => files.remove(path),
    };
}

/// Makes the changes one after the other, each synced, and returns the number of those
/// acknowledged.
fn run(volume: Arc<Volume>, steps: &[Step]) -> usize {
    let Ok(fs) = Image::device(volume).mount() else {
        return 0;
    };
    let is_done = |(path, content): &Step| {
        let changed = match content {
            Some(content) => fs.write(path, content),
            None => fs.remove_file(path),
        };
        changed.and_then(|()| fs.sync()).is_ok()
    };
    steps.iter().take_while(|step| is_done(step)).count()
}

/// Asserts that all files are as after the acknowledged changes, except for the one that the next
/// change may have reached.
fn assert_files(fs: &Fs, steps: &[Step], acknowledged: usize) {
    let (done, later) = steps.split_at(acknowledged);
    let mut files = BTreeMap::new();
    done.iter().for_each(|step| apply(&mut files, step));
    for (path, _) in steps {
        if later.first().is_some_and(|(changing, _)| changing == path) {
            continue;
        }
        let found = fs.read(path).ok();
        assert!(
            found.as_ref() == files.get(path),
            "{path} after {acknowledged} changes"
        );
    }
}

fn e2fsck(device: &dyn Device, image: &Path) -> Result<(), String> {
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(&mut bytes, 0).map_err(|e| e.to_string())?;
    std::fs::write(image, bytes).unwrap();
    let output = command("e2fsck").arg("-fn").arg(image).output();
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
fn case(template: &InMemory, steps: &[Step], plan: Option<(u64, Fault)>) -> u64 {
    let content = Arc::new(template.fork());
    let healthy = place(content.clone(), "vol");
    let store = ModelStore::new(&content, plan);
    let acknowledged = match Volume::open(&place(store.clone(), "vol"), Takeover::Fence) {
        Ok(volume) => run(Arc::new(volume), steps),
        Err(_) => 0,
    };
    store.kill();

    let volume = Arc::new(Volume::open(&healthy, Takeover::Fence).unwrap());
    let fs = Image::device(volume.clone()).mount().unwrap();
    assert_files(&fs, steps, acknowledged);
    fs.close().unwrap();
    drop(volume);
    let reader = VolumeReader::open(&healthy, None).unwrap();
    let image = tempfile::NamedTempFile::new().unwrap();
    if let Err(problems) = e2fsck(&reader, image.path()) {
        panic!("e2fsck: {problems}");
    }
    store.requests()
}

/// Every request of a workload with every fault: e2fsck judges each case. FOLIO_VOLUME_WORKLOADS=14
/// makes more than 5,000 cases.
#[test]
fn fault_at_any_request_keeps_synced_files() {
    requires!(tool("e2fsck"));
    let workloads = std::env::var("FOLIO_VOLUME_WORKLOADS");
    let workloads = workloads.map_or(1, |count| count.parse().unwrap());
    let template = template();
    let mut cases = Vec::new();
    for workload in 0..workloads {
        let requests = case(&template, &steps(workload), None);
        assert!(requests > STEPS as u64);
        let plans = (0..requests).flat_map(|at| FAULTS.map(|fault| (workload, at, fault)));
        cases.extend(plans);
    }
    let cases: Vec<_> = cases.into_iter().step_by(rounds::step(5)).collect();
    each_case(&cases, |&(workload, at, fault)| {
        case(&template, &steps(workload), Some((at, fault)));
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
