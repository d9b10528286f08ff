//! The sizes of a model in GGUF, read from its keys. Its tensors are checked against them.

use super::architecture::{Architecture, Dim};
use super::error::unsupported;
use super::{GgufFile, GgufProblem};

/// The keys of a file that begin with its architecture.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    pub gguf: &'a GgufFile,
    /// The name of the architecture.
    pub prefix: &'static str,
}

impl Keys<'_> {
    /// The whole key.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// The count at `name`, if there is one.
    pub fn count(&self, name: &str) -> Result<Option<usize>, GgufProblem> {
        self.gguf.count(&self.key(name))
    }

    /// The count at `name`, which must be there and not be 0.
    pub fn size(&self, name: &str) -> Result<usize, GgufProblem> {
        match self.count(name)? {
            Some(0) => Err(self.unsupported(name, 0, "values from 1")),
            Some(size) => Ok(size),
            None => Err(GgufProblem::MissingKey { key: self.key(name) }),
        }
    }

    /// The number at `name`, if there is one.
    pub fn number(&self, name: &str) -> Result<Option<f64>, GgufProblem> {
        self.gguf.number(&self.key(name))
    }

    /// The number at `name`, which must be there and above 0.
    pub fn positive(&self, name: &str) -> Result<f64, GgufProblem> {
        match self.number(name)? {
            Some(value) if value > 0.0 => Ok(value),
            Some(value) => Err(self.unsupported(name, value, "positive numbers")),
            None => Err(GgufProblem::MissingKey { key: self.key(name) }),
        }
    }

    /// As [`Keys::positive`], with a value for files without the key.
    pub fn positive_or(&self, name: &str, default: f64) -> Result<f64, GgufProblem> {
        match self.number(name)? {
            None => Ok(default),
            Some(_) => self.positive(name),
        }
    }

    /// The text at `name`, if there is one.
    pub fn text(&self, name: &str) -> Result<Option<&str>, GgufProblem> {
        self.gguf.text(&self.key(name))
    }

    /// The refusal of a value.
    pub fn unsupported(&self, name: &str, found: impl ToString, allowed: &str) -> GgufProblem {
        unsupported(&self.key(name), found, allowed)
    }
}

/// The sizes of one model. All come from i32 values, so that products of two fit a usize.
#[derive(Debug)]
pub struct Sizes {
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
    pub num_layers: usize,
    pub inner: usize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    /// Numbers of a head's vector.
    pub head_dim: usize,
    /// How many of them are rotated.
    pub rotated_dim: usize,
    pub context: usize,
    /// 0 in models without experts.
    pub num_experts: usize,
    pub num_chosen_experts: usize,
    pub expert_inner: usize,
    /// The width of the expert that all tokens use, 0 where there is none.
    pub shared_inner: usize,
    /// How many layers come before the first with experts.
    pub num_dense: usize,
    /// Of so many layers the last has experts.
    pub expert_step: usize,
    /// Multi-token-prediction (MTP) layers, which stand behind the last and predict further tokens.
    pub num_mtp_layers: usize,
    /// All 0 in models without latent vectors.
    pub latent: LatentSizes,
}

/// The sizes of latent attention (MLA), whose keys and values come from one latent vector.
#[derive(Debug, Default)]
pub struct LatentSizes {
    /// The length of the queries' latent vector, 0 where there is none.
    pub query_rank: usize,
    pub rank: usize,
    pub plain: usize,
    pub rotated: usize,
    pub value: usize,
}

