//! From what the sources give to what is in force.

use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::values::{self, address, count, duration, size};
use super::{
    Given, InForce, Loaded, LogLevel, LogSettings, Origin, RedisUrl, Settings, SettingsArgs,
    SettingsError, Text, environment, variable,
};

/// Where a setting stands in [`Given`].
type Field = fn(&Given) -> &Option<Text>;

/// Puts together what the command line, the environment and the file say.
pub(super) fn load(args: &SettingsArgs, matches: &ArgMatches) -> Result<Loaded, SettingsError> {
    let mut sources = Sources {
        line: Some((&args.given, matches)),
        file: None,
        in_force: Vec::new(),
    };
    if let Some((text, origin)) = given_on(matches, "config", args.config.as_ref()) {
        sources.file = Some(read_file(&text, &origin)?);
    }
    let settings = settle(&mut sources)?;
    let known = |name: &str| {
        name == variable("config")
            || sources
                .in_force
                .iter()
                .any(|one| variable(one.name) == name)
    };
    let warnings = environment::unknown_variables(std::env::vars_os(), known);
    Ok(Loaded {
        settings,
        in_force: sources.in_force,
        warnings,
    })
}

/// What is in force when no source says anything.
pub(super) fn defaults() -> Settings {
    let mut sources = Sources {
        line: None,
        file: None,
        in_force: Vec::new(),
    };
    settle(&mut sources).expect("the defaults are valid")
}

/// Names every setting with its default and its limits.
fn settle(from: &mut Sources<'_>) -> Result<Settings, SettingsError> {
    let settings = Settings {
        grpc_addr: from.one("grpc-addr", |g| &g.grpc_addr, "127.0.0.1:7420", address)?,
        http_addr: from.one("http-addr", |g| &g.http_addr, "127.0.0.1:7421", address)?,
        redis_url: from.redis_url()?,
        redis_connections: from.one(
            "redis-connections",
            |g| &g.redis_connections,
            "4",
            count("1", "64"),
        )?,
        store_timeout: from.one(
            "store-timeout",
            |g| &g.store_timeout,
            "1s",
            duration("10ms", "60s"),
        )?,
        data_dir: from.data_dir()?,
        embedded_fsync: from.one(
            "embedded-fsync",
            |g| &g.embedded_fsync,
            "everysec",
            values::fsync,
        )?,
        max_retention: from.one(
            "max-retention",
            |g| &g.max_retention,
            "30d",
            duration("1s", "10y"),
        )?,
        memory: from.one("memory", |g| &g.memory, "10m", duration("1s", "24h"))?,
        max_response_body: from.one(
            "max-response-body",
            |g| &g.max_response_body,
            "1MiB",
            size("0", "64MiB"),
        )?,
        max_response_headers: from.one(
            "max-response-headers",
            |g| &g.max_response_headers,
            "32KiB",
            size("0", "1MiB"),
        )?,
        drain_delay: from.one(
            "drain-delay",
            |g| &g.drain_delay,
            "0s",
            duration("0s", "1h"),
        )?,
        drain_grace: from.one(
            "drain-grace",
            |g| &g.drain_grace,
            "10s",
            duration("0s", "1h"),
        )?,
        log: LogSettings {
            format: from.one("log-format", |g| &g.log_format, "text", values::log_format)?,
            level: from.one("log-level", |g| &g.log_level, "info", LogLevel::parse)?,
        },
    };
    if settings.drain_delay > settings.drain_grace {
        return Err(from.at_odds(
            "drain-delay",
            "drain-grace",
            "the delay is part of the grace and has to fit in",
        ));
    }
    if settings.grpc_addr == settings.http_addr && settings.grpc_addr.port() != 0 {
        return Err(from.at_odds("grpc-addr", "http-addr", "they have to be different"));
    }
    Ok(settings)
}

struct Sources<'a> {
    /// The command line, which has the environment in it.
    line: Option<(&'a Given, &'a ArgMatches)>,
    file: Option<(PathBuf, Given)>,
    in_force: Vec<InForce>,
}

