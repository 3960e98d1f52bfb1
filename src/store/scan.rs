//! Lists keys in pages, by SCAN: Redis is never asked for more than a bounded step at a time.

use super::{Store, keys, unavailable};
use crate::domain::claim::{ClaimInfo, ListClaims};
use crate::domain::failure::Failure;
use crate::domain::lock::{ListLocks, LockInfo};
use crate::domain::name::{ClaimId, LockId};
use crate::domain::page::{Page, Position};
use futures_util::future::try_join_all;
use std::collections::HashSet;
use std::time::Instant;

/// How many keys Redis looks at in one step, at least and at most.
const SMALLEST_STEP: usize = 10;
const LARGEST_STEP: usize = 1000;

/// How many records are looked at together.
const LOOKS_AT_ONCE: usize = 50;
/// An answer with all holders of many locks would be larger than clients take.
const HOLDERS_LISTED: usize = 10;

impl Store {
    /// A page of claims.
    pub async fn list_claims(
        &self,
        list: &ListClaims,
        limit: Instant,
    ) -> Result<Page<ClaimInfo>, Failure> {
        let pattern = keys::claims_pattern(list.tenant.as_ref(), &list.prefix);
        let parse = |key: &str| keys::parse_claim(key).filter(|id| list.covers(id));
        let found = self
            .scan(&pattern, list.page_size, &list.start, limit, parse)
            .await?;
        let wanted = |claim: &ClaimInfo| list.state.is_none_or(|state| claim.state == state);
        let look = |id: ClaimId| async move { self.get_claim(&id, limit).await };
        let mut page = look_at(found, limit, look).await?;
        page.items.retain(wanted);
        Ok(page)
    }

    /// A page of locks that are taken, with a few of the holders of each.
    pub async fn list_locks(
        &self,
        list: &ListLocks,
        limit: Instant,
    ) -> Result<Page<LockInfo>, Failure> {
        let pattern = keys::locks_pattern(list.tenant.as_ref(), &list.prefix);
        let parse = |key: &str| keys::parse_lock(key).filter(|id| list.covers(id));
        let found = self
            .scan(&pattern, list.page_size, &list.start, limit, parse)
            .await?;
        let look = |id: LockId| async move { self.look_at_lock(&id, HOLDERS_LISTED, limit).await };
        look_at(found, limit, look).await
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
    ) -> Result<Found<T>, Failure> {
        let stop_at = part_of(limit, 1, 3);
        let usual_step = page_size.clamp(SMALLEST_STEP, LARGEST_STEP);
        let mut step = usual_step;
        let mut has_time = true;
        let mut position = start.clone();
        let mut names = Vec::new();
        let mut seen = HashSet::new();

        loop {
            while names.len() < page_size
                && let Some(key) = position.found.pop()
            {
                if let Some(name) = parse(&key)
                    && seen.insert(key.clone())
                {
                    names.push((key, name));
                }
            }
            let room = page_size - names.len();
            let Some(cursor) = position.cursor.filter(|_| room > 0 && has_time) else {
                return Ok(Found { names, position });
            };
            let (next, found) = self.scan_step(pattern, cursor, step, limit).await?;
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

    /// One step of SCAN: where the next one starts, and the keys that this one found.
    async fn scan_step(
        &self,
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
        loop {
            let mut link = self.pool.link(limit).await.map_err(unavailable)?;
            let answer = scan.query_async::<(u64, Vec<Vec<u8>>)>(&mut link.connection);
            match tokio::time::timeout_at(limit.into(), answer).await {
                // A key of ours is ASCII; one that only looks like it may not be.
                Ok(Ok((next, keys))) => {
                    let keys = keys.into_iter().map(String::from_utf8);
                    return Ok((next, keys.filter_map(Result::ok).collect()));
                }
                Ok(Err(error)) => self.recover(&error, &link).await?,
                Err(_) => return Err(unavailable("no answer in time")),
            }
        }
    }
}

/// What a listing found: each name with its key, and where to look on.
struct Found<T> {
    names: Vec<(String, T)>,
    position: Position,
}

/// Looks at what was found, as far as the time goes; the rest is left to the next page.
async fn look_at<T: Clone, I, F>(
    found: Found<T>,
    limit: Instant,
    look: impl Fn(T) -> F,
) -> Result<Page<I>, Failure>
where
    F: Future<Output = Result<Option<I>, Failure>>,
{
    let Found {
        names,
        mut position,
    } = found;
    let stop_at = part_of(limit, 1, 2);
    let mut items = Vec::new();
    let mut bunches = names.chunks(LOOKS_AT_ONCE);
    for bunch in bunches.by_ref() {
        let known = try_join_all(bunch.iter().map(|(_, name)| look(name.clone()))).await?;
        items.extend(known.into_iter().flatten());
        if Instant::now() >= stop_at {
            break;
        }
    }
    let left = bunches.flatten().map(|(key, _)| key.clone());
    position.found.extend(left);
    Ok(Page {
        items,
        next_page_token: position.token(),
    })
}

/// A part of the time that is left.
fn part_of(limit: Instant, part: u32, of: u32) -> Instant {
    let now = Instant::now();
    now + limit.saturating_duration_since(now) * part / of
}
