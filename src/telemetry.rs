//! Logs: one line per event on standard error; standard output is for the addresses. Traces, where they are exported.

use std::io::{self, IsTerminal, Write};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, LogSettings, Traces};
use crate::domain::audit;
use crate::trace::{Collector, ExportError, Exporting, Protocol, SPANS};
use std::time::Instant;

/// Why logging did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A process logs to one place only.
    #[error("logging has been started before in this process")]
    StartedBefore(#[source] tracing_subscriber::util::TryInitError),
    /// Traces cannot be exported as the environment says.
    #[error(transparent)]
    Export(#[from] ExportError),
}

/// What has to be ended in order.
#[derive(Clone, Debug)]
pub struct Telemetry {
    exporting: Option<Exporting>,
}

impl Telemetry {
    /// Exports the spans that are left, no longer than until `limit`.
    pub async fn finish(self, limit: Instant) {
        if let Some(exporting) = self.exporting {
            exporting.finish(limit).await;
        }
    }
}

/// Starts logging for the whole process, and exporting traces; has to be called on the runtime.
///
/// # Errors
///
/// When it was started before, and when traces cannot be exported as the environment says.
pub fn start(settings: &LogSettings, traces: Option<&Traces>) -> Result<Telemetry, Error> {
    let exporting = traces.map(|traces| {
        let collector = Collector {
            protocol: if traces.grpc {
                Protocol::Grpc
            } else {
                Protocol::Http
            },
            tls: traces.tls,
            timeout: traces.timeout,
            kept: traces.kept,
        };
        Exporting::start(&collector, env!("CARGO_PKG_VERSION"))
    });
    let exporting = exporting.transpose()?;
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let ansi = io::stderr().is_terminal() && !no_color;
    subscriber(settings, exporting.as_ref(), ansi, io::stderr)
        .try_init()
        .map_err(Error::StartedBefore)?;
    Ok(Telemetry { exporting })
}

fn subscriber<W>(
    settings: &LogSettings,
    exporting: Option<&Exporting>,
    ansi: bool,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let audit = Targets::new().with_target(audit::TARGET, Level::INFO);
    // Spans are for whoever exports them: a log would have them built for nothing.
    // Without a hint of its own this would let the libraries' most verbose events and spans be looked at one by one.
    let not_spans =
        filter_fn(|about| about.target() != SPANS).with_max_level_hint(LevelFilter::TRACE);
    let filter = settings.level.filter().or(audit).and(not_spans);
    let lines = tracing_subscriber::fmt::layer()
        // Its report of a failed write goes to standard error, which panics when that is closed.
        .log_internal_errors(false)
        .with_ansi(ansi)
        .with_writer(OneLine(writer));
    let lines = match settings.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed(),
    };
    let registry = tracing_subscriber::registry().with(lines.with_filter(filter));
    // A layer that may be none is no way to say this: it has no filter where it is none, and has every span of every
    // library built.
    match exporting {
        Some(exporting) => Box::new(registry.with(exporting.layer())),
        None => Box::new(registry),
    }
}

/// Keeps an event on one line: a line break in a value that a caller chose could forge another.
struct OneLine<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for OneLine<W> {
    type Writer = OneLineWriter<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLineWriter(self.0.make_writer())
    }
}

struct OneLineWriter<W>(W);

