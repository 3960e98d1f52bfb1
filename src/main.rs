//! The `claimlock` program: everything it does lives in the library.

use std::process::ExitCode;

use claimlock::cli;

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => error.report(),
    }
}

fn start() -> Result<ExitCode, cli::Error> {
    let command = cli::parse(std::env::args_os())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(cli::Error::Runtime)?;
    let outcome = runtime.block_on(command.run());
    // Dropping the runtime would wait for blocking work without a bound, past the end of a drain.
    runtime.shutdown_background();
    outcome
}
