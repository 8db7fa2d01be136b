//! A target that writes over the memory that it shares with us.
