//! Claims over gRPC, on a real Redis whose clock the tests move: the table of what each call comes to in each state, and
//! the rules that go with it.

mod abandon;
mod expiry;
mod fingerprints;
mod grants;
mod late_calls;
mod leases;
mod open_states;
mod policies;
mod receipts;
mod resolved;
mod responses;
mod settled_states;
mod spent_tokens;
mod waiting;
