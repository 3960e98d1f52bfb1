//! Claimlock: idempotency keys and locks over gRPC, for services in any language.
//!
//! The map of the modules. Each may use those to its right, and none to its left:
//!
//! ```text
//! main → cli → app → rpc → coordinator → store → domain
//!                └→ config, telemetry
//!
//! rpc, coordinator, store → metrics, trace → domain
//! ```
//!
//! - [`domain`]: names and rules without I/O
//! - [`store`]: Redis, where all state is and changes; the only place for its driver. What a transition means is said
//!   once, in the scripts of the folder `lua/`
//! - [`coordinator`]: what a call does, whatever it came in by
//! - [`rpc`]: gRPC; the only place for its library
//! - [`app`]: puts it together: wire, health, serve, drain
//! - [`metrics`]: what is counted and measured
//! - [`trace`]: what goes with a call beside its arguments: its trace, and notes for the log
//! - [`config`], [`telemetry`]: typed settings; logs
//! - [`cli`]: one file a subcommand; those that ask a service stand on the Rust client in `clients/rust`

pub mod app;
pub mod cli;
pub mod config;
pub mod coordinator;
pub mod domain;
pub mod metrics;
pub mod rpc;
pub mod store;
pub mod telemetry;
pub mod trace;
