//! Mount options specific to ext4 and their defaults in the superblock. Linux: fs/ext4/super.c,
//! Documentation/admin-guide/ext4.rst; ext4(5).
//!
//! Four sources, of which a later one overrides an earlier one: Linux's defaults;
//! `s_default_mount_opts` and `s_errors`; the text in `s_mount_opts`, of which unknown words are
//! ignored as in Linux; the words given at mount.
//!
//! Options of Linux that have no effect in Folio are accepted:
//!
//! | option | why it has no effect |
//! |---|---|
//! | `init_itable[=n]` `noinit_itable` | mkfs, or the first use of a group, zeroes inode tables |
//! | `block_validity` `noblock_validity` | blocks are always checked |
//! | `nombcache` `no_mbcache` | Folio has no cache of extended attribute blocks |
//! | `inode_readahead_blks=n` `prefetch_block_bitmaps` `no_prefetch_block_bitmaps` | performance hints |
//! | `mb_optimize_scan=n` `stripe=n` | performance hints |
//! | `min_batch_time=n` `max_batch_time=n` `journal_ioprio=n` | performance hints |
//! | `dioread_lock` `dioread_nolock` | Folio has no direct I/O on ext4 |
//! | `data_err=ignore` `bsddf` `nogrpid` `sysvgroups` `noquota` | Folio always behaves this way |
//! | `i_version` | Linux ignores it too |
//!
//! Other options of Linux are rejected like any unknown word.

use crate::base::Result;
use crate::fs::ext4::layout::features::Compat;
use crate::fs::ext4::layout::superblock::Superblock;
use crate::vfs::MountOptions;
use std::str::FromStr;

/// The write order of file data and the transaction that commits its metadata (`data=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataMode {
    /// Data is written before the commit.
    Ordered,
    /// Data may be written after the commit.
    Writeback,
    /// Data is part of the transaction.
    Journal,
}

/// The protection of files replaced by truncation or rename against loss of their contents
/// (`auto_da_alloc=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AutoDaAlloc {
    /// The new data is written before the transaction that replaces the file commits.
    Commit,
    /// The new data is written at close and at rename, as in Linux.
    Close,
    /// No protection.
    Off,
}

impl AutoDaAlloc {
    /// Returns the variant of a number that `as` has made.
    pub(crate) fn from_number(number: u8) -> Self {
        let all = [Self::Commit, Self::Close, Self::Off];
        all[usize::from(number) % all.len()]
    }
}

/// The reaction to damage in a mounted file system (`errors=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorPolicy {
    /// Record the error and continue.
    Continue,
    /// Make the mount read-only.
    RemountReadOnly,
    /// Fail all further calls.
    Panic,
}

/// The mount options of an ext4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ext4Options {
    pub(crate) data: DataMode,
    /// Maximum age of a transaction before its commit, in milliseconds.
    pub(crate) commit_interval_ms: u64,
    /// Whether blocks are allocated at writeback instead of at write.
    pub(crate) delalloc: bool,
    pub(crate) auto_da_alloc: AutoDaAlloc,
    pub(crate) errors: ErrorPolicy,
    /// Whether the device's cache is flushed.
    pub(crate) barrier: bool,
    /// Whether freed blocks are discarded on the device.
    pub(crate) discard: bool,
    /// Whether the journal is replayed (false with `noload` or `norecovery`).
    pub(crate) load_journal: bool,
    /// Whether extended attributes of the user namespace are available.
    pub(crate) user_xattr: bool,
    /// Whether access control lists are stored and enforced.
    pub(crate) acl: bool,
    /// Blocks reserved for root, `reserved_uid` and `reserved_gid`.
    pub(crate) reserved_blocks: u64,
    pub(crate) reserved_uid: u32,
    pub(crate) reserved_gid: u32,
}

/// Linux: `JBD2_DEFAULT_MAX_COMMIT_AGE`.
const COMMIT_INTERVAL_DEFAULT_S: u64 = 5;
/// Linux: `INT_MAX / HZ`, with 1000 ticks a second.
const COMMIT_INTERVAL_MAX_S: u64 = 2_147_483;

