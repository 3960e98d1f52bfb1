//! The Lua scripts, called without the service, and held to what their headers document.

use super::timed::TimedRedis;
use redis::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A script's whole text, put together as the service does it: a shebang stays first, the shared parts follow it.
pub fn assemble(family: &str, name: &str) -> String {
    let body = read_lua(&format!("{name}.lua"));
    let shared = shared(family);
    match body.split_once('\n') {
        Some((shebang, rest)) if shebang.starts_with("#!") => [shebang, &shared, rest].join("\n"),
        _ => [shared, body].join("\n"),
    }
}

/// What stands in front of each script of a family.
fn shared(family: &str) -> String {
    let mut shared = vec![
        read_lua("shared/base.lua"),
        read_lua(&format!("shared/{family}.lua")),
    ];
    if family == "lock" {
        shared.push(read_lua("shared/queue.lua"));
    }
    shared.join("\n")
}

fn read_lua(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a script returned after `now`: numbers as text, arrays as `[a, b]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub now: i64,
    pub kind: String,
    pub fields: Vec<String>,
}

impl Reply {
    /// Kind and fields in one row, as a test writes them.
    pub fn row(&self) -> Vec<&str> {
        let kind = [self.kind.as_str()].into_iter();
        kind.chain(self.fields.iter().map(String::as_str)).collect()
    }
}

/// A server, and what its scripts returned so far.
#[derive(Debug)]
pub struct Scripts {
    pub redis: TimedRedis,
    /// For how long tokens are remembered.
    pub memory: Duration,
    /// What services say of it to the scripts that ask.
    pub redis_was_away: bool,
    family: &'static str,
    keys: fn(&str) -> Vec<String>,
    /// Per script, what of its header has been seen.
    seen: BTreeMap<String, BTreeSet<String>>,
}

/// What all scripts take first.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    pub not_after: i64,
    pub highest_seen: i64,
    pub memory: Duration,
}

impl Default for Common {
    fn default() -> Self {
        Self {
            not_after: 1 << 53,
            highest_seen: 0,
            memory: Duration::from_secs(600),
        }
    }
}

impl Scripts {
    /// The scripts of one family, each given the KEYS that `keys` makes of a name.
    pub async fn start(family: &'static str, keys: fn(&str) -> Vec<String>) -> Self {
        Self {
            redis: TimedRedis::start().await,
            memory: Common::default().memory,
            redis_was_away: false,
            family,
            keys,
            seen: BTreeMap::new(),
        }
    }

    pub async fn run(&mut self, script: &str, name: &str, arguments: &[String]) -> Reply {
        let common = Common {
            memory: self.memory,
            ..Common::default()
        };
        self.run_with(common, script, name, arguments).await
    }

    /// Too late: what the call was to do is of no interest, since it does nothing.
    pub async fn run_late(&mut self, script: &str, name: &str, arguments: &[String]) -> Reply {
        let common = Common {
            not_after: self.redis.now().await - 1,
            ..Common::default()
        };
        self.run_with(common, script, name, arguments).await
    }

    /// Panics where the script returns what its header does not document.
    pub async fn run_with(
        &mut self,
        common: Common,
        script: &str,
        name: &str,
        arguments: &[String],
    ) -> Reply {
        let text = assemble(self.family, script);
        let keys = (self.keys)(name);
        let mut command = redis::cmd("EVAL");
        command.arg(&text).arg(keys.len()).arg(keys);
        command.arg(common.not_after).arg(common.highest_seen);
        let memory = u64::try_from(common.memory.as_millis()).expect("a test's memory is short");
        command.arg(memory).arg(arguments);
        let value: Value = command
            .query_async(&mut self.redis.connection())
            .await
            .unwrap_or_else(|error| panic!("{script} failed: {error}"));

        let Value::Array(values) = value else {
            panic!("{script} returned {value:?}");
        };
        let [Value::Int(now), kind, fields @ ..] = &values[..] else {
            panic!("{script} returned {values:?}");
        };
        let reply = Reply {
            now: *now,
            kind: as_text(kind),
            fields: fields.iter().map(as_text).collect(),
        };
        let documented = returns_in_header(&text);
        let Some(entry) = documented
            .iter()
            .find(|entry| entry.describes(&reply.kind, fields))
        else {
            panic!("the header of {script} does not document {values:?}");
        };
        self.seen
            .entry(script.to_owned())
            .or_default()
            .insert(entry.label(&reply.fields));
        reply
    }

    /// Runs a script of the test's own behind the shared parts. Returns the time and, of each value that it returned, the
    /// texts: one of a scalar, any number of a list.
    pub async fn look(&mut self, name: &str, body: &str) -> (i64, Vec<Vec<String>>) {
        let text = [&shared(self.family), body].join("\n");
        let keys = (self.keys)(name);
        let common = Common::default();
        let value: Value = redis::cmd("EVAL")
            .arg(&text)
            .arg(keys.len())
            .arg(keys)
            .arg(common.not_after)
            .arg(common.highest_seen)
            .arg(common.memory.as_secs() * 1000)
            .query_async(&mut self.redis.connection())
            .await
            .expect("a test's own script runs");
        match value {
            Value::Array(values) => match &values[..] {
                [Value::Int(now), _, values @ ..] => (*now, values.iter().map(as_texts).collect()),
                other => panic!("it returned {other:?}"),
            },
            other => panic!("it returned {other:?}"),
        }
    }

    /// Everything that the script's header documents has been returned.
    pub fn assert_header_was_seen(&self, script: &str) {
        let documented = returns_in_header(&assemble(self.family, script));
        let documented: BTreeSet<String> = documented.iter().flat_map(Return::labels).collect();
        assert_eq!(
            self.seen.get(script),
            Some(&documented),
            "returns of {script}: left was seen, right is documented"
        );
    }
}

fn as_texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().map(as_text).collect(),
        other => vec![as_text(other)],
    }
}

fn as_text(value: &Value) -> String {
    match value {
        Value::Int(integer) => integer.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(as_text).collect();
            format!("[{}]", values.join(", "))
        }
        other => panic!("no script returns {other:?}"),
    }
}

/// One line of a header's "Returns".
#[derive(Clone, Debug)]
struct Return {
    kind: String,
    fields: Vec<String>,
    /// The reasons of a loss; empty for any other kind.
    reasons: Vec<String>,
}

impl Return {
    /// `'kind', field, {field, field}}: description`
    fn parse(text: &str) -> Self {
        let end = closing_brace(text).unwrap_or_else(|| panic!("no closing brace in {text:?}"));
        let mut parts = split_at_commas(&text[..end]).into_iter();
        let kind = parts.next().expect("a split text has a first part");
        let fields: Vec<String> = parts.collect();
        let reasons = match fields.as_slice() {
            [only] if only == "reason" => capitals(&text[end..]),
            _ => vec![],
        };
        Self {
            kind: kind.trim_matches('\'').to_owned(),
            fields,
            reasons,
        }
    }

    /// An array that the header spells out has as many elements; one that it only names may have any.
    fn describes(&self, kind: &str, fields: &[Value]) -> bool {
        let alike = |(documented, value): (&String, &Value)| match documented.strip_prefix('{') {
            None => true,
            Some(inner) if inner.contains("...") => matches!(value, Value::Array(_)),
            Some(inner) => {
                let length = split_at_commas(inner.trim_end_matches('}')).len();
                matches!(value, Value::Array(values) if values.len() == length)
            }
        };
        self.kind == kind
            && self.fields.len() == fields.len()
            && self.fields.iter().zip(fields).all(alike)
    }

    fn label(&self, fields: &[String]) -> String {
        match self.reasons.as_slice() {
            [] => format!("{} {}", self.kind, self.fields.join(", ")),
            _ => format!("{} {}", self.kind, fields.join(", ")),
        }
    }

    fn labels(&self) -> Vec<String> {
        match self.reasons.as_slice() {
            [] => vec![self.label(&[])],
            reasons => reasons
                .iter()
                .map(|reason| self.label(std::slice::from_ref(reason)))
                .collect(),
        }
    }
}

/// The part of a header that begins with "Returns after {now," and goes on as long as lines are indented.
fn returns_in_header(text: &str) -> Vec<Return> {
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("-- Returns after {now,"));
    let mut returns: Vec<String> = Vec::new();
    for line in lines.skip(1).map_while(|line| line.strip_prefix("--   ")) {
        match returns.last_mut() {
            Some(last) if !line.starts_with('\'') => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ => returns.push(line.to_owned()),
        }
    }
    returns.iter().map(|text| Return::parse(text)).collect()
}

fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.find(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        depth < 0
    })
}

fn split_at_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match (c, parts.last_mut()) {
            (',', _) if depth == 0 => parts.push(String::new()),
            (_, Some(part)) => part.push(c),
            (_, None) => {}
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

/// The words in capitals, underscores included.
fn capitals(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    text.split(|c: char| !is_part(c))
        .filter(|word| word.len() > 2)
        .map(str::to_owned)
        .collect()
}
