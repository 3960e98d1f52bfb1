//! Tests on real servers, one binary.

mod admin;
mod bad_input;
mod embedded;
mod harness;
mod model;
mod property;
mod settings;
mod support;
