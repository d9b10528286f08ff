//! The reason why a turn had to compute tokens that earlier turns had computed already, as a
//! sentence.

use cairn_chat::{Prompt, Role};

use super::common_prefix;
use crate::records::{CacheRef, KvFormat, Loss, Namespace};

/// A prompt that was looked up, and what is known about it.
pub(super) struct Lookup<'a> {
    pub(super) prompt: &'a Prompt,
    pub(super) namespace: &'a Namespace,
    /// The name under which the model was loaded.
    pub(super) model: &'a str,
    /// The conversation's reference before this turn, and the tokens that it covers.
    pub(super) cache_ref: Option<(&'a CacheRef, Vec<u32>)>,
    /// The most tokens that could have been reused.
    pub(super) limit: usize,
    /// The reason why recent chunks could not be written, if any.
    pub(super) not_written: Option<&'a str>,
    pub(super) now_ms: i64,
}

/// A miss of up to this many tokens is expected where caches are saved only near a position.
const NEARBY: usize = 16;

/// The reason why only `num_cached` tokens were reused; none where that is all that could be
/// expected. `problem` is what was wrong with stored chunks.
pub(super) fn note(
    lookup: &Lookup<'_>,
    num_cached: usize,
    problem: Option<String>,
) -> Option<String> {
    let reread = |reason: &str| {
        Some(format!("re-read {} tokens: {reason}", group(lookup.limit + 1 - num_cached)))
    };
    if let Some(problem) = problem {
        return reread(&problem);
    }
    // The tokens that earlier turns of this conversation share with the prompt.
    let expected = lookup.prompt.new_from.saturating_sub(1).min(lookup.limit);
    if num_cached + NEARBY >= expected {
        return None;
    }
    let Some((cache_ref, tokens)) = &lookup.cache_ref else {
        let reason =
            "the rest of this conversation was not saved for this model, or has been evicted";
        return reread(lookup.not_written.unwrap_or(reason));
    };
    if cache_ref.namespace.model != lookup.namespace.model {
        if cache_ref.model != lookup.model {
            return reread(&format!("another model read it before: {}", cache_ref.model));
        }
        // Where nothing is stored any more, the loss says why: an update of Cairn may fingerprint
        // the same files anew.
        return match cache_ref.loss.as_ref().filter(|_| cache_ref.chunk_key.is_none()) {
            Some(loss) => reread(&lost(loss, lookup.now_ms)),
            None => reread("the model's files have changed since it was read"),
        };
    }
    let (before, now) = (&cache_ref.namespace, lookup.namespace);
    if before.provenance != now.provenance && cache_ref.loss.is_none() {
        return reread("the starting point it continues was imported again");
    }
    // Lookups of quantized keys and values also take plain ones, which a prompt has until it is
    // long enough to be quantized.
    let formats = [now.kv_format, KvFormat::Plain];
    if !formats.contains(&before.kv_format) && cache_ref.loss.is_none() {
        let (before, now) = (stored_as(before.kv_format), stored_as(now.kv_format));
        return reread(&format!("it was saved {before} before, and is saved {now} now"));
    }
    let common = common_prefix(tokens, &lookup.prompt.tokens);
    // The change is the reason even where the caches can only be restored far before it.
    if common < tokens.len() && common < lookup.prompt.tokens.len() {
        let roles = lookup.prompt.boundaries.iter().zip(&lookup.prompt.roles);
        let system_end =
            roles.clone().find(|(_, role)| **role == Role::System).map_or(0, |(end, _)| *end);
        return match common < system_end {
            true => reread(&format!("the system prompt changed at token {}", group(common))),
            false => reread(&format!("an earlier message changed at token {}", group(common))),
        };
    }
    match &cache_ref.loss {
        Some(loss) => reread(&lost(loss, lookup.now_ms)),
        None => reread(lookup.not_written.unwrap_or("the tokens in between were not saved")),
    }
}

/// Why and when a reference lost its chunks, as part of a sentence.
fn lost(loss: &Loss, now_ms: i64) -> String {
    format!("{}, {}", loss.reason, ago(now_ms.saturating_sub(loss.at_ms)))
}

/// How keys and values are stored, as part of a sentence.
fn stored_as(format: KvFormat) -> String {
    match format {
        KvFormat::Plain => "as computed".to_owned(),
        KvFormat::Quantized { bits, .. } => format!("in {bits} bits"),
    }
}

