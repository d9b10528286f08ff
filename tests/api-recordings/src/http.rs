//! The bytes of HTTP requests and replies, as far as these exchanges need them.

use serde_json::Value;

/// A reply as it was received.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body, without the framing of chunks.
    pub body: Vec<u8>,
    /// Whether its end was received.
    pub is_whole: bool,
}

/// A server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    /// Its name; empty where it has none.
    pub name: String,
    /// Its data.
    pub data: String,
}

impl Reply {
    /// Reads a reply whose connection was closed; none if not even its head has arrived.
    pub fn parse(raw: &[u8]) -> Option<Reply> {
        let (head, rest) = split_head(raw)?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines.filter_map(header).collect();
        let value = |name: &str| {
            headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
        };
        let is_chunked = value("transfer-encoding") == Some("chunked");
        let length = value("content-length").and_then(|length| length.parse::<usize>().ok());
        let (body, is_whole) = match is_chunked {
            true => joined_chunks(rest),
            false => (rest.to_vec(), length.is_none_or(|length| rest.len() >= length)),
        };
        Some(Reply { status, headers, body, is_whole })
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Its body as JSON; none if it is something else.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Its server-sent events, if it consists of some. Comments and an event that was cut are left
    /// out.
    pub fn events(&self) -> Option<Vec<SseEvent>> {
        self.header("content-type").filter(|kind| kind.starts_with("text/event-stream"))?;
        let text = String::from_utf8_lossy(&self.body);
        let end = text.rfind("\n\n").map_or(0, |end| end + 2);
        let blocks = text[..end].split("\n\n").filter(|block| !block.is_empty());
        let event = |block: &str| {
            let field = |name: &str| {
                let mut values = block.lines().filter_map(|line| line.strip_prefix(name));
                values.next().map(|value| value.trim().to_owned())
            };
            let data = field("data:")?;
            Some(SseEvent { name: field("event:").unwrap_or_default(), data })
        };
        Some(blocks.filter_map(event).collect())
    }
}

/// The head as text, and what follows it; none if it is not there yet.
pub(crate) fn split_head(raw: &[u8]) -> Option<(&str, &[u8])> {
    let end = raw.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    Some((std::str::from_utf8(&raw[..end]).ok()?, &raw[end + 4..]))
}

/// The name, in lower case, and the value of a header's line.
pub(crate) fn header(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().to_lowercase(), value.trim().to_owned()))
}

/// The chunks of a body, and whether the last one was there.
fn joined_chunks(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|bytes| bytes == b"\r\n") else {
            return (body, false);
        };
        let size = std::str::from_utf8(&rest[..end]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let Some(size) = size else { return (body, false) };
        if size == 0 {
            return (body, true);
        }
        let Some(chunk) = rest.get(end + 2..end + 2 + size) else { return (body, false) };
        body.extend_from_slice(chunk);
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_and_a_cut_reply_is_known() {
        fn check(body: &str, text: &str, is_whole: bool) {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n";
            let raw = format!("{head}content-type: text/event-stream\r\n\r\n{body}");
            let reply = Reply::parse(raw.as_bytes()).expect("a reply");
            assert_eq!(String::from_utf8_lossy(&reply.body), text);
            assert_eq!((reply.status, reply.is_whole), (200, is_whole));
        }
        check("3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n", "abc0123456789abcdef", true);
        check("3\r\nabc\r\n10\r\n01", "abc", false);
        check("", "", false);
    }

    #[test]
    fn events_have_names_and_data_and_a_cut_one_is_left_out() {
        let raw = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
            : ping\n\nevent: a\ndata: {}\n\ndata: [DONE]\n\ndata: {\"cut";
        let events = Reply::parse(raw.as_bytes()).and_then(|reply| reply.events());
        let event = |name: &str, data: &str| SseEvent { name: name.into(), data: data.into() };
        assert_eq!(events, Some(vec![event("a", "{}"), event("", "[DONE]")]));
    }
}
