//! What is told of a Redis that was looked at.

use std::time::Duration;

use bytesize::ByteSize;

use super::Check;
use crate::store::doctor::{
    ClockSeen, Examination, Memory, Persistence, Rights, Role, Scripts, Seen, Server, Unreachable,
    Unseen, Writes,
};

const CHECK: &str = "store";
/// Beyond this the memory is nearly full.
const NEARLY_FULL_PERCENT: u64 = 90;
/// In microseconds. Less than this is nothing to speak of between machines that keep time by NTP.
const SKEW_TOLD: i64 = 1_000_000;

/// Why it could not be asked, and what to do.
pub(super) fn unreachable(why: &Unreachable, place: &str, timeout: Duration) -> Check {
    let timeout = humantime::format_duration(timeout);
    let (finding, advice) = match why {
        Unreachable::Refused => (
            format!("nobody listens: {place} refuses the connection"),
            "start it (systemctl start redis-server), or name the right one with --redis-url",
        ),
        Unreachable::NoSocket => (
            format!("the socket is not there: {place}"),
            "start the server, and compare its unixsocket setting with the path in --redis-url",
        ),
        Unreachable::SocketForbidden => (
            format!("this user may not use the socket: {place}"),
            "add the user to the socket's group (usermod -aG redis USER), and set unixsocketperm 770",
        ),
        Unreachable::UnknownHost => (
            format!("the host's name has no address: {place}"),
            "mend the name in --redis-url, or the DNS (getent hosts NAME)",
        ),
        Unreachable::NoAnswer => (
            format!("no answer within {timeout}: {place}"),
            "look for a firewall between here and there, and whether the server hangs (redis-cli PING); where it is just \
             far away, set a longer --store-timeout; where the URL says rediss:// and it speaks no TLS, write redis://",
        ),
        Unreachable::Closed => (
            format!("closes the connection before it answers: {place}"),
            "where it speaks TLS write rediss://; else its log says why (maxclients, protected-mode)",
        ),
        Unreachable::Tls(problem) => (
            format!("TLS fails: {problem}: {place}"),
            "have the system trust its authority (update-ca-certificates), or name a bundle with SSL_CERT_FILE, and use the \
             name that its certificate is for; where it speaks no TLS write redis://",
        ),
        Unreachable::PasswordWanted => (
            format!("wants a password, and none was given (NOAUTH): {place}"),
            "write it into the URL, redis://USER:PASSWORD@HOST:6379, best in a file that --redis-url-file names",
        ),
        Unreachable::PasswordWrong => (
            format!("refuses the user or the password (WRONGPASS): {place}"),
            "compare them with the server's (redis-cli ACL LIST, requirepass); / ? # @ % in a password are written \
             %2F %3F %23 %40 %25",
        ),
        Unreachable::Loading => (
            format!("is still loading its data: {place}"),
            "wait; redis-cli INFO persistence says how far it is (loading_eta_seconds)",
        ),
        Unreachable::NotRedis => (
            format!("what answers is no Redis: {place}"),
            "mend host and port in --redis-url",
        ),
        Unreachable::Otherwise(problem) => (
            format!("cannot be asked ({problem}): {place}"),
            "try it by hand: redis-cli -u URL PING",
        ),
    };
    Check::fail(CHECK, finding, advice)
}

/// All that was found at one that answers.
pub(super) fn checks(found: &Examination, place: &str) -> Vec<Check> {
    let round_trip = found.round_trip.as_secs_f64() * 1000.0;
    let mut checks = vec![Check::ok(
        CHECK,
        format!("{place} answers in {round_trip:.1} ms"),
    )];
    checks.extend(of_server(&found.server));
    checks.extend(of_persistence(&found.persistence));
    checks.extend(of_memory(&found.memory));
    checks.push(of_clock(&found.clock));
    checks.push(of_rights(&found.rights));
    checks.push(of_writes(&found.writes, &found.server));
    checks.push(of_scripts(&found.scripts));
    checks
}

/// A check for which nothing could be seen.
fn cannot_look(check: &'static str, unseen: &Unseen, advice: &str) -> Check {
    match unseen {
        Unseen::Refused(words) => Check::warn(check, format!("cannot look: {words}"), advice),
        Unseen::NoAnswer => Check::fail(
            check,
            "no answer in time",
            "see whether the server is overloaded or hangs: redis-cli --latency, redis-cli SLOWLOG GET",
        ),
    }
}

