//! Wake-ups: what scripts tell this service of, on a channel of its own.
//!
//! None of them is needed for the truth: one that is lost costs a waiter no more than the time until its service looks by
//! itself. So whatever cannot be read is skipped.

use super::{Store, keys};
use crate::domain::lease::{LeaseName, LossReason};
use crate::domain::name::{ClaimId, LockId};
use crate::domain::token::{ClaimToken, LockToken};
use futures_util::StreamExt as _;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// Names this process to scripts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ServiceId(String);

impl ServiceId {
    pub(super) fn new() -> Self {
        Self(Uuid::new_v4().simple().to_string())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a script told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeUp {
    /// The service listens, for the first time or again: whatever was told before is lost.
    Listening,
    /// A waiter of this service's is the first in the queue of a lock, and is to try for it.
    Turn {
        /// Which lock.
        lock: LockId,
        /// Which waiter.
        token: LockToken,
        /// How long from now; nothing changes before.
        after: Duration,
    },
    /// A later call of the same token took the place of a waiter of this service's.
    PlaceTaken {
        /// Which lock.
        lock: LockId,
        /// Which waiter.
        token: LockToken,
        /// The bytes of the nonce of the call that waited.
        nonce: Vec<u8>,
    },
    /// A claim in flight ended that somebody here waits for.
    ClaimEnded(ClaimId),
    /// A token was given up that may wait here for a claim in flight to end.
    ClaimTokenSpent(ClaimId, ClaimToken),
    /// A lease that a stream of this service's keeps alive is lost.
    LeaseLost {
        /// Which stream.
        stream: u64,
        /// Which lease.
        lease: LeaseName,
        /// Why.
        reason: LossReason,
    },
}

/// A subscription that says nothing for so long is asked whether it is alive.
const ASK_EVERY: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);

impl Store {
    /// Hands every wake-up to `handle`, which must not block, until the answer is dropped.
    pub fn listen(&self, handle: impl Fn(WakeUp) + Send + Sync + 'static) -> AbortOnDropHandle<()> {
        let store = self.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                if let Err(error) = store.subscribe(&handle).await {
                    tracing::debug!(%error, "the subscription to wake-ups ended");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }))
    }

    async fn subscribe(&self, handle: &(impl Fn(WakeUp) + Sync)) -> Result<(), redis::RedisError> {
        let timed_out = |_| redis::RedisError::from((redis::ErrorKind::Io, "no answer in time"));
        let subscribing = async {
            let mut connection = self.client.get_async_pubsub().await?;
            connection.subscribe(keys::channel(&self.service)).await?;
            Ok::<_, redis::RedisError>(connection)
        };
        let connection = tokio::time::timeout(self.timeout(), subscribing)
            .await
            .map_err(timed_out)??;
        let (mut asking, mut messages) = connection.split();
        handle(WakeUp::Listening);
        loop {
            match tokio::time::timeout(ASK_EVERY, messages.next()).await {
                Ok(Some(message)) => {
                    if let Some(wake_up) = parse(message.get_payload_bytes()) {
                        handle(wake_up);
                    }
                }
                Ok(None) => return Ok(()),
                Err(_) => {
                    let answer = asking.ping::<redis::Value>();
                    tokio::time::timeout(self.timeout(), answer)
                        .await
                        .map_err(timed_out)??;
                }
            }
        }
    }
}

