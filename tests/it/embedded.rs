//! The embedded server: started, taken over, kept running and ended.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use claimlock::store::embedded::{Embedded, EmbeddedError, EmbeddedSettings};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::getpgid;

use crate::support::data_folder::{
    DataFolder, appendfsync, ask, comes_back_with, is_gone, is_loading, leave_running,
    redis_server, server_pid, set, set_many, start_by_hand,
};
use crate::support::redis::connect;
use crate::support::{BOUND, eventually};

#[tokio::test]
async fn it_starts_in_a_folder_of_its_own_and_answers() {
    let folder = DataFolder::below("not/there/yet with spaces & 100%");
    let embedded = folder.start().await;

    set(&embedded, "key").await;

    let mode = fs::metadata(&folder.path)
        .expect("the folder is made")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    let mode = fs::metadata(embedded.socket_path())
        .expect("the socket is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    for (name, value) in [
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("save", ""),
        ("maxmemory-policy", "noeviction"),
        ("port", "0"),
    ] {
        let told: (String, String) = ask(&embedded.redis_url(), &["CONFIG", "GET", name])
            .await
            .expect("CONFIG GET");
        assert_eq!(told.1, value, "{name}");
    }
    embedded.stop(BOUND).await;
}

#[tokio::test]
async fn it_syncs_before_every_answer_if_told_so() {
    let folder = DataFolder::new();
    let settings = EmbeddedSettings {
        fsync_always: true,
        ..folder.settings()
    };
    let embedded = Embedded::start(settings).await.expect("the server starts");
    assert_eq!(appendfsync(&embedded).await, "always");
    embedded.stop(BOUND).await;
}

#[tokio::test]
async fn a_stop_leaves_no_process_and_keeps_the_data() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;
    set(&embedded, "key").await;
    let pid = server_pid(&embedded).await;
    let url = embedded.redis_url();

    embedded.stop(BOUND).await;

    assert_eq!(kill(pid, None), Err(Errno::ESRCH));
    assert!(connect(&url).await.is_err());
    let log = fs::read_to_string(folder.path.join("redis.log")).expect("the server logs");
    assert!(log.contains("bye bye"), "it ended in order:\n{log}");

    let embedded = folder.start().await;
    comes_back_with(&embedded, "key").await;
    embedded.stop(BOUND).await;
}

#[tokio::test]
async fn a_server_that_does_not_stop_is_killed_within_the_bound() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;
    set(&embedded, "key").await;
    let pid = server_pid(&embedded).await;
    kill(pid, Signal::SIGSTOP).expect("it takes signals");

    embedded.stop(Duration::from_millis(100)).await;

    assert_eq!(kill(pid, None), Err(Errno::ESRCH));
    let embedded = folder.start().await;
    comes_back_with(&embedded, "key").await;
    embedded.stop(BOUND).await;
}

#[tokio::test]
async fn a_server_that_dies_is_started_again_with_its_data() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;
    for round in ["first", "second", "third"] {
        set(&embedded, round).await;
        let pid = server_pid(&embedded).await;
        kill(pid, Signal::SIGKILL).expect("it takes signals");
        assert_ne!(comes_back_with(&embedded, round).await, pid);
    }
    embedded.stop(BOUND).await;
}

#[tokio::test]
async fn a_server_that_dies_while_it_rewrites_its_file_is_started_again() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;
    set_many(&embedded, 10_000).await;
    // The child that rewrites finds out that the server is dead when it reports on its work, once a
    // second at most. It has reported first when its memory is known.
    let url = embedded.redis_url();
    for command in [
        &["CONFIG", "SET", "rdb-key-save-delay", "1000"][..],
        &["BGREWRITEAOF"],
    ] {
        ask::<String>(&url, command).await.expect("an answer");
    }
    eventually("the child's report", async || {
        let info: String = ask(&url, &["INFO", "persistence"]).await?;
        (!info.contains("current_cow_size:0\r")).then_some(())
    })
    .await;
    let pid = server_pid(&embedded).await;
    kill(pid, Signal::SIGKILL).expect("it takes signals");
    assert_ne!(comes_back_with(&embedded, "9999").await, pid);
    embedded.stop(BOUND).await;
}

#[tokio::test]
async fn a_second_service_is_refused_and_told_of_the_first() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;

    let error = folder.fails_to_start().await;

    let EmbeddedError::FolderInUse { path, pid } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(path, &folder.path);
    assert_eq!(*pid, i32::try_from(std::process::id()).ok());
    let text = error.to_string();
    assert!(text.contains(&folder.path.display().to_string()), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    set(&embedded, "the first goes on").await;
    embedded.stop(BOUND).await;

    folder.start().await.stop(BOUND).await;
}

#[tokio::test]
async fn the_server_outlives_the_service_and_holds_nothing_of_it() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;
    let pid = server_pid(&embedded).await;

    let group = getpgid(Some(pid)).expect("it lives");
    assert_eq!(group, pid, "a Ctrl-C for the service does not reach it");
    for file in fs::read_dir(format!("/proc/{pid}/fd")).expect("our own child") {
        let file = fs::read_link(file.expect("an open file").path()).unwrap_or_default();
        assert!(
            !file.ends_with("claimlock.lock"),
            "the server keeps the folder locked for other services"
        );
    }

    let url = embedded.redis_url();
    drop(embedded);
    assert!(ask::<String>(&url, &["PING"]).await.is_some());
}

