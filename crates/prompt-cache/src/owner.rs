//! Who refers to stored chunks.

use std::fmt;
use std::str::FromStr;

use crate::{ChunkKey, PromptCacheError};

/// Who holds a reference. As text, in rows: `conversation/<id>`, `named/<id>`,
/// `folder/<id>` or `api/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A conversation, by its id.
    Conversation(String),
    /// A starting point, by its id.
    Named(String),
    /// A folder of conversations, by its id: what they begin with.
    Folder(String),
    /// A client of the API, by the key that it gives its prompts.
    Api(String),
}

impl Owner {
    /// Its id, without its kind.
    pub fn id(&self) -> &str {
        match self {
            Owner::Conversation(id) | Owner::Named(id) | Owner::Folder(id) | Owner::Api(id) => id,
        }
    }
}

/// The name of a reference. Each owner has at most one that is not stale, and a stale one for each
/// position that it has left and that no other of its references covers: an earlier branch of a
/// conversation, or the same conversation read by another model. Stale references let a deletion
/// find those chunks.
///
/// As text, in rows: the owner, for a stale reference followed by `#stale:<key>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefName {
    /// Who holds it.
    pub owner: Owner,
    /// The chunk at which the owner left it; none while the owner is there.
    pub stale_key: Option<ChunkKey>,
}

impl RefName {
    /// Whether the owner has moved away from it.
    pub fn is_stale(&self) -> bool {
        self.stale_key.is_some()
    }
}

impl From<Owner> for RefName {
    fn from(owner: Owner) -> Self {
        RefName { owner, stale_key: None }
    }
}

/// Separates an owner from the key of a stale reference.
const STALE: &str = "#stale:";

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Conversation(id) => write!(formatter, "conversation/{id}"),
            Owner::Named(id) => write!(formatter, "named/{id}"),
            Owner::Folder(id) => write!(formatter, "folder/{id}"),
            Owner::Api(id) => write!(formatter, "api/{id}"),
        }
    }
}

impl FromStr for Owner {
    type Err = PromptCacheError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some(("conversation", id)) => Ok(Owner::Conversation(id.to_owned())),
            Some(("named", id)) => Ok(Owner::Named(id.to_owned())),
            Some(("folder", id)) => Ok(Owner::Folder(id.to_owned())),
            Some(("api", id)) => Ok(Owner::Api(id.to_owned())),
            _ => Err(PromptCacheError::unknown(text, "owner of a reference")),
        }
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stale_key {
            None => self.owner.fmt(formatter),
            Some(key) => write!(formatter, "{}{STALE}{key}", self.owner),
        }
    }
}

impl FromStr for RefName {
    type Err = PromptCacheError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (owner, stale_key) = match text.rsplit_once(STALE) {
            None => (text, None),
            Some((owner, key)) => (owner, Some(key.parse()?)),
        };
        Ok(RefName { owner: owner.parse()?, stale_key })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn names_of_references_survive_the_way_through_text() {
        let key = "00ff0123456789abcdef0123456789ab";
        let check = |owner: Owner, stale_key: Option<&str>, expected: &str| {
            let name = RefName { owner, stale_key: stale_key.map(|key| key.parse().unwrap()) };
            assert_eq!((name.to_string().as_str(), expected.parse()), (expected, Ok(name)));
        };
        check(Owner::Conversation("0198".to_owned()), None, "conversation/0198");
        check(Owner::Named("a/b".to_owned()), None, "named/a/b");
        check(Owner::Folder("0199".to_owned()), None, "folder/0199");
        check(Owner::Api("k#1".to_owned()), None, "api/k#1");
        let stale = format!("conversation/0198#stale:{key}");
        check(Owner::Conversation("0198".to_owned()), Some(key), &stale);
        for text in ["", "conversation", "chat/1", "named/1#stale:", "named/1#stale:00ff"] {
            assert!(text.parse::<RefName>().is_err(), "{text}");
        }
    }
}
