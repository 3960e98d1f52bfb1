//! KeepAlive: leases that live as long as a stream asks for them, are told to be lost, and end with it where they shall.

mod streams;
