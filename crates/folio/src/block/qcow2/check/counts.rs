//! References and uses of each cluster of the file, with memory only for the parts in use.

use crate::base::{Errno, Error, Result};
use foldhash::HashMap;

/// Clusters in a piece of the table.
const PIECE: usize = 4096;
/// Largest number of pieces: with clusters of 64 KiB, 64 TiB in use.
const PIECES_MAX: usize = 1 << 18;
/// Largest number of clusters in a file, as in QEMU.
const CLUSTERS_MAX: u64 = 1 << 31;

/// The use of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Header, L1 table, refcount table or block, snapshot table, bitmap: exclusive.
    Metadata,
    /// An L2 table, shared by the disk and snapshots.
    L2Table,
    /// Guest data, uncompressed or compressed.
    Data,
}

impl Use {
    const fn bit(self) -> u8 {
        match self {
            Self::Metadata => 1,
            Self::L2Table => 2,
            Self::Data => 4,
        }
    }
}

/// Set for a cluster whose uses exclude each other.
const OVERLAP: u8 = 8;

struct Piece {
    counts: [u16; PIECE],
    uses: [u8; PIECE],
}

/// References by cluster.
pub(crate) struct Counts {
    pieces: Vec<Option<Box<Piece>>>,
    piece_count: usize,
    /// Counts that do not fit in a piece.
    large: HashMap<u64, u64>,
    clusters: u64,
}

impl Counts {
    /// Returns counts of zero for `clusters` clusters.
    ///
    /// # Errors
    ///
    /// EFBIG for more clusters than can be counted.
    pub(crate) fn new(clusters: u64) -> Result<Self> {
        if clusters > CLUSTERS_MAX {
            return Err(Error::new(
                Errno::FBIG,
                format!("{clusters} clusters are too many to count"),
            ));
        }
        let mut pieces = Vec::new();
        pieces.resize_with(clusters.div_ceil(PIECE as u64) as usize, || None);
        Ok(Self {
            pieces,
            piece_count: 0,
            large: HashMap::default(),
            clusters,
        })
    }

    /// Returns the number of clusters that have a count.
    pub(crate) fn clusters(&self) -> u64 {
        self.clusters
    }

    /// Adds `times` references to a cluster inside the file.
    ///
    /// # Errors
    ///
    /// EFBIG for a cluster outside the file, or too many clusters in use.
    pub(crate) fn add(&mut self, cluster: u64, times: u64, used_as: Use) -> Result<()> {
        let (piece, index) = (cluster as usize / PIECE, cluster as usize % PIECE);
        let Some(slot) = self.pieces.get_mut(piece) else {
            return Err(Errno::FBIG.into());
        };
        if slot.is_none() {
            self.piece_count += 1;
            if self.piece_count > PIECES_MAX {
                return Err(Error::new(
                    Errno::FBIG,
                    "too many clusters are in use to count them",
                ));
            }
        }
        let piece = slot.get_or_insert_with(|| {
            Box::new(Piece {
                counts: [0; PIECE],
                uses: [0; PIECE],
            })
        });
        let old = piece.uses[index];
        let is_alone = used_as == Use::Metadata || old & Use::Metadata.bit() != 0;
        // L2 tables and data clusters may have many references, all other structures one.
        if (old != 0 && is_alone) || old & !OVERLAP & !used_as.bit() != 0 {
            piece.uses[index] |= OVERLAP;
        }
        piece.uses[index] |= used_as.bit();
        let small = piece.counts[index];
        if small == u16::MAX {
            let count = self.large.entry(cluster).or_default();
            *count = count.saturating_add(times);
            return Ok(());
        }
        match u16::try_from(u64::from(small).saturating_add(times)) {
            Ok(count) if count < u16::MAX => piece.counts[index] = count,
            _ => {
                piece.counts[index] = u16::MAX;
                self.large
                    .insert(cluster, u64::from(small).saturating_add(times));
            }
        }
        Ok(())
    }

    /// Returns the number of references to a cluster.
    pub(crate) fn get(&self, cluster: u64) -> u64 {
        match self
            .piece(cluster)
            .map_or(0, |(piece, index)| piece.counts[index])
        {
            u16::MAX => self.large.get(&cluster).copied().unwrap_or_default(),
            small => small.into(),
        }
    }

    /// Whether a cluster has uses that exclude each other.
    pub(crate) fn overlaps(&self, cluster: u64) -> bool {
        self.piece(cluster)
            .is_some_and(|(piece, index)| piece.uses[index] & OVERLAP != 0)
    }

    /// Returns the first cluster from `cluster` on that may have references; [`Counts::clusters`]
    /// at the end.
    pub(crate) fn next_used(&self, cluster: u64) -> u64 {
        let piece = cluster as usize / PIECE;
        match self
            .pieces
            .get(piece..)
            .and_then(|rest| rest.iter().position(Option::is_some))
        {
            Some(0) => cluster,
            Some(skip) => ((piece + skip) * PIECE) as u64,
            None => self.clusters.max(cluster),
        }
    }

    /// Returns the clusters with references, in order.
    pub(crate) fn used(&self) -> impl Iterator<Item = u64> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            loop {
                let cluster = self.next_used(next);
                if cluster >= self.clusters {
                    return None;
                }
                next = cluster + 1;
                if self.get(cluster) > 0 {
                    return Some(cluster);
                }
            }
        })
    }

    fn piece(&self, cluster: u64) -> Option<(&Piece, usize)> {
        let piece = self
            .pieces
            .get(usize::try_from(cluster).ok()? / PIECE)?
            .as_deref()?;
        Some((piece, cluster as usize % PIECE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_exceed_sixteen_bits() {
        let mut counts = Counts::new(10_000).unwrap();
        for times in [1, 65_533, 1, 1, u64::MAX] {
            counts.add(9000, times, Use::Data).unwrap();
            counts.add(9001, times, Use::Data).unwrap();
        }
        counts.add(1, 65_535, Use::Data).unwrap();
        counts.add(1, 1, Use::Data).unwrap();
        assert_eq!(
            (counts.get(9000), counts.get(1), counts.get(2)),
            (u64::MAX, 65_536, 0)
        );
        assert_eq!(
            (
                counts.next_used(0),
                counts.next_used(4096),
                counts.next_used(9999)
            ),
            (0, 8192, 9999)
        );
        assert!(counts.add(20_000, 1, Use::Data).is_err());
        assert!(Counts::new(1 << 40).is_err());
    }

    #[test]
    fn exclusive_uses_overlap() {
        let mut counts = Counts::new(100).unwrap();
        for (cluster, uses) in [
            (1, [Use::Data, Use::Data]),
            (2, [Use::L2Table, Use::L2Table]),
            (3, [Use::Metadata, Use::Metadata]),
            (4, [Use::Data, Use::Metadata]),
            (5, [Use::L2Table, Use::Data]),
        ] {
            uses.into_iter()
                .for_each(|one| counts.add(cluster, 1, one).unwrap());
        }
        assert_eq!(
            [1, 2, 3, 4, 5].map(|cluster| counts.overlaps(cluster)),
            [false, false, true, true, true]
        );
    }
}