impl Sizes {
    /// Reads the keys. Fails where they contradict each other.
    pub fn read(
        keys: &Keys,
        architecture: &Architecture,
        vocabulary: usize,
    ) -> Result<Sizes, GgufProblem> {
        use super::architecture::Rotation;
        let hidden = keys.size("embedding_length")?;
        let num_heads = keys.size("attention.head_count")?;
        let is_latent = architecture.rotation == Rotation::Latent;
        // Which writers count as one, as all heads share the latent vector.
        let num_kv_heads = match is_latent {
            true => num_heads,
            false => keys.count("attention.head_count_kv")?.unwrap_or(num_heads),
        };
        if num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
            let allowed = format!("divisors of {num_heads}");
            return Err(keys.unsupported("attention.head_count_kv", num_kv_heads, &allowed));
        }
        let latent = if is_latent { LatentSizes::read(keys)? } else { LatentSizes::default() };
        let (head_dim, rotated_dim) = match is_latent {
            true => (latent.plain + latent.rotated, latent.plain + latent.rotated),
            false => {
                let head_dim = head_dim(keys, hidden, num_heads)?;
                (head_dim, rotated_dim(keys, architecture, head_dim)?)
            }
        };
        let (num_blocks, num_mtp_layers) = (keys.size("block_count")?, num_mtp_layers(keys)?);
        let mut sizes = Sizes {
            hidden,
            vocabulary,
            num_layers: num_blocks - num_mtp_layers,
            inner: 0,
            num_heads,
            num_kv_heads,
            head_dim,
            rotated_dim,
            context: keys.size("context_length")?,
            num_experts: 0,
            num_chosen_experts: 0,
            expert_inner: 0,
            shared_inner: 0,
            num_dense: 0,
            expert_step: 1,
            num_mtp_layers,
            latent,
        };
        if architecture.has_experts {
            sizes.read_experts(keys)?;
        } else {
            sizes.inner = keys.size("feed_forward_length")?;
        }
        Ok(sizes)
    }

    fn read_experts(&mut self, keys: &Keys) -> Result<(), GgufProblem> {
        self.num_experts = keys.size("expert_count")?;
        self.num_chosen_experts = keys.size("expert_used_count")?;
        self.expert_inner = match keys.count("expert_feed_forward_length")? {
            Some(_) => keys.size("expert_feed_forward_length")?,
            None => keys.size("feed_forward_length")?,
        };
        self.inner = keys.count("feed_forward_length")?.unwrap_or(self.expert_inner);
        self.shared_inner = match keys.count("expert_shared_feed_forward_length")? {
            Some(width) => width,
            None => keys.count("expert_shared_count")?.unwrap_or(0) * self.expert_inner,
        };
        self.num_dense = keys.count("leading_dense_block_count")?.unwrap_or(0);
        self.expert_step = keys.count("interleave_moe_layer_step")?.unwrap_or(1).max(1);
        Ok(())
    }

    /// Whether layer `index`, of a model with experts, has them.
    pub fn has_experts(&self, index: usize) -> bool {
        index >= self.num_dense && (index + 1).is_multiple_of(self.expert_step)
    }

    /// The length of a dimension.
    pub fn of(&self, dim: Dim) -> usize {
        match dim {
            Dim::One => 1,
            Dim::Hidden => self.hidden,
            Dim::TwiceHidden => 2 * self.hidden,
            Dim::Vocabulary => self.vocabulary,
            Dim::Inner => self.inner,
            Dim::JoinedInner => 2 * self.inner,
            Dim::HeadLength => self.head_dim,
            Dim::Heads => self.num_heads,
            Dim::KvHeads => self.num_kv_heads,
            Dim::Queries => self.num_heads * self.head_dim,
            Dim::Keys => self.num_kv_heads * self.head_dim,
            Dim::JoinedHeads => {
                (self.num_heads.saturating_add(2 * self.num_kv_heads)).saturating_mul(self.head_dim)
            }
            Dim::Experts => self.num_experts,
            Dim::ExpertInner => self.expert_inner,
            Dim::SharedInner => self.shared_inner,
            Dim::QueryRank => self.latent.query_rank,
            Dim::Rank => self.latent.rank,
            Dim::RankAndRotated => self.latent.rank + self.latent.rotated,
            Dim::Plain => self.latent.plain,
            Dim::ValueLength => self.latent.value,
            Dim::AllValues => self.num_heads * self.latent.value,
            Dim::PlainAndValues => {
                self.num_heads.saturating_mul(self.latent.plain + self.latent.value)
            }
        }
    }
}

impl LatentSizes {
    /// Reads the keys. Older files have the lengths of whole keys and values in the usual ones.
    fn read(keys: &Keys) -> Result<LatentSizes, GgufProblem> {
        let length = |name: &str, older: &str| match keys.count(name)? {
            Some(_) => keys.size(name),
            None => keys.size(older),
        };
        let key = length("attention.key_length_mla", "attention.key_length")?;
        let rotated = keys.size(ROTATED)?;
        if rotated >= key || !rotated.is_multiple_of(2) {
            let allowed = format!("even numbers below the length of a key, {key}");
            return Err(keys.unsupported(ROTATED, rotated, &allowed));
        }
        Ok(LatentSizes {
            query_rank: keys.count("attention.q_lora_rank")?.unwrap_or(0),
            rank: keys.size("attention.kv_lora_rank")?,
            plain: key - rotated,
            rotated,
            value: length("attention.value_length_mla", "attention.value_length")?,
        })
    }
}

/// Layers behind the model's own, which the number of blocks counts too.
fn num_mtp_layers(keys: &Keys) -> Result<usize, GgufProblem> {
    const KEY: &str = "nextn_predict_layers";
    let (num_mtp_layers, num_blocks) = (keys.count(KEY)?.unwrap_or(0), keys.size("block_count")?);
    match num_mtp_layers < num_blocks {
        true => Ok(num_mtp_layers),
        false => {
            Err(keys.unsupported(KEY, num_mtp_layers, &format!("fewer than {num_blocks} blocks")))
        }
    }
}

const ROTATED: &str = "rope.dimension_count";

/// Rows per head; every way of saying it must agree.
fn head_dim(keys: &Keys, hidden: usize, num_heads: usize) -> Result<usize, GgufProblem> {
    let head_dim = match keys.count("attention.key_length")? {
        Some(length) => length,
        None if hidden.is_multiple_of(num_heads) => hidden / num_heads,
        None => {
            let allowed = format!("divisors of {hidden}");
            return Err(keys.unsupported("attention.head_count", num_heads, &allowed));
        }
    };
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(keys.unsupported("attention.key_length", head_dim, "even head sizes"));
    }
    match keys.count("attention.value_length")?.filter(|length| *length != head_dim) {
        Some(found) => {
            let allowed = format!("the head size, {head_dim}");
            Err(keys.unsupported("attention.value_length", found, &allowed))
        }
        None => Ok(head_dim),
    }
}

/// How many numbers of a head's vector are rotated.
fn rotated_dim(
    keys: &Keys,
    architecture: &Architecture,
    head_dim: usize,
) -> Result<usize, GgufProblem> {
    use super::architecture::Rotation;
    let Some(found) = keys.count(ROTATED)?.filter(|length| *length != head_dim) else {
        return Ok(head_dim);
    };
    let is_part = (2..head_dim).contains(&found) && found.is_multiple_of(2);
    if architecture.rotation == Rotation::Part && is_part {
        return Ok(found);
    }
    Err(keys.unsupported(ROTATED, found, &format!("the head size, {head_dim}")))
}
