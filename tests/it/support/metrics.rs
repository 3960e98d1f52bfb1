//! What the service exports to Prometheus.

use super::eventually;
use super::service::{Service, http_get};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// One scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct Scrape {
    pub text: String,
    /// By name and labels, as they are written.
    series: BTreeMap<String, f64>,
}

impl Scrape {
    pub async fn of(service: &Service) -> Self {
        Self::at(service.http).await
    }

    pub async fn at(http: SocketAddr) -> Self {
        let answer = http_get(http, "/metrics").await.expect("an answer");
        let (head, text) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let content_type = "content-type: text/plain; version=0.0.4; charset=utf-8";
        assert!(head.contains(content_type), "{head}");
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let series = series.map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a series and its value");
            (name.to_owned(), value.parse().expect("a number"))
        });
        Self {
            series: series.collect(),
            text: text.to_owned(),
        }
    }

    /// A series by its name and labels; panics where there is none.
    pub fn value(&self, series: &str) -> f64 {
        let value = self.series.get(series);
        *value.unwrap_or_else(|| panic!("no {series} in:\n{}", self.text))
    }

    pub fn names(&self) -> Vec<&str> {
        self.series.keys().map(String::as_str).collect()
    }

    /// The series whose value is another one than before, with how much it grew; those of histograms' buckets left out.
    pub fn growth_since(&self, before: &Self) -> BTreeMap<&str, f64> {
        let grown = self.series.iter().filter_map(|(name, value)| {
            let grown = value - before.series.get(name).copied().unwrap_or(0.0);
            (grown != 0.0 && !name.contains("_bucket{")).then_some((name.as_str(), grown))
        });
        grown.collect()
    }
}

/// Waits until so many locks and claims are on streams of this service.
pub async fn on_streams(service: &Service, locks: usize, claims: usize) {
    let what = format!("{locks} locks and {claims} claims to be on streams");
    eventually(&what, async || {
        let scrape = Scrape::of(service).await;
        let is = [
            scrape.value("claimlock_leases{kind=\"lock\"}"),
            scrape.value("claimlock_leases{kind=\"claim\"}"),
        ];
        (is == [locks as f64, claims as f64]).then_some(())
    })
    .await;
}

/// The counter of one method's answers.
pub fn handled(service: &str, method: &str, code: &str) -> String {
    format!(
        "grpc_server_handled_total{{grpc_type=\"unary\",grpc_service=\"claimlock.v1.{service}\",grpc_method=\"{method}\",\
         grpc_code=\"{code}\"}}"
    )
}
