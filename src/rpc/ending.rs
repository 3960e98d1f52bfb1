//! The order in which the service, or one of its connections, ends.

use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How much of a grace period is left when calls have no more time, and when what is still open is cut, in twentieths: there
/// has to be time to tell callers so, and to clean up after those who were not told.
const LEFT_AT_HURRY: u32 = 4;
const LEFT_AT_CUT: u32 = 3;

/// The three steps of ending in order, each a token that is cancelled.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// No more connections and calls; those in flight finish, and open streams are told to go elsewhere.
    pub drain: CancellationToken,
    /// Calls that are still in flight are told so too.
    pub hurry: CancellationToken,
    /// What is still open is cut.
    pub cut: CancellationToken,
}

impl Ending {
    /// That of a part, which may also end by itself.
    pub(super) fn of_part(&self) -> Self {
        Self {
            drain: self.drain.child_token(),
            hurry: self.hurry.child_token(),
            cut: self.cut.child_token(),
        }
    }

    /// Takes the three steps, the last one shortly before the grace period ends. `late` is called if it comes to the second.
    pub async fn within(&self, grace: Duration, late: impl FnOnce()) {
        let end = Instant::now() + grace;
        self.drain.cancel();
        tokio::time::sleep_until((end - grace / 20 * LEFT_AT_HURRY).into()).await;
        late();
        self.hurry.cancel();
        tokio::time::sleep_until((end - grace / 20 * LEFT_AT_CUT).into()).await;
        self.cut.cancel();
    }
}
