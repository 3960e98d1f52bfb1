//! What is written down of operators' acts, as words and `key=value` pairs. People read it and search in it, so
//! neither is to change without need.

use super::claim::{ClaimInfo, ClaimState};
use super::lock::{HolderInfo, LockMode};
use std::time::Duration;

/// The target of their log lines. No setting silences it: who forced a lock open has to be known.
pub const TARGET: &str = "claimlock::audit";

/// How many holders a line names; of the others it says how many.
const HOLDERS_WRITTEN: usize = 100;

/// A claim before or after what was done to it.
pub fn claim(claim: Option<&ClaimInfo>) -> String {
    let Some(claim) = claim else {
        return "state=absent".to_owned();
    };
    let response = match (claim.response_status, claim.response_bytes) {
        (0, 0) => "response=none".to_owned(),
        (status, bytes) => format!("response_status={status} response_bytes={bytes}"),
    };
    format!(
        "state={} attempt={} fencing_token={} holder={} operation={} {response} taken_over={}",
        match claim.state {
            ClaimState::InFlight => "in_flight",
            ClaimState::LeaseOver => "lease_over",
            ClaimState::Uncertain => "uncertain",
            ClaimState::Completed => "completed",
            ClaimState::Abandoned => "abandoned",
        },
        claim.attempt,
        claim.fencing_token,
        quoted(&claim.holder),
        quoted(&claim.operation),
        if claim.taken_over { "yes" } else { "no" },
    )
}

/// Those whose hold on a lock ended.
pub fn holders(ended: &[HolderInfo]) -> String {
    if ended.is_empty() {
        return "holders=none".to_owned();
    }
    let written = &ended[..ended.len().min(HOLDERS_WRITTEN)];
    let mut texts: Vec<String> = written.iter().map(holder).collect();
    if written.len() < ended.len() {
        texts.push(format!("others={}", ended.len() - written.len()));
    }
    texts.join("; ")
}

fn holder(holder: &HolderInfo) -> String {
    format!(
        "holder={} fencing_token={} mode={} held_for={} lease_left={}",
        quoted(&holder.holder),
        holder.fencing_token,
        match holder.mode {
            LockMode::Exclusive => "exclusive",
            LockMode::Shared => "shared",
        },
        seconds(holder.held_for),
        seconds(holder.lease_left),
    )
}

fn seconds(duration: Duration) -> String {
    format!("{:.3}s", duration.as_secs_f64())
}

/// A value that a caller chose, so that it cannot be taken for a pair of its own. In single quotes, since the log puts the
/// whole text in double ones.
fn quoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len() + 2);
    text.push('\'');
    for char in value.chars() {
        match char {
            '\'' | '\\' => text.extend(['\\', char]),
            _ if char.is_control() => text.extend(char.escape_default()),
            _ => text.push(char),
        }
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_be_taken_for_a_pair_of_its_own() {
        assert_eq!(quoted("node a"), "'node a'");
        assert_eq!(quoted("a' state=completed"), "'a\\' state=completed'");
        assert_eq!(quoted("a\\\nb\u{9b}ü"), "'a\\\\\\nb\\u{9b}ü'");
    }

    #[test]
    fn of_many_holders_the_first_are_named_and_the_others_counted() {
        let info = HolderInfo {
            holder: "node-a".to_owned(),
            fencing_token: 41,
            mode: LockMode::Shared,
            held_for: Duration::from_millis(1250),
            lease_left: Duration::ZERO,
        };
        let one = "holder='node-a' fencing_token=41 mode=shared held_for=1.250s lease_left=0.000s";
        assert_eq!(holders(std::slice::from_ref(&info)), one);
        let many = holders(&vec![info; HOLDERS_WRITTEN + 3]);
        assert!(many.starts_with(&format!("{one}; {one}; ")), "{many}");
        assert!(many.ends_with(&format!("{one}; others=3")), "{many}");
    }
}
