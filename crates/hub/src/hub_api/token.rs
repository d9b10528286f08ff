//! The secret that opens private and gated repositories.

use std::fmt;

use reqwest::header::HeaderValue;

use super::DownloadError;

/// An access token of the hub. It cannot be printed; only requests to the hub's own address carry
/// it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token without the white space around it. Fails if it is empty or has characters that no
    /// token has; the error does not repeat it.
    pub fn new(text: &str) -> Result<Token, DownloadError> {
        let text = text.trim();
        if !text.is_empty()
            && text.len() <= 4096
            && text.bytes().all(|byte| byte.is_ascii_graphic())
        {
            Ok(Token(text.to_owned()))
        } else {
            Err(DownloadError::BadToken)
        }
    }

    /// The `Authorization` header, marked so that no library prints it.
    pub(super) fn header(&self) -> Result<HeaderValue, DownloadError> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.0))
            .map_err(|_| DownloadError::BadToken)?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_never_printed() {
        let token = Token::new(" hf_canary\n").unwrap();
        assert_eq!(token.0, "hf_canary");
        assert!(!format!("{token:?} {:?}", token.header()).contains("canary"));
        for bad in ["", " \n", "hf_canary\r\nHost: x", "hf canary", "hf_canäry"] {
            let error = Token::new(bad).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("can"), "{bad}");
        }
    }
}
