//! Receives the file of a request.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::Response;
use cairn_app::Upload;
use futures_util::StreamExt;
use percent_encoding::percent_decode_str;

use crate::call::{failed, refuse};
use crate::request_guard::single_value;
use crate::shared::Shared;

const FILE_NAME: HeaderName = HeaderName::from_static("x-file-name");
/// About the longest name that file systems allow.
const MAX_NAME_CHARS: usize = 255;

/// The file in the request's body, and the name that the sender gives it; else the answer that
/// refuses it.
pub(crate) async fn receive(
    shared: &Arc<Shared>,
    request: Request,
) -> Result<(Upload, String), Response> {
    let (parts, body) = request.into_parts();
    if let Err(refusal) = shared.guard.check_token(&parts.headers) {
        return Err(refuse(refusal.status(), refusal.sentence()));
    }
    let Some(name) = file_name(&parts.headers) else {
        return Err(refuse(
            StatusCode::BAD_REQUEST,
            "The header x-file-name must hold the file's name, percent-encoded.",
        ));
    };
    let num_bytes =
        single_value(&parts.headers, header::CONTENT_LENGTH).and_then(|length| length.parse().ok());
    let mut upload = shared.app.start_upload(num_bytes).await.map_err(failed)?;
    let mut body = body.into_data_stream();
    while let Some(bytes) = body.next().await {
        let Ok(bytes) = bytes else {
            return Err(refuse(
                StatusCode::BAD_REQUEST,
                "The upload ended before the whole file had arrived.",
            ));
        };
        upload.write(&bytes).await.map_err(failed)?;
    }
    Ok((upload, name))
}

/// The uploaded file's name, without folders and control characters.
fn file_name(headers: &HeaderMap) -> Option<String> {
    let name = percent_decode_str(single_value(headers, FILE_NAME)?).decode_utf8().ok()?;
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String =
        name.chars().filter(|char| !char.is_control()).take(MAX_NAME_CHARS).collect();
    (!name.trim().is_empty()).then_some(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn a_file_name_is_one_line_without_folders() {
        fn check(header: &str, expected: Option<&str>) {
            let headers = HeaderMap::from_iter([(FILE_NAME, header.parse().unwrap())]);
            assert_eq!(file_name(&headers).as_deref(), expected, "for {header:?}");
        }
        check("My%20book.safetensors", Some("My book.safetensors"));
        check("%E2%82%AC.safetensors", Some("€.safetensors"));
        check("..%2F..%2Fetc%2Fpasswd", Some("passwd"));
        check("C:%5Cbook", Some("book"));
        check("a%0Ab%1B%5B0m", Some("ab[0m"));
        check("%ff", None);
        check("%20", None);
        check("a%2F", None);
        check(&"x".repeat(300), Some(&"x".repeat(255)));
        assert_eq!(file_name(&HeaderMap::new()), None);
    }
}