fn of_server(server: &Seen<Server>) -> Vec<Check> {
    let (version, role) = ("version", "role");
    let server = match server {
        Ok(server) => server,
        Err(unseen) => {
            let advice = "make sure that it is Redis 7.0 or newer, or Valkey, and a primary; \
                          the right +info or +hello lets this look";
            return vec![cannot_look(version, unseen, advice)];
        }
    };
    let name = match server.product.as_str() {
        "redis" => "Redis",
        "valkey" => "Valkey",
        other => other,
    };
    let name = format!("{name} {}", server.version);
    let of_version = match server.is_new_enough() {
        Some(true) => Check::ok(version, name),
        Some(false) => Check::fail(
            version,
            format!("{name} is too old: the scripts need Redis 7.0, or Valkey"),
            "install Redis 7.0 or newer, or Valkey, with the data folder of this one",
        ),
        None => Check::warn(
            version,
            format!("{name} is no version that is known here"),
            "make sure that it does what Redis 7.0 does",
        ),
    };
    let of_role = match &server.role {
        Role::Primary => Check::ok(role, "a primary of its own"),
        Role::Replica(primary) => {
            let primary = primary.as_deref();
            Check::fail(
                role,
                format!(
                    "a replica of {}, which takes no writes",
                    primary.unwrap_or("another")
                ),
                match primary {
                    Some(primary) => format!("name its primary: --redis-url redis://{primary}"),
                    None => "name its primary with --redis-url".to_owned(),
                },
            )
        }
        Role::Cluster => Check::fail(
            role,
            "a node of a Cluster, which claimlock cannot use yet",
            "name a primary of its own with --redis-url",
        ),
        Role::Sentinel => Check::fail(
            role,
            "a Sentinel, which holds no data, and which claimlock cannot use yet",
            "name the primary that it watches with --redis-url (redis-cli SENTINEL MASTERS)",
        ),
    };
    vec![of_version, of_role]
}

fn of_persistence(persistence: &Seen<Persistence>) -> Vec<Check> {
    const CHECK: &str = "persistence";
    const TURN_ON: &str = "redis-cli CONFIG SET appendonly yes, and the same in redis.conf (redis-cli CONFIG REWRITE)";
    let found = match persistence {
        Ok(found) => found,
        Err(unseen) => {
            let advice =
                "make sure that appendonly is yes; the rights +config|get and +info let this look";
            return vec![cannot_look(CHECK, unseen, advice)];
        }
    };
    let save = found.save.as_deref();
    let mut checks = vec![
        match (found.appendonly, found.appendfsync.as_deref(), save) {
            (Some(true), Some("always"), _) => Check::ok(
                CHECK,
                "an append-only file, written to the disk before every answer",
            ),
            (Some(true), Some("no"), _) => Check::warn(
                CHECK,
                "an append-only file that is written to the disk whenever the system likes (appendfsync no): a crash of the \
             machine can lose half a minute",
                "redis-cli CONFIG SET appendfsync everysec, and the same in redis.conf (redis-cli CONFIG REWRITE)",
            ),
            (Some(true), _, _) => Check::ok(
                CHECK,
                "an append-only file, written to the disk every second: a crash of the machine can lose the last two",
            ),
            (Some(false), _, Some("")) => Check::fail(
                CHECK,
                "nothing is persisted: a restart forgets every claim and lock, and the work is done again",
                TURN_ON,
            ),
            (Some(false), _, Some(save)) => Check::warn(
                CHECK,
                format!("snapshots alone (save {save}): a crash forgets what came after the last"),
                TURN_ON,
            ),
            (Some(false), _, None) => Check::warn(
                CHECK,
                "no append-only file; whether there are snapshots cannot be seen",
                TURN_ON,
            ),
            (None, _, _) => cannot_look(
                CHECK,
                &Unseen::Refused("it does not say whether it has an append-only file".to_owned()),
                "make sure that appendonly is yes",
            ),
        },
    ];
    for what in &found.failing {
        checks.push(Check::fail(
            CHECK,
            format!("the last try to write {what} failed"),
            "look for a full disk and for rights in its data folder (df -h, redis-cli CONFIG GET dir, its log), then \
             redis-cli BGREWRITEAOF or BGSAVE",
        ));
    }
    checks
}

fn of_memory(memory: &Seen<Memory>) -> Vec<Check> {
    let (eviction, room) = ("eviction", "memory");
    let found = match memory {
        Ok(found) => found,
        Err(unseen) => {
            let advice = "make sure that maxmemory-policy is noeviction; the rights +config|get and +info let this look";
            return vec![cannot_look(eviction, unseen, advice)];
        }
    };
    let limit = found.limit.unwrap_or(0);
    let advice = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf (redis-cli CONFIG REWRITE)";
    let mut checks = vec![match found.policy.as_deref() {
        Some("noeviction") => {
            Check::ok(eviction, "nothing is evicted (maxmemory-policy noeviction)")
        }
        Some(policy) if limit > 0 => Check::fail(
            eviction,
            format!(
                "keys are evicted when memory is full (maxmemory-policy {policy}): an evicted claim is done again"
            ),
            advice,
        ),
        Some(policy) => Check::warn(
            eviction,
            format!("keys would be evicted if maxmemory were set (maxmemory-policy {policy})"),
            advice,
        ),
        None => Check::warn(
            eviction,
            "cannot look: it does not say its maxmemory-policy",
            advice,
        ),
    }];
    let Some(used) = found.used else {
        return checks;
    };
    let shown = |bytes| ByteSize(bytes).to_string();
    checks.push(match limit {
        0 => Check::ok(room, format!("{} in use, with no limit", shown(used))),
        limit => {
            let percent = used.saturating_mul(100) / limit;
            let text = format!("{} of {} in use ({percent} %)", shown(used), shown(limit));
            if percent < NEARLY_FULL_PERCENT {
                Check::ok(room, text)
            } else {
                Check::warn(
                    room,
                    format!("{text}: when it is full no claim or lock is granted"),
                    "give it more (redis-cli CONFIG SET maxmemory), or keep less: shorter retentions, smaller responses",
                )
            }
        }
    });
    checks
}