/// Bits of `s_default_mount_opts`, as tune2fs(8) names them.
pub(crate) mod default_options {
    pub(crate) const DEBUG: u32 = 0x1;
    pub(crate) const USER_XATTR: u32 = 0x4;
    pub(crate) const ACL: u32 = 0x8;
    pub(crate) const UID16: u32 = 0x10;
    /// Two bits with one of the next three values.
    pub(crate) const DATA_MASK: u32 = 0x60;
    pub(crate) const DATA_JOURNAL: u32 = 0x20;
    pub(crate) const DATA_ORDERED: u32 = 0x40;
    pub(crate) const DATA_WRITEBACK: u32 = 0x60;
    pub(crate) const NO_BARRIER: u32 = 0x100;
    pub(crate) const BLOCK_VALIDITY: u32 = 0x200;
    pub(crate) const DISCARD: u32 = 0x400;
    pub(crate) const NO_DELALLOC: u32 = 0x800;
}

/// Values of `s_errors`.
pub(crate) mod error_policies {
    pub(crate) const CONTINUE: u16 = 1;
    pub(crate) const REMOUNT_READ_ONLY: u16 = 2;
    pub(crate) const PANIC: u16 = 3;
}

/// The words of [`Ext4Options`] with an effect; those with a value are listed without it.
const WORDS: [&str; 21] = [
    "delalloc",
    "nodelalloc",
    "auto_da_alloc",
    "noauto_da_alloc",
    "barrier",
    "nobarrier",
    "discard",
    "nodiscard",
    "noload",
    "norecovery",
    "user_xattr",
    "nouser_xattr",
    "acl",
    "noacl",
    "i_version",
    "data",
    "errors",
    "commit",
    "resuid",
    "resgid",
    "data_err",
];

/// Iterates over all words that ext4 accepts; those with a value are listed without it.
pub(crate) fn words_known() -> impl Iterator<Item = &'static str> {
    WORDS
        .into_iter()
        .chain(WITHOUT_EFFECT)
        .chain(NUMBERS_WITHOUT_EFFECT)
}

/// Words that are accepted without effect; the table at the top gives the reasons.
const WITHOUT_EFFECT: [&str; 14] = [
    "init_itable",
    "noinit_itable",
    "block_validity",
    "noblock_validity",
    "nombcache",
    "no_mbcache",
    "prefetch_block_bitmaps",
    "no_prefetch_block_bitmaps",
    "dioread_lock",
    "dioread_nolock",
    "bsddf",
    "nogrpid",
    "sysvgroups",
    "noquota",
];

/// Words with a number after `=` that are accepted without effect.
const NUMBERS_WITHOUT_EFFECT: [&str; 7] = [
    "init_itable",
    "inode_readahead_blks",
    "mb_optimize_scan",
    "stripe",
    "min_batch_time",
    "max_batch_time",
    "journal_ioprio",
];

impl Ext4Options {
    /// Returns the options for the file system of `superblock` with `data`, words separated by
    /// commas, given at mount.
    ///
    /// # Errors
    /// EINVAL, naming the word, for an unknown word, an invalid value, or a conflict.
    pub(crate) fn parse(data: &str, superblock: &Superblock) -> Result<Self> {
        let mut options = Self::defaults(superblock);
        let mut explicit = ExplicitOptions::default();
        let stored = &superblock.raw.mount_opts;
        let stored_len = stored
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(stored.len());
        for word in words(std::str::from_utf8(&stored[..stored_len]).unwrap_or_default()) {
            // Linux ignores unknown words there.
            let _: Result<()> = options.set(word, &mut explicit);
        }
        for word in words(data) {
            options.set(word, &mut explicit)?;
        }
        options.check(superblock, explicit)
    }

    fn defaults(superblock: &Superblock) -> Self {
        let raw = &superblock.raw;
        let bits = raw.default_mount_opts.get();
        Self {
            data: match bits & default_options::DATA_MASK {
                default_options::DATA_JOURNAL => DataMode::Journal,
                default_options::DATA_WRITEBACK => DataMode::Writeback,
                _ => DataMode::Ordered,
            },
            commit_interval_ms: COMMIT_INTERVAL_DEFAULT_S * 1000,
            delalloc: bits & default_options::NO_DELALLOC == 0,
            auto_da_alloc: AutoDaAlloc::Commit,
            errors: match raw.errors.get() {
                error_policies::CONTINUE => ErrorPolicy::Continue,
                error_policies::PANIC => ErrorPolicy::Panic,
                _ => ErrorPolicy::RemountReadOnly,
            },
            barrier: bits & default_options::NO_BARRIER == 0,
            discard: bits & default_options::DISCARD != 0,
            load_journal: true,
            // Always on, regardless of the superblock, as in Linux since 2.6.39.
            user_xattr: true,
            acl: true,
            reserved_blocks: superblock.reserved_blocks(),
            reserved_uid: raw.def_resuid.get().into(),
            reserved_gid: raw.def_resgid.get().into(),
        }
    }

