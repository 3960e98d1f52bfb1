//! Tests on real servers, one binary.

mod embedded;
mod harness;
mod model;
mod property;
mod settings;
mod support;
