//! One request for the rest of a file, and its body written as it comes.

use std::io;

use bytes::Bytes;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::DownloadPlan;
use super::progress::Reporter;
use crate::cache_layout::Partial;
use crate::hub_api::{Answer, DownloadError, Failure, Hub, Range, RepoFile, Subject};

/// Chunks between the network and the disk, of at most some 400 kB each.
const CHUNKS_IN_FLIGHT: usize = 4;

pub(super) struct Attempt<'a> {
    pub hub: &'a Hub,
    pub plan: &'a DownloadPlan,
    pub file: &'a RepoFile,
    pub reporter: Reporter<'a>,
    /// The ETag of the answer that the partial file came with.
    pub etag: Option<String>,
}

/// What an attempt leaves: the partial file, as far as it has come.
pub(super) struct AttemptEnd {
    pub partial: Partial,
    pub etag: Option<String>,
    /// Ok if the body ended at the file's length.
    pub end: Result<(), Failure>,
}

impl Attempt<'_> {
    /// Asks and writes. Fails only where the disk does; what the network does is in the result.
    pub async fn run(self, mut partial: Partial) -> io::Result<AttemptEnd> {
        let etag = self.etag.clone();
        let range = Range { start: partial.length(), etag: etag.clone() };
        let answer = match self.ask(&range).await {
            Ok(answer) => answer,
            Err(failure) => {
                if is_range_refused(&failure) {
                    partial.clear()?;
                }
                return Ok(AttemptEnd { partial, etag, end: Err(failure) });
            }
        };
        let etag = answer.headers.get(ETAG).and_then(|value| value.to_str().ok());
        // A weak one may not be sent back in a range.
        let etag = etag.filter(|etag| !etag.starts_with("W/")).map(str::to_owned);
        match self.begins_at(&answer, range.start) {
            Ok(start) if start == range.start => {}
            Ok(_) => partial.clear()?,
            Err(failure) => {
                if answer.status == reqwest::StatusCode::PARTIAL_CONTENT {
                    partial.clear()?;
                }
                return Ok(AttemptEnd { partial, etag: None, end: Err(failure) });
            }
        }
        let (partial, end) = self.write(answer, partial).await?;
        Ok(AttemptEnd { partial, etag, end })
    }

    async fn ask(&self, range: &Range) -> Result<Answer, Failure> {
        let Attempt { hub, plan, file, .. } = self;
        let path = file.path.split('/');
        let parts = plan.repo.parts().chain(["resolve", plan.commit.as_str()]).chain(path);
        let subject = Subject {
            hub,
            repo: &plan.repo,
            revision: Some(&plan.revision),
            file: Some(&file.path),
        };
        let answer = hub.get(hub.address(parts), Some(range), Some(subject)).await?;
        let other_commit =
            answer.promised.commit.as_ref().is_some_and(|commit| commit != plan.commit.as_str());
        let other_content =
            answer.promised.etag.as_ref().is_some_and(|etag| etag != file.hash.as_str());
        if other_commit || other_content {
            return Err(Failure::is_final(DownloadError::ChangedOnHub {
                repo: plan.repo.clone(),
                file: file.path.clone(),
            }));
        }
        Ok(answer)
    }

    /// Where the body begins in the file. Refuses one that does not end where the file does, before
    /// any of it is written.
    fn begins_at(&self, answer: &Answer, asked: u64) -> Result<u64, Failure> {
        let total = self.file.bytes;
        let refused = |problem: String| {
            Failure::may_pass(DownloadError::UnexpectedAnswer {
                host: answer.host.clone(),
                problem,
            })
        };
        if answer.is_html() {
            let problem = "a web page instead of a file, perhaps a network's sign-in page";
            return Err(Failure::is_final(refused(problem.to_owned()).error));
        }
        let text = |name| answer.headers.get(name)?.to_str().ok();
        let start = match answer.status.as_u16() {
            200 => 0,
            206 => {
                let range = text(CONTENT_RANGE).and_then(content_range);
                if range != Some((asked, total)) {
                    return Err(refused("another range than the one asked for".to_owned()));
                }
                asked
            }
            status => return Err(refused(format!("status {status}"))),
        };
        match text(CONTENT_LENGTH).map(str::parse::<u64>) {
            Some(Ok(length)) if length != total - start => {
                let expected = total - start;
                Err(refused(format!("{length} bytes where {expected} were announced")))
            }
            _ => Ok(start),
        }
    }

    /// Passes the body on to a thread that hashes and writes it, until one of them ends.
    async fn write(
        &self,
        mut answer: Answer,
        partial: Partial,
    ) -> io::Result<(Partial, Result<(), Failure>)> {
        let total = self.file.bytes;
        let mut length = partial.length();
        self.reporter.fetched(0, length);
        let (sender, receiver) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let writer = spawn_blocking(move || append_all(partial, receiver));
        let end = loop {
            let chunk = match answer.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => {
                    let host = answer.host.clone();
                    break Err(Failure::may_pass(DownloadError::Cut { host }));
                }
                Err(failure) => break Err(failure),
            };
            // What follows the file's length is not the file's, and its hash decides about the rest.
            let num_bytes = (total - length).min(chunk.len() as u64);
            length += num_bytes;
            if sender.send(chunk.slice(..num_bytes as usize)).await.is_err() {
                // The disk refused; the writer says why.
                break Ok(());
            }
            self.reporter.fetched(num_bytes, length);
            if length == total {
                break Ok(());
            }
        };
        drop(sender);
        // A runtime that shuts down has cancelled the writer.
        let (partial, written) = writer.await.map_err(io::Error::other)?;
        written?;
        Ok((partial, end))
    }
}

fn append_all(
    mut partial: Partial,
    mut chunks: mpsc::Receiver<Bytes>,
) -> (Partial, io::Result<()>) {
    while let Some(chunk) = chunks.blocking_recv() {
        if let Err(error) = partial.append(&chunk) {
            return (partial, Err(error));
        }
    }
    (partial, Ok(()))
}

fn is_range_refused(failure: &Failure) -> bool {
    matches!(failure.error, DownloadError::HubFailed { status: 416, .. })
}

/// Start and whole length of a `Content-Range` that reaches to the end.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
    let total = total.parse().ok()?;
    (end.checked_add(1)? == total).then_some((start, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_reaches_to_the_end() {
        for (text, expected) in [
            ("bytes 5-9/10", Some((5, 10))),
            ("bytes 0-0/1", Some((0, 1))),
            ("bytes 5-8/10", None),
            ("bytes 5-9/*", None),
            ("bytes */10", None),
            ("5-9/10", None),
            ("bytes -5-9/10", None),
            ("bytes 5-18446744073709551615/10", None),
        ] {
            assert_eq!(content_range(text), expected, "{text}");
        }
    }
}
