//! What is remembered of tokens that can no longer be granted anything.

use super::clock::{Clock, Moment};
use super::{Reason, Token};

/// Why a token is spent, and until when that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    pub token: Token,
    pub reason: Reason,
    pub until: Moment,
    /// The response that this token itself completed its claim with, so that a repeat is told from
    /// another response. Only where the record of that completion ran out.
    pub completion: Option<Option<u8>>,
}

impl Spent {
    pub fn new(token: Token, reason: Reason, until: Moment) -> Self {
        Self {
            token,
            reason,
            until,
            completion: None,
        }
    }
}

/// The newest spent tokens of a key or resource. Tokens that never were granted anything have a
/// list of their own, so that stray releases cannot push out what a holder must be told.
#[derive(Clone, Debug, PartialEq)]
pub struct SpentTokens {
    cap: usize,
    entries: Vec<Spent>,
}

impl SpentTokens {
    pub fn new(cap: usize) -> Self {
        Self {
            cap,
            entries: Vec::new(),
        }
    }

    pub fn spend(&mut self, spent: Spent) {
        self.forget(spent.token);
        self.entries.push(spent);
        if self.entries.len() > self.cap {
            self.entries.remove(0);
        }
    }

    pub fn forget(&mut self, token: Token) {
        self.entries.retain(|spent| spent.token != token);
    }

    pub fn find(&self, token: Token, clock: &mut Clock) -> Option<Spent> {
        let spent = self.entries.iter().find(|spent| spent.token == token)?;
        (!clock.reached(spent.until)).then(|| spent.clone())
    }

    pub fn any(&self, clock: &mut Clock) -> bool {
        self.entries.iter().any(|spent| !clock.reached(spent.until))
    }

    pub fn ends(&self) -> impl Iterator<Item = Moment> {
        self.entries.iter().map(|spent| spent.until)
    }
}