/// A duration before now, such as "2 hours ago".
pub(super) fn ago(milliseconds: i64) -> String {
    let minutes = milliseconds / 60_000;
    let (count, unit) = match minutes {
        ..1 => return "a moment ago".to_owned(),
        1..60 => (minutes, "minute"),
        60..1440 => (minutes / 60, "hour"),
        _ => (minutes / 1440, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural} ago")
}

/// 3100 as "3,100".
fn group(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Provenance;

    const DAY_MS: i64 = 86_400_000;

    struct Case {
        cache_ref: Option<CacheRef>,
        /// The first position at which the new prompt differs from the old one.
        changed_at: usize,
        num_cached: usize,
    }

    fn cache_ref() -> CacheRef {
        let namespace = Namespace::computed("f", KvFormat::Plain);
        CacheRef {
            owner: "o".to_owned(),
            namespace,
            model: "m".to_owned(),
            chunk_key: None,
            num_tokens: 3000,
            is_pinned: false,
            loss: None,
        }
    }

    fn check(case: Case, expected: Option<&str>) {
        let earlier: Vec<u32> = (0..3000).collect();
        let mut tokens: Vec<u32> = (0..3200).collect();
        tokens.iter_mut().skip(case.changed_at).take(1).for_each(|token| *token += 10_000);
        let prompt = Prompt {
            tokens,
            new_from: 3001,
            boundaries: vec![100, 3200],
            roles: vec![Role::System, Role::User],
            text: String::new(),
        };
        let lookup = Lookup {
            prompt: &prompt,
            namespace: &Namespace::computed("f", KvFormat::Plain),
            model: "m",
            cache_ref: case
                .cache_ref
                .as_ref()
                .map(|cache_ref| (cache_ref, earlier[..cache_ref.num_tokens].to_vec())),
            limit: 3199,
            not_written: None,
            now_ms: 10 * DAY_MS,
        };
        assert_eq!(note(&lookup, case.num_cached, None).as_deref(), expected);
    }

    #[test]
    fn a_miss_is_explained_by_its_cause() {
        let loss = |num_tokens| CacheRef {
            num_tokens,
            loss: Some(Loss {
                num_tokens: 3000,
                reason: "evicted to stay within the disk limit".to_owned(),
                at_ms: 8 * DAY_MS,
            }),
            ..cache_ref()
        };
        let of_model = |fingerprint: &str, model: &str| CacheRef {
            namespace: Namespace::computed(fingerprint, KvFormat::Plain),
            model: model.to_owned(),
            ..cache_ref()
        };
        let case = |cache_ref, changed_at, num_cached| Case {
            cache_ref: Some(cache_ref),
            changed_at,
            num_cached,
        };
        check(case(cache_ref(), 5000, 3000), None);
        check(
            case(cache_ref(), 12, 12),
            Some("re-read 3,188 tokens: the system prompt changed at token 12"),
        );
        check(
            case(cache_ref(), 1500, 1500),
            Some("re-read 1,700 tokens: an earlier message changed at token 1,500"),
        );
        check(
            case(cache_ref(), 1500, 100),
            Some("re-read 3,100 tokens: an earlier message changed at token 1,500"),
        );
        check(
            case(loss(256), 5000, 256),
            Some("re-read 2,944 tokens: evicted to stay within the disk limit, 2 days ago"),
        );
        check(
            case(loss(0), 5000, 0),
            Some("re-read 3,200 tokens: evicted to stay within the disk limit, 2 days ago"),
        );
        check(
            case(of_model("g", "m"), 5000, 0),
            Some("re-read 3,200 tokens: the model's files have changed since it was read"),
        );
        check(
            case(of_model("g", "n"), 5000, 0),
            Some("re-read 3,200 tokens: another model read it before: n"),
        );
        let lost_of_model = |chunk_key: Option<&str>| CacheRef {
            namespace: Namespace::computed("g", KvFormat::Plain),
            chunk_key: chunk_key.map(str::to_owned),
            ..loss(0)
        };
        check(
            case(lost_of_model(None), 5000, 0),
            Some("re-read 3,200 tokens: evicted to stay within the disk limit, 2 days ago"),
        );
        check(
            case(lost_of_model(Some("key")), 5000, 0),
            Some("re-read 3,200 tokens: the model's files have changed since it was read"),
        );
        let quantized = KvFormat::Quantized { bits: 8, group_size: 64 };
        let of_namespace = |kv_format, provenance| CacheRef {
            namespace: Namespace { provenance, ..Namespace::computed("f", kv_format) },
            ..cache_ref()
        };
        check(
            case(of_namespace(quantized, Provenance::Computed), 5000, 0),
            Some(
                "re-read 3,200 tokens: it was saved in 8 bits before, and is saved as computed now",
            ),
        );
        check(
            case(of_namespace(KvFormat::Plain, Provenance::Import("hash".to_owned())), 5000, 0),
            Some("re-read 3,200 tokens: the starting point it continues was imported again"),
        );
        check(Case { cache_ref: None, changed_at: 5000, num_cached: 2990 }, None);
        let unknown = "re-read 3,200 tokens: the rest of this conversation was not saved for this model, or has been evicted";
        check(Case { cache_ref: None, changed_at: 5000, num_cached: 0 }, Some(unknown));
    }

    #[test]
    fn durations_are_rounded_to_one_unit() {
        for (milliseconds, expected) in [
            (-5, "a moment ago"),
            (59_999, "a moment ago"),
            (60_000, "1 minute ago"),
            (3_599_999, "59 minutes ago"),
            (2 * 3_600_000, "2 hours ago"),
            (DAY_MS, "1 day ago"),
            (9 * DAY_MS, "9 days ago"),
        ] {
            assert_eq!(ago(milliseconds), expected);
        }
    }
}
