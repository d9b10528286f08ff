//! The architectures of GGUF that are imported, one table each: which of our families it is, and what
//! each of its tensors is named there.
//!
//! Two of them may share the name in the file and differ by what it holds: llama's with experts are
//! Mixtral.

use super::sizes::Dim::{self, *};

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

/// How heads are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// Rows of queries and keys are interleaved in GGUF: see `unpermute_heads`.
    Interleaved,
    AsStored,
    /// As stored, and of each head maybe only the first part.
    Part,
}

/// Where logits come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The embeddings.
    Tied,
    /// `output`.
    Own,
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
}

const fn tensor(source: &'static str, module: &'static str, shape: &'static [Dim]) -> Tensor {
    Tensor { source, module, shape, weight: Presence::Always, bias: Presence::Never }
}

impl Tensor {
    const fn with_bias(self, bias: Presence) -> Tensor {
        Tensor { bias, ..self }
    }

    const fn where_stored(self, weight: Presence) -> Tensor {
        Tensor { weight, ..self }
    }
}

const fn queries(bias: Presence) -> Tensor {
    tensor("attn_q", "self_attn.q_proj", &[Queries, Hidden]).with_bias(bias)
}

const fn keys(bias: Presence) -> Tensor {
    tensor("attn_k", "self_attn.k_proj", &[Keys, Hidden]).with_bias(bias)
}

const fn values(bias: Presence) -> Tensor {
    tensor("attn_v", "self_attn.v_proj", &[Keys, Hidden]).with_bias(bias)
}

const fn attention_output(bias: Presence) -> Tensor {
    tensor("attn_output", "self_attn.o_proj", &[Hidden, Queries]).with_bias(bias)
}

const fn gate(bias: Presence) -> Tensor {
    tensor("ffn_gate", "mlp.gate_proj", &[Inner, Hidden]).with_bias(bias)
}

const fn up(bias: Presence) -> Tensor {
    tensor("ffn_up", "mlp.up_proj", &[Inner, Hidden]).with_bias(bias)
}

const fn down(bias: Presence) -> Tensor {
    tensor("ffn_down", "mlp.down_proj", &[Hidden, Inner]).with_bias(bias)
}

const fn norm(source: &'static str, module: &'static str) -> Tensor {
    tensor(source, module, &[Hidden])
}

const NEVER: Presence = Presence::Never;
const ALWAYS: Presence = Presence::Always;

/// Norms before both blocks.
const NORMS_BEFORE: &[Tensor] =
    &[norm("attn_norm", "input_layernorm"), norm("ffn_norm", "post_attention_layernorm")];
const LAYER_NORMS_BEFORE: &[Tensor] = &[
    norm("attn_norm", "input_layernorm").with_bias(ALWAYS),
    norm("ffn_norm", "post_attention_layernorm").with_bias(ALWAYS),
];
/// Norms behind both blocks.
const NORMS_AFTER: &[Tensor] = &[
    norm("post_attention_norm", "post_attention_layernorm"),
    norm("post_ffw_norm", "post_feedforward_layernorm"),
];
/// Norms around both blocks, as Gemma 2 and 3 have them.
const NORMS_AROUND: &[Tensor] = &[
    norm("attn_norm", "input_layernorm"),
    norm("post_attention_norm", "post_attention_layernorm"),
    norm("ffn_norm", "pre_feedforward_layernorm"),
    norm("post_ffw_norm", "post_feedforward_layernorm"),
];
const ATTENTION: &[Tensor] = &[queries(NEVER), keys(NEVER), values(NEVER), attention_output(NEVER)];
/// Biases on all four matrices, or on none.
const ATTENTION_MAYBE_BIASED: &[Tensor] = {
    let bias = Presence::Says("attention_bias");
    &[queries(bias), keys(bias), values(bias), attention_output(bias)]
};
const ATTENTION_BIASED_INPUTS: &[Tensor] =
    &[queries(ALWAYS), keys(ALWAYS), values(ALWAYS), attention_output(NEVER)];
