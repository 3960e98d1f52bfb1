//! Every failure has the code, reason and details of the table in the design, and no inner text.

mod deadlines;
mod messages;
mod store;
