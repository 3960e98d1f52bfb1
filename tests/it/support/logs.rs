//! What the service logs in the test's own process.

use serde_json::Value;
use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt as _;

/// Everything that is logged on this thread from now on: by the service as well, as long as the test's runtime has
/// no other thread, which is what `#[tokio::test]` makes.
#[derive(Debug)]
pub struct Logs {
    written: Written,
    _until_dropped: DefaultGuard,
}

#[derive(Debug, Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .expect("nothing panics while it writes")
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where there is just one subscriber, whether an event is of interest is asked of the thread alone that comes to it first:
/// that of another test, which has none. So there is another one, of which nothing is asked.
static ANOTHER: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

impl Logs {
    pub fn capture() -> Self {
        LazyLock::force(&ANOTHER);
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(lines);
        Self {
            written,
            _until_dropped: tracing::subscriber::set_default(subscriber),
        }
    }

    /// The events so far of one target.
    pub fn of(&self, target: &str) -> Vec<Value> {
        let all = self.all().into_iter();
        all.filter(|event| event["target"] == target).collect()
    }

    /// The events so far.
    pub fn all(&self) -> Vec<Value> {
        let bytes = self
            .written
            .0
            .lock()
            .expect("nothing panics while it writes");
        let text = std::str::from_utf8(&bytes).expect("logs are UTF-8");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a line is JSON"))
            .collect()
    }
}