const HEAD_NORMS: &[Tensor] = &[
    tensor("attn_q_norm", "self_attn.q_norm", &[HeadLength]),
    tensor("attn_k_norm", "self_attn.k_norm", &[HeadLength]),
];
/// One norm of all heads together.
const JOINED_HEAD_NORMS: &[Tensor] = &[
    tensor("attn_q_norm", "self_attn.q_norm", &[Queries]),
    tensor("attn_k_norm", "self_attn.k_norm", &[Keys]),
];
const MLP: &[Tensor] = &[gate(NEVER), up(NEVER), down(NEVER)];
const MLP_MAYBE_BIASED: &[Tensor] = {
    let bias = Presence::Says("mlp_bias");
    &[gate(bias), up(bias), down(bias)]
};
/// Gate and rest are one matrix, the gate first.
const JOINED_MLP: &[Tensor] =
    &[tensor("ffn_up", "mlp.gate_up_proj", &[JoinedInner, Hidden]), down(NEVER)];
const EXPERTS: &[Tensor] = &[
    tensor("ffn_gate_inp", "mlp.gate", &[Experts, Hidden]),
    tensor("ffn_gate_exps", "mlp.switch_mlp.gate_proj", &[Experts, ExpertInner, Hidden]),
    tensor("ffn_up_exps", "mlp.switch_mlp.up_proj", &[Experts, ExpertInner, Hidden]),
    tensor("ffn_down_exps", "mlp.switch_mlp.down_proj", &[Experts, Hidden, ExpertInner]),
];
const SHARED_EXPERT: &[Tensor] = &[
    tensor("ffn_gate_inp_shexp", "mlp.shared_expert_gate", &[One, Hidden]),
    tensor("ffn_gate_shexp", "mlp.shared_expert.gate_proj", &[SharedInner, Hidden]),
    tensor("ffn_up_shexp", "mlp.shared_expert.up_proj", &[SharedInner, Hidden]),
    tensor("ffn_down_shexp", "mlp.shared_expert.down_proj", &[Hidden, SharedInner]),
];
const SPARSE_EXPERTS: &[Tensor] = &[
    tensor("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj", UP_SHAPE),
    tensor("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj", UP_SHAPE),
    tensor(
        "ffn_down_exps",
        "block_sparse_moe.switch_mlp.down_proj",
        &[Experts, Hidden, ExpertInner],
    ),
];
const UP_SHAPE: &[Dim] = &[Experts, ExpertInner, Hidden];

/// A llama, with what most architectures change in it.
const LLAMA: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    has_experts: false,
    norms: Norms::Rms,
    rotation: Rotation::Interleaved,
    output: Output::IfStored,
    reads: &[],
    layer: &[NORMS_BEFORE, ATTENTION_MAYBE_BIASED, MLP_MAYBE_BIASED],
};