impl<W: Write> Write for OneLineWriter<W> {
    /// The layer above writes each event at once.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if text.contains(&b'\n') || text.contains(&b'\r') {
            let mut line = Vec::with_capacity(event.len() + 8);
            for byte in text {
                match byte {
                    b'\n' => line.extend_from_slice(b"\\n"),
                    b'\r' => line.extend_from_slice(b"\\r"),
                    _ => line.push(*byte),
                }
            }
            line.push(b'\n');
            self.0.write_all(&line)?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::config::LogLevel;
    use crate::trace::{self, Arrival, Call, Database};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::Interest;
    use tracing::{Event, Metadata};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .expect("no test panics while it writes")
                .write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged meanwhile, line by line.
    fn logged(format: LogFormat, level: &str, events: impl FnOnce()) -> Vec<String> {
        let _alone = trace::alone();
        let level = LogLevel::parse(level).expect("tests give valid levels");
        let written = Written::default();
        let writer = written.clone();
        let settings = LogSettings { format, level };
        let subscriber = subscriber(&settings, None, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, events);
        let bytes = written.0.lock().expect("no test panics while it writes");
        let text = String::from_utf8(bytes.clone()).expect("logs are UTF-8");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_level_decides_what_is_logged() {
        let lines = logged(LogFormat::Text, "warn,claimlock::store=debug", || {
            tracing::info!("quiet");
            tracing::warn!(attempt = 3, "loud");
            tracing::debug!(target: "claimlock::store", "close");
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].contains("WARN") && lines[0].ends_with("loud attempt=3"),
            "{lines:?}"
        );
        assert!(lines[1].ends_with("claimlock::store: close"), "{lines:?}");
    }

    #[test]
    fn no_level_silences_the_audit() {
        for level in ["off", "error", "claimlock=error", "claimlock::audit=off"] {
            let lines = logged(LogFormat::Text, level, || {
                tracing::info!(target: audit::TARGET, reason = "stuck", "lock forced open");
                tracing::debug!(target: audit::TARGET, "details");
            });
            assert_eq!(lines.len(), 1, "{level}: {lines:?}");
            assert!(
                lines[0].contains("lock forced open reason=\"stuck\""),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_more_verbose_level_holds_for_the_audit_too() {
        let lines = logged(LogFormat::Text, "debug", || {
            tracing::debug!(target: audit::TARGET, "details");
        });
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn json_is_one_object_per_line_with_the_fields_beside_the_message() {
        let lines = logged(LogFormat::Json, "info", || {
            let call = tracing::info_span!("call", method = "Claim");
            call.in_scope(|| tracing::info!(outcome = "claimed", attempt = 2, "answered\nwell"));
        });
        assert_eq!(lines.len(), 1);
        let event: serde_json::Value = serde_json::from_str(&lines[0]).expect("it is JSON");
        assert_eq!(event["level"], "INFO");
        assert_eq!(event["message"], "answered\nwell");
        assert_eq!(
            (&event["outcome"], &event["attempt"]),
            (&"claimed".into(), &2.into())
        );
        assert_eq!(event["span"]["method"], "Claim");
    }

    /// Passes everything on, and counts the spans that are built.
    struct Counting<S> {
        inner: S,
        built: Arc<AtomicUsize>,
    }

    impl<S: Subscriber> Subscriber for Counting<S> {
        fn register_callsite(&self, about: &'static Metadata<'static>) -> Interest {
            self.inner.register_callsite(about)
        }

        fn enabled(&self, about: &Metadata<'_>) -> bool {
            self.inner.enabled(about)
        }

        fn max_level_hint(&self) -> Option<LevelFilter> {
            self.inner.max_level_hint()
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            self.built.fetch_add(1, Ordering::Relaxed);
            self.inner.new_span(span)
        }

        fn record(&self, span: &Id, values: &Record<'_>) {
            self.inner.record(span, values);
        }

        fn record_follows_from(&self, span: &Id, follows: &Id) {
            self.inner.record_follows_from(span, follows);
        }

        fn event(&self, event: &Event<'_>) {
            self.inner.event(event);
        }

        fn enter(&self, span: &Id) {
            self.inner.enter(span);
        }

        fn exit(&self, span: &Id) {
            self.inner.exit(span);
        }
    }

    /// How many spans are built by a call that asks Redis once, that of a library which carries it included.
    fn spans_of_a_call(subscriber: impl Subscriber + Send + Sync) -> usize {
        let _alone = trace::alone();
        let built = Arc::<AtomicUsize>::default();
        let counting = Counting {
            inner: subscriber,
            built: built.clone(),
        };
        tracing::subscriber::with_default(counting, || {
            let frame = tracing::trace_span!(target: "h2::codec", "frame");
            let _frame = frame.entered();
            let call = Call::begin(Arrival {
                method: "Claim",
                traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
                ..Arrival::default()
            });
            let database = Database {
                address: "localhost".to_owned(),
                port: None,
                namespace: "0".to_owned(),
            };
            call.during(|| drop(trace::sending(&database, "claim")));
            call.answered("OK", false);
        });
        built.load(Ordering::Relaxed)
    }

    fn logs(level: &str, exporting: Option<&Exporting>) -> impl Subscriber + Send + Sync {
        let level = LogLevel::parse(level).expect("tests give valid levels");
        let format = LogFormat::Json;
        subscriber(&LogSettings { format, level }, exporting, false, io::sink)
    }

    /// Of whatever verbosity: a log alone builds none.
    #[test]
    fn no_span_is_built_unless_traces_are_exported() {
        // That of the library where a log asks for it.
        for (level, of_library) in [
            ("info", 0),
            ("off,claimlock::spans=trace", 0),
            ("trace", 1),
            ("[call]=trace", 1),
        ] {
            let built = spans_of_a_call(logs(level, None));
            assert_eq!(built, of_library, "{level}");
        }
        // Where they are, it is seen. (Of the call alone: the exporter is not found behind what counts, and so has no ids for it.)
        let exporting = Exporting::nowhere(Some(0.0));
        assert_eq!(spans_of_a_call(logs("off", Some(&exporting))), 1);
    }

    #[test]
    fn what_the_libraries_say_at_their_most_verbose_is_not_even_looked_at() {
        let exporting = Exporting::nowhere(Some(1.0));
        for exporting in [None, Some(&exporting)] {
            let hint = logs("warn", exporting).max_level_hint();
            // The audit's level, whatever the log's own.
            assert_eq!(hint, Some(LevelFilter::INFO));
        }
    }

    #[test]
    fn a_value_cannot_forge_a_line() {
        let lines = logged(LogFormat::Text, "info", || {
            tracing::info!(reason = %"stuck\r\nINFO forged", "lock forced open");
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("stuck\\r\\nINFO forged"), "{lines:?}");
    }
}
