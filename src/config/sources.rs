//! Where settings come from, and what is told of one that is wrong.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::{Given, InForce, Origin, SettingsError, Text};

/// Where a setting stands among those that a source can give.
pub(super) type Field<G> = fn(&G) -> &Option<Text>;

/// The sources of the settings `G`, and what has been found in them.
pub(super) struct Sources<'a, G> {
    /// The command line, which has the environment in it.
    pub(super) line: Option<(&'a G, &'a ArgMatches)>,
    pub(super) file: Option<(PathBuf, G)>,
    pub(super) in_force: Vec<InForce>,
}

impl<G> Sources<'_, G> {
    /// A setting that has a default.
    pub(super) fn one<T>(
        &mut self,
        name: &'static str,
        field: Field<G>,
        default: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, SettingsError> {
        let (text, origin) = self
            .find(name, field)?
            .unwrap_or_else(|| (default.to_owned(), Origin::Default));
        let value =
            parse(&text).map_err(|problem| wrong(name, &origin.describe(name), &problem))?;
        self.note(name, Ok(text), origin);
        Ok(value)
    }

    /// The text of a setting from the first source that gives it.
    pub(super) fn find(
        &self,
        name: &str,
        field: Field<G>,
    ) -> Result<Option<(String, Origin)>, SettingsError> {
        let on_line = self
            .line
            .and_then(|(given, matches)| given_on(matches, name, field(given).as_ref()));
        let found = on_line.or_else(|| {
            let (path, given) = self.file.as_ref()?;
            Some((field(given).as_ref()?.0.clone(), Origin::File(path.clone())))
        });
        match &found {
            Some((text, origin)) if text.is_empty() => {
                let problem = "is empty; leave the setting out to get its default";
                Err(wrong(name, &origin.describe(name), problem))
            }
            _ => Ok(found),
        }
    }

    pub(super) fn note(
        &mut self,
        name: &'static str,
        value: Result<String, String>,
        origin: Origin,
    ) {
        self.in_force.push(InForce {
            name,
            value,
            origin,
        });
    }

    /// Two settings, valid each, that do not go together.
    pub(super) fn at_odds(&self, one: &str, other: &str, problem: &str) -> SettingsError {
        let describe = |name: &str| {
            let found = self.in_force.iter().find(|setting| setting.name == name);
            let setting = found.expect("it was settled before");
            let text = setting.value.as_deref().unwrap_or_default();
            format!("{name} ({text:?} from {})", setting.origin.describe(name))
        };
        SettingsError::new(format!(
            "{} and {}: {problem}",
            describe(one),
            describe(other)
        ))
    }
}

/// What the command line or the environment says; an empty variable says nothing.
pub(super) fn given_on(
    matches: &ArgMatches,
    name: &str,
    text: Option<&Text>,
) -> Option<(String, Origin)> {
    let text = text?.0.clone();
    match matches.value_source(&name.replace('-', "_")) {
        Some(ValueSource::EnvVariable) if text.is_empty() => None,
        Some(ValueSource::EnvVariable) => Some((text, Origin::Environment)),
        _ => Some((text, Origin::Flag)),
    }
}

pub(super) fn read_file(path: &str, origin: &Origin) -> Result<(PathBuf, Given), SettingsError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        wrong(
            "config",
            &origin.describe("config"),
            &format!("cannot read {path:?}: {error}"),
        )
    })?;
    let given = toml::from_str(&text).map_err(|error| {
        // The error's own text quotes the line, and the line may hold a secret.
        let line = error.span().map_or(1, |span| {
            1 + text
                .bytes()
                .take(span.start)
                .filter(|byte| *byte == b'\n')
                .count()
        });
        SettingsError::new(format!("file {path}, line {line}: {}", error.message()))
    })?;
    Ok((PathBuf::from(path), given))
}

pub(super) fn wrong(name: &str, place: &str, problem: &str) -> SettingsError {
    SettingsError::new(format!("{name} (from {place}): {problem}"))
}

/// Files of secrets end in a line break more often than not.
pub(super) fn read_secret(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let secret = line.strip_suffix('\r').unwrap_or(line);
    if secret.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    Ok(secret.to_owned())
}