impl Sources<'_> {
    /// A setting that has a default.
    fn one<T>(
        &mut self,
        name: &'static str,
        field: Field,
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
    fn find(&self, name: &str, field: Field) -> Result<Option<(String, Origin)>, SettingsError> {
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

    fn redis_url(&mut self) -> Result<Option<RedisUrl>, SettingsError> {
        const NAME: &str = "redis-url";
        const FILE: &str = "redis-url-file";

        let url = self.find(NAME, |g| &g.redis_url)?;
        let file = self.find(FILE, |g| &g.redis_url_file)?;
        match (url, file) {
            (Some((_, url)), Some((_, file))) => Err(SettingsError::new(format!(
                "{NAME} (from {}) and {FILE} (from {}) are both given; leave one of them out",
                url.describe(NAME),
                file.describe(FILE),
            ))),
            (Some((text, origin)), None) => {
                let url = RedisUrl::parse(&text)
                    .map_err(|problem| wrong(NAME, &origin.describe(NAME), &problem))?;
                self.note(NAME, Ok(url.to_string()), origin);
                self.note(FILE, Err("not set".to_owned()), Origin::Default);
                Ok(Some(url))
            }
            (None, Some((path, origin))) => {
                let place = origin.describe(FILE);
                let secret = read_secret(Path::new(&path))
                    .map_err(|problem| wrong(FILE, &place, &problem))?;
                let url = RedisUrl::parse(&secret).map_err(|problem| {
                    wrong(NAME, &format!("file {path}, named by {place}"), &problem)
                })?;
                self.note(
                    NAME,
                    Err(format!("{url}, read from {FILE}")),
                    origin.clone(),
                );
                self.note(FILE, Ok(path), origin);
                Ok(Some(url))
            }
            (None, None) => {
                let embedded = "not set, an embedded server is used";
                self.note(NAME, Err(embedded.to_owned()), Origin::Default);
                self.note(FILE, Err("not set".to_owned()), Origin::Default);
                Ok(None)
            }
        }
    }

    fn data_dir(&mut self) -> Result<Option<PathBuf>, SettingsError> {
        const NAME: &str = "data-dir";

        if let Some((text, origin)) = self.find(NAME, |g| &g.data_dir)? {
            let folder = PathBuf::from(&text);
            self.note(NAME, Ok(text), origin);
            return Ok(Some(folder));
        }
        // Shown, but not settled: without a home folder only the embedded server has to fail.
        let shown = match super::default_data_folder() {
            Some(folder) => folder
                .into_os_string()
                .into_string()
                .map_err(|folder| format!("{}, not UTF-8", folder.display())),
            None => Err("not set, and there is no home folder to put it in".to_owned()),
        };
        self.note(NAME, shown, Origin::Default);
        Ok(None)
    }

    fn note(&mut self, name: &'static str, value: Result<String, String>, origin: Origin) {
        self.in_force.push(InForce {
            name,
            value,
            origin,
        });
    }

    /// Two settings, valid each, that do not go together.
    fn at_odds(&self, one: &str, other: &str, problem: &str) -> SettingsError {
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
fn given_on(matches: &ArgMatches, name: &str, text: Option<&Text>) -> Option<(String, Origin)> {
    let text = text?.0.clone();
    match matches.value_source(&name.replace('-', "_")) {
        Some(ValueSource::EnvVariable) if text.is_empty() => None,
        Some(ValueSource::EnvVariable) => Some((text, Origin::Environment)),
        _ => Some((text, Origin::Flag)),
    }
}

fn read_file(path: &str, origin: &Origin) -> Result<(PathBuf, Given), SettingsError> {
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

/// Files of secrets end in a line break more often than not.
fn read_secret(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let secret = line.strip_suffix('\r').unwrap_or(line);
    if secret.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    Ok(secret.to_owned())
}

fn wrong(name: &str, place: &str, problem: &str) -> SettingsError {
    SettingsError::new(format!("{name} (from {place}): {problem}"))
}
