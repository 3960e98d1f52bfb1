//! From what the sources give to what is in force.

use std::path::{Path, PathBuf};

use clap::ArgMatches;

use super::sources::{Sources, given_on, read_file, read_secret, wrong};
use super::values::{self, address, count, duration, size};
use super::{
    Given, Loaded, LogLevel, LogSettings, Origin, RedisUrl, Settings, SettingsError, Text,
    environment, variable,
};

/// Puts together what the command line, the environment and the file say.
pub(super) fn load(
    config: Option<&Text>,
    given: &Given,
    matches: &ArgMatches,
) -> Result<Loaded, SettingsError> {
    let mut sources = Sources {
        line: Some((given, matches)),
        file: None,
        in_force: Vec::new(),
    };
    if let Some((text, origin)) = given_on(matches, "config", config) {
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
    let mut warnings = environment::unknown_variables(std::env::vars_os(), known);
    let (traces, odd) = environment::traces(|name| std::env::var_os(name)?.into_string().ok());
    warnings.extend(odd);
    Ok(Loaded {
        traces,
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
fn settle(from: &mut Sources<'_, Given>) -> Result<Settings, SettingsError> {
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
        max_connection_age: from.one(
            "max-connection-age",
            |g| &g.max_connection_age,
            "0s",
            values::duration_or_none("1s", "30d"),
        )?,
        metrics_tenants: from.one(
            "metrics-tenants",
            |g| &g.metrics_tenants,
            "0",
            count("0", "1000"),
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

impl Sources<'_, Given> {
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
}
