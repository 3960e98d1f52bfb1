//! Servers that a test starts for itself, and ways to hurt them.

pub mod answers;
pub mod blackhole;
pub mod calls;
pub mod certificates;
pub mod channel;
pub mod claims;
pub mod collector;
pub mod data_folder;
pub mod failures;
pub mod filling;
pub mod locks;
pub mod logs;
pub mod metrics;
pub mod pages;
pub mod program;
pub mod raw;
pub mod redis;
pub mod reflection;
pub mod requests;
pub mod scripts;
pub mod service;
pub mod shell;
pub mod stream;
pub mod terminal;
pub mod timed;
pub mod unmistakable;

use std::time::{Duration, Instant};

/// How long a condition that is bound to come may take on a loaded machine.
pub const BOUND: Duration = Duration::from_secs(20);

/// Waits until `check` gives a value; panics with `what` after [`BOUND`].
pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + BOUND;
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(Instant::now() < deadline, "in vain waited for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
