//! Tables of good and bad values, field by field.

use prost_types::Duration;
use std::collections::BTreeSet;

/// What comes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Taken,
    Refused { reason: &'static str },
}

type Set<R> = Box<dyn Fn(&mut R)>;

/// One value of one field, in a request that is good without it.
pub(super) struct Case<R> {
    /// As a BadRequest names it.
    pub(super) field: String,
    pub(super) what: String,
    /// A text, which no message may repeat.
    pub(super) value: Option<String>,
    pub(super) set: Set<R>,
    pub(super) expected: Expected,
    /// It leaves no room for the bad values of other fields.
    alone: bool,
}

/// The cases of one request.
pub(super) struct Table<R> {
    /// What each case changes one field of.
    pub(super) request: R,
    /// Makes the requests of good cases ones that do not meet.
    pub(super) vary: fn(&mut R, usize),
    cases: Vec<Case<R>>,
    /// Fields that take any value, and why that is right.
    free: Vec<(&'static str, &'static str)>,
}

impl<R: Clone + 'static> Table<R> {
    pub(super) fn of(request: R) -> Self {
        Self {
            request,
            vary: |_, _| {},
            cases: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn bad(&self) -> impl Iterator<Item = &Case<R>> {
        self.cases
            .iter()
            .filter(|case| case.expected != Expected::Taken)
    }

    pub(super) fn good(&self) -> impl Iterator<Item = &Case<R>> {
        self.cases
            .iter()
            .filter(|case| case.expected == Expected::Taken)
    }

    /// Every field that has a bad case or needs none, without the indices of repeated ones.
    pub(super) fn fields(&self) -> BTreeSet<String> {
        let bad = self.bad().map(|case| match case.field.split_once('[') {
            Some((before, after)) => {
                let (_, after) = after.split_once(']').expect("brackets come in pairs");
                format!("{before}{after}")
            }
            None => case.field.clone(),
        });
        bad.chain(self.free.iter().map(|(field, _)| (*field).to_owned()))
            .collect()
    }

    /// A request with one bad value of each field that can be combined, and what these fields are called.
    pub(super) fn all_bad_at_once(&self) -> (R, BTreeSet<String>) {
        let mut request = self.request.clone();
        let mut fields = BTreeSet::new();
        for case in self.bad().filter(|case| !case.alone) {
            if fields.insert(case.field.clone()) {
                (case.set)(&mut request);
            }
        }
        (request, fields)
    }

    pub(super) fn takes_anything(mut self, field: &'static str, why: &'static str) -> Self {
        self.free.push((field, why));
        self
    }

    pub(super) fn takes(self, field: &str, what: &str, set: impl Fn(&mut R) + 'static) -> Self {
        self.case(field, what, Expected::Taken, set)
    }

    pub(super) fn refuses(self, field: &str, what: &str, set: impl Fn(&mut R) + 'static) -> Self {
        let reason = "INVALID_FIELD";
        self.case(field, what, Expected::Refused { reason }, set)
    }

    /// The same for a value that cannot be combined with the bad values of other fields.
    pub(super) fn refuses_alone(
        self,
        field: &str,
        what: &str,
        set: impl Fn(&mut R) + 'static,
    ) -> Self {
        let mut table = self.refuses(field, what, set);
        table.last().alone = true;
        table
    }

    pub(super) fn refuses_as_too_large(
        self,
        field: &str,
        what: &str,
        set: impl Fn(&mut R) + 'static,
    ) -> Self {
        let reason = "TOO_LARGE";
        self.case(field, what, Expected::Refused { reason }, set)
    }

    fn case(
        mut self,
        field: &str,
        what: &str,
        expected: Expected,
        set: impl Fn(&mut R) + 'static,
    ) -> Self {
        self.cases.push(Case {
            field: field.to_owned(),
            what: what.to_owned(),
            value: None,
            set: Box::new(set),
            expected,
            alone: false,
        });
        self
    }

    fn last(&mut self) -> &mut Case<R> {
        self.cases.last_mut().expect("a case was just added")
    }

    pub(super) fn text(
        mut self,
        field: &str,
        at: fn(&mut R) -> &mut String,
        values: Texts,
    ) -> Self {
        for (value, is_good) in values.all() {
            let start: String = value.chars().take(40).collect();
            let what = format!("{start:?}, of {} bytes", value.len());
            let set = {
                let value = value.clone();
                move |request: &mut R| at(request).clone_from(&value)
            };
            self = if is_good {
                self.takes(field, &what, set)
            } else {
                self.refuses(field, &what, set)
            };
            self.last().value = Some(value);
        }
        self
    }

    /// A duration from `least` to `most`; `least` may be zero.
    pub(super) fn duration(
        mut self,
        field: &str,
        at: fn(&mut R) -> &mut Option<Duration>,
        least: std::time::Duration,
        most: std::time::Duration,
    ) -> Self {
        let nanosecond = std::time::Duration::from_nanos(1);
        let of = |duration| Duration::try_from(duration).expect("a bound fits");
        let mut bad = vec![
            raw(-1, 0),
            raw(0, -1),
            raw(-1, 1),
            raw(1, -1),
            raw(0, 1_000_000_000),
            raw(1, i32::MAX),
            raw(1, i32::MIN),
            raw(i64::MAX, 999_999_999),
            raw(i64::MIN, 0),
            of(most + nanosecond),
        ];
        if let Some(less) = least.checked_sub(nanosecond) {
            bad.extend([of(less), raw(0, 0)]);
        }
        let of_bad = bad.into_iter().map(|value| (value, false));
        let of_good = [of(least), of(most)].map(|value| (value, true));
        for (value, is_good) in of_bad.chain(of_good) {
            let what = format!("{} s {} ns", value.seconds, value.nanos);
            let set = move |request: &mut R| *at(request) = Some(value);
            self = if is_good {
                self.takes(field, &what, set)
            } else {
                self.refuses(field, &what, set)
            };
        }
        self
    }

    /// An enum with the values 0 to `last`.
    pub(super) fn known(mut self, field: &str, at: fn(&mut R) -> &mut i32, last: i32) -> Self {
        for value in [-1, last + 1, i32::MAX, i32::MIN] {
            let set = move |request: &mut R| *at(request) = value;
            self = self.refuses(field, &value.to_string(), set);
        }
        for value in 0..=last {
            let set = move |request: &mut R| *at(request) = value;
            self = self.takes(field, &value.to_string(), set);
        }
        self
    }

    /// A number from `least` to `most`.
    pub(super) fn number<N>(
        mut self,
        field: &str,
        at: fn(&mut R) -> &mut N,
        bad: &[N],
        good: &[N],
    ) -> Self
    where
        N: Copy + ToString + 'static,
    {
        for value in bad.iter().copied() {
            let set = move |request: &mut R| *at(request) = value;
            self = self.refuses(field, &value.to_string(), set);
        }
        for value in good.iter().copied() {
            let set = move |request: &mut R| *at(request) = value;
            self = self.takes(field, &value.to_string(), set);
        }
        self
    }
}

fn raw(seconds: i64, nanos: i32) -> Duration {
    Duration { seconds, nanos }
}

/// Texts of a kind: bad ones and good ones.
pub(super) struct Texts {
    bad: Vec<String>,
    good: Vec<String>,
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl Texts {
    fn all(self) -> impl Iterator<Item = (String, bool)> {
        let bad = self.bad.into_iter().map(|text| (text, false));
        bad.chain(self.good.into_iter().map(|text| (text, true)))
    }

    fn and_none(mut self, is_good: bool) -> Self {
        if is_good {
            self.good.push(String::new());
        } else {
            self.bad.push(String::new());
        }
        self
    }

    /// 1 to 64 of `[A-Za-z0-9._-]`, or none.
    pub(super) fn tenants() -> Self {
        let mut bad = owned(&[
            "two words",
            "a/b",
            "a:b",
            "{a}",
            "a%b",
            "a\nb",
            "a\0b",
            "a\u{7f}",
            "mün",
            "*",
            "a,b",
        ]);
        bad.push("t".repeat(65));
        let mut good = owned(&["a", "0", ".", "-", "_", "AZaz09._-"]);
        good.push("t".repeat(64));
        Self { bad, good }.and_none(true)
    }

    /// At most 255 printable ASCII characters, or one at least.
    pub(super) fn printable(at_least: usize) -> Self {
        let mut bad = owned(&[
            "é",
            "€uro",
            "😀",
            "a\u{80}b",
            "tab\there",
            "line\nbreak",
            "cr\rhere",
            "nul\0here",
            "\u{1f}",
            "del\u{7f}",
            "soft\u{ad}hyphen",
        ]);
        bad.push("n".repeat(256));
        bad.push("n".repeat(100_000));
        let good = vec![
            " ".to_owned(),
            "~".to_owned(),
            (b' '..=b'~').map(char::from).collect(),
            "n".repeat(255),
        ];
        Self { bad, good }.and_none(at_least == 0)
    }

    /// 16 to 64 of `[A-Za-z0-9_-]`, or none where the server makes one.
    pub(super) fn tokens(none_is_good: bool) -> Self {
        let good_token = "0123456789abcdef";
        let mut bad: Vec<String> = [
            "!", " ", ".", "/", "+", "=", "\n", "\0", "é", "~", "{", "\u{7f}",
        ]
        .iter()
        .map(|one| format!("{good_token}{one}"))
        .collect();
        bad.push("t".repeat(15));
        bad.push("t".repeat(65));
        let good = vec![
            good_token.to_owned(),
            "t".repeat(64),
            "AZaz09_-AZaz09_-".to_owned(),
            "-".repeat(16),
        ];
        Self { bad, good }.and_none(none_is_good)
    }

    /// At most so many bytes of UTF-8, whatever they say.
    pub(super) fn short(most: usize) -> Self {
        let bad = vec!["n".repeat(most + 1), "é".repeat(most / 2 + 1)];
        let good = vec![
            "n".repeat(most),
            "é".repeat(most / 2),
            "😀\u{200f}\n\0\u{7f}".to_owned(),
        ];
        Self { bad, good }.and_none(true)
    }

    /// At most 1 KiB, and something for people to read.
    pub(super) fn operators_reasons() -> Self {
        let mut reasons = Self::short(1024);
        reasons.good.retain(|reason| !reason.is_empty());
        reasons
            .bad
            .extend(owned(&["   ", "\n\t", "\u{a0}\u{2003}"]));
        reasons.and_none(false)
    }

    /// None that a listing has made.
    pub(super) fn page_tokens() -> Self {
        let mut bad = owned(&["x", "%%%", "AAAA", "zzzzzzzzzzzzzzzz", "é", "a\0b", "=="]);
        bad.push("A".repeat(100_000));
        Self {
            bad,
            good: Vec::new(),
        }
        .and_none(true)
    }
}
