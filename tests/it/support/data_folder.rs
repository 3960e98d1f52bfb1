//! Data folders for the embedded server, and questions to the server in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use claimlock::store::embedded::{Embedded, EmbeddedError, EmbeddedSettings};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::AsyncTypedCommands;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::eventually;
use super::redis::connect;

/// A data folder that ends, with itself, a server that was left running in it.
pub struct DataFolder {
    pub path: PathBuf,
    _root: TempDir,
}

impl DataFolder {
    pub fn new() -> Self {
        Self::below("data")
    }

    pub fn below(path: &str) -> Self {
        let root = tempfile::tempdir().expect("a temporary folder");
        let path = fs::canonicalize(root.path()).expect("it exists").join(path);
        Self { path, _root: root }
    }

    pub fn settings(&self) -> EmbeddedSettings {
        EmbeddedSettings {
            data_dir: self.path.clone(),
            fsync_always: false,
        }
    }

    pub async fn start(&self) -> Embedded {
        Embedded::start(self.settings())
            .await
            .expect("the server starts")
    }

    pub async fn fails_to_start(&self) -> EmbeddedError {
        Embedded::start(self.settings())
            .await
            .expect_err("the server does not start")
    }

    pub fn socket(&self) -> PathBuf {
        self.path.join("redis.sock")
    }

    /// The file that the server appends to.
    pub fn append_only_file(&self) -> PathBuf {
        let files =
            fs::read_dir(self.path.join("appendonlydir")).expect("a folder of the server's");
        files
            .map(|file| file.expect("a file of the server's").path())
            .find(|path| path.to_string_lossy().ends_with(".incr.aof"))
            .expect("an append-only file")
    }

    pub fn damage_append_only_file(&self) {
        let file = self.append_only_file();
        let mut bytes = fs::read(&file).expect("it can be read");
        bytes.splice(0..0, *b"damaged\r\n");
        fs::write(&file, bytes).expect("it can be written");
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        let Ok(text) = fs::read_to_string(self.path.join("server.lock")) else {
            return;
        };
        let Ok(pid) = text.trim().parse() else { return };
        if fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == self.path) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

pub async fn ask<T: redis::FromRedisValue>(url: &str, command: &[&str]) -> Option<T> {
    let mut connection = connect(url).await.ok()?;
    redis::cmd(command[0])
        .arg(&command[1..])
        .query_async(&mut connection)
        .await
        .ok()
}

pub async fn server_pid(embedded: &Embedded) -> Pid {
    server_pid_at(&embedded.redis_url()).await
}

pub async fn server_pid_at(url: &str) -> Pid {
    let info: String = ask(url, &["INFO", "server"])
        .await
        .expect("INFO is answered");
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"))
        .expect("INFO has it");
    Pid::from_raw(pid.trim().parse().expect("a process id"))
}

pub async fn set(embedded: &Embedded, key: &str) {
    let mut connection = connect(&embedded.redis_url())
        .await
        .expect("the server answers");
    connection.set(key, "value").await.expect("SET is answered");
}

/// Waits until the server answers and has the key; its process id then.
pub async fn comes_back_with(embedded: &Embedded, key: &str) -> Pid {
    let url = embedded.redis_url();
    let has = eventually("an answer", async || {
        ask::<bool>(&url, &["EXISTS", key]).await
    })
    .await;
    assert!(has, "{key} is lost");
    server_pid(embedded).await
}

pub async fn appendfsync(embedded: &Embedded) -> String {
    let answer: Option<(String, String)> =
        ask(&embedded.redis_url(), &["CONFIG", "GET", "appendfsync"]).await;
    answer.expect("CONFIG GET is answered").1
}

pub async fn is_gone(pid: Pid) {
    eventually("the process's end", async || {
        (kill(pid, None) == Err(Errno::ESRCH)).then_some(())
    })
    .await;
}

/// A server that was started by hand, or by a service of which nothing else is left.
pub fn start_by_hand(socket: &Path, data: &Path, more: &[&str]) -> Child {
    Command::new("redis-server")
        .args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
        ])
        .arg("--unixsocket")
        .arg(socket)
        .arg("--dir")
        .arg(data)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("redis-server is on PATH")
}

/// As a service that is killed does; the folder is free when this returns.
pub async fn leave_running(embedded: Embedded) {
    let lock = embedded.socket_path().with_file_name("claimlock.lock");
    let lock = fs::File::open(lock).expect("a service has locked it");
    drop(embedded);
    eventually("the folder's lock", async || lock.try_lock().ok()).await;
    // Closing it would not do, should another test be forking a server just now.
    lock.unlock().expect("it is locked");
}

pub async fn is_loading(url: &str) -> bool {
    let Ok(mut connection) = connect(url).await else {
        return false;
    };
    let answer = redis::cmd("PING").exec_async(&mut connection).await;
    answer.is_err_and(|error| error.code() == Some("LOADING"))
}

pub fn redis_server() -> PathBuf {
    let path = std::env::var_os("PATH").expect("there is one");
    std::env::split_paths(&path)
        .map(|folder| folder.join("redis-server"))
        .find(|program| program.exists())
        .expect("redis-server is on PATH")
}

/// Sets the keys from 0.
pub async fn set_many(embedded: &Embedded, count: u32) {
    let mut connection = connect(&embedded.redis_url())
        .await
        .expect("the server answers");
    let mut many = redis::pipe();
    for number in 0..count {
        many.set(number, number).ignore();
    }
    many.exec_async(&mut connection)
        .await
        .expect("SET is answered");
}
