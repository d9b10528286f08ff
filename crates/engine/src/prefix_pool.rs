//! The prefixes that requests have asked to keep.

use cairn_lm::batch::SharedPrefix;

/// Prefixes that have been read, of loaded models. Owned by the engine's thread.
#[derive(Default)]
pub(crate) struct PrefixPool {
    /// With the fingerprint of the model; the one that was used last comes last.
    prefixes: Vec<(String, SharedPrefix)>,
}

/// How many prefixes are kept.
const MAX_PREFIXES: usize = 2;

impl PrefixPool {
    /// Takes out the prefix of these tokens.
    pub(crate) fn take(&mut self, fingerprint: &str, tokens: &[u32]) -> Option<SharedPrefix> {
        let is_same = |(model, prefix): &(String, SharedPrefix)| {
            model == fingerprint && prefix.tokens() == tokens
        };
        let index = self.prefixes.iter().position(is_same)?;
        Some(self.prefixes.remove(index).1)
    }

    pub(crate) fn keep(&mut self, fingerprint: &str, prefix: SharedPrefix) {
        if prefix.tokens().is_empty() {
            return;
        }
        self.prefixes.push((fingerprint.to_owned(), prefix));
        if self.prefixes.len() > MAX_PREFIXES {
            self.prefixes.remove(0);
        }
    }

    /// Drops those of a model.
    pub(crate) fn drop_of(&mut self, fingerprint: &str) {
        self.prefixes.retain(|(model, _)| model != fingerprint);
    }

    /// Bytes of all of them.
    pub(crate) fn num_bytes(&self) -> u64 {
        self.prefixes.iter().map(|(_, prefix)| prefix.nbytes() as u64).sum()
    }

    pub(crate) fn clear(&mut self) {
        self.prefixes.clear();
    }
}
