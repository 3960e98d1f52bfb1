//! What the server takes at most.

use super::duration::Retention;

/// Limits that an operator can set.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest that a key is remembered.
    pub max_retention: Retention,
    /// Bytes of a stored response's body.
    pub max_response_body: usize,
    /// Bytes of a stored response's header names and values together.
    pub max_response_headers: usize,
}

/// Bytes of a checkpoint.
pub const MAX_CHECKPOINT: usize = 64 * 1024;