    /// Returns the options with another word, for a remount.
    ///
    /// # Errors
    /// EINVAL for an unknown word or value.
    pub(crate) fn with(mut self, word: &str) -> Result<Self> {
        self.set(word, &mut ExplicitOptions::default())?;
        Ok(self)
    }

    /// Applies one word.
    fn set(&mut self, word: &str, explicit: &mut ExplicitOptions) -> Result<()> {
        let (name, value) = word
            .split_once('=')
            .map_or((word, None), |(name, value)| (name, Some(value)));
        match value {
            None => self.set_flag(name, explicit),
            Some(value) => self.set_value(name, value, explicit),
        }
        .map_err(|error| match error {
            OptionError::Unknown => MountOptions::unknown(word),
            OptionError::Value(expected) => MountOptions::invalid(format!(
                "invalid value in mount option {word:?}: expected {expected}"
            )),
        })
    }

    fn set_flag(&mut self, name: &str, explicit: &mut ExplicitOptions) -> Result<(), OptionError> {
        match name {
            "delalloc" => (self.delalloc, explicit.delalloc) = (true, true),
            "nodelalloc" => (self.delalloc, explicit.delalloc) = (false, false),
            "auto_da_alloc" => self.auto_da_alloc = AutoDaAlloc::Commit,
            "noauto_da_alloc" => self.auto_da_alloc = AutoDaAlloc::Off,
            "barrier" => self.barrier = true,
            "nobarrier" => self.barrier = false,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "noload" | "norecovery" => self.load_journal = false,
            "user_xattr" => self.user_xattr = true,
            "nouser_xattr" => self.user_xattr = false,
            "acl" => self.acl = true,
            "noacl" => self.acl = false,
            "i_version" => {}
            _ if WITHOUT_EFFECT.contains(&name) => {}
            _ => return Err(OptionError::Unknown),
        }
        Ok(())
    }

    fn set_value(
        &mut self,
        name: &str,
        value: &str,
        explicit: &mut ExplicitOptions,
    ) -> Result<(), OptionError> {
        match (name, value) {
            ("data", "ordered") => self.set_data(DataMode::Ordered, explicit),
            ("data", "writeback") => self.set_data(DataMode::Writeback, explicit),
            ("data", "journal") => self.set_data(DataMode::Journal, explicit),
            ("errors", "continue") => self.errors = ErrorPolicy::Continue,
            ("errors", "remount-ro") => self.errors = ErrorPolicy::RemountReadOnly,
            ("errors", "panic") => self.errors = ErrorPolicy::Panic,
            ("auto_da_alloc", "commit") => self.auto_da_alloc = AutoDaAlloc::Commit,
            ("auto_da_alloc", "close") => self.auto_da_alloc = AutoDaAlloc::Close,
            ("auto_da_alloc", _) => {
                let is_on = number::<u32>(value)? != 0;
                self.auto_da_alloc = if is_on {
                    AutoDaAlloc::Commit
                } else {
                    AutoDaAlloc::Off
                };
            }
            ("barrier", _) => self.barrier = number::<u32>(value)? != 0,
            ("commit", _) => self.set_commit_interval(number(value)?, explicit)?,
            ("resuid", _) => self.reserved_uid = number(value)?,
            ("resgid", _) => self.reserved_gid = number(value)?,
            ("data_err", "ignore") => {}
            ("data", _) => return Err(OptionError::Value("ordered, writeback or journal")),
            ("errors", _) => return Err(OptionError::Value("continue, remount-ro or panic")),
            ("data_err", _) => return Err(OptionError::Value("ignore")),
            _ if NUMBERS_WITHOUT_EFFECT.contains(&name) => number::<u32>(value).map(|_| ())?,
            _ => return Err(OptionError::Unknown),
        }
        Ok(())
    }

    fn set_data(&mut self, data: DataMode, explicit: &mut ExplicitOptions) {
        (self.data, explicit.data) = (data, true);
    }

