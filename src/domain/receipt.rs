//! A receipt: enough of a grant for its result to be stored even where the record was lost meanwhile.
//!
//! It binds tenant, scope, key, token and fields by a SHA-256 over all of them. That catches a receipt handed
//! in for another claim. It is no seal, and need not be one: whoever may complete a key may claim it as well,
//! so a forged receipt gains nothing that a claim would not, as long as it keeps within the same limits; a
//! fencing token from the far future is refused.

use super::duration::{Millis, Retention};
use super::failure::Refused;
use super::fingerprint::Fingerprint;
use super::name::ClaimId;
use super::token::ClaimToken;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ops::RangeInclusive;

const VERSION: u8 = 1;
const MOST_BYTES: usize = 256;
/// What a script can tell apart.
const EXACT: RangeInclusive<i64> = 1..=(1 << 53) - 1;
const DIGEST_BYTES: usize = 32;
/// How far a fencing token may be ahead of the highest seen, in microseconds: a day.
const FENCE_SLACK: i64 = 24 * 3600 * 1_000_000;

/// What a receipt says of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// When the record of the claim would expire: microseconds on Redis's clock.
    pub expires_at: i64,
    /// The grant's fencing token.
    pub fencing_token: i64,
    /// The grant's attempt.
    pub attempt: i64,
    /// The claim's retention.
    pub retention: Retention,
    /// What was asked for.
    pub fingerprint: Fingerprint,
}

#[derive(Serialize, Deserialize)]
struct Fields {
    expires_at: i64,
    fencing_token: i64,
    attempt: i64,
    retention_ms: u64,
    fingerprint: Vec<u8>,
}

impl Receipt {
    /// The opaque bytes that a caller gets: version, digest, fields.
    pub fn issue(&self, claim: &ClaimId, token: &ClaimToken) -> Vec<u8> {
        let fields = postcard::to_stdvec(&Fields {
            expires_at: self.expires_at,
            fencing_token: self.fencing_token,
            attempt: self.attempt,
            retention_ms: self.retention.millis().get(),
            fingerprint: self.fingerprint.as_bytes().to_vec(),
        })
        .expect("plain fields always serialize");
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&digest(claim, token, &fields));
        bytes.extend_from_slice(&fields);
        bytes
    }

    /// Reads a receipt back if it was issued for this claim and token, and says nothing that no service would.
    pub fn parse(
        bytes: &[u8],
        claim: &ClaimId,
        token: &ClaimToken,
        largest: Retention,
    ) -> Result<Self, Refused> {
        let Some((&VERSION, rest)) = bytes.split_first() else {
            return Err(foreign());
        };
        let Some((bound, fields)) = rest.split_at_checked(DIGEST_BYTES) else {
            return Err(foreign());
        };
        if bytes.len() > MOST_BYTES || bound != digest(claim, token, fields) {
            return Err(foreign());
        }
        let fields: Fields = postcard::from_bytes(fields).map_err(|_| foreign())?;
        let numbers = [fields.fencing_token, fields.attempt, fields.expires_at];
        let fingerprint = Fingerprint::stored(fields.fingerprint).ok_or_else(foreign)?;
        if !numbers.iter().all(|number| EXACT.contains(number)) {
            return Err(foreign());
        }
        Ok(Self {
            expires_at: fields.expires_at,
            fencing_token: fields.fencing_token,
            attempt: fields.attempt,
            retention: Retention::stored_within(Millis::new(fields.retention_ms), largest),
            fingerprint,
        })
    }

    /// Refuses a fencing token that no service can have given out yet. `highest_seen` is the highest that this one
    /// knows of.
    pub fn check_against(&self, highest_seen: i64) -> Result<(), Refused> {
        if self.fencing_token <= highest_seen.saturating_add(FENCE_SLACK) {
            return Ok(());
        }
        Err(foreign())
    }
}

fn foreign() -> Refused {
    Refused::invalid("receipt was not issued for this claim and token")
}

