//! The result of a command as a stored response: status 0, the exit code and the length of standard output as headers, and
//! standard output followed by standard error as the body.

use std::process::ExitCode;

use claimlock_client::Response;

use super::output::Printed;
use crate::cli::{Error, exit, output};

const EXIT_CODE: &str = "exit-code";
const STDOUT_BYTES: &str = "stdout-bytes";
const CONTENT_TYPE: &str = "content-type";
const TYPE: &str = "application/vnd.claimlock.command-output";

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stored {
    exit_code: u8,
    /// Standard output and standard error; none where they were not stored.
    printed: Option<(Vec<u8>, Vec<u8>)>,
}

impl Stored {
    pub(super) fn new(exit_code: u8, printed: Printed, no_output: bool) -> Self {
        let keeps = !no_output && !printed.is_too_much;
        Self {
            exit_code,
            printed: keeps.then_some((printed.stdout, printed.stderr)),
        }
    }

    pub(super) fn without_output(&self) -> Self {
        Self {
            exit_code: self.exit_code,
            printed: None,
        }
    }

    pub(super) fn into_response(self) -> Response {
        let response = Response::default()
            .header(CONTENT_TYPE, TYPE)
            .header(EXIT_CODE, self.exit_code.to_string());
        match self.printed {
            Some((mut stdout, mut stderr)) => {
                let mut response = response.header(STDOUT_BYTES, stdout.len().to_string());
                stdout.append(&mut stderr);
                response.body = stdout;
                response
            }
            None => response,
        }
    }

    /// A response that something else stored under the key, an operator say, is a success whose body is printed.
    pub(super) fn from_response(response: Response) -> Self {
        let number = |name: &str| {
            let header = response.headers.iter().find(|(found, _)| found == name);
            let text = header.and_then(|(_, value)| std::str::from_utf8(value).ok());
            text.and_then(|text| text.parse::<usize>().ok())
        };
        let exit_code = number(EXIT_CODE);
        let stdout_bytes = number(STDOUT_BYTES);
        let mut stdout = response.body;
        let printed = match (exit_code, stdout_bytes) {
            (Some(_), None) => None,
            (None, _) => Some((stdout, Vec::new())),
            (Some(_), Some(length)) => {
                let stderr = stdout.split_off(length.min(stdout.len()));
                Some((stdout, stderr))
            }
        };
        Self {
            exit_code: exit_code.map_or(0, |code| u8::try_from(code).unwrap_or(exit::DEFECT)),
            printed,
        }
    }

    /// Prints what the command printed, and gives its exit code.
    pub(super) fn replay(self) -> Result<ExitCode, Error> {
        use std::io::Write as _;
        match self.printed {
            Some((stdout, stderr)) => {
                output::write(&stdout)?;
                // Where standard error is closed there is no one to print it for.
                let _ = std::io::stderr().write_all(&stderr);
            }
            None => output::note("it was done before; what it printed was not stored"),
        }
        Ok(ExitCode::from(self.exit_code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_comes_back_as_it_was_stored() {
        for printed in [
            None,
            Some((Vec::new(), Vec::new())),
            Some((vec![0, 255], b"warning\n".to_vec())),
        ] {
            let stored = || Stored {
                exit_code: 3,
                printed: printed.clone(),
            };
            assert_eq!(Stored::from_response(stored().into_response()), stored());
        }
    }

    #[test]
    fn what_an_operator_stored_is_a_success() {
        let stored = Stored::from_response(Response::new(201, b"paid\n".to_vec()));
        assert_eq!(stored.exit_code, 0);
        assert_eq!(stored.printed, Some((b"paid\n".to_vec(), Vec::new())));
    }
    #[test]
    fn headers_that_do_not_fit_their_body_lose_nothing_of_it() {
        let response = Response::new(0, b"printed".to_vec())
            .header(EXIT_CODE, "3")
            .header(STDOUT_BYTES, "1000");
        let stored = Stored::from_response(response);
        assert_eq!(stored.exit_code, 3);
        assert_eq!(stored.printed, Some((b"printed".to_vec(), Vec::new())));
    }
}
