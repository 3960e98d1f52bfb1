//! What operators see and do.

mod listing;
