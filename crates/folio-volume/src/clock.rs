//! The clock of a map. Times in a map must not go back, and the next writer may be a machine whose
//! clock is behind.

use chrono::{DateTime, TimeDelta, Utc};
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The system's clock, moved forward behind the last time in the map.
#[derive(Debug, Default)]
pub(crate) struct MapClock {
    system: DefaultSystemClock,
    ahead_ms: AtomicI64,
}

impl MapClock {
    /// Moves the clock behind a time in the map, in milliseconds since the epoch.
    pub(crate) fn pass(&self, time_ms: i64) {
        let ahead_ms = time_ms.saturating_add(1) - self.system.now().timestamp_millis();
        self.ahead_ms.fetch_max(ahead_ms, Ordering::Relaxed);
    }

    /// Returns a clock that is behind the system's.
    #[cfg(test)]
    fn behind(seconds: i64) -> Self {
        Self {
            ahead_ms: AtomicI64::new(-1000 * seconds),
            ..Self::default()
        }
    }
}

impl SystemClock for MapClock {
    fn now(&self) -> DateTime<Utc> {
        let ahead = TimeDelta::milliseconds(self.ahead_ms.load(Ordering::Relaxed));
        let now = self.system.now();
        now.checked_add_signed(ahead).unwrap_or(now)
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.system.sleep(duration)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StorePlace, Takeover, Volume};
    use folio::block::Device;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use std::sync::Arc;

    #[test]
    fn writer_whose_clock_is_behind_continues() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let store = Arc::new(InMemory::new());
        let place = |clock: MapClock| {
            let handle = runtime.handle().clone();
            let mut place = StorePlace::new(store.clone(), Path::from("v"), handle, "v");
            place.clock = Arc::new(clock);
            place
        };
        let flushes = |volume: &Volume, count: u64| {
            for number in 0..count {
                volume.write_at(&[1; 4096], number << 12).expect("a write");
                volume.flush().expect("a flush");
            }
        };
        let ahead = Volume::create(&place(MapClock::default()), 64 << 20).expect("a volume");
        flushes(&ahead, 70);
        drop(ahead);
        // A crash, a clean end, and a collection by machines that are each further behind.
        for (round, seconds) in [3600, 86_400, 172_800].into_iter().enumerate() {
            let place = place(MapClock::behind(seconds));
            let behind = Volume::open(&place, Takeover::Fence).expect("opens");
            flushes(&behind, 70);
            if round > 0 {
                behind.snapshot(&round.to_string()).expect("a snapshot");
                behind.close().expect("closes");
            }
        }
    }
}
