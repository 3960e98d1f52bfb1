//! A listing, page by page, printed as it comes.

use claimlock_client::{Client, Failure};
use clap::{ArgMatches, Args};
use serde_json::Value;

use super::Error;
use super::ask::Ask;
use super::output::{self, Format, OutputForPeople, note};
use super::table::Table;

/// A page takes the service some milliseconds, and is far from the largest answer that a client takes.
const PAGE: usize = 500;
/// Where only a few are asked for, most of a page may be passed over.
const SMALLEST_PAGE: usize = 50;

/// What every list takes.
#[derive(Args)]
pub(super) struct ListArgs {
    /// Those of every tenant, not of one
    #[arg(long)]
    pub(super) all_tenants: bool,

    /// Only those whose names begin with this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(super) prefix: String,

    /// No more than this many
    #[arg(long, value_name = "COUNT")]
    pub(super) limit: Option<usize>,

    #[command(flatten)]
    pub(super) output: OutputForPeople,

    #[command(flatten)]
    ask: Ask,
}

impl ListArgs {
    pub(super) fn client(&self, matches: &ArgMatches) -> Result<Client, Error> {
        if self.all_tenants {
            self.ask.client_of_no_tenant(matches)
        } else {
            self.ask.client(matches)
        }
    }
}

/// A page as it came: what is on it, and where the next one starts.
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    pub(super) next: String,
}

/// How a list is printed.
pub(super) struct Listing<T> {
    pub(super) format: Format,
    /// The most that are listed.
    pub(super) limit: Option<usize>,
    /// What is listed, in the plural.
    pub(super) what: &'static str,
    pub(super) header: Vec<&'static str>,
    pub(super) row: fn(&T) -> Vec<String>,
    pub(super) json: fn(&T) -> Value,
}

impl<T> Listing<T> {
    /// Prints what `page` gives, by the size of a page and where it starts, to its end.
    pub(super) async fn print(
        self,
        mut page: impl AsyncFnMut(i32, String) -> Result<Page<T>, Failure>,
    ) -> Result<(), Error> {
        let mut room = self.limit.unwrap_or(usize::MAX);
        let size = room.clamp(SMALLEST_PAGE, PAGE);
        let size = i32::try_from(size).expect("it is at most a page");
        let mut table = Table::new(self.header);
        let (mut start, mut listed) = (String::new(), 0);
        loop {
            let Page { mut items, next } = page(size, start).await?;
            items.truncate(room);
            room -= items.len();
            listed += items.len();
            let text = match self.format {
                Format::Json => items
                    .iter()
                    .map(|item| format!("{}\n", (self.json)(item)))
                    .collect(),
                Format::Table => table.page(&items.iter().map(self.row).collect::<Vec<_>>()),
            };
            let is_read = output::write_on(text.as_bytes())?;
            if next.is_empty() || room == 0 || !is_read {
                break;
            }
            start = next;
        }
        if listed == 0 {
            note(format_args!("no {}", self.what));
        }
        Ok(())
    }
}
