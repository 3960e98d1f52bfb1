//! Signals that are for the command which runs, and so far for the program that waits to run it.

use std::fs;
use std::io;
use std::process::ExitCode;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;
use tokio::sync::mpsc;

use super::exit;

const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// A signal, and whether it came from the terminal, which sends it to every process of the foreground group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) signal: i32,
    pub(super) from_terminal: bool,
}

impl Received {
    /// That of a program which ends because of it.
    pub(super) fn exit_code(self) -> ExitCode {
        exit::of_signal(self.signal)
    }
}

/// Takes signals from now on, instead of what they do by default. One that is ignored, as under `nohup` and after a
/// script's `&`, stays so, for the command too.
pub(super) struct Signals {
    received: mpsc::Receiver<Received>,
    handle: Handle,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let taken = PASSED_ON.iter().filter(|signal| !ignored.contains(signal));
        let mut signals = SignalsInfo::<WithOrigin>::new(taken)?;
        let handle = signals.handle();
        // More than a person sends before the command has one; further ones say nothing new.
        let (tell, received) = mpsc::channel(64);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for origin in signals.forever() {
                    let received = Received {
                        signal: origin.signal,
                        from_terminal: matches!(origin.cause, Cause::Kernel),
                    };
                    let _ = tell.try_send(received);
                }
            })?;
        Ok(Self { received, handle })
    }

    /// The next signal. Safe to drop and to ask again.
    pub(super) async fn next(&mut self) -> Received {
        match self.received.recv().await {
            Some(received) => received,
            // The thread ends with this value alone.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// The signals that this program was started with as ignored, where the system tells.
fn ignored() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.unwrap_or_default();
    (1..=64)
        .filter(|signal| mask >> (signal - 1) & 1 == 1)
        .collect()
}
