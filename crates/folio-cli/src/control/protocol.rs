//! One line of JSON each way: an order for a disk, and its result.

use crate::arguments::size_change::SizeChange;
use folio::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

/// Longest line in bytes.
pub(super) const LINE_LEN_MAX: u64 = 64 << 10;

/// What a server is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Counters and the chain of images.
    Stats,
    /// How the disk is served.
    Options,
    /// A flush.
    Flush,
    /// An internal snapshot.
    Snapshot { name: String },
    /// A copy at an absolute path.
    Fork { new: PathBuf },
    /// A new size in bytes.
    Resize { size: SizeChange, may_shrink: bool },
    /// A copy of the generations into the image.
    Compact,
}

/// An order, and the image that it is for; none where there is only one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) image: Option<String>,
    #[serde(flatten)]
    pub(super) order: Order,
}

/// The result of an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// What was asked for, or what was done.
    Done(Value),
    /// Why it failed: an error number of Linux, and words for people.
    Failed { errno: i32, message: String },
}

impl Answer {
    pub(super) fn of(result: folio::Result<Value>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(error) => Self::Failed {
                errno: error.errno().raw_os_error(),
                message: crate::exit::explain(&error),
            },
        }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::Failed {
            errno: Errno::INVAL.raw_os_error(),
            message: message.into(),
        }
    }
}