fn digest(claim: &ClaimId, token: &ClaimToken, fields: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut hash = Sha256::new();
    for part in [
        b"claimlock-receipt-1",
        claim.tenant.as_str().as_bytes(),
        claim.scope.as_str().as_bytes(),
        claim.key.as_str().as_bytes(),
        token.as_str().as_bytes(),
        fields,
    ] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::super::fingerprint::Content;
    use super::super::name::{IdempotencyKey, Operation, Scope, Tenant};
    use super::*;

    fn claim(scope: &str, key: &str) -> ClaimId {
        ClaimId {
            tenant: Tenant::or_default(String::new()).expect("the default tenant"),
            scope: Scope::parse(scope.to_owned()).expect("a scope"),
            key: IdempotencyKey::parse(key.to_owned()).expect("a key"),
        }
    }

    fn token(text: &str) -> ClaimToken {
        ClaimToken::parse(text.repeat(16)).expect("a token")
    }

    const LARGEST: Retention = Retention::largest(Millis::new(30 * 86_400_000));

    fn receipt() -> Receipt {
        let operation = Operation::parse("op".to_owned()).expect("an operation");
        Receipt {
            expires_at: 1_764_513_600_123_456,
            fencing_token: 1_764_513_600_000_001,
            attempt: 3,
            retention: Retention::largest(Millis::new(86_400_000)),
            fingerprint: Fingerprint::of(&operation, Content::Raw(b"x")).expect("a fingerprint"),
        }
    }

    #[test]
    fn a_receipt_reads_back_for_its_own_claim_only() {
        let bytes = receipt().issue(&claim("s", "k"), &token("a"));
        assert!(bytes.len() <= 256, "{} bytes", bytes.len());
        assert_eq!(
            Receipt::parse(&bytes, &claim("s", "k"), &token("a"), LARGEST),
            Ok(receipt())
        );
        assert!(Receipt::parse(&bytes, &claim("s", "l"), &token("a"), LARGEST).is_err());
        assert!(Receipt::parse(&bytes, &claim("t", "k"), &token("a"), LARGEST).is_err());
        assert!(Receipt::parse(&bytes, &claim("s", "k"), &token("b"), LARGEST).is_err());
    }

    #[test]
    fn a_receipt_that_was_touched_anywhere_is_refused() {
        let bytes = receipt().issue(&claim("s", "k"), &token("a"));
        for i in 0..bytes.len() {
            let mut touched = bytes.clone();
            touched[i] ^= 1;
            let result = Receipt::parse(&touched, &claim("s", "k"), &token("a"), LARGEST);
            assert!(result.is_err(), "byte {i}");
        }
        for length in 0..bytes.len() {
            let result = Receipt::parse(&bytes[..length], &claim("s", "k"), &token("a"), LARGEST);
            assert!(result.is_err(), "length {length}");
        }
    }

    #[test]
    fn a_fencing_token_from_the_far_future_is_refused() {
        let mut forged = receipt();
        let highest = forged.fencing_token;
        assert!(forged.check_against(highest).is_ok());
        forged.fencing_token = (1 << 53) - 1;
        assert!(forged.check_against(highest).is_err());
    }

    #[test]
    fn a_forged_receipt_keeps_within_the_limits_of_a_claim() {
        let forge = |change: fn(&mut Receipt)| {
            let mut forged = receipt();
            change(&mut forged);
            let bytes = forged.issue(&claim("s", "k"), &token("a"));
            Receipt::parse(&bytes, &claim("s", "k"), &token("a"), LARGEST)
        };
        let century = forge(|r| r.retention = Retention::largest(Millis::new(u64::MAX)));
        assert_eq!(century.map(|r| r.retention), Ok(LARGEST));
        assert!(forge(|r| r.attempt = i64::MIN).is_err());
        assert!(forge(|r| r.attempt = 1 << 53).is_err());
        assert!(forge(|r| r.fencing_token = 0).is_err());
        assert!(forge(|r| r.expires_at = i64::MAX).is_err());
    }
}
