//! Variables that are no settings: whose name begins as ours do, but that nothing reads, and those of OpenTelemetry, which
//! mean the same to every program.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

/// What every variable of Claimlock begins with.
pub const PREFIX: &str = "CLAIMLOCK_";

/// What the clients and the subcommands that act as one read, and what `once` and `lock` tell their commands; `serve` has
/// no use for them.
pub const CLIENT_VARIABLES: [&str; 14] = [
    "CLAIMLOCK_ENDPOINT",
    "CLAIMLOCK_TENANT",
    "CLAIMLOCK_CREDENTIAL",
    "CLAIMLOCK_CREDENTIAL_FILE",
    "CLAIMLOCK_CA_FILE",
    "CLAIMLOCK_CLIENT_CERT_FILE",
    "CLAIMLOCK_CLIENT_KEY_FILE",
    "CLAIMLOCK_CALL_TIMEOUT",
    "CLAIMLOCK_KEY",
    "CLAIMLOCK_RESOURCE",
    "CLAIMLOCK_TOKEN",
    "CLAIMLOCK_FENCING_TOKEN",
    "CLAIMLOCK_ATTEMPT",
    "CLAIMLOCK_TAKEN_OVER",
];

/// Something odd that does not stop the service; to be logged once logging has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The environment variables that it is about.
    pub variables: Vec<String>,
    /// What is odd about them, and what to do.
    pub advice: &'static str,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variables.join(", "), self.advice)
    }
}

/// Where OpenTelemetry's own variables have traces sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Traces {
    /// OTLP over gRPC; over HTTP otherwise.
    pub grpc: bool,
    /// Whether by TLS.
    pub tls: bool,
    /// How long one batch may take.
    pub timeout: Duration,
    /// Which share of the traces that no caller began is kept, with a sampler that otherwise does as the caller does.
    pub kept: Option<f64>,
}

const PROTOCOLS: &str = "the protocols are grpc and http/protobuf; http/protobuf is used";
const EXPORTERS: &str = "the exporters of traces are otlp and none; no traces are exported";

/// Whether and how traces are exported, and what is odd about that. The variables are those of OpenTelemetry ("OTLP Exporter
/// Configuration", "Environment Variable Specification"); one that is empty is not set. All others, the libraries read.
pub(super) fn traces(variable: impl Fn(&str) -> Option<String>) -> (Option<Traces>, Vec<Warning>) {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let of_traces = |name: &str| {
        [
            format!("OTEL_EXPORTER_OTLP_TRACES_{name}"),
            format!("OTEL_EXPORTER_OTLP_{name}"),
        ]
        .into_iter()
        .find_map(|name| variable(&name).map(|value| (name, value)))
    };
    let odd = |name: &str, advice| Warning {
        variables: vec![name.to_owned()],
        advice,
    };

    let Some((_, endpoint)) = of_traces("ENDPOINT") else {
        return (None, vec![]);
    };
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return (None, vec![]);
    }
    match variable("OTEL_TRACES_EXPORTER").as_deref() {
        None | Some("otlp") => {}
        Some("none") => return (None, vec![]),
        Some(_) => return (None, vec![odd("OTEL_TRACES_EXPORTER", EXPORTERS)]),
    }
    let mut warnings = Vec::new();
    let grpc = match of_traces("PROTOCOL") {
        None => false,
        Some((name, protocol)) => {
            if !["grpc", "http/protobuf"].contains(&protocol.as_str()) {
                warnings.push(odd(&name, PROTOCOLS));
            }
            protocol == "grpc"
        }
    };
    let timeout = of_traces("TIMEOUT").and_then(|(_, millis)| millis.parse().ok());
    let traces = Traces {
        grpc,
        tls: endpoint.to_ascii_lowercase().starts_with("https://"),
        timeout: Duration::from_millis(timeout.unwrap_or(10_000)),
        kept: match variable("OTEL_TRACES_SAMPLER").as_deref() {
            None | Some("parentbased_always_on") => Some(1.0),
            Some("parentbased_always_off") => Some(0.0),
            Some("parentbased_traceidratio") => {
                let share =
                    variable("OTEL_TRACES_SAMPLER_ARG").and_then(|share| share.parse().ok());
                Some(
                    share
                        .filter(|share| (0.0..=1.0).contains(share))
                        .unwrap_or(1.0),
                )
            }
            Some(_) => None,
        },
    };
    (Some(traces), warnings)
}

const UNKNOWN: &str =
    "unknown environment variables are ignored; claimlock serve --help lists the known ones";
const KUBERNETES: &str = "variables that kubernetes sets for a service of this name are ignored; \
                          enableServiceLinks: false in the pod's spec keeps them away";

/// Warns of the names in an environment that begin with [`PREFIX`] and are not known.
///
/// Their values are looked at, but never shown: a misspelt name may hold a secret.
pub(super) fn unknown_variables(
    environment: impl Iterator<Item = (OsString, OsString)>,
    known: impl Fn(&str) -> bool,
) -> Vec<Warning> {
    let mut unknown = Vec::new();
    let mut injected = Vec::new();
    for (name, value) in environment {
        let name = name.to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) || known(&name) || CLIENT_VARIABLES.contains(&name.as_str()) {
            continue;
        }
        if is_injected_by_kubernetes(&name, &value.to_string_lossy()) {
            injected.push(name);
        } else {
            unknown.push(name);
        }
    }
    [(unknown, UNKNOWN), (injected, KUBERNETES)]
        .into_iter()
        .filter(|(variables, _)| !variables.is_empty())
        .map(|(mut variables, advice)| {
            variables.sort();
            Warning { variables, advice }
        })
        .collect()
}