    /// Sets the commit interval; 0 selects the default.
    fn set_commit_interval(
        &mut self,
        interval_s: u64,
        explicit: &mut ExplicitOptions,
    ) -> Result<(), OptionError> {
        let interval_s = if interval_s == 0 {
            COMMIT_INTERVAL_DEFAULT_S
        } else {
            interval_s
        };
        if interval_s > COMMIT_INTERVAL_MAX_S {
            return Err(OptionError::Value("at most 2147483 seconds"));
        }
        explicit.commit = interval_s != COMMIT_INTERVAL_DEFAULT_S;
        self.commit_interval_ms = interval_s * 1000;
        Ok(())
    }

    /// Rejects options that conflict with each other or with the file system.
    fn check(mut self, superblock: &Superblock, explicit: ExplicitOptions) -> Result<Self> {
        if !superblock.features.compat.contains(Compat::HAS_JOURNAL)
            && (explicit.data || explicit.commit)
        {
            let option = if explicit.data { "data=" } else { "commit=" };
            return Err(MountOptions::invalid(format!(
                "mount option {option} requires a journal, which the file system lacks"
            )));
        }
        if self.data == DataMode::Journal {
            if explicit.delalloc {
                return Err(MountOptions::invalid(
                    "conflicting mount options data=journal and delalloc; drop one of them",
                ));
            }
            // Data is part of its transaction, so it needs its blocks at once.
            self.delalloc = false;
        }
        Ok(self)
    }
}

/// Options that were given explicitly.
#[derive(Default)]
struct ExplicitOptions {
    data: bool,
    commit: bool,
    delalloc: bool,
}

/// The reason for rejecting a word.
enum OptionError {
    /// The word is unknown.
    Unknown,
    /// The value is invalid; the expected values in words.
    Value(&'static str),
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|word| !word.is_empty())
}

