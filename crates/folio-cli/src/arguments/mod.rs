//! Groups of options that several commands have, and what they mean.

pub(crate) mod excludes;
pub(crate) mod force_share;
pub(crate) mod image_options;
pub(crate) mod mode;
pub(crate) mod new_image;
pub(crate) mod ownership;
pub(crate) mod select;
pub(crate) mod size_change;
pub(crate) mod usage_options;
