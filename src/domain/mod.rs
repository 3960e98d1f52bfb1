//! Names and rules without I/O: what a key, a token, a lease and an outcome are.
//!
//! Every type here has one way in, which checks it. Nothing here knows of the wire, of Redis or of SQL.

pub mod audit;
pub mod claim;
pub mod duration;
pub mod failure;
pub mod fingerprint;
pub mod lease;
pub mod limits;
pub mod lock;
pub mod name;
pub mod page;
pub mod receipt;
pub mod response;
pub mod token;