fn number<N: FromStr>(text: &str) -> Result<N, OptionError> {
    text.parse().map_err(|_| OptionError::Value("a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Errno;
    use crate::block::MemoryDevice;
    use crate::fs::ext4::mkfs::{FormatOptions, format};

    fn superblock() -> Superblock {
        let device = MemoryDevice::new(16 << 20);
        format(&device, &FormatOptions::default()).unwrap();
        Superblock::load(&device).unwrap()
    }

    fn refusal(data: &str, superblock: &Superblock) -> String {
        let error = Ext4Options::parse(data, superblock).unwrap_err();
        assert_eq!(error.errno(), Errno::INVAL);
        error.to_string()
    }

    #[test]
    fn defaults_equal_linux() {
        let superblock = superblock();
        let options = Ext4Options::parse("", &superblock).unwrap();
        let expected = Ext4Options {
            data: DataMode::Ordered,
            commit_interval_ms: 5000,
            delalloc: true,
            auto_da_alloc: AutoDaAlloc::Commit,
            errors: ErrorPolicy::Continue,
            barrier: true,
            discard: false,
            load_journal: true,
            user_xattr: true,
            acl: true,
            reserved_blocks: superblock.raw.r_blocks_count_lo.get().into(),
            reserved_uid: 0,
            reserved_gid: 0,
        };
        assert_eq!(options, expected);
        assert_ne!(options.reserved_blocks, 0);
    }

    #[test]
    fn options_in_both_spellings_are_parsed() {
        let superblock = superblock();
        let parse = |data: &str| Ext4Options::parse(data, &superblock).unwrap();
        let options = parse(
            "data=writeback,commit=30,nodelalloc,noauto_da_alloc,errors=panic,nobarrier,discard,noload,\
             nouser_xattr,noacl,resuid=7,resgid=8",
        );
        let expected = Ext4Options {
            data: DataMode::Writeback,
            commit_interval_ms: 30_000,
            delalloc: false,
            auto_da_alloc: AutoDaAlloc::Off,
            errors: ErrorPolicy::Panic,
            barrier: false,
            discard: true,
            load_journal: false,
            user_xattr: false,
            acl: false,
            reserved_blocks: options.reserved_blocks,
            reserved_uid: 7,
            reserved_gid: 8,
        };
        assert_eq!(options, expected);
        let back = "data=ordered,commit=0,delalloc,auto_da_alloc,errors=continue,barrier,nodiscard,user_xattr,acl";
        let both = format!(
            "data=writeback,commit=9,nodelalloc,noacl,nouser_xattr,discard,barrier=0,{back}"
        );
        assert_eq!(parse(&both), parse(""));
        assert!(!parse("barrier=0").barrier && parse("nobarrier,barrier=1").barrier);
        assert!(!parse("norecovery").load_journal);
        for (word, expected) in [
            ("auto_da_alloc=commit", AutoDaAlloc::Commit),
            ("auto_da_alloc=close", AutoDaAlloc::Close),
            ("auto_da_alloc=0", AutoDaAlloc::Off),
            ("noauto_da_alloc,auto_da_alloc=1", AutoDaAlloc::Commit),
        ] {
            assert_eq!(parse(word).auto_da_alloc, expected, "{word}");
        }
        assert_eq!(
            parse("init_itable=10,noinit_itable,stripe=4,i_version,dioread_nolock,bsddf"),
            parse("")
        );
    }

    #[test]
    fn all_listed_words_are_accepted() {
        let superblock = superblock();
        for word in words_known() {
            let with_value = Ext4Options::parse(&format!("{word}=1"), &superblock);
            let is_known = Ext4Options::parse(word, &superblock).is_ok()
                || with_value.map_or_else(
                    |error| error.to_string().starts_with("invalid value"),
                    |_| true,
                );
            assert!(is_known, "{word}");
        }
    }

    #[test]
    fn invalid_words_are_named_in_the_error() {
        let mut superblock = superblock();
        for word in [
            "foo",
            "data",
            "errors",
            "delalloc=1",
            "noacl=0",
            "dax",
            "commit",
            "resuid",
            "stripe",
        ] {
            assert_eq!(
                refusal(word, &superblock),
                format!("unknown mount option {word:?}")
            );
        }
        for (word, expected) in [
            ("data=fast", "ordered, writeback or journal"),
            ("errors=no", "continue, remount-ro or panic"),
            ("commit=x", "a number"),
            ("commit=2147484", "at most 2147483 seconds"),
            ("commit=-1", "a number"),
            ("resuid=-1", "a number"),
            ("barrier=", "a number"),
            ("stripe=a", "a number"),
        ] {
            assert_eq!(
                refusal(word, &superblock),
                format!("invalid value in mount option {word:?}: expected {expected}")
            );
        }
        let both = refusal("delalloc,data=journal", &superblock);
        assert_eq!(
            both,
            "conflicting mount options data=journal and delalloc; drop one of them"
        );
        superblock.features.compat.remove(Compat::HAS_JOURNAL);
        assert_eq!(
            refusal("data=ordered", &superblock),
            "mount option data= requires a journal, which the file system lacks"
        );
        assert_eq!(
            refusal("commit=1", &superblock),
            "mount option commit= requires a journal, which the file system lacks"
        );
    }

    #[test]
    fn superblock_defaults_are_applied() {
        use default_options as bits;
        let mut superblock = superblock();
        let set = bits::DATA_JOURNAL | bits::NO_BARRIER | bits::DISCARD | bits::NO_DELALLOC;
        superblock.raw.default_mount_opts = set.into();
        superblock.raw.errors = error_policies::PANIC.into();
        (superblock.raw.def_resuid, superblock.raw.def_resgid) = (5.into(), 6.into());
        let options = Ext4Options::parse("", &superblock).unwrap();
        assert_eq!(
            (options.data, options.errors),
            (DataMode::Journal, ErrorPolicy::Panic)
        );
        assert_eq!(
            (options.barrier, options.discard, options.delalloc),
            (false, true, false)
        );
        assert_eq!((options.reserved_uid, options.reserved_gid), (5, 6));
        let options = Ext4Options::parse(
            "barrier,nodiscard,data=ordered,delalloc,errors=remount-ro",
            &superblock,
        );
        let options = options.unwrap();
        assert_eq!(
            (options.data, options.errors),
            (DataMode::Ordered, ErrorPolicy::RemountReadOnly)
        );
        assert_eq!(
            (options.barrier, options.discard, options.delalloc),
            (true, false, true)
        );
        // Unknown words in the superblock's text are ignored.
        superblock.raw.mount_opts[..27].copy_from_slice(b"foo,commit=7,errors=x,noacl");
        superblock.raw.default_mount_opts = bits::DATA_WRITEBACK.into();
        let options = Ext4Options::parse("", &superblock).unwrap();
        assert_eq!(
            (options.data, options.commit_interval_ms, options.acl),
            (DataMode::Writeback, 7000, false)
        );
        superblock.raw.mount_opts = [0xff; 64];
        superblock.raw.r_blocks_count_lo = u32::MAX.into();
        let options = Ext4Options::parse("", &superblock).unwrap();
        assert_eq!(options.reserved_blocks, superblock.block_count);
    }
}
