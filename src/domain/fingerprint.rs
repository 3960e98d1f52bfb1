//! What a key was first used for, so that a key reused for something else is caught.
//!
//! Version 1 is SHA-256 over `"claimlock-1"`, the kind (`none`, `digest`, `raw`, `json`), the operation and
//! the content, each preceded by its length as eight bytes, most significant first.

use super::failure::Refused;
use super::name::Operation;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use sha2::{Digest, Sha256};
use std::fmt;

const DOMAIN: &[u8] = b"claimlock-1";
const VERSION: u8 = 1;
/// Integers beyond this may be read as another number by somebody else (RFC 7493, section 2.2).
const LARGEST_EXACT: u64 = (1 << 53) - 1;

/// A fingerprint: the byte 1 for its version, then the 32 bytes of the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(Vec<u8>);

/// What was asked for, as the caller gave it.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Nothing: only the operation is compared.
    None,
    /// A digest of the caller's own, 1 to 64 bytes.
    Digest(&'a [u8]),
    /// The bytes of a request.
    Raw(&'a [u8]),
    /// A request in JSON, brought into canonical form (RFC 8785) if it is I-JSON (RFC 7493) and nested at most 127
    /// deep, else raw.
    Json(&'a [u8]),
}

impl Fingerprint {
    /// The fingerprint of an operation and its content.
    pub fn of(operation: &Operation, content: Content<'_>) -> Result<Self, Refused> {
        let operation = operation.as_str().as_bytes();
        Ok(match content {
            Content::None => Self::hash("none", operation, b""),
            Content::Digest(digest) if (1..=64).contains(&digest.len()) => {
                Self::hash("digest", operation, digest)
            }
            Content::Digest(_) => {
                return Err(Refused::invalid("fingerprint must be 1 to 64 bytes"));
            }
            Content::Raw(bytes) => Self::hash("raw", operation, bytes),
            Content::Json(bytes) => match canonical(bytes) {
                Some(canonical) => Self::hash("json", operation, &canonical),
                None => Self::hash("raw", operation, bytes),
            },
        })
    }

    /// One that was stored, if it has the form of one.
    pub fn stored(bytes: Vec<u8>) -> Option<Self> {
        let is_one = bytes.first() == Some(&VERSION) && bytes.len() == 1 + Sha256::output_size();
        is_one.then_some(Self(bytes))
    }

    /// The bytes to store and to compare.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn hash(kind: &str, operation: &[u8], content: &[u8]) -> Self {
        let mut hash = Sha256::new();
        for part in [DOMAIN, kind.as_bytes(), operation, content] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&hash.finalize());
        Self(bytes)
    }
}

/// The canonical form (RFC 8785) of what is I-JSON, which is also what any other implementation would make of
/// it; `None` for all else.
fn canonical(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    if has_inexact_integer(text) {
        return None;
    }
    let IJson(value) = serde_json::from_str(text).ok()?;
    serde_json_canonicalizer::to_vec(&value).ok()
}

/// Whether a number is written as an integer that a double may not hold. The parser cannot tell: it hands such
/// a literal on as a float.
fn has_inexact_integer(text: &str) -> bool {
    let mut rest = text.bytes().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => skip_string(&mut rest),
            b'0'..=b'9' => {
                let mut integer = u64::from(byte - b'0');
                let mut is_integer = true;
                while let Some(next) =
                    rest.next_if(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
                {
                    match next {
                        b'0'..=b'9' => {
                            let digit = u64::from(next - b'0');
                            integer = integer.saturating_mul(10).saturating_add(digit);
                        }
                        _ => is_integer = false,
                    }
                }
                if is_integer && integer > LARGEST_EXACT {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

fn skip_string(rest: &mut impl Iterator<Item = u8>) {
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => drop(rest.next()),
            b'"' => return,
            _ => {}
        }
    }
}

/// A JSON value without duplicate names.
struct IJson(serde_json::Value);

impl<'de> serde::Deserialize<'de> for IJson {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IJsonVisitor).map(Self)
    }
}

struct IJsonVisitor;