#[tokio::test]
async fn a_server_that_was_left_running_is_taken_over() {
    let folder = DataFolder::new();
    let first = folder.start().await;
    set(&first, "key").await;
    let pid = server_pid(&first).await;
    leave_running(first).await;

    let settings = EmbeddedSettings {
        fsync_always: true,
        ..folder.settings()
    };
    let second = Embedded::start(settings).await.expect("it is taken over");

    assert_eq!(
        comes_back_with(&second, "key").await,
        pid,
        "no second server"
    );
    assert_eq!(
        appendfsync(&second).await,
        "always",
        "with the new settings"
    );

    kill(pid, Signal::SIGKILL).expect("it takes signals");
    is_gone(pid).await;
    let third = comes_back_with(&second, "key").await;
    assert_ne!(third, pid, "and watched as one that was started");
    leave_running(second).await;

    let last = folder.start().await;
    assert_eq!(server_pid(&last).await, third);
    last.stop(BOUND).await;
    is_gone(third).await;
    let log = fs::read_to_string(folder.path.join("redis.log")).expect("the server logs");
    assert!(log.contains("bye bye"), "it ended in order:\n{log}");
}

#[tokio::test]
async fn a_connection_that_an_operator_closes_is_not_taken_for_the_end_of_a_server_taken_over() {
    let folder = DataFolder::new();
    let first = folder.start().await;
    set(&first, "key").await;
    let pid = server_pid(&first).await;
    leave_running(first).await;
    let second = folder.start().await;

    for _ in 0..2 {
        let killed: Option<i64> = ask(
            &second.redis_url(),
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        )
        .await;
        assert!(killed.is_some_and(|killed| killed >= 1), "{killed:?}");
        let listed = eventually("a new connection", async || {
            let clients: String = ask(&second.redis_url(), &["CLIENT", "LIST"]).await?;
            (clients.lines().count() >= 2).then_some(clients)
        });
        listed.await;
    }

    assert_eq!(server_pid(&second).await, pid);
    second.stop(BOUND).await;
    is_gone(pid).await;
}

#[tokio::test]
async fn a_server_that_another_hand_started_on_the_folder_is_taken_over() {
    let folder = DataFolder::new();
    fs::create_dir(&folder.path).expect("a new folder");
    let mut child = start_by_hand(&folder.socket(), &folder.path, &[]);
    let url = format!("unix://{}", folder.socket().display());
    eventually("an answer", async || ask::<String>(&url, &["PING"]).await).await;

    let settings = EmbeddedSettings {
        fsync_always: true,
        ..folder.settings()
    };
    let embedded = Embedded::start(settings).await.expect("it is taken over");

    assert_eq!(
        Some(server_pid(&embedded).await.as_raw().unsigned_abs()),
        child.id()
    );
    assert_eq!(appendfsync(&embedded).await, "always");
    embedded.stop(BOUND).await;
    child.wait().await.expect("it ends");
}

#[tokio::test]
async fn a_server_left_running_that_is_loading_is_taken_over() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;
    set_many(&embedded, 20_000).await;
    embedded.stop(BOUND).await;
    // Microseconds a key: longer than any server is waited for.
    let mut child = start_by_hand(&folder.socket(), &folder.path, &["--key-load-delay", "400"]);
    let url = format!("unix://{}", folder.socket().display());
    eventually("an answer", async || is_loading(&url).await.then_some(())).await;

    let embedded = folder.start().await;

    assert_eq!(
        Some(server_pid(&embedded).await.as_raw().unsigned_abs()),
        child.id()
    );
    embedded.stop(BOUND).await;
    child.wait().await.expect("it ends");
}

#[tokio::test]
async fn a_server_with_its_data_elsewhere_is_refused() {
    let (folder, elsewhere) = (DataFolder::new(), DataFolder::new());
    for folder in [&folder, &elsewhere] {
        fs::create_dir(&folder.path).expect("a new folder");
    }
    let _child = start_by_hand(&folder.socket(), &elsewhere.path, &[]);
    let url = format!("unix://{}", folder.socket().display());
    eventually("an answer", async || ask::<String>(&url, &["PING"]).await).await;

    let error = folder.fails_to_start().await;

    assert!(
        matches!(error, EmbeddedError::ForeignServer { .. }),
        "{error:?}"
    );
    assert!(
        ask::<String>(&url, &["PING"]).await.is_some(),
        "and left alone"
    );
}

#[tokio::test]
async fn a_server_left_running_that_hangs_is_replaced() {
    let folder = DataFolder::new();
    let first = folder.start().await;
    set(&first, "key").await;
    let pid = server_pid(&first).await;
    leave_running(first).await;
    kill(pid, Signal::SIGSTOP).expect("it takes signals");

    let second = folder.start().await;

    is_gone(pid).await;
    comes_back_with(&second, "key").await;
    second.stop(BOUND).await;
}

