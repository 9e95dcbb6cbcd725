//! Entries of the fuzz targets: the map of a volume, and all its objects. Not public API.

use crate::check::{check, check_map};
use crate::format::{BLOCK_BYTES, GROUP_BLOCKS, SegmentId, decode_group, encode_group};
use crate::gc::{Condemned, parse_mark};
use crate::map::{MapLoader, MapState, VolumeMap};
use crate::place::StorePlace;
use crate::reader::VolumeReader;
use crate::requests::RetryPolicy;
use crate::snapshot::snapshots;
use folio::block::Device;
use folio_object_store::handle;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::panic::{set_hook, take_hook};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// Most bytes of an input.
const INPUT_BYTES_MAX: usize = 256 << 10;
/// The length of a value that is a block of one repeated byte, of which the input has one.
const BLOCK_MARK: u16 = u16::MAX;
/// Most objects of an input.
const OBJECTS_MAX: usize = 64;
/// The root of the volume.
const ROOT: &str = "vol";

/// Loads a map from the entries in `data`, and reads the volume that it describes. Each entry is
/// the length of the key in a byte, that of the value in two, then both. The first byte of a key
/// may also select another stored document.
pub fn map(data: &[u8]) {
    let mut rest = &data[..data.len().min(INPUT_BYTES_MAX)];
    let mut loader = MapLoader::default();
    while let Some((key, value, after)) = entry(rest) {
        rest = after;
        let repeated: Vec<u8>;
        let value = match value {
            Value::Bytes(bytes) => bytes,
            Value::Block(byte) => {
                repeated = vec![byte; BLOCK_BYTES];
                &repeated
            }
        };
        match key {
            b"mark" => drop(parse_mark(value)),
            b"condemned" => drop(Condemned::parse(value)),
            b"segment" => {
                let path = Path::from(String::from_utf8_lossy(value).into_owned());
                let _ = SegmentId::parse(&path);
            }
            key => drop(loader.add(key, value)),
        }
    }
    if let Ok(MapState::Volume(map)) = loader.finish() {
        check_groups(&map);
        if let Some(place) = place() {
            let mut map = *map;
            let _ = check_map(&place, &map);
            map.meta.origins.truncate(4);
            read(&VolumeReader::with(&place, map, None, Instant::now()));
        }
    }
}

/// Opens the volume whose objects are in `data`, reads and checks it. Each object is the length of
/// its path in a byte, the length of its content in two, then both.
pub fn store(data: &[u8]) {
    silence_slatedb();
    let Some(place) = place() else {
        return;
    };
    let mut rest = &data[..data.len().min(INPUT_BYTES_MAX)];
    for _ in 0..OBJECTS_MAX {
        let Some((path, Value::Bytes(content), after)) = entry(rest) else {
            break;
        };
        rest = after;
        let path = Path::from(String::from_utf8_lossy(path).into_owned());
        let payload = PutPayload::from(content.to_vec());
        let _ = place.wait(place.direct.put(&path, payload));
    }
    let _ = snapshots(&place);
    let _ = check(&place, true, &mut |_| {});
    if let Ok(reader) = VolumeReader::open(&place, None) {
        read(&reader);
    }
}

/// Drops the messages of slatedb's panics, which become errors. libFuzzer would end at them.
fn silence_slatedb() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let program = take_hook();
        set_hook(Box::new(move |panic| {
            let file = panic.location().map_or("", |location| location.file());
            // It slices its buffers beyond their ends.
            if !["/slatedb-", "/bytes-"]
                .iter()
                .any(|name| file.contains(name))
            {
                program(panic);
            }
        }));
    });
}

enum Value<'a> {
    Bytes(&'a [u8]),
    /// This byte, repeated.
    Block(u8),
}

/// Splits the next entry off; `None` at the end.
fn entry(data: &[u8]) -> Option<(&[u8], Value<'_>, &[u8])> {
    let ([key_len, low, high], rest) = data.split_first_chunk::<3>()?;
    let (key, rest) = rest.split_at_checked(usize::from(*key_len))?;
    let len = u16::from_le_bytes([*low, *high]);
    if len == BLOCK_MARK {
        let (byte, rest) = rest.split_first()?;
        return Some((key, Value::Block(*byte), rest));
    }
    let (value, rest) = rest.split_at(usize::from(len).min(rest.len()));
    Some((key, Value::Bytes(value), rest))
}

/// Fails if a group is not the same after it was encoded again.
fn check_groups(map: &VolumeMap) {
    for &number in map.groups().keys() {
        let group = map.group(number);
        let again = decode_group(&encode_group(&group), map.meta.origins.len());
        assert!(again.is_ok_and(|again| again == group), "group {number}");
    }
    map.segment_use();
    map.stored_blocks();
}

/// Reads the start, the end and the stored parts of a volume.
fn read(volume: &VolumeReader) {
    let len_bytes = volume.len_bytes();
    let view = volume.view();
    let stored = view.groups().keys().take(8);
    let starts = stored.map(|group| group.saturating_mul(GROUP_BLOCKS * BLOCK_BYTES as u64));
    let mut buf = vec![0; 3 * BLOCK_BYTES];
    for start in starts.chain([0, len_bytes.saturating_sub(100)]) {
        let len = (buf.len() as u64).min(len_bytes.saturating_sub(start));
        let _ = volume.read_at(&mut buf[..len as usize], start);
        let _ = volume.allocation(start, len_bytes.saturating_sub(start));
    }
    let _ = volume.version();
}

/// Returns a place in an empty store, which does not wait for failures to end.
fn place() -> Option<StorePlace> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let policy = RetryPolicy {
        timeout: Duration::from_secs(5),
        attempts: 1,
        first_pause: Duration::ZERO,
    };
    Some(StorePlace::new(store, ROOT.into(), handle().ok()?, ROOT).with_retries(policy))
}

#[cfg(test)]
#[path = "../../../tests/fuzz_corpus/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_map_inputs_do_not_panic() {
        replay::run("volume_map", map);
    }

    #[test]
    fn volume_store_inputs_do_not_panic() {
        replay::run("volume_store", store);
    }
}
