//! The ids of W3C Trace Context.

use std::fmt;

/// Names a trace: sixteen bytes, not all of them zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub(super) [u8; 16]);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A span of some trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanIds {
    pub(super) trace: TraceId,
    pub(super) span: [u8; 8],
    /// Whether it was kept, as far as is known.
    pub(super) sampled: bool,
}

impl SpanIds {
    /// Those of a header `traceparent` (W3C Trace Context, "traceparent Header"): version, trace id, span id and flags. A
    /// later version may have more behind them.
    pub(super) fn parse(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let [version] = hex(parts.next()?)?;
        let trace = hex(parts.next()?)?;
        let span = hex(parts.next()?)?;
        let [flags]: [u8; 1] = hex(parts.next()?)?;
        let ends_there = parts.next().is_none();
        let is_valid = trace != [0; 16] && span != [0; 8] && version != 0xff;
        (is_valid && (ends_there || version > 0)).then_some(Self {
            trace: TraceId(trace),
            span,
            sampled: flags & 1 == 1,
        })
    }
}

/// The call that made a grant, in the bytes that its record keeps: the trace's sixteen, and the span's eight where there is one
/// that somebody can look at. Empty where it was not traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin(Vec<u8>);

impl Origin {
    pub(super) fn of_span(ids: SpanIds) -> Self {
        Self([&ids.trace.0[..], &ids.span].concat())
    }

    pub(super) fn of_trace(trace: TraceId) -> Self {
        Self(trace.0.to_vec())
    }

    /// As a record has it.
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// As a record keeps it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its trace.
    pub fn trace_id(&self) -> Option<TraceId> {
        Some(TraceId(*self.0.first_chunk()?))
    }

    pub(super) fn span(&self) -> Option<SpanIds> {
        Some(SpanIds {
            trace: self.trace_id()?,
            span: *self.0.get(16..)?.first_chunk()?,
            sampled: true,
        })
    }
}

/// Lower-case digits of exactly so many bytes.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_traceparent_has_four_fields() {
        let ids = SpanIds::parse(&format!("00-{TRACE}-b7ad6b7169203331-01"));
        let ids = ids.expect("it is the example of the standard");
        assert_eq!(ids.trace.to_string(), TRACE);
        assert_eq!(ids.span, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert!(ids.sampled);
        let unsampled = SpanIds::parse(&format!("00-{TRACE}-b7ad6b7169203331-00"));
        assert!(!unsampled.expect("it is valid").sampled);
        let later = SpanIds::parse(&format!("01-{TRACE}-b7ad6b7169203331-01-more"));
        assert!(later.is_some());
    }

    #[test]
    fn an_origin_keeps_a_trace_or_a_span_or_neither() {
        let ids = SpanIds::parse(&format!("00-{TRACE}-b7ad6b7169203331-01"));
        let ids = ids.expect("it is the example of the standard");
        let kept = |origin: Origin| {
            let origin = Origin::of_bytes(origin.as_bytes().to_vec());
            (origin.trace_id(), origin.span())
        };
        assert_eq!(kept(Origin::of_span(ids)), (Some(ids.trace), Some(ids)));
        assert_eq!(kept(Origin::of_trace(ids.trace)), (Some(ids.trace), None));
        assert_eq!(kept(Origin::default()), (None, None));
    }

    #[test]
    fn what_is_no_traceparent_is_none() {
        let zeros = "0".repeat(32);
        for bad in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-b7ad6b7169203331"),
            format!("00-{TRACE}-b7ad6b7169203331-01-more"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            format!("00-{TRACE}-b7ad6b716920333-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{zeros}-b7ad6b7169203331-01"),
            format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-b7ad6b7169203331-\u{e9}"),
        ] {
            assert_eq!(SpanIds::parse(&bad), None, "{bad:?}");
        }
    }
}
