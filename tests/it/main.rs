//! Tests on real servers, one binary.

mod admin;
mod bad_input;
mod claim_scripts;
mod claims;
mod clock;
mod embedded;
mod embedded_program;
mod errors;
mod harness;
mod model;
mod names;
mod process;
mod property;
mod races;
mod responses;
mod served;
mod settings;
mod store_faults;
mod support;
mod undo;
mod warnings;
