//! Faults at every request of the commands that create, grow and delete volumes: each can be
//! repeated, and nothing that was acknowledged is lost.

use crate::model::{FAULTS, Fault, MIB, ModelStore, assert_filled, each_case, fill, place, wait};
use crate::support::rounds;
use folio::Errno;
use folio::block::Device;
use folio_volume::{
    StorePlace, Takeover, Volume, VolumeReader, check, clone_snapshot, delete_volume, grow_volume,
    volume_around,
};
use futures_util::StreamExt;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 16 << 20;

/// A command under faults.
#[derive(Debug, Clone, Copy)]
enum Command {
    Clone,
    Grow,
    Delete,
}

/// Returns a store with a volume and a snapshot of it.
fn template() -> InMemory {
    let content: Arc<InMemory> = Arc::new(InMemory::new());
    let volume = Volume::create(&place(content.clone(), "vol"), SIZE).unwrap();
    fill(&volume, 0..9, 1);
    volume.write_at(&[2; 4096], 10 * MIB).unwrap();
    volume.snapshot("s").unwrap();
    volume.close().unwrap();
    content.fork()
}

fn assert_whole(place: &StorePlace) {
    let volume = Volume::open(place, Takeover::Fence).unwrap();
    assert_filled(&volume, 0..9, 1);
    let mut bytes = [0; 4096];
    volume.read_at(&mut bytes, 10 * MIB).unwrap();
    assert_eq!(bytes, [2; 4096]);
    volume.close().unwrap();
    let problems = check(place, true, &mut |_| ()).unwrap().problems;
    assert_eq!(problems, Vec::<String>::new());
}

fn objects(content: &InMemory, root: &str) -> usize {
    wait(content.list(Some(&root.into())).count())
}

/// A clone that fails may exist; else another one can be made. Both volumes can be deleted.
fn cloned(content: &Arc<InMemory>, is_done: bool) {
    let ageless = |root| place(content.clone(), root).with_map_garbage_age(Duration::ZERO);
    let (parent, target) = (ageless("vol"), ageless("new"));
    match Volume::open(&target, Takeover::Fence) {
        Ok(volume) => volume.close().unwrap(),
        Err(error) => {
            assert!(!is_done, "{error}");
            let clone = clone_snapshot(&parent, "s", &target).unwrap();
            clone.close().unwrap();
        }
    }
    assert_whole(&target);
    assert_whole(&parent);
    delete_volume(&target, Takeover::Fence).unwrap();
    assert_whole(&parent);
    delete_volume(&parent, Takeover::Fence).unwrap();
}

fn grown(content: &Arc<InMemory>, is_done: bool) {
    let healthy = place(content.clone(), "vol");
    assert_whole(&healthy);
    let size = VolumeReader::open(&healthy, None).unwrap().len_bytes();
    assert!(size == 2 * SIZE || (size == SIZE && !is_done), "{size}");
}

/// A deletion that fails can be repeated. A volume created instead has nothing of the old one.
fn deleted(content: &Arc<InMemory>, is_done: bool, creates: bool) {
    let healthy = place(content.clone(), "vol");
    if creates && let Ok(volume) = Volume::create(&healthy, SIZE) {
        assert_filled(&volume, 0..16, 0);
        volume.close().unwrap();
        let problems = check(&healthy, true, &mut |_| ()).unwrap().problems;
        assert_eq!(problems, Vec::<String>::new());
    } else if is_done {
        assert_eq!(objects(content, "vol"), 0);
    }
    if objects(content, "vol") > 0 {
        let failed = |e| panic!("{e}, with {} objects left", objects(content, "vol"));
        delete_volume(&healthy, Takeover::Fence).unwrap_or_else(failed);
    }
    assert_eq!(objects(content, "vol"), 0);
}

/// Runs a command with a fault, checks what is left, and returns the number of requests.
fn case(template: &InMemory, command: Command, plan: Option<(u64, Fault)>) -> u64 {
    let content = Arc::new(template.fork());
    let store = ModelStore::new(&content, plan);
    let vol = place(store.clone(), "vol");
    let is_done = match command {
        Command::Clone => clone_snapshot(&vol, "s", &place(store.clone(), "new"))
            .and_then(|clone| clone.close())
            .is_ok(),
        Command::Grow => grow_volume(&vol, 2 * SIZE, Takeover::Fence).is_ok(),
        Command::Delete => delete_volume(&vol, Takeover::Fence).is_ok(),
    };
    store.kill();
    match command {
        Command::Clone => cloned(&content, is_done),
        Command::Grow => grown(&content, is_done),
        Command::Delete => {
            let creates = plan.is_some_and(|(at, _)| at % 2 == 0);
            deleted(&content, is_done, creates);
        }
    }
    store.requests()
}

#[test]
fn fault_at_every_request_of_command_is_repaired() {
    let template = template();
    let mut cases = Vec::new();
    for command in [Command::Clone, Command::Grow, Command::Delete] {
        let requests = case(&template, command, None);
        let plans = (0..requests).flat_map(|at| FAULTS.map(|fault| (command, at, fault)));
        cases.extend(plans);
    }
    assert!(cases.len() >= 900, "{} cases", cases.len());
    let cases: Vec<_> = cases.into_iter().step_by(rounds::step(7)).collect();
    each_case(&cases, |&(command, at, fault)| {
        case(&template, command, Some((at, fault)));
    });
}

#[test]
fn map_without_manifest_is_not_created_over() {
    let content: Arc<InMemory> = Arc::new(template());
    wait(async {
        let listed: Vec<_> = content.list(Some(&"vol".into())).collect().await;
        for object in listed {
            let path = object.unwrap().location;
            if !path.as_ref().starts_with("vol/map/wal") {
                object_store::ObjectStoreExt::delete(&*content, &path)
                    .await
                    .unwrap();
            }
        }
    });
    let healthy = place(content, "vol");
    let refused = Volume::create(&healthy, SIZE).err().unwrap();
    assert!(refused.to_string().contains("other objects"), "{refused}");
}

#[test]
fn place_of_a_file_has_no_volume() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("disk.img"), "content").unwrap();
    let store = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    for root in ["disk.img", "disk.img/below"] {
        let place = place(store.clone(), root);
        let opened = Volume::open(&place, Takeover::Fence);
        assert_eq!(opened.err().unwrap().errno(), Errno::NOENT, "{root}");
        assert_eq!(volume_around(&place).unwrap(), None, "{root}");
        assert!(Volume::create(&place, SIZE).is_err(), "{root}");
    }
    assert_eq!(
        std::fs::read(folder.path().join("disk.img")).unwrap(),
        b"content"
    );
}
