//! Where a byte lives: the file systems. None knows another.
