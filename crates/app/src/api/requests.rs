//! The last requests of programs. They are in memory only.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::wire::{ApiFigures, ApiRequest};

const MAX_REQUESTS: usize = 100;

/// The last requests, the newest first.
#[derive(Debug, Default)]
pub(super) struct Requests(Mutex<(u32, VecDeque<ApiRequest>)>);

/// A request that has ended, as [`ApiRequest`] describes it.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "see ApiRequest")]
pub struct EndedRequest {
    pub at_ms: i64,
    pub key: Option<String>,
    pub route: String,
    pub model: Option<String>,
    pub figures: Option<ApiFigures>,
    pub status: u16,
}

impl Requests {
    pub(super) fn list(&self) -> Vec<ApiRequest> {
        self.guard().1.iter().cloned().collect()
    }

    pub(super) fn add(&self, ended: EndedRequest) -> ApiRequest {
        let (number, requests) = &mut *self.guard();
        *number += 1;
        let EndedRequest { at_ms, key, route, model, figures, status } = ended;
        let request = ApiRequest { number: *number, at_ms, key, route, model, figures, status };
        requests.push_front(request.clone());
        requests.truncate(MAX_REQUESTS);
        request
    }

    fn guard(&self) -> MutexGuard<'_, (u32, VecDeque<ApiRequest>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_goes_when_the_list_is_full() {
        let requests = Requests::default();
        for at_ms in 0..=100 {
            requests.add(EndedRequest {
                at_ms,
                key: None,
                route: "GET /v1/models".to_owned(),
                model: None,
                figures: None,
                status: 200,
            });
        }
        let list = requests.list();
        assert_eq!((list.len(), list[0].at_ms, list[99].at_ms), (100, 100, 1));
        assert_eq!((list[0].number, list[99].number), (101, 2));
    }
}
