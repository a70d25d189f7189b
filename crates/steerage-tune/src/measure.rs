//! Measures settings in turn.
