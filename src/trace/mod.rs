//! What goes with a call on its way down, beside its arguments: the trace that it is a part of, and what its layers note for
//! the line that may be logged in the end. The only place for OpenTelemetry.

mod export;
mod parent;
mod span;

pub use export::{Collector, ExportError, Exporting, Protocol};
pub use parent::{Origin, TraceId};
pub use span::{Arrival, Database, SPANS, Sent};

use parent::SpanIds;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tracing::Span;

/// The target of log lines about calls that did not get what they asked for: as many as callers make, so it is one that can be
/// silenced alone.
pub const REFUSALS: &str = "claimlock::refusals";

tokio::task_local! {
    static CURRENT: Call;
}

/// One call. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Call(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Disabled where no spans are exported.
    span: Span,
    /// That span's ids.
    own: Option<SpanIds>,
    /// Those of the span that the caller named.
    caller: Option<SpanIds>,
    notes: Notes,
}

impl Call {
    /// One that arrived.
    pub fn begin(arrival: Arrival<'_>) -> Self {
        let caller = arrival.traceparent.and_then(SpanIds::parse);
        let (span, own) = span::of_call(arrival, caller);
        Self(Arc::new(Inner {
            span,
            own,
            caller,
            notes: Notes::default(),
        }))
    }

    /// Runs a part of the call, which finds it by [`Call::current`].
    pub async fn scope<F: Future>(self, part: F) -> F::Output {
        CURRENT.scope(self, part).await
    }

    /// The same for a part that does not wait.
    pub fn during<T>(&self, part: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), part)
    }

    /// The call that the running task works for.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// One of the many parts of a call that are answered each by itself: in its trace, with notes of its own and no spans.
    pub fn part(&self) -> Self {
        Self(Arc::new(Inner {
            span: Span::none(),
            own: None,
            caller: self.0.own.or(self.0.caller),
            notes: Notes::default(),
        }))
    }

    /// The trace that it is a part of.
    pub fn trace_id(&self) -> Option<TraceId> {
        self.0.own.or(self.0.caller).map(|ids| ids.trace)
    }

    /// It was answered with this code, which may count as a failure of the service's.
    pub fn answered(&self, code: &'static str, failed: bool) {
        if self.is_seen() {
            span::answered(&self.0.span, code, failed);
        }
    }

    /// Whether its span is exported.
    fn is_seen(&self) -> bool {
        self.0.own.is_some_and(|ids| ids.sampled)
    }

    /// Whether a span was built for it.
    #[cfg(test)]
    fn has_span(&self) -> bool {
        !self.0.span.is_disabled()
    }

    /// What its layers noted.
    pub fn notes(&self) -> &Notes {
        &self.0.notes
    }
}

/// What there is to tell of a call at its end. Of each the first note stands.
#[derive(Debug, Default)]
pub struct Notes {
    subject: OnceLock<String>,
    refused: OnceLock<(&'static str, String)>,
    logged: AtomicBool,
}

impl Notes {
    /// What the call is about, as a log line may say it.
    pub fn subject(&self) -> Option<&str> {
        self.subject.get().map(String::as_str)
    }

    /// Why it failed, in the word that its caller is told.
    pub fn reason(&self) -> Option<&'static str> {
        self.refused.get().map(|(reason, _)| *reason)
    }

    /// The fields of the request that are wrong.
    pub fn bad_fields(&self) -> Option<&str> {
        let (_, fields) = self.refused.get()?;
        (!fields.is_empty()).then_some(fields)
    }

    /// Whether its failure has its line already.
    pub fn is_logged(&self) -> bool {
        self.logged.load(Ordering::Relaxed)
    }
}

/// Marks the current call's span with what came of it.
pub fn note_outcome(outcome: &'static str) {
    if let Some(call) = Call::current().filter(Call::is_seen) {
        span::outcome(&call.0.span, outcome);
    }
}

/// The current call as a claim remembers it; see [`Origin`].
pub fn current_origin() -> Origin {
    let Some(call) = Call::current() else {
        return Origin::default();
    };
    match call.0.own {
        Some(own) if own.sampled => Origin::of_span(own),
        _ => call
            .trace_id()
            .map_or_else(Origin::default, Origin::of_trace),
    }
}

/// Has the current call's span lead to that of the call that a claim remembers.
pub fn link(origin: &Origin) {
    if let Some(call) = Call::current().filter(Call::is_seen)
        && let Some(to) = origin.span()
    {
        span::link(&call.0.span, to);
    }
}

/// A script is sent to Redis for the current call.
pub fn sending(database: &Database, script: &'static str) -> Sent {
    match Call::current().filter(Call::is_seen) {
        Some(call) => Sent::child_of(&call.0.span, database, script),
        None => Sent::unseen(),
    }
}

/// Notes what the current call is about.
pub fn note_subject(subject: impl FnOnce() -> String) {
    if let Some(call) = Call::current() {
        let _ = call.0.notes.subject.set(subject());
    }
}

/// Notes why it fails, and the fields that are to blame.
pub fn note_refused(reason: &'static str, fields: impl FnOnce() -> String) {
    if let Some(call) = Call::current() {
        let _ = call.0.notes.refused.set((reason, fields()));
    }
}

/// Notes that its failure has its line.
pub fn note_logged() {
    if let Some(call) = Call::current() {
        call.0.notes.logged.store(true, Ordering::Relaxed);
    }
}

/// What the current call is about, for a log line.
pub fn current_subject() -> Option<String> {
    Call::current()?.notes().subject().map(str::to_owned)
}

/// Has a part that is to run as a task of its own go on working for the current call.
pub fn carried<F: Future>(part: F) -> impl Future<Output = F::Output> {
    let call = Call::current();
    async move {
        match call {
            Some(call) => call.scope(part).await,
            None => part.await,
        }
    }
}

/// The trace of the current call, for a log line.
pub fn current_id() -> Option<tracing::field::DisplayValue<TraceId>> {
    Some(tracing::field::display(Call::current()?.trace_id()?))
}

/// What is said at one place of the code is enabled for the whole process, as soon as one subscriber wants it. So tests
/// that count what another is not to see have to be alone.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    // A test that failed leaves nothing behind that would harm the next.
    ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
