//! What a page has in it.
