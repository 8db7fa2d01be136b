//! Data in the text that must stay as it is.
