//! Names: of tenants, scopes, keys, operations, holders and resources.

use super::failure::Refused;

fn printable_ascii(text: &str, at_least: usize, what: &str) -> Result<(), Refused> {
    let fits = (at_least..=255).contains(&text.len());
    if fits && text.bytes().all(|b| (0x20..=0x7e).contains(&b)) {
        return Ok(());
    }
    Err(Refused::invalid(format!(
        "{what} must be {at_least} to 255 printable ASCII characters"
    )))
}

fn short_utf8(text: &str, most: usize, what: &str) -> Result<(), Refused> {
    if text.len() <= most {
        return Ok(());
    }
    Err(Refused::invalid(format!(
        "{what} must be at most {most} bytes of UTF-8"
    )))
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $type(String);

        impl $type {
            /// Takes the text if it is one.
            pub fn parse(text: String) -> Result<Self, Refused> {
                let check: fn(&str) -> Result<(), Refused> = $check;
                check(&text)?;
                Ok(Self(text))
            }

            /// The text as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// Who runs the service that asks: 1 to 64 of `[A-Za-z0-9._-]`.
    Tenant,
    |text| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
            return Ok(());
        }
        Err(Refused::invalid("tenant must be 1 to 64 of [A-Za-z0-9._-]"))
    }
);

impl Tenant {
    /// The tenant of a request that names none and carries no credential.
    pub fn or_default(text: String) -> Result<Self, Refused> {
        if text.is_empty() {
            return Ok(Self("default".to_owned()));
        }
        Self::parse(text)
    }
}

name!(
    /// Whose key it is: at most 255 printable ASCII characters; may be empty.
    Scope,
    |text| printable_ascii(text, 0, "scope")
);

name!(
    /// An idempotency key as the end client sent it: 1 to 255 printable ASCII characters.
    IdempotencyKey,
    |text| printable_ascii(text, 1, "key")
);

name!(
    /// What is locked: 1 to 255 printable ASCII characters.
    Resource,
    |text| printable_ascii(text, 1, "resource")
);

name!(
    /// The first characters of a key or resource, to list by; may be empty.
    Prefix,
    |text| printable_ascii(text, 0, "prefix")
);

name!(
    /// What a key is used for, such as `POST /v1/charges`: at most 255 bytes of UTF-8.
    Operation,
    |text| short_utf8(text, 255, "operation")
);

impl Operation {
    /// That of a request that names none.
    pub fn unnamed() -> Self {
        Self(String::new())
    }
}

name!(
    /// Who asks, for people to read: at most 255 bytes of UTF-8.
    Holder,
    |text| short_utf8(text, 255, "holder")
);

name!(
    /// Why a claim is given up: at most 1 KiB of UTF-8; may be empty.
    AbandonReason,
    |text| short_utf8(text, 1024, "reason")
);

name!(
    /// Why an operator changes something: 1 byte to 1 KiB of UTF-8, for the audit log.
    OperatorReason,
    |text| {
        if text.trim().is_empty() {
            return Err(Refused::invalid("reason must be given: it goes to the audit log"));
        }
        short_utf8(text, 1024, "reason")
    }
);

/// The full name of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimId {
    /// The boundary of credentials and quotas.
    pub tenant: Tenant,
    /// Whose key it is.
    pub scope: Scope,
    /// The idempotency key.
    pub key: IdempotencyKey,
}

/// The full name of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockId {
    /// The boundary of credentials and quotas.
    pub tenant: Tenant,
    /// What is locked.
    pub resource: Resource,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_made_of_few_characters() {
        for good in ["a", "A.b_c-9", &"x".repeat(64)] {
            assert!(Tenant::parse(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "ü", "{a}", &"x".repeat(65)] {
            assert!(Tenant::parse(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_is_printable_ascii_and_not_empty() {
        for good in ["k", " ", "~", "{a}/%\"'", &"x".repeat(255)] {
            assert!(IdempotencyKey::parse(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "\u{7f}", "a\nb", "é", "a\0", &"x".repeat(256)] {
            assert!(IdempotencyKey::parse(bad.to_owned()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_operation_counts_bytes_not_characters() {
        assert!(Operation::parse("é".repeat(127)).is_ok());
        assert!(Operation::parse("é".repeat(128)).is_err());
    }
}
