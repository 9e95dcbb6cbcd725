//! Simulated page-replacement policies, to compare with Folio's reclaim.
//!
//! ```text
//!   lru  clock  sieve  s3_fifo  arc  linux   policies without knowledge of the future
//!   opt                                      the optimal policy, which knows the future (Belady)
//!   policy   the interface                   list   the queues that policies are made of
//! ```

mod arc;
mod clock;
mod linux;
mod list;
mod lru;
mod opt;
mod policy;
mod s3_fifo;
mod sieve;

pub(crate) use policy::Policy;

/// Makes a policy from the pages of the cache, the number of pages in the trace, and the trace.
type Make = fn(usize, usize, &[u32]) -> Box<dyn Policy>;

/// All policies by name; the last one knows the future.
pub(crate) const ALL: [(&str, Make); 7] = [
    ("LRU", |cache, pages, _| {
        Box::new(lru::Lru::new(cache, pages))
    }),
    ("CLOCK", |cache, pages, _| {
        Box::new(clock::Clock::new(cache, pages))
    }),
    ("SIEVE", |cache, pages, _| {
        Box::new(sieve::Sieve::new(cache, pages))
    }),
    ("S3-FIFO", |cache, pages, _| {
        Box::new(s3_fifo::S3Fifo::new(cache, pages))
    }),
    ("ARC", |cache, pages, _| {
        Box::new(arc::Arc::new(cache, pages))
    }),
    ("Linux", |cache, pages, _| {
        Box::new(linux::Linux::new(cache, pages))
    }),
    (OPT, |cache, _, accesses| {
        Box::new(opt::Opt::new(cache, accesses))
    }),
];

/// The optimal policy, which a real cache cannot implement.
pub(crate) const OPT: &str = "OPT";

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(name: &str, accesses: &[u32], cache: usize) -> usize {
        let (_, make) = ALL
            .iter()
            .find(|(known, _)| *known == name)
            .expect("a policy");
        let mut policy = make(cache, 1000, accesses);
        accesses.iter().filter(|page| policy.access(**page)).count()
    }

    #[test]
    fn all_keep_what_fits_and_never_more() {
        let fits: Vec<u32> = (0..500).map(|at| at % 10).collect();
        let scan: Vec<u32> = (0..1000).collect();
        for (name, _) in ALL {
            assert_eq!(hits(name, &fits, 20), 490, "{name}");
            assert_eq!(hits(name, &scan, 20), 0, "{name}");
        }
    }

    #[test]
    fn known_answers() {
        let loops: Vec<u32> = (0..1000).map(|at| at % 11).collect();
        assert_eq!(hits("LRU", &loops, 10), 0);
        assert_eq!(hits("CLOCK", &loops, 10), 0);
        // Belady on a loop of one more than fits: one miss in ten.
        assert_eq!(hits(OPT, &loops, 10), 1000 - 10 - 99);
        // Page 0 leaves LRU when 2 comes, and FIFO-like policies spare it for its hit.
        assert_eq!(hits("LRU", &[0, 1, 0, 2, 0, 1], 2), 2);
        assert_eq!(hits("CLOCK", &[0, 1, 0, 2, 0], 2), 2);
        assert_eq!(hits("SIEVE", &[0, 1, 0, 2, 0], 2), 2);
    }

    #[test]
    fn no_policy_beats_opt() {
        let mut state = 1_u32;
        let accesses: Vec<u32> = (0..5000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 20) % (1 + (state >> 10) % 200)
            })
            .collect();
        let best = hits(OPT, &accesses, 40);
        for (name, _) in ALL {
            assert!(hits(name, &accesses, 40) <= best, "{name}");
        }
        assert!(best < 5000);
    }
}
