//! The one place that builds Redis keys, and reads them back.
//!
//! The slot rule: everything that belongs to one claim or to one resource shares the hash tag in braces, so that
//! all of it lives in one slot of a cluster and one script may touch it. Each part of a name is percent-encoded,
//! so `/`, `{`, `}` and `%` never stand for themselves and no name can be made to look like another:
//!
//! ```text
//! cl:c:{tenant/scope/key}      record of a claim
//! cl:c:{tenant/scope/key}:r    its response, where that is kept for less time than the record, or is large
//! cl:probe                     see `PROBE`
//! cl:l:{tenant/resource}:h     holders of a lock        cl:l:{tenant/resource}:m   their limits
//! cl:l:{tenant/resource}:e     when each ends           cl:l:{tenant/resource}:s   spent tokens
//! cl:l:{tenant/resource}:l     those that are live       cl:l:{tenant/resource}:q   those that wait, in turn
//! cl:l:{tenant/resource}:w     what each waits for       cl:l:{tenant/resource}:d   until when it is spoken for
//! cl:w:service                 the channel on which scripts wake a service
//! ```

use super::wakeups::ServiceId;
use crate::domain::name::{ClaimId, IdempotencyKey, LockId, Prefix, Resource, Scope, Tenant};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What every key begins with.
pub(super) const START: &str = "cl:";

/// Written for a moment, to see whether Redis takes a write.
pub(super) const PROBE: &str = "cl:probe";

const CLAIM: &str = "cl:c:{";
const LOCK: &str = "cl:l:{";
const LOCK_ENDS: &str = "}:e";
/// What every channel begins with.
pub(super) const CHANNEL: &str = "cl:w:";

/// What stands for itself: nothing that has a meaning in a key, in a hash tag or in a MATCH pattern.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

fn encode(part: &str) -> String {
    utf8_percent_encode(part, ENCODED).to_string()
}

fn decode(part: &str) -> Option<String> {
    Some(percent_decode_str(part).decode_utf8().ok()?.into_owned())
}

/// KEYS of the claim scripts: record, response.
pub(super) fn claim(id: &ClaimId) -> Vec<String> {
    let tag = format!(
        "{CLAIM}{}/{}/{}}}",
        encode(id.tenant.as_str()),
        encode(id.scope.as_str()),
        encode(id.key.as_str())
    );
    let response = format!("{tag}:r");
    vec![tag, response]
}

/// KEYS of the lock scripts: holders, ends, limits, spent, live, queue, waiters, deadlines.
pub(super) fn lock(id: &LockId) -> Vec<String> {
    let tag = format!(
        "{LOCK}{}/{}}}",
        encode(id.tenant.as_str()),
        encode(id.resource.as_str())
    );
    ["h", "e", "m", "s", "l", "q", "w", "d"]
        .map(|part| format!("{tag}:{part}"))
        .to_vec()
}

/// The channel on which scripts wake a service.
pub(super) fn channel(service: &ServiceId) -> String {
    format!("{CHANNEL}{}", service.as_str())
}

/// The MATCH pattern of the records of claims.
pub(super) fn claims_pattern(tenant: Option<&Tenant>, prefix: &Prefix) -> String {
    let tenant = tenant.map_or("*".to_owned(), |tenant| encode(tenant.as_str()));
    format!("{CLAIM}{tenant}/*/{}*}}", encode(prefix.as_str()))
}

/// The MATCH pattern of what exists for every lock that is taken.
pub(super) fn locks_pattern(tenant: Option<&Tenant>, prefix: &Prefix) -> String {
    let tenant = tenant.map_or("*".to_owned(), |tenant| encode(tenant.as_str()));
    format!("{LOCK}{tenant}/{}*{LOCK_ENDS}", encode(prefix.as_str()))
}

/// The claim whose record a key is; `None` for any other key.
pub(super) fn parse_claim(key: &str) -> Option<ClaimId> {
    let tag = key.strip_prefix(CLAIM)?.strip_suffix('}')?;
    let mut parts = tag.split('/').map(decode);
    let (tenant, scope, key) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() {
        return None;
    }
    Some(ClaimId {
        tenant: Tenant::parse(tenant).ok()?,
        scope: Scope::parse(scope).ok()?,
        key: IdempotencyKey::parse(key).ok()?,
    })
}

/// The lock whose ends a key holds; `None` for any other key.
pub(super) fn parse_lock(key: &str) -> Option<LockId> {
    let tag = key.strip_prefix(LOCK)?.strip_suffix(LOCK_ENDS)?;
    let (tenant, resource) = tag.split_once('/')?;
    Some(LockId {
        tenant: Tenant::parse(decode(tenant)?).ok()?,
        resource: Resource::parse(decode(resource)?).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim_id(tenant: &str, scope: &str, key: &str) -> ClaimId {
        ClaimId {
            tenant: Tenant::parse(tenant.to_owned()).expect("a tenant"),
            scope: Scope::parse(scope.to_owned()).expect("a scope"),
            key: IdempotencyKey::parse(key.to_owned()).expect("a key"),
        }
    }

    const AWKWARD: [&str; 10] = [
        "a",
        "a:b",
        "b:c",
        "c",
        "a/b",
        "{x}",
        "}:r",
        "%2F",
        "\"'*?[a]\\",
        " ~",
    ];

    #[test]
    fn no_two_claims_share_a_key_and_each_reads_back() {
        let mut seen = std::collections::HashSet::new();
        for scope in AWKWARD.iter().copied().chain([""]) {
            for key in AWKWARD {
                let id = claim_id("t", scope, key);
                let keys = claim(&id);
                assert_eq!(parse_claim(&keys[0]), Some(id));
                assert_eq!(parse_claim(&keys[1]), None);
                for one in keys {
                    assert!(seen.insert(one.clone()), "{one}");
                }
            }
        }
    }

    #[test]
    fn all_keys_of_one_thing_share_one_hash_tag() {
        let tag = |key: &str| -> String {
            let start = key.find('{').expect("an opening brace");
            let end = key[start..].find('}').expect("a closing brace") + start;
            assert!(end > start + 1, "an empty tag is no tag");
            key[start..=end].to_owned()
        };
        for name in AWKWARD {
            let keys = claim(&claim_id("t", name, name));
            assert!(keys.iter().all(|key| tag(key) == tag(&keys[0])));
            let id = LockId {
                tenant: Tenant::parse("t".to_owned()).expect("a tenant"),
                resource: Resource::parse(name.to_owned()).expect("a resource"),
            };
            let keys = lock(&id);
            assert!(keys.iter().all(|key| tag(key) == tag(&keys[0])));
            assert_eq!(parse_lock(&keys[1]), Some(id));
            assert_eq!(parse_lock(&keys[0]), None);
        }
    }
}