/// The words of a message, as the scripts put them together.
fn parse(payload: &[u8]) -> Option<WakeUp> {
    let kind_ends = payload.iter().position(|byte| *byte == b' ')?;
    let (kind, rest) = (&payload[..kind_ends], &payload[kind_ends + 1..]);
    let mut words = rest.splitn(if kind == b"taken" { 3 } else { 4 }, |byte| *byte == b' ');
    match kind {
        b"turn" => Some(WakeUp::Turn {
            lock: keys::parse_lock(text(words.next()?)?)?,
            token: lock_token(words.next()?)?,
            after: Duration::from_micros(text(words.next()?)?.parse().ok()?),
        }),
        b"taken" => Some(WakeUp::PlaceTaken {
            lock: keys::parse_lock(text(words.next()?)?)?,
            token: lock_token(words.next()?)?,
            nonce: words.next()?.to_vec(),
        }),
        b"ended" => Some(WakeUp::ClaimEnded(keys::parse_claim(text(words.next()?)?)?)),
        b"lost" => Some(WakeUp::LeaseLost {
            stream: text(words.next()?)?.parse().ok()?,
            lease: lease(text(words.next()?)?, text(words.next()?)?)?,
            reason: LossReason::parse(text(words.next()?)?)?,
        }),
        b"spent" => Some(WakeUp::ClaimTokenSpent(
            keys::parse_claim(text(words.next()?)?)?,
            ClaimToken::parse(text(words.next()?)?.to_owned()).ok()?,
        )),
        _ => None,
    }
}

fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}

fn lock_token(word: &[u8]) -> Option<LockToken> {
    LockToken::parse(text(word)?.to_owned()).ok()
}

fn lease(key: &str, token: &str) -> Option<LeaseName> {
    let token = token.to_owned();
    match keys::parse_lock(key) {
        Some(lock) => Some(LeaseName::Lock(lock, LockToken::parse(token).ok()?)),
        None => Some(LeaseName::Claim(
            keys::parse_claim(key)?,
            ClaimToken::parse(token).ok()?,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::name::{IdempotencyKey, Resource, Scope, Tenant};

    fn nightly() -> LockId {
        LockId {
            tenant: Tenant::parse("default".to_owned()).expect("a tenant"),
            resource: Resource::parse("nightly report".to_owned()).expect("a resource"),
        }
    }

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn a_turn_is_read_back_whatever_the_resource_is_called() {
        let key = &keys::lock(&nightly())[1];
        let turn = parse(format!("turn {key} {TOKEN} 1500").as_bytes());
        assert_eq!(
            turn,
            Some(WakeUp::Turn {
                lock: nightly(),
                token: LockToken::parse(TOKEN.to_owned()).expect("a token"),
                after: Duration::from_micros(1500),
            })
        );
    }

    #[test]
    fn a_nonce_may_hold_any_byte() {
        let key = &keys::lock(&nightly())[1];
        let mut message = format!("taken {key} {TOKEN} ").into_bytes();
        message.extend(b" \xff \0");
        let Some(WakeUp::PlaceTaken { nonce, .. }) = parse(&message) else {
            panic!("not read");
        };
        assert_eq!(nonce, b" \xff \0");
    }

    #[test]
    fn a_loss_is_read_back_for_either_kind_of_lease() {
        let lost = |key: &str| parse(format!("lost 17 {key} {TOKEN} FORCED").as_bytes());
        let told = |lease| {
            Some(WakeUp::LeaseLost {
                stream: 17,
                lease,
                reason: LossReason::Forced,
            })
        };
        let token = LockToken::parse(TOKEN.to_owned()).expect("a token");
        assert_eq!(
            lost(&keys::lock(&nightly())[1]),
            told(LeaseName::Lock(nightly(), token))
        );
        let claim = ClaimId {
            tenant: nightly().tenant,
            scope: Scope::parse(String::new()).expect("a scope"),
            key: IdempotencyKey::parse("order 1".to_owned()).expect("a key"),
        };
        let token = ClaimToken::parse(TOKEN.to_owned()).expect("a token");
        assert_eq!(
            lost(&keys::claim(&claim)[0]),
            told(LeaseName::Claim(claim, token))
        );
    }

    #[test]
    fn nonsense_on_the_channel_is_skipped() {
        for nonsense in [
            "",
            "turn",
            "turn x y z",
            "what is this",
            "ended cl:c:{t}",
            "lost",
            "lost 1 cl:c:{t//k}",
            "lost 1 cl:c:{t//k} 0123456789abcdef BORED",
            "lost x cl:c:{t//k} 0123456789abcdef FORCED",
            "lost 1 cl:l:{t/r}:h 0123456789abcdef FORCED",
        ] {
            assert_eq!(parse(nonsense.as_bytes()), None, "{nonsense}");
        }
    }
}
