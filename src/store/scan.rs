//! Lists keys in pages, by SCAN: Redis is never asked for more than a bounded step at a time.

use super::pool::Link;
use super::{Store, keys, unavailable};
use crate::domain::claim::{ClaimInfo, ListClaims};
use crate::domain::failure::{Failure, Refused};
use crate::domain::lock::{ListLocks, LockInfo, Page};
use crate::domain::name::{ClaimId, LockId};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::time::Instant;

/// How many buckets Redis looks at in one step, at least and at most.
const SMALLEST_STEP: usize = 10;
const LARGEST_STEP: usize = 1000;

/// Where a listing stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// Tells the listing it belongs to.
    listing: [u8; 8],
    /// SCAN's own.
    cursor: u64,
    /// How many buckets the step there looks at; 0 for any number.
    step: usize,
    /// Keys up to this one, in order, were on an earlier page; empty for none.
    after: String,
}

impl Position {
    /// Where the listing of a pattern starts.
    fn start(pattern: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(pattern).into();
        let mut listing = [0; 8];
        listing.copy_from_slice(&digest[..8]);
        Self {
            listing,
            ..Self::default()
        }
    }

    fn parse(token: &str, pattern: &str) -> Result<Self, Failure> {
        let start = Self::start(pattern);
        if token.is_empty() {
            return Ok(start);
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok();
        bytes
            .and_then(|bytes| postcard::from_bytes(&bytes).ok())
            .filter(|position: &Self| {
                position.listing == start.listing && position.step <= LARGEST_STEP
            })
            .ok_or_else(|| {
                let why = "page_token must be one that this listing returned";
                Failure::field("page_token", Refused::invalid(why))
            })
    }

    fn token(&self) -> String {
        let bytes = postcard::to_stdvec(self).expect("plain fields always serialize");
        URL_SAFE_NO_PAD.encode(bytes)
    }
}

impl Store {
    /// A page of claims.
    pub async fn list_claims(
        &self,
        list: &ListClaims,
        limit: Instant,
    ) -> Result<Page<ClaimInfo>, Failure> {
        let pattern = keys::claims_pattern(list.tenant.as_ref(), &list.prefix);
        let (found, next_page_token) = self
            .scan(
                &pattern,
                list.page_size,
                &list.page_token,
                limit,
                keys::parse_claim,
            )
            .await?;
        let known =
            try_join_all(found.iter().map(|id: &ClaimId| self.get_claim(id, limit))).await?;
        let wanted = |claim: &ClaimInfo| list.state.is_none_or(|state| claim.state == state);
        Ok(Page {
            items: known.into_iter().flatten().filter(wanted).collect(),
            next_page_token,
        })
    }

    /// A page of locks that are taken.
    pub async fn list_locks(
        &self,
        list: &ListLocks,
        limit: Instant,
    ) -> Result<Page<LockInfo>, Failure> {
        let pattern = keys::locks_pattern(list.tenant.as_ref(), &list.prefix);
        let (found, next_page_token) = self
            .scan(
                &pattern,
                list.page_size,
                &list.page_token,
                limit,
                keys::parse_lock,
            )
            .await?;
        let known = try_join_all(found.iter().map(|id: &LockId| self.get_lock(id, limit))).await?;
        Ok(Page {
            items: known.into_iter().flatten().collect(),
            next_page_token,
        })
    }

    /// Names that match, at most `page_size` and each once, and the token of the next page. Stops in time to look
    /// at what was found.
    async fn scan<T>(
        &self,
        pattern: &str,
        page_size: usize,
        page_token: &str,
        limit: Instant,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<(Vec<T>, String), Failure> {
        let mut position = Position::parse(page_token, pattern)?;
        let stop_at = Instant::now() + limit.saturating_duration_since(Instant::now()) / 2;
        let mut link = self.pool.link(limit).await.map_err(unavailable)?;
        let mut names = Vec::new();
        let mut seen = HashSet::new();
        let mut step = page_size.clamp(SMALLEST_STEP, LARGEST_STEP);

        loop {
            if position.step == 0 {
                position.step = step;
            }
            let (cursor, mut keys) = scan_step(&mut link, pattern, &position, limit).await?;
            keys.retain(|key| *key > position.after && !seen.contains(key));
            keys.sort_unstable();
            keys.dedup();
            let found = keys.len();

            let room = page_size - names.len();
            if found > room && !names.is_empty() {
                return Ok((names, position.token()));
            }
            if found > room {
                keys.truncate(room);
                position.after = keys.last().cloned().unwrap_or_default();
                names.extend(keys.iter().filter_map(|key| parse(key)));
                return Ok((names, position.token()));
            }

            names.extend(keys.iter().filter_map(|key| parse(key)));
            seen.extend(keys);
            if cursor == 0 {
                return Ok((names, String::new()));
            }
            position = Position {
                cursor,
                step: 0,
                after: String::new(),
                ..position
            };
            if names.len() == page_size || Instant::now() >= stop_at {
                return Ok((names, position.token()));
            }
            if found == 0 {
                step = (step * 2).min(LARGEST_STEP);
            }
        }
    }
}

async fn scan_step(
    link: &mut Link,
    pattern: &str,
    position: &Position,
    limit: Instant,
) -> Result<(u64, Vec<String>), Failure> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(position.cursor)
        .arg("MATCH")
        .arg(pattern)
        .arg("COUNT")
        .arg(position.step);
    match tokio::time::timeout_at(limit.into(), scan.query_async(&mut link.connection)).await {
        Ok(Ok(step)) => Ok(step),
        Ok(Err(error)) => {
            link.report_broken();
            Err(unavailable(error))
        }
        Err(_) => Err(unavailable("no answer in time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_reads_back_for_its_own_listing_and_no_other_is_taken() {
        let position = Position {
            cursor: u64::MAX,
            step: 50,
            after: "cl:c:{t//k}".to_owned(),
            ..Position::start("one")
        };
        let token = position.token();
        assert_eq!(Position::parse(&token, "one").ok(), Some(position));
        assert_eq!(
            Position::parse("", "one").ok(),
            Some(Position::start("one"))
        );
        assert!(Position::parse(&token, "other").is_err());
        for bad in ["x", "%%%", "AAAA", "zzzzzzzzzzzzzzzz", &"A".repeat(40)] {
            let result = Position::parse(bad, "one");
            assert!(matches!(result, Err(Failure::Invalid(_))), "{bad}");
        }
    }
}
