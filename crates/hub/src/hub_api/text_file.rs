//! One short file of a model, to be read instead of kept: its description, its configuration.

use super::error::{DownloadError, Failure, Subject};
use super::names::{Commit, RepoId};
use super::request::unexpected;
use super::retries::Retries;
use super::{Hub, is_plain_path};

impl Hub {
    /// The text of a file of a commit, such as `README.md`; none if the commit has no such file. It
    /// is refused if it is longer than `max_bytes`, not UTF-8, or a web page. Nothing is written.
    pub async fn text_file(
        &self,
        repo: &RepoId,
        commit: &Commit,
        path: &str,
        max_bytes: usize,
    ) -> Result<Option<String>, DownloadError> {
        if !is_plain_path(path) {
            // No list of files that is accepted has it.
            return Ok(None);
        }
        let mut retries = Retries::new(self.limits().clone());
        loop {
            match self.try_text_file(repo, commit, path, max_bytes).await {
                Ok(text) => return Ok(Some(text)),
                Err(Failure { error: DownloadError::FileGone { .. }, .. }) => return Ok(None),
                Err(failure) => tokio::time::sleep(retries.wait(failure)?).await,
            }
        }
    }

    async fn try_text_file(
        &self,
        repo: &RepoId,
        commit: &Commit,
        path: &str,
        max_bytes: usize,
    ) -> Result<String, Failure> {
        let parts = repo.parts().chain(["resolve", commit.as_str()]).chain(path.split('/'));
        let subject = Subject { hub: self, repo, revision: None, file: Some(path) };
        let mut answer = self.get(self.address(parts), None, Some(subject)).await?;
        if answer.promised.commit.as_ref().is_some_and(|found| found != commit.as_str()) {
            let (repo, file) = (repo.clone(), path.to_owned());
            return Err(Failure::is_final(DownloadError::ChangedOnHub { repo, file }));
        }
        if answer.is_html() {
            let problem = "a web page instead of a file, perhaps a network's sign-in page";
            return Err(unexpected(&answer.host, problem));
        }
        if answer.status.as_u16() != 200 {
            return Err(unexpected(&answer.host, format!("status {}", answer.status.as_u16())));
        }
        let too_long = format!("more than {max_bytes} bytes of {path:?}");
        let body = answer.short_body(max_bytes, &too_long).await?;
        String::from_utf8(body.into())
            .map_err(|_| unexpected(&answer.host, format!("{path:?} is not UTF-8")))
    }
}