fn of_clock(clock: &Seen<ClockSeen>) -> Check {
    const CHECK: &str = "clock";
    let seen = match clock {
        Ok(seen) => seen,
        Err(unseen) => return cannot_look(CHECK, unseen, "give its user the right +time"),
    };
    let seconds = |micros: i64| format!("{:.1} s", micros as f64 / 1e6);
    let off = |way: &str, micros: i64| {
        Check::warn(
            CHECK,
            format!("its clock is {} {way} this machine's", seconds(micros)),
            "have both keep time by NTP (timedatectl, chronyc tracking); the clock that is wrong may jump when it is \
             mended, so mend it while nothing is claimed",
        )
    };
    match seen {
        ClockSeen {
            jumped: Some(micros),
            ..
        } => {
            let way = if *micros > 0 { "forward" } else { "back" };
            Check::fail(
                CHECK,
                format!(
                    "its clock jumped {way} by {} while it was looked at: leases end too early or too late",
                    seconds(micros.abs())
                ),
                "have its machine slew its clock, never step it (chrony: makestep 1 3), and let nothing suspend it",
            )
        }
        ClockSeen { ahead, .. } if *ahead > SKEW_TOLD => off("ahead of", *ahead),
        ClockSeen { behind, .. } if *behind > SKEW_TOLD => off("behind", *behind),
        ClockSeen { .. } => Check::ok(CHECK, "goes steadily, and as this machine's does"),
    }
}

fn of_rights(rights: &Rights) -> Check {
    const CHECK: &str = "rights";
    let Rights { user, missing } = rights;
    if missing.is_empty() {
        return Check::ok(CHECK, format!("the user {user} may do all that is needed"));
    }
    let rules: Vec<_> = missing.iter().map(|missing| missing.rule()).collect();
    let rules = rules.join(" ");
    Check::fail(
        CHECK,
        format!("the user {user} lacks {rules}"),
        format!(
            "redis-cli ACL SETUSER {user} {rules}, and where the users are in a file redis-cli ACL SAVE"
        ),
    )
}

fn of_writes(writes: &Writes, server: &Seen<Server>) -> Check {
    const CHECK: &str = "writes";
    let (finding, advice) = match writes {
        Writes::Taken => return Check::ok(CHECK, "taken"),
        Writes::Forbidden => (
            "refused to this user".to_owned(),
            "give it the rights above",
        ),
        Writes::OutOfMemory => (
            "refused: its memory is full (OOM)".to_owned(),
            "give it more (redis-cli CONFIG SET maxmemory), or free some (redis-cli --bigkeys)",
        ),
        Writes::CannotPersist => (
            "refused: it cannot persist what it has (MISCONF)".to_owned(),
            "look for a full disk and for rights in its data folder (df -h, redis-cli CONFIG GET dir, its log), then \
             redis-cli BGREWRITEAOF or BGSAVE",
        ),
        Writes::ReadOnly => (
            "refused: it is a read-only replica (READONLY)".to_owned(),
            match server {
                Ok(Server {
                    role: Role::Replica(_),
                    ..
                }) => "name its primary, as above",
                _ => "name its primary with --redis-url",
            },
        ),
        Writes::TooFewReplicas => (
            "refused: it has fewer good replicas than it wants (NOREPLICAS)".to_owned(),
            "start them, or redis-cli CONFIG SET min-replicas-to-write 0",
        ),
        Writes::Otherwise(words) => (
            format!("refused: {words}"),
            "try it by hand: redis-cli -u URL SET cl:probe '' PX 1",
        ),
        Writes::NoAnswer => (
            "no answer in time".to_owned(),
            "see whether the server is overloaded or hangs: redis-cli --latency, redis-cli SLOWLOG GET",
        ),
    };
    Check::fail(CHECK, finding, advice)
}

fn of_scripts(scripts: &Scripts) -> Check {
    const CHECK: &str = "scripts";
    match scripts {
        Scripts::Work(took) => {
            let took = took.as_secs_f64() * 1000.0;
            Check::ok(
                CHECK,
                format!("all load; a claim and a lock went through their lives in {took:.0} ms"),
            )
        }
        Scripts::NotRun => Check::warn(
            CHECK,
            "not run: they would fail by what is said above",
            "mend that, and look again",
        ),
        Scripts::Fail { step, cause } => Check::fail(
            CHECK,
            format!("{step} failed: {cause}"),
            "a Redis that is another's (a proxy, a service that only speaks its protocol) may not run scripts: use Redis \
             7.0 or newer, or Valkey",
        ),
    }
}
