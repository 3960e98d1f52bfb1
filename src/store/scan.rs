//! Lists keys in pages, by SCAN: Redis is never asked for more than a bounded step at a time.

use super::pool::Link;
use super::{Store, keys, unavailable};
use crate::domain::claim::{ClaimInfo, ListClaims};
use crate::domain::failure::Failure;
use crate::domain::lock::{ListLocks, LockInfo};
use crate::domain::page::{Page, Position};
use futures_util::future::try_join_all;
use std::collections::HashSet;
use std::time::Instant;

/// How many keys Redis looks at in one step, at least and at most.
const SMALLEST_STEP: usize = 10;
const LARGEST_STEP: usize = 1000;

impl Store {
    /// A page of claims.
    pub async fn list_claims(
        &self,
        list: &ListClaims,
        limit: Instant,
    ) -> Result<Page<ClaimInfo>, Failure> {
        let pattern = keys::claims_pattern(list.tenant.as_ref(), &list.prefix);
        let parse = |key: &str| keys::parse_claim(key).filter(|id| list.covers(id));
        let (found, next) = self
            .scan(&pattern, list.page_size, &list.start, limit, parse)
            .await?;
        let known = try_join_all(found.iter().map(|id| self.get_claim(id, limit))).await?;
        let wanted = |claim: &ClaimInfo| list.state.is_none_or(|state| claim.state == state);
        Ok(Page {
            items: known.into_iter().flatten().filter(wanted).collect(),
            next_page_token: next.token(),
        })
    }

    /// A page of locks that are taken.
    pub async fn list_locks(
        &self,
        list: &ListLocks,
        limit: Instant,
    ) -> Result<Page<LockInfo>, Failure> {
        let pattern = keys::locks_pattern(list.tenant.as_ref(), &list.prefix);
        let parse = |key: &str| keys::parse_lock(key).filter(|id| list.covers(id));
        let (found, next) = self
            .scan(&pattern, list.page_size, &list.start, limit, parse)
            .await?;
        let known = try_join_all(found.iter().map(|id| self.get_lock(id, limit))).await?;
        Ok(Page {
            items: known.into_iter().flatten().collect(),
            next_page_token: next.token(),
        })
    }

    /// Names that match, at most `page_size` and each once, and where the next page starts. Stops in time to look at
    /// what was found.
    ///
    /// SCAN misses nothing that is there throughout as long as each step starts where the one before ended. So what a
    /// step found and a page has no room for goes along with the position: to take the step again would not do, since
    /// it may reach elsewhere then.
    async fn scan<T>(
        &self,
        pattern: &str,
        page_size: usize,
        start: &Position,
        limit: Instant,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<(Vec<T>, Position), Failure> {
        let stop_at = Instant::now() + limit.saturating_duration_since(Instant::now()) / 2;
        let usual_step = page_size.clamp(SMALLEST_STEP, LARGEST_STEP);
        let mut step = usual_step;
        let mut has_time = true;
        let mut position = start.clone();
        let mut names = Vec::new();
        let mut seen = HashSet::new();
        let mut link = self.pool.link(limit).await.map_err(unavailable)?;

        loop {
            while names.len() < page_size
                && let Some(key) = position.found.pop()
            {
                names.extend(parse(&key).filter(|_| seen.insert(key)));
            }
            let room = page_size - names.len();
            let Some(cursor) = position.cursor.filter(|_| room > 0 && has_time) else {
                return Ok((names, position));
            };
            let (next, found) = scan_step(&mut link, pattern, cursor, step, limit).await?;
            if found.len() > room && step > room {
                // Again in a smaller step: then what is left over is little enough to go along.
                step = room;
                continue;
            }
            step = if found.is_empty() {
                (step * 2).min(LARGEST_STEP)
            } else {
                usual_step
            };
            position = Position {
                cursor: (next != 0).then_some(next),
                found,
            };
            has_time = Instant::now() < stop_at;
        }
    }
}

/// One step of SCAN: where the next one starts, and the keys that this one found.
async fn scan_step(
    link: &mut Link,
    pattern: &str,
    cursor: u64,
    count: usize,
    limit: Instant,
) -> Result<(u64, Vec<String>), Failure> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor)
        .arg("MATCH")
        .arg(pattern)
        .arg("COUNT")
        .arg(count);
    let answer = scan.query_async::<(u64, Vec<Vec<u8>>)>(&mut link.connection);
    match tokio::time::timeout_at(limit.into(), answer).await {
        // A key of ours is ASCII; one that only looks like it may not be.
        Ok(Ok((next, keys))) => Ok((
            next,
            keys.into_iter()
                .filter_map(|key| String::from_utf8(key).ok())
                .collect(),
        )),
        Ok(Err(error)) => {
            link.report_broken();
            Err(unavailable(error))
        }
        Err(_) => Err(unavailable("no answer in time")),
    }
}
