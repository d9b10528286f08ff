//! When to ask again: the server's own times, or times that double.

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::error::{DownloadError, Failure, Retry, Subject};
use super::options::HubLimits;

/// Counts failures in a row.
#[derive(Debug)]
pub(crate) struct Retries {
    limits: HubLimits,
    num_failures: u32,
}

impl Retries {
    pub fn new(limits: HubLimits) -> Retries {
        Retries { limits, num_failures: 0 }
    }

    /// A try has gained something, so the failures before it no longer count.
    pub fn gained(&mut self) {
        self.num_failures = 0;
    }

    /// How long to wait before the next try, or the error to give up with.
    pub fn wait(&mut self, failure: Failure) -> Result<Duration, DownloadError> {
        self.num_failures += 1;
        let may_try = self.num_failures < self.limits.tries;
        match failure.retry {
            Retry::BackOff if may_try => Ok(self.back_off(random_share())),
            Retry::After(wait) if may_try && wait <= self.limits.longest_server_wait => Ok(wait),
            _ => Err(failure.error),
        }
    }

    /// Half of the doubled time for certain, the other half by chance, so that many programs that
    /// failed at once do not come back at once.
    fn back_off(&self, share: f64) -> Duration {
        let doubled = self.limits.first_wait * 2_u32.pow(self.num_failures.clamp(1, 16) - 1);
        doubled.min(self.limits.longest_wait).mul_f64(0.5 + share / 2.0)
    }
}

fn random_share() -> f64 {
    f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX)
}

/// The failure that an answer other than success is. `is_from_hub` is false for a host that the
/// hub redirected to: such a refusal may mean that the signed address has expired.
pub(crate) fn status_failure(
    status: StatusCode,
    headers: &HeaderMap,
    host: &str,
    is_from_hub: bool,
    subject: Option<Subject>,
) -> Failure {
    let hub_failed = DownloadError::HubFailed { host: host.to_owned(), status: status.as_u16() };
    match (status.as_u16(), asked_wait(headers, SystemTime::now())) {
        (429, Some(wait)) => {
            let error = DownloadError::RateLimited { host: host.to_owned(), wait };
            Failure { error, retry: Retry::After(wait) }
        }
        (503, Some(wait)) => Failure { error: hub_failed, retry: Retry::After(wait) },
        (408 | 416 | 429 | 500 | 502 | 503 | 504, _) => Failure::may_pass(hub_failed),
        (400..=499, _) if !is_from_hub => Failure::may_pass(hub_failed),
        _ => {
            let code = headers.get("x-error-code").and_then(|value| value.to_str().ok());
            let refusal = subject.and_then(|subject| refusal(status, code.unwrap_or(""), subject));
            Failure::is_final(refusal.unwrap_or(hub_failed))
        }
    }
}

/// What the hub refuses, if its status says so. It answers 401 where a repository does not exist
/// or is private, and names the reason in a code.
fn refusal(status: StatusCode, code: &str, subject: Subject) -> Option<DownloadError> {
    let repo = subject.repo.clone();
    Some(match (status.as_u16(), code, subject.file, subject.revision) {
        (401 | 403, "GatedRepo", ..) => {
            let page = subject.hub.page_url(&repo);
            DownloadError::Gated { repo, page }
        }
        (401, ..) => DownloadError::Unauthorized { repo, has_token: subject.hub.has_token() },
        (403, ..) => DownloadError::Forbidden { repo },
        (404 | 410, "RevisionNotFound", _, Some(revision)) => {
            DownloadError::RevisionNotFound { repo, revision: revision.to_string() }
        }
        (404 | 410, code, Some(file), _) if code != "RepoNotFound" => {
            DownloadError::FileGone { repo, file: file.to_owned() }
        }
        (404 | 410, ..) => DownloadError::NotFound { repo },
        _ => return None,
    })
}

/// The time that an answer asks to wait: `Retry-After` in seconds or as a date, or `RateLimit` with
/// nothing left.
fn asked_wait(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(value) = text(RETRY_AFTER.as_str()).map(str::trim) {
        if let Ok(seconds) = value.parse() {
            return Some(Duration::from_secs(seconds));
        }
        if let Ok(date) = httpdate::parse_http_date(value) {
            return Some(date.duration_since(now).unwrap_or_default());
        }
    }
    // As in `"api";r=0;t=55`: none left, and 55 seconds until there are.
    let fields: Vec<(&str, &str)> =
        text("ratelimit")?.split(';').filter_map(|field| field.trim().split_once('=')).collect();
    let number = |name: &str| -> Option<u64> {
        fields.iter().find(|(key, _)| *key == name)?.1.trim().parse().ok()
    };
    (number("r") == Some(0)).then(|| number("t").map(Duration::from_secs)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_says_how_long_to_wait() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let check = |name: &'static str, value: &'static str, expected: Option<u64>| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            let wait = asked_wait(&headers, now).map(|wait| wait.as_secs());
            assert_eq!(wait, expected, "{name}: {value}");
        };
        check("retry-after", "120", Some(120));
        check("retry-after", " 0 ", Some(0));
        check("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT", Some(7));
        check("retry-after", "Sun, 06 Nov 1994 08:49:00 GMT", Some(0));
        check("retry-after", "soon", None);
        check("retry-after", "-1", None);
        check("ratelimit", "\"api\";r=0;t=55", Some(55));
        check("ratelimit", "\"api\"; r=0 ; t=55", Some(55));
        check("ratelimit", "\"api\";r=3;t=55", None);
        check("ratelimit", "\"api\";r=0", None);
        check("x-other", "1", None);
    }

    #[test]
    fn waits_double_up_to_the_longest_and_end_after_the_last_try() {
        let limits = HubLimits {
            tries: 5,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(3),
            longest_server_wait: Duration::from_secs(10),
            ..HubLimits::default()
        };
        let error = DownloadError::Cut { host: "hub".to_owned() };
        let mut retries = Retries::new(limits.clone());
        for (least, most) in [(500, 1000), (1000, 2000), (1500, 3000), (1500, 3000)] {
            let wait = retries.wait(Failure::may_pass(error.clone())).unwrap().as_millis();
            assert!((least..=most).contains(&wait), "{wait}");
        }
        assert_eq!(retries.wait(Failure::may_pass(error.clone())), Err(error.clone()));
        retries.gained();
        assert!(retries.wait(Failure::may_pass(error.clone())).is_ok());
        assert!(retries.wait(Failure::is_final(error.clone())).is_err());
        for (seconds, waits) in [(10, true), (11, false)] {
            let wait = Duration::from_secs(seconds);
            let failure = Failure { error: error.clone(), retry: Retry::After(wait) };
            let expected = if waits { Ok(wait) } else { Err(error.clone()) };
            assert_eq!(Retries::new(limits.clone()).wait(failure), expected);
        }
    }
}
