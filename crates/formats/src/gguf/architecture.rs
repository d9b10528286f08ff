//! What an architecture of GGUF may be like: its norms, its rotation, which tensors each layer has
//! and what they are named. `architectures.rs` has them all.

/// How an architecture of GGUF becomes a family.
#[derive(Debug)]
pub struct Architecture {
    /// `general.architecture`, which begins the names of its keys.
    pub name: &'static str,
    /// `model_type` of the config.json.
    pub model_type: &'static str,
    /// The entry of `architectures` there.
    pub class: &'static str,
    pub has_experts: bool,
    /// How experts are chosen, where architectures of one name differ by it.
    pub gating: Option<Gating>,
    /// The `model_type` of the text part, which config.json then has in a section of its own.
    pub text_type: Option<&'static str>,
    pub norms: Norms,
    pub rotation: Rotation,
    pub output: Output,
    /// Keys that are read or, as by the reference, not heeded, of those that change a model.
    pub reads: &'static [&'static str],
    /// The tensors of each layer.
    pub layer: &'static [&'static [Tensor]],
}

/// The norms of a family, and the key of their epsilon in config.json.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    Rms,
    /// GGUF stores weights as they are multiplied, checkpoints store them less one.
    RmsLessOne,
    Layer {
        key: &'static str,
        has_bias: bool,
    },
}

/// What the shares of experts are made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    Softmax,
    Sigmoid,
}

/// How heads are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// Rows of queries and keys are interleaved in GGUF: see `unpermute_heads`.
    Interleaved,
    AsStored,
    /// As stored, and of each head maybe only the first part.
    Part,
    /// As stored, and of each head the last part. Keys and values come from one latent vector.
    Latent,
}

/// Where logits come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The embeddings.
    Tied,
    /// `output`.
    Own,
    /// `output` with a bias.
    Biased,
    /// `output` if the file has it.
    IfStored,
}

/// A tensor of each layer, with its bias.
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    /// The name in GGUF, without layer and suffix.
    pub source: &'static str,
    /// The name in MLX, without layer and suffix.
    pub module: &'static str,
    pub shape: &'static [Dim],
    pub weight: Presence,
    pub bias: Presence,
    pub layers: Layers,
    /// Whether the module's name is that of the tensor, with no suffix behind it.
    pub is_bare: bool,
    /// The tensor with a head's further rows, where this one has the first of each head, turned.
    pub joined: Option<&'static str>,
}

/// One dimension of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    One,
    Hidden,
    TwiceHidden,
    Vocabulary,
    /// The width of the feed-forward network.
    Inner,
    /// Twice that: the gate and the rest.
    JoinedInner,
    HeadLength,
    Heads,
    KvHeads,
    /// All heads of queries.
    Queries,
    /// All heads of keys, or of values.
    Keys,
    /// Those of queries, keys and values.
    JoinedHeads,
    Experts,
    ExpertInner,
    SharedInner,
    /// The latent vector of queries, in models that have one.
    QueryRank,
    /// The latent vector of keys and values.
    Rank,
    /// That with the rotated part of a key behind it.
    RankAndRotated,
    /// The part of a key that is not rotated.
    Plain,
    ValueLength,
    /// The values of all heads.
    AllValues,
    /// All heads of keys without what is rotated, and of values.
    PlainAndValues,
}

/// Which layers have a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    All,
    WithExperts,
    Dense,
    /// MTP layers, behind the last.
    Mtp,
}

/// Whether files have a tensor, of which the first layer is an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Never,
    Always,
    /// Some files have it, as a key of config.json says, with all tensors of that key.
    Says(&'static str),
    /// Some files have it, and the others say so by a key.
    Denies(&'static str),
    /// Some layers have it, and the model loads without.
    Maybe,
    /// Files with this key of their architecture have it.
    With(&'static str),
    /// Files without it.
    Without(&'static str),
}

pub(super) const fn tensor(
    source: &'static str,
    module: &'static str,
    shape: &'static [Dim],
) -> Tensor {
    Tensor {
        source,
        module,
        shape,
        weight: Presence::Always,
        bias: Presence::Never,
        layers: Layers::All,
        is_bare: false,
        joined: None,
    }
}

impl Tensor {
    pub(super) const fn with_bias(self, bias: Presence) -> Tensor {
        Tensor { bias, ..self }
    }

    pub(super) const fn where_stored(self, weight: Presence) -> Tensor {
        Tensor { weight, ..self }
    }

    pub(super) const fn of_layers(self, layers: Layers) -> Tensor {
        Tensor { layers, ..self }
    }

    pub(super) const fn bare(self) -> Tensor {
        Tensor { is_bare: true, ..self }
    }
}
