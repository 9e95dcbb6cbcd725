//! The control: the harness reports deliberate losses.

use crate::crash::cut::{Cut, Loss, Replay};
use crate::crash::images;
use crate::crash::judge::Judge;
use crate::crash::mix::{self, Mix};
use crate::crash::program::RecordedRun;
use crate::crash::trial::Trial;
use folio::testing::Recorded;
use folio::vfs::MountOptions;
use std::sync::Arc;

fn recorded_mix(name: &str) -> RecordedRun {
    Trial::new(name).record(images::folio(16, 1024), |program, random| {
        mix::run(
            program,
            random,
            Mix {
                operations: 300,
                fsync_permille: 150,
                ..Mix::default()
            },
        );
    })
}

/// A disk that ignores flushes, so that they order nothing.
#[test]
fn ignored_flushes_lose_synced_data() {
    let mut run = recorded_mix("liar");
    let trial = Trial::new("liar");
    for entry in &mut run.record {
        if *entry == Recorded::Flush {
            *entry = Recorded::Write {
                offset: 0,
                bytes: Arc::default(),
            };
        }
    }
    let outcome = trial.cut(&run);
    assert!(
        outcome.failures.len() > outcome.cuts / 10,
        "{} of {}",
        outcome.failures.len(),
        outcome.cuts
    );
}

/// Drops the last write before each return of fsync(2) or sync(2), the journal's last block.
#[test]
fn lost_last_write_of_a_sync_is_reported() {
    let run = recorded_mix("last-write");
    let mut judge = Judge::new(MountOptions::default());
    let (mut seen, mut tried) = (0, 0);
    let mut before = 0;
    for recorded in run.programs[0].returns() {
        let mut writes = (before..recorded).filter(|at| run.record[*at] != Recorded::Flush);
        let Some(last) = writes.next_back() else {
            continue;
        };
        before = recorded;
        let mut record = run.record[..recorded].to_vec();
        record[last] = Recorded::Flush;
        let cut = Cut {
            recorded,
            loss: Loss::Nothing,
            seed: 0,
        };
        let device = Replay::new(&run.before, &record).device(cut);
        tried += 1;
        seen += usize::from(judge.judge(&device, &run.programs, recorded).is_err());
    }
    assert!(tried > 20 && seen * 4 > tried, "{seen} of {tried}");
}