impl<'de> Visitor<'de> for IJsonVisitor {
    type Value = serde_json::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("I-JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Self::Value, E> {
        serde_json::Number::from_f64(value)
            .map(Into::into)
            .ok_or_else(|| E::custom("a number that overflows"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(serde_json::Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(IJson(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some((name, IJson(value))) = members.next_entry::<String, IJson>()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a name that comes twice"));
            }
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &[u8]) -> Fingerprint {
        Fingerprint::of(&operation("POST /x"), Content::Json(text)).expect("json is never refused")
    }

    fn raw(text: &[u8]) -> Fingerprint {
        Fingerprint::of(&operation("POST /x"), Content::Raw(text)).expect("raw is never refused")
    }

    fn operation(text: &str) -> Operation {
        Operation::parse(text.to_owned()).expect("an operation")
    }

    #[test]
    fn key_order_and_white_space_do_not_matter_in_json() {
        assert_eq!(
            json(br#"{"b":1,"a":[1.0,"x"]}"#),
            json(b"{ \"a\" : [1, \"\\u0078\"], \"b\":1e0 }")
        );
        assert_ne!(json(br#"{"a":1}"#), json(br#"{"a":2}"#));
        assert_ne!(json(br#"{"a":1}"#), raw(br#"{"a":1}"#));
    }

    #[test]
    fn what_is_not_i_json_is_hashed_raw() {
        let cases: [&[u8]; 17] = [
            br#"{"a":1,"a":1}"#,
            br#"[{"x":{"a":1,"a":2}}]"#,
            br#""\ud800""#,
            br#""\udc00x""#,
            b"\"\xff\"",
            b"9007199254740992",
            b"-9007199254740992",
            b"[123456789012345678901234567890]",
            b"1e400",
            b"-1e400",
            b"{",
            b"",
            b"1 2",
            b"{\"a\":NaN}",
            br#"{"a":1,"\u0061":2}"#,
            b"1.7976931348623159e308",
            b"\xef\xbb\xbf1",
        ];
        for case in cases {
            assert_eq!(json(case), raw(case), "{}", String::from_utf8_lossy(case));
        }
    }

    #[test]
    fn numbers_at_the_edge_of_i_json_are_canonical() {
        for case in [
            "9007199254740991",
            "-9007199254740991",
            "1e20",
            "123456789012345678901.0",
            "\"9007199254740992\"",
        ] {
            assert_ne!(json(case.as_bytes()), raw(case.as_bytes()), "{case}");
        }
        assert_eq!(json(b"1e20"), json(b"100000000000000000000.0"));
        assert_eq!(json(b"-0.0"), json(b"0"));
        assert_eq!(json(b"-0"), json(b"0"));
    }

    #[test]
    fn names_are_sorted_by_utf_16_code_units() {
        assert_eq!(
            canonical("{\"\u{fb33}\":1,\"\u{1f600}\":2,\"\\r\":3}".as_bytes()),
            Some(
                "{\"\\r\":3,\"\u{1f600}\":2,\"\u{fb33}\":1}"
                    .as_bytes()
                    .to_vec()
            )
        );
    }

    #[test]
    fn numbers_and_strings_are_written_as_ecmascript_writes_them() {
        for (text, expected) in [
            ("1e21", "1e+21"),
            ("999999999999999900000.0", "999999999999999900000"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("5e-324", "5e-324"),
            ("-1e-400", "0"),
            ("1.7976931348623157E308", "1.7976931348623157e+308"),
            ("333333333.33333329", "333333333.3333333"),
            ("9007199254740993.0", "9007199254740992"),
            (r#""\u0000\u001f\u000a\/\u0022""#, r#""\u0000\u001f\n/\"""#),
            (r#""\u007f\ud83d\ude00""#, "\"\u{7f}\u{1f600}\""),
            (r#"{"9007199254740992":1}"#, r#"{"9007199254740992":1}"#),
            (r#"["\\\"9007199254740992"]"#, r#"["\\\"9007199254740992"]"#),
        ] {
            let canonical = canonical(text.as_bytes());
            assert_eq!(canonical.as_deref(), Some(expected.as_bytes()), "{text}");
        }
    }

    #[test]
    fn json_nested_too_deep_to_be_parsed_safely_is_hashed_raw() {
        let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
        for (depth, is_raw) in [(127, false), (128, true), (1_000_000, true)] {
            let text = nested(depth);
            assert_eq!(
                json(text.as_bytes()) == raw(text.as_bytes()),
                is_raw,
                "{depth}"
            );
        }
    }

    #[test]
    fn each_part_is_told_apart() {
        let all = [
            Fingerprint::of(&operation("a"), Content::None),
            Fingerprint::of(&operation("b"), Content::None),
            Fingerprint::of(&operation(""), Content::Raw(b"a")),
            Fingerprint::of(&operation("a"), Content::Raw(b"")),
            Fingerprint::of(&operation("a"), Content::Digest(b"x")),
            Fingerprint::of(&operation("a"), Content::Raw(b"x")),
            Fingerprint::of(&operation("ax"), Content::Raw(b"")),
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                assert_ne!(one, other);
            }
        }
    }

    #[test]
    fn a_digest_has_one_to_sixty_four_bytes() {
        for (length, good) in [(0, false), (1, true), (64, true), (65, false)] {
            let digest = vec![7; length];
            let result = Fingerprint::of(&operation(""), Content::Digest(&digest));
            assert_eq!(result.is_ok(), good, "{length}");
        }
    }

    #[test]
    fn version_one_never_changes() {
        let fingerprint = Fingerprint::of(
            &operation("POST /v1/charges"),
            Content::Json(br#"{"amount":10}"#),
        )
        .expect("json is never refused");
        let hex: String = fingerprint
            .as_bytes()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        // Computed apart from this code, with Python's hashlib.
        assert_eq!(
            hex,
            "01a87d7f0390e8393281115fa71973e8addac966d1d956ab6614e98b60f36c11cf"
        );
    }
}
