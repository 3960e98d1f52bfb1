//! Tests on real servers, one binary.

mod embedded;
mod harness;
mod settings;
mod support;
