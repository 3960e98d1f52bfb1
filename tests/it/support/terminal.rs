//! A terminal with bash in it, by util-linux's `script`.

use super::eventually;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// Printed when all that was typed before has ended. No program prints it.
const ENDED: char = '\u{1e}';

/// Someone who types, and looks at the screen; hangs up with the value.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    screen: PathBuf,
    /// How much of the screen has been looked at.
    seen: usize,
}

impl Terminal {
    /// In a folder, with a service to ask and nothing of the caller's environment but its PATH.
    pub async fn open(folder: &Path, name: &str, grpc: SocketAddr) -> Self {
        let screen = folder.join(name);
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--flush", "--command"])
            .arg("bash --norc --noprofile --noediting -i")
            .arg(&screen)
            .env_clear()
            .env("PATH", super::program::path())
            .env("HOME", folder)
            .env("SHELL", "/bin/sh")
            .env("LC_ALL", "C.UTF-8")
            .env("PS1", "")
            .env("PS2", "")
            .env("CLAIMLOCK_ENDPOINT", format!("http://{grpc}"))
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        let mut terminal = Self {
            child: command.spawn().expect("script is installed"),
            screen,
            seen: 0,
        };
        // What is typed is not to be seen as if it were printed.
        terminal.types("stty -echo\n").await;
        eventually("the shell", async || {
            terminal.text().contains(ENDED).then_some(())
        })
        .await;
        terminal.seen = terminal.text().rfind(ENDED).expect("it was seen") + 1;
        terminal
    }

    /// Types lines. [`Terminal::shown`] tells when they have ended.
    pub async fn types(&mut self, lines: &str) {
        let keyboard = self.child.stdin.as_mut().expect("it is piped");
        let typed = format!("{lines}printf '\\036'\n");
        let written = keyboard.write_all(typed.as_bytes()).await;
        written.expect("the terminal takes it");
    }

    /// What was printed since it was looked at last, and whether what was typed has ended.
    pub fn shown(&self) -> (String, bool) {
        let text = self.text();
        let new = &text[self.seen..];
        match new.split_once(ENDED) {
            Some((shown, _)) => (as_seen(shown), true),
            None => (as_seen(new), false),
        }
    }

    /// Takes what is printed for seen.
    pub fn looked_at(&mut self) {
        let text = self.text();
        let new = &text[self.seen..];
        self.seen += new.find(ENDED).unwrap_or(new.len());
    }

    /// After what was typed has ended: the next lines can be typed.
    pub fn is_done(&mut self) {
        self.seen += ENDED.len_utf8();
    }

    /// As the terminal got it; grows at its end alone, save for a character that is cut in the middle.
    fn text(&self) -> String {
        let bytes = fs::read(&self.screen).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// What a person sees at last: a line that was written over, such as that of something that is waited for, is gone.
fn as_seen(printed: &str) -> String {
    let mut text = String::new();
    for line in printed.replace("\r\n", "\n").split_inclusive('\n') {
        let line = line.rsplit('\r').next().unwrap_or_default();
        text.push_str(&without_escapes(line));
    }
    text
}

/// Without the sequences that move the cursor and erase: from an escape to the first letter.
fn without_escapes(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic());
        text.push_str(end.map_or("", |end| &part[end + 1..]));
    }
    text
}
