//! Fields one by one.
