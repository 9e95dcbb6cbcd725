//! A small random number generator, so that a printed seed reproduces a run.

/// The generator splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// Returns one step of splitmix64, which spreads the bits of a number.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Random {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below<N: TryInto<u64> + TryFrom<u64>>(&mut self, end: N) -> N {
        let Ok(end) = end.try_into() else {
            panic!("a range ends at a number of 64 bits");
        };
        let Ok(number) = N::try_from(self.next() % end) else {
            panic!("a number below another one fits its type");
        };
        number
    }

    /// Returns true with a probability of `percent`.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns a random element.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Returns a number from the environment.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}: {text}"))
    })
}

/// Returns the seed of all trials: `FOLIO_CRASH_SEED`.
pub fn seed() -> u64 {
    number("FOLIO_CRASH_SEED").unwrap_or(1)
}

/// Returns the random numbers of the trial with this name.
pub fn random_of(name: &str) -> Random {
    let name = name.bytes().fold(0_u64, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    Random::new(seed() ^ name << 16)
}