/// For a service named `claimlock` or `claimlock-…`, every pod of the namespace gets
/// `…_SERVICE_HOST`, `…_SERVICE_PORT[_NAME]`, `…_PORT=tcp://…` and `…_PORT_7420_TCP[_…]`.
fn is_injected_by_kubernetes(name: &str, value: &str) -> bool {
    let is_url = ["tcp://", "udp://", "sctp://"]
        .iter()
        .any(|scheme| value.starts_with(scheme));
    let names_a_port = name.split_once("_PORT_").is_some_and(|(_, rest)| {
        let (number, protocol) = rest.split_once('_').unwrap_or((rest, ""));
        number.parse::<u16>().is_ok()
            && ["TCP", "UDP", "SCTP"]
                .iter()
                .any(|known| protocol.starts_with(known))
    });
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && is_url)
        || names_a_port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces_of(variables: &[(&str, &str)]) -> (Option<Traces>, Vec<Warning>) {
        traces(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");

    #[test]
    fn traces_are_off_unless_there_is_an_endpoint() {
        for off in [
            &[][..],
            &[("OTEL_TRACES_EXPORTER", "otlp"), ("OTEL_SERVICE_NAME", "x")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "True")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert_eq!(traces_of(off), (None, vec![]), "{off:?}");
        }
        let on = |grpc, tls, seconds| Traces {
            grpc,
            tls,
            timeout: Duration::from_secs(seconds),
            kept: Some(1.0),
        };
        assert_eq!(traces_of(&[ENDPOINT]), (Some(on(false, false, 10)), vec![]));
        let of_traces_alone = [
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "HTTPS://collector:4317",
            ),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
            ("OTEL_SDK_DISABLED", "false"),
            ENDPOINT,
        ];
        assert_eq!(
            traces_of(&of_traces_alone),
            (Some(on(true, true, 2)), vec![])
        );
    }

    #[test]
    fn a_share_of_the_traces_is_ours_to_keep_with_a_sampler_that_follows_the_caller() {
        for (sampler, share, kept) in [
            ("", "0.5", Some(1.0)),
            ("parentbased_always_on", "0.5", Some(1.0)),
            ("parentbased_always_off", "0.5", Some(0.0)),
            ("parentbased_traceidratio", "0.01", Some(0.01)),
            ("parentbased_traceidratio", "", Some(1.0)),
            ("parentbased_traceidratio", "7", Some(1.0)),
            ("always_on", "", None),
            ("traceidratio", "0.01", None),
        ] {
            let sampling = [
                ENDPOINT,
                ("OTEL_TRACES_SAMPLER", sampler),
                ("OTEL_TRACES_SAMPLER_ARG", share),
            ];
            let (traces, _) = traces_of(&sampling);
            assert_eq!(traces.expect("they are on").kept, kept, "{sampler} {share}");
        }
    }

    #[test]
    fn a_protocol_or_exporter_that_there_is_not_is_told() {
        let (traces, warnings) =
            traces_of(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]);
        assert_eq!(traces.map(|traces| traces.grpc), Some(false));
        assert_eq!(warnings[0].variables, ["OTEL_EXPORTER_OTLP_PROTOCOL"]);
        let (traces, warnings) = traces_of(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "zipkin")]);
        assert_eq!((traces, warnings.len()), (None, 1));
    }

    fn warnings(variables: &[(&str, &str)]) -> Vec<Warning> {
        let environment = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        unknown_variables(environment, |name| name == "CLAIMLOCK_GRPC_ADDR")
    }

    #[test]
    fn known_and_foreign_names_are_no_reason_to_warn() {
        let mut variables = vec![
            ("CLAIMLOCK_GRPC_ADDR", "x"),
            ("PATH", "/bin"),
            ("CLAIMLOCKER", "x"),
        ];
        variables.extend(CLIENT_VARIABLES.iter().map(|name| (*name, "x")));
        assert_eq!(warnings(&variables), []);
    }

    #[test]
    fn an_unknown_name_is_told_without_its_value() {
        let found = warnings(&[
            ("CLAIMLOCK_REDIS_PASSWORD", "secret"),
            ("CLAIMLOCK_A", "tcp://x"),
        ]);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].variables,
            ["CLAIMLOCK_A", "CLAIMLOCK_REDIS_PASSWORD"]
        );
        assert!(!found[0].to_string().contains("secret"));
    }

    #[test]
    fn what_kubernetes_injects_is_one_warning_of_its_own() {
        let injected = [
            ("CLAIMLOCK_GRPC_PORT", "tcp://10.0.0.1:7420"),
            ("CLAIMLOCK_PORT", "tcp://10.0.0.1:7420"),
            ("CLAIMLOCK_PORT_7420_TCP", "tcp://10.0.0.1:7420"),
            ("CLAIMLOCK_PORT_7420_TCP_ADDR", "10.0.0.1"),
            ("CLAIMLOCK_PORT_7420_TCP_PORT", "7420"),
            ("CLAIMLOCK_PORT_7420_TCP_PROTO", "tcp"),
            ("CLAIMLOCK_SERVICE_HOST", "10.0.0.1"),
            ("CLAIMLOCK_SERVICE_PORT", "7420"),
            ("CLAIMLOCK_SERVICE_PORT_GRPC", "7420"),
        ];
        let found = warnings(&injected);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].variables.len(), injected.len(), "{found:?}");
        assert!(found[0].advice.contains("enableServiceLinks"));
        assert_eq!(warnings(&[("CLAIMLOCK_PORT", "7420")])[0].advice, UNKNOWN);
    }
}