#[tokio::test]
async fn a_server_left_running_that_lost_its_socket_is_replaced() {
    let folder = DataFolder::new();
    let first = folder.start().await;
    set(&first, "key").await;
    let pid = server_pid(&first).await;
    leave_running(first).await;
    fs::remove_file(folder.socket()).expect("the socket is there");

    let second = folder.start().await;

    is_gone(pid).await;
    comes_back_with(&second, "key").await;
    second.stop(BOUND).await;
}

#[tokio::test]
async fn after_both_were_killed_the_next_start_finds_the_data() {
    let folder = DataFolder::new();
    let first = folder.start().await;
    set(&first, "key").await;
    let pid = server_pid(&first).await;
    leave_running(first).await;
    kill(pid, Signal::SIGKILL).expect("it takes signals");
    is_gone(pid).await;
    assert!(folder.socket().exists(), "the socket's file is left behind");
    let mut half = fs::read(folder.append_only_file()).expect("it can be read");
    half.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$4\r\nhal");
    fs::write(folder.append_only_file(), half).expect("it can be written");

    let second = folder.start().await;

    comes_back_with(&second, "key").await;
    second.stop(BOUND).await;
}

#[tokio::test]
async fn a_socket_file_without_a_server_is_no_hindrance() {
    let folder = DataFolder::new();
    fs::create_dir(&folder.path).expect("a new folder");
    drop(UnixListener::bind(folder.socket()).expect("a socket"));
    assert!(folder.socket().exists());

    let embedded = folder.start().await;

    set(&embedded, "key").await;
    embedded.stop(BOUND).await;
}

#[tokio::test]
async fn a_folder_with_a_path_too_long_for_a_socket_works_all_the_same() {
    let folder = DataFolder::below(&["a-name-of-twenty-five-byte"; 8].join("/"));
    let first = folder.start().await;
    set(&first, "key").await;
    let pid = server_pid(&first).await;
    assert!(folder.socket().exists(), "the socket is in the folder");
    leave_running(first).await;

    let second = folder.start().await;

    assert_eq!(comes_back_with(&second, "key").await, pid);
    kill(pid, Signal::SIGKILL).expect("it takes signals");
    is_gone(pid).await;
    comes_back_with(&second, "key").await;
    second.stop(BOUND).await;
}

#[tokio::test]
async fn without_a_server_program_it_says_what_to_install() {
    let folder = DataFolder::new();
    let nothing = tempfile::tempdir().expect("a temporary folder");
    fs::write(nothing.path().join("redis-server"), "not to be run").expect("a new file");

    let error = Embedded::start_from(folder.settings(), nothing.path().as_os_str())
        .await
        .expect_err("no program");

    let text = error.to_string();
    assert!(text.contains("apt-get install redis-server"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    assert!(!folder.path.exists(), "and touches nothing");
}

#[tokio::test]
async fn valkey_is_preferred() {
    let folder = DataFolder::new();
    let programs = tempfile::tempdir().expect("a temporary folder");
    let (redis, valkey) = (
        programs.path().join("first"),
        programs.path().join("second"),
    );
    for (folder, name, program) in [
        (&redis, "redis-server", PathBuf::from("/bin/false")),
        (&valkey, "valkey-server", redis_server()),
    ] {
        fs::create_dir(folder).expect("a new folder");
        symlink(program, folder.join(name)).expect("a new link");
    }
    let search_path = std::env::join_paths([redis, valkey]).expect("no colons");

    let embedded = Embedded::start_from(folder.settings(), &search_path)
        .await
        .expect("the server starts");

    embedded.stop(BOUND).await;
}

#[tokio::test]
async fn a_server_that_cannot_load_its_file_says_why() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;
    set(&embedded, "key").await;
    embedded.stop(BOUND).await;
    folder.damage_append_only_file();

    let error = folder.fails_to_start().await;

    let text = error.to_string();
    assert!(text.contains("Bad file format"), "{text}");
    assert!(
        text.contains(&folder.path.join("redis.log").display().to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_server_that_cannot_be_started_again() {
    let folder = DataFolder::new();
    let embedded = folder.start().await;
    set(&embedded, "key").await;
    let pid = server_pid(&embedded).await;
    folder.damage_append_only_file();
    kill(pid, Signal::SIGKILL).expect("it takes signals");
    let log = folder.path.join("redis.log");
    eventually("a second failure", async || {
        let log = fs::read_to_string(&log).ok()?;
        (log.matches("Bad file format").count() >= 2).then_some(())
    })
    .await;

    let since = Instant::now();
    embedded.stop(BOUND).await;

    assert!(since.elapsed() < BOUND / 2, "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_named() {
    let folder = DataFolder::below("file/data");
    fs::write(folder.path.parent().expect("it has one"), "").expect("a new file");

    let error = folder.fails_to_start().await;

    let text = error.to_string();
    assert!(text.contains(&folder.path.display().to_string()), "{text}");
}
