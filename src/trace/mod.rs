//! What goes with a call on its way down, beside its arguments: the trace that it is a part of, and what its layers note for
//! the line that may be logged in the end.

mod parent;

pub use parent::{SpanIds, TraceId};

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

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
    /// The span that the caller named.
    caller: Option<SpanIds>,
    notes: Notes,
}

impl Call {
    /// One whose caller sent this header `traceparent`.
    pub fn begin(traceparent: Option<&str>) -> Self {
        Self(Arc::new(Inner {
            caller: traceparent.and_then(SpanIds::parse),
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

    /// The trace that it is a part of.
    pub fn trace_id(&self) -> Option<TraceId> {
        self.0.caller.map(|ids| ids.trace)
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
