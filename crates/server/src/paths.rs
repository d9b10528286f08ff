//! Paths of the API as clients join them from an address and a route.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// Returns the address of the route that is meant: a path of the API has one slash at its beginning,
/// and none at its end. Other paths stay as they are.
pub(crate) fn plain(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let inner = path.trim_start_matches('/').trim_end_matches('/');
    let is_of_api = inner == "v1" || inner.starts_with("v1/");
    if !is_of_api || path.len() == inner.len() + 1 {
        return None;
    }
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("/{inner}{query}")).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_route_that_is_meant() {
        for (uri, expected) in [
            ("/v1/models", None),
            ("/v1/models/", Some("/v1/models")),
            ("//v1/messages?beta=true", Some("/v1/messages?beta=true")),
            ("/v1/models/a/b//?x=/", Some("/v1/models/a/b?x=/")),
            ("/v1/", Some("/v1")),
            ("/", None),
            ("//", None),
            ("/assets/", None),
            ("//other", None),
            ("http://localhost:1/v1/models/", Some("http://localhost:1/v1/models")),
        ] {
            let uri: Uri = uri.parse().expect("an address");
            assert_eq!(plain(&uri).map(|uri| uri.to_string()).as_deref(), expected, "{uri}");
        }
    }
}
