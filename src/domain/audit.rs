//! What is written down of operators' acts.

/// The target of their log lines. No setting silences it: who forced a lock open has to be known.
pub const TARGET: &str = "claimlock::audit";
