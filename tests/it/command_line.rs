//! The subcommands that ask a service, as processes.

mod lock;
mod lock_lost;
mod once;
mod once_ends;
mod once_output;
mod operators_claims;
mod operators_locks;
mod raw_verbs;
mod reaching;
mod signals;
mod started;
mod terminal;