/// The names of the architectures that are imported, as files have them.
pub fn architecture_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// All of them.
pub const ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    Architecture { name: "internlm2", ..LLAMA },
    Architecture { name: "xverse", model_type: "xverse", class: "XverseForCausalLM", ..LLAMA },
    Architecture {
        model_type: "mixtral",
        class: "MixtralForCausalLM",
        has_experts: true,
        layer: &[
            NORMS_BEFORE,
            ATTENTION,
            &[tensor("ffn_gate_inp", "block_sparse_moe.gate", &[Experts, Hidden])],
            SPARSE_EXPERTS,
        ],
        ..LLAMA
    },
    Architecture { name: "smollm3", model_type: "smollm3", class: "SmolLM3ForCausalLM", ..LLAMA },
    Architecture {
        name: "granite",
        model_type: "granite",
        class: "GraniteForCausalLM",
        reads: &["attention.scale", "embedding_scale", "residual_scale", "logit_scale"],
        ..LLAMA
    },
    Architecture {
        name: "granitemoe",
        model_type: "granitemoe",
        class: "GraniteMoeForCausalLM",
        has_experts: true,
        reads: &["attention.scale", "embedding_scale", "residual_scale", "logit_scale"],
        layer: &[
            NORMS_BEFORE,
            ATTENTION_MAYBE_BIASED,
            &[tensor("ffn_gate_inp", "block_sparse_moe.router.layer", &[Experts, Hidden])],
            SPARSE_EXPERTS,
        ],
        ..LLAMA
    },
    Architecture {
        name: "qwen2",
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        rotation: Rotation::AsStored,
        layer: &[NORMS_BEFORE, ATTENTION_BIASED_INPUTS, MLP],
        ..LLAMA
    },
    Architecture {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        class: "Qwen2MoeForCausalLM",
        has_experts: true,
        rotation: Rotation::AsStored,
        layer: &[NORMS_BEFORE, ATTENTION_BIASED_INPUTS, EXPERTS, SHARED_EXPERT],
        ..LLAMA
    },
    Architecture {
        name: "qwen3",
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        rotation: Rotation::AsStored,
        layer: &[NORMS_BEFORE, ATTENTION, HEAD_NORMS, MLP],
        ..LLAMA
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        has_experts: true,
        rotation: Rotation::AsStored,
        layer: &[NORMS_BEFORE, ATTENTION, HEAD_NORMS, EXPERTS],
        ..LLAMA
    },
    Architecture {
        name: "gemma",
        model_type: "gemma",
        class: "GemmaForCausalLM",
        norms: Norms::RmsLessOne,
        rotation: Rotation::AsStored,
        output: Output::Tied,
        layer: &[NORMS_BEFORE, ATTENTION, MLP],
        ..LLAMA
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        class: "Gemma2ForCausalLM",
        norms: Norms::RmsLessOne,
        rotation: Rotation::AsStored,
        output: Output::Tied,
        reads: &["attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window"],
        layer: &[NORMS_AROUND, ATTENTION, MLP],
        ..LLAMA
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        norms: Norms::RmsLessOne,
        rotation: Rotation::AsStored,
        reads: &["final_logit_softcapping", "attention.sliding_window"],
        layer: &[NORMS_AROUND, ATTENTION, HEAD_NORMS, MLP],
        ..LLAMA
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        class: "Phi3ForCausalLM",
        rotation: Rotation::Part,
        reads: &["attention.sliding_window", "rope.scaling.attn_factor"],
        layer: &[
            NORMS_BEFORE,
            &[tensor("attn_qkv", "self_attn.qkv_proj", &[JoinedHeads, Hidden])],
            &[attention_output(NEVER)],
            JOINED_MLP,
        ],
        ..LLAMA
    },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        class: "Starcoder2ForCausalLM",
        norms: Norms::Layer { key: "norm_epsilon", has_bias: true },
        rotation: Rotation::AsStored,
        reads: &["attention.sliding_window"],
        layer: &[
            LAYER_NORMS_BEFORE,
            &[queries(ALWAYS), keys(ALWAYS), values(ALWAYS), attention_output(ALWAYS)],
            &[tensor("ffn_up", "mlp.c_fc", &[Inner, Hidden]).with_bias(ALWAYS)],
            &[tensor("ffn_down", "mlp.c_proj", &[Hidden, Inner]).with_bias(ALWAYS)],
        ],
        ..LLAMA
    },
    Architecture {
        name: "stablelm",
        model_type: "stablelm",
        class: "StableLmForCausalLM",
        norms: Norms::Layer { key: "layer_norm_eps", has_bias: true },
        rotation: Rotation::Part,
        output: Output::Own,
        layer: &[
            &[norm("attn_norm", "input_layernorm").with_bias(ALWAYS)],
            // Without this norm both blocks read the first one's vectors.
            &[norm("ffn_norm", "post_attention_layernorm")
                .where_stored(Presence::Denies("use_parallel_residual"))
                .with_bias(Presence::Denies("use_parallel_residual"))],
            &[
                queries(Presence::Says("use_qkv_bias")),
                keys(Presence::Says("use_qkv_bias")),
                values(Presence::Says("use_qkv_bias")),
                attention_output(NEVER),
            ],
            MLP,
        ],
        ..LLAMA
    },
    Architecture {
        name: "olmo2",
        model_type: "olmo2",
        class: "Olmo2ForCausalLM",
        rotation: Rotation::AsStored,
        reads: &["attention.sliding_window", "rope.scaling.attn_factor"],
        layer: &[NORMS_AFTER, ATTENTION, JOINED_HEAD_NORMS, MLP],
        ..LLAMA
    },
    Architecture {
        name: "olmoe",
        model_type: "olmoe",
        class: "OlmoeForCausalLM",
        has_experts: true,
        rotation: Rotation::AsStored,
        layer: &[NORMS_BEFORE, ATTENTION, JOINED_HEAD_NORMS, EXPERTS],
        ..LLAMA
    },
    Architecture {
        name: "command-r",
        model_type: "cohere",
        class: "CohereForCausalLM",
        norms: Norms::Layer { key: "layer_norm_eps", has_bias: false },
        rotation: Rotation::AsStored,
        output: Output::Tied,
        reads: &["logit_scale"],
        layer: &[
            &[norm("attn_norm", "input_layernorm")],
            ATTENTION_MAYBE_BIASED,
            &[
                tensor("attn_q_norm", "self_attn.q_norm", &[Heads, HeadLength])
                    .where_stored(Presence::Says("use_qk_norm")),
                tensor("attn_k_norm", "self_attn.k_norm", &[KvHeads, HeadLength])
                    .where_stored(Presence::Says("use_qk_norm")),
            ],
            MLP,
        ],
        ..LLAMA
    },
    Architecture {
        name: "cohere2",
        model_type: "cohere2",
        class: "Cohere2ForCausalLM",
        norms: Norms::Layer { key: "layer_norm_eps", has_bias: false },
        rotation: Rotation::AsStored,
        output: Output::Tied,
        reads: &["logit_scale", "attention.sliding_window"],
        layer: &[&[norm("attn_norm", "input_layernorm")], ATTENTION_MAYBE_BIASED, MLP],
        ..LLAMA
    },
    Architecture {
        name: "glm4",
        model_type: "glm4",
        class: "Glm4ForCausalLM",
        rotation: Rotation::Part,
        output: Output::Own,
        layer: &[
            &[
                norm("attn_norm", "input_layernorm"),
                norm("post_attention_norm", "post_self_attn_layernorm"),
                norm("ffn_norm", "post_attention_layernorm"),
                norm("post_ffw_norm", "post_mlp_layernorm"),
            ],
            &[
                queries(Presence::Says("attention_bias")),
                keys(Presence::Says("attention_bias")),
                values(Presence::Says("attention_bias")),
                attention_output(NEVER),
            ],
            JOINED_MLP,
        ],
        ..LLAMA
    },
    Architecture {
        name: "exaone4",
        model_type: "exaone4",
        class: "Exaone4ForCausalLM",
        rotation: Rotation::AsStored,
        reads: &["attention.sliding_window"],
        layer: &[NORMS_AFTER, ATTENTION, HEAD_NORMS, MLP],
        ..LLAMA
    },
    Architecture {
        name: "seed_oss",
        model_type: "seed_oss",
        class: "SeedOssForCausalLM",
        rotation: Rotation::AsStored,
        layer: &[
            &[
                norm("attn_norm", "input_layernorm"),
                norm("post_attention_norm", "post_attention_layernorm"),
            ],
            &[
                queries(Presence::Says("attention_bias")),
                keys(Presence::Says("attention_bias")),
                values(Presence::Says("attention_bias")),
                attention_output(Presence::Says("attention_out_bias")),
            ],
            MLP_MAYBE_BIASED,
        ],
        ..LLAMA
    },
    Architecture {
        name: "ernie4_5",
        model_type: "ernie4_5",
        class: "Ernie4_5ForCausalLM",
        rotation: Rotation::AsStored,
        layer: &[
            NORMS_BEFORE,
            &[
                queries(Presence::Says("use_bias")),
                keys(Presence::Says("use_bias")),
                values(Presence::Says("use_bias")),
                attention_output(Presence::Says("use_bias")),
                gate(Presence::Says("use_bias")),
                up(Presence::Says("use_bias")),
                down(Presence::Says("use_bias")),
            ],
        ],
        ..LLAMA
    },
];
