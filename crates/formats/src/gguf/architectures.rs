//! The architectures of GGUF that are imported, one table each: which of our families it is, and what
//! each of its tensors is named there.
//!
//! Some share the name in the file and differ by what it holds: llama's with experts are Mixtral, and
//! deepseek2's choose their experts by a softmax or by sigmoids.

use super::architecture::Dim::{self, *};
use super::architecture::{
    Architecture, Gating, Layers, Norms, Output, Presence, Rotation, Tensor, tensor,
};

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

/// A tensor of the layers with experts.
const fn of_experts(source: &'static str, module: &'static str, shape: &'static [Dim]) -> Tensor {
    tensor(source, module, shape).of_layers(Layers::WithExperts)
}

/// A tensor of the layers behind the last.
const fn mtp(
    source: &'static str,
    module: &'static str,
    shape: &'static [Dim],
    weight: Presence,
) -> Tensor {
    tensor(source, module, shape).of_layers(Layers::Mtp).where_stored(weight)
}

const DENSE: Layers = Layers::Dense;
const NEVER: Presence = Presence::Never;
const ALWAYS: Presence = Presence::Always;

/// Norms before both blocks.
const NORMS_BEFORE: &[Tensor] =
    &[norm("attn_norm", "input_layernorm"), norm("ffn_norm", "post_attention_layernorm")];
/// The same, where GGUF names the second one after the first block.
const NORMS_BETWEEN: &[Tensor] = &[
    norm("attn_norm", "input_layernorm"),
    norm("post_attention_norm", "post_attention_layernorm"),
];
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
    tensor("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj", DOWN_SHAPE),
];
const UP_SHAPE: &[Dim] = &[Experts, ExpertInner, Hidden];
const DOWN_SHAPE: &[Dim] = &[Experts, Hidden, ExpertInner];
const ONE_UP: &[Dim] = &[ExpertInner, Hidden];
const ONE_DOWN: &[Dim] = &[Hidden, ExpertInner];

/// What DeepSeek's layers and those made after them have behind attention: the first ones are dense.
const DENSE_OR_EXPERTS: &[Tensor] = &[
    gate(NEVER).of_layers(DENSE),
    up(NEVER).of_layers(DENSE),
    down(NEVER).of_layers(DENSE),
    of_experts("ffn_gate_inp", "mlp.gate", &[Experts, Hidden]),
    of_experts("ffn_gate_exps", "mlp.switch_mlp.gate_proj", UP_SHAPE),
    of_experts("ffn_up_exps", "mlp.switch_mlp.up_proj", UP_SHAPE),
    of_experts("ffn_down_exps", "mlp.switch_mlp.down_proj", DOWN_SHAPE),
    of_experts("ffn_gate_shexp", "mlp.shared_experts.gate_proj", &[SharedInner, Hidden])
        .where_stored(Presence::Maybe),
    of_experts("ffn_up_shexp", "mlp.shared_experts.up_proj", &[SharedInner, Hidden])
        .where_stored(Presence::Maybe),
    of_experts("ffn_down_shexp", "mlp.shared_experts.down_proj", &[Hidden, SharedInner])
        .where_stored(Presence::Maybe),
];
/// What is added to experts' shares where they are chosen, and only there.
const CORRECTION_BIAS: Tensor =
    of_experts("exp_probs_b", "mlp.gate.e_score_correction_bias", &[Experts])
        .where_stored(NEVER)
        .with_bias(ALWAYS)
        .bare();
/// What MTP layers have besides. Some files leave out the matrices that are
/// those of the whole model.
const MTP_LAYERS: &[Tensor] = &[
    mtp("nextn.eh_proj", "eh_proj", &[Hidden, TwiceHidden], ALWAYS),
    mtp("nextn.enorm", "enorm", &[Hidden], ALWAYS),
    mtp("nextn.hnorm", "hnorm", &[Hidden], ALWAYS),
    mtp("nextn.shared_head_norm", "shared_head.norm", &[Hidden], Presence::Maybe),
    mtp("nextn.shared_head_head", "shared_head.head", &[Vocabulary, Hidden], Presence::Maybe),
    mtp("nextn.embed_tokens", "embed_tokens", &[Vocabulary, Hidden], Presence::Maybe),
];
/// Latent attention (MLA), without what makes keys and values of the latent vector in newer files.
const LATENT_ATTENTION: &[Tensor] = &[
    queries(NEVER).where_stored(Presence::Without(QUERY_RANK)),
    tensor("attn_q_a", "self_attn.q_a_proj", &[QueryRank, Hidden])
        .where_stored(Presence::With(QUERY_RANK)),
    tensor("attn_q_a_norm", "self_attn.q_a_layernorm", &[QueryRank])
        .where_stored(Presence::With(QUERY_RANK)),
    tensor("attn_q_b", "self_attn.q_b_proj", &[Queries, QueryRank])
        .where_stored(Presence::With(QUERY_RANK)),
    tensor("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", &[RankAndRotated, Hidden]),
    tensor("attn_kv_a_norm", "self_attn.kv_a_layernorm", &[Rank]),
    tensor("attn_kv_b", "self_attn.kv_b_proj", &[PlainAndValues, Rank])
        .where_stored(Presence::Without(LENGTH_OF_SPLIT)),
    tensor("attn_output", "self_attn.o_proj", &[Hidden, AllValues]),
];
const QUERY_RANK: &str = "attention.q_lora_rank";
/// Files with this key have the matrix of keys and values as two.
const LENGTH_OF_SPLIT: &str = "attention.key_length_mla";
/// The share of YaRN's magnitude that is divided by.
pub const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
const DEEPSEEK_READS: &[&str] = &[
    "expert_gating_func",
    "expert_group_count",
    "expert_weights_scale",
    "leading_dense_block_count",
    "nextn_predict_layers",
    LOG_MULTIPLIER,
];

const ATTENTION_BIASED: &[Tensor] =
    &[queries(ALWAYS), keys(ALWAYS), values(ALWAYS), attention_output(ALWAYS)];

/// A llama, with what most architectures change in it.
const LLAMA: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    has_experts: false,
    gating: None,
    text_type: None,
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
            NORMS_BETWEEN,
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
    Architecture {
        name: "phimoe",
        model_type: "phimoe",
        class: "PhiMoEForCausalLM",
        has_experts: true,
        norms: Norms::Layer { key: "rms_norm_eps", has_bias: true },
        rotation: Rotation::AsStored,
        output: Output::Biased,
        reads: &["attention.sliding_window", "rope.scaling.attn_factor"],
        layer: &[
            LAYER_NORMS_BEFORE,
            ATTENTION_BIASED,
            &[tensor("ffn_gate_inp", "block_sparse_moe.gate", &[Experts, Hidden])],
            SPARSE_EXPERTS,
        ],
        ..LLAMA
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        class: "GptOssForCausalLM",
        has_experts: true,
        rotation: Rotation::AsStored,
        output: Output::Own,
        reads: &["attention.sliding_window"],
        layer: &[
            NORMS_BETWEEN,
            ATTENTION_BIASED,
            &[tensor("attn_sinks", "self_attn.sinks", &[Heads]).bare()],
            &[
                tensor("ffn_gate_inp", "mlp.router", &[Experts, Hidden]).with_bias(ALWAYS),
                tensor("ffn_gate_exps", "mlp.experts.gate_proj", UP_SHAPE).with_bias(ALWAYS),
                tensor("ffn_up_exps", "mlp.experts.up_proj", UP_SHAPE).with_bias(ALWAYS),
                tensor("ffn_down_exps", "mlp.experts.down_proj", DOWN_SHAPE).with_bias(ALWAYS),
            ],
        ],
        ..LLAMA
    },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        class: "Glm4MoeForCausalLM",
        has_experts: true,
        gating: Some(Gating::Sigmoid),
        rotation: Rotation::Part,
        output: Output::Own,
        reads: DEEPSEEK_READS,
        layer: &[
            NORMS_BETWEEN,
            &[
                queries(Presence::Says("attention_bias")),
                keys(Presence::Says("attention_bias")),
                values(Presence::Says("attention_bias")),
                attention_output(NEVER),
            ],
            &[
                tensor("attn_q_norm", "self_attn.q_norm", &[HeadLength])
                    .where_stored(Presence::Says("use_qk_norm")),
                tensor("attn_k_norm", "self_attn.k_norm", &[HeadLength])
                    .where_stored(Presence::Says("use_qk_norm")),
            ],
            DENSE_OR_EXPERTS,
            &[CORRECTION_BIAS],
            MTP_LAYERS,
        ],
        ..LLAMA
    },
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v3",
        class: "DeepseekV3ForCausalLM",
        has_experts: true,
        gating: Some(Gating::Sigmoid),
        rotation: Rotation::Latent,
        reads: DEEPSEEK_READS,
        layer: &[
            NORMS_BEFORE,
            LATENT_ATTENTION,
            &[
                tensor("attn_k_b", "self_attn.embed_q", &[Heads, Rank, Plain])
                    .where_stored(Presence::With(LENGTH_OF_SPLIT)),
                tensor("attn_v_b", "self_attn.unembed_out", &[Heads, ValueLength, Rank])
                    .where_stored(Presence::With(LENGTH_OF_SPLIT)),
            ],
            DENSE_OR_EXPERTS,
            &[CORRECTION_BIAS],
            MTP_LAYERS,
        ],
        ..LLAMA
    },
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v2",
        class: "DeepseekV2ForCausalLM",
        has_experts: true,
        gating: Some(Gating::Softmax),
        rotation: Rotation::Latent,
        reads: DEEPSEEK_READS,
        layer: &[
            NORMS_BEFORE,
            LATENT_ATTENTION,
            &[Tensor {
                joined: Some("attn_v_b"),
                ..tensor("attn_k_b", "self_attn.kv_b_proj", &[Heads, Rank, Plain])
            }
            .where_stored(Presence::With(LENGTH_OF_SPLIT))],
            DENSE_OR_EXPERTS,
        ],
        ..LLAMA
    },
    Architecture {
        name: "llama4",
        model_type: "llama4",
        text_type: Some("llama4_text"),
        class: "Llama4ForConditionalGeneration",
        has_experts: true,
        rotation: Rotation::AsStored,
        output: Output::Own,
        reads: &["interleave_moe_layer_step", "attention.sliding_window"],
        layer: &[
            NORMS_BEFORE,
            ATTENTION_MAYBE_BIASED,
            &[
                tensor("ffn_gate", "feed_forward.gate_proj", &[Inner, Hidden]).of_layers(DENSE),
                tensor("ffn_up", "feed_forward.up_proj", &[Inner, Hidden]).of_layers(DENSE),
                tensor("ffn_down", "feed_forward.down_proj", &[Hidden, Inner]).of_layers(DENSE),
            ],
            &[
                of_experts("ffn_gate_inp", "feed_forward.router", &[Experts, Hidden]),
                of_experts("ffn_gate_exps", "feed_forward.experts.gate_proj", UP_SHAPE),
                of_experts("ffn_up_exps", "feed_forward.experts.up_proj", UP_SHAPE),
                of_experts("ffn_down_exps", "feed_forward.experts.down_proj", DOWN_SHAPE),
            ],
            &[
                of_experts("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj", ONE_UP),
                of_experts("ffn_up_shexp", "feed_forward.shared_expert.up_proj", ONE_UP),
                of_experts("ffn_down_shexp", "feed_forward.shared_expert.down_proj", ONE_DOWN),
            ],
        ],
        ..LLAMA
    },
    Architecture {
        name: "mistral3",
        model_type: "mistral3",
        text_type: Some("mistral"),
        class: "Mistral3ForConditionalGeneration",
        reads: &["attention.temperature_scale", LOG_MULTIPLIER],
        layer: &[NORMS_BEFORE, ATTENTION, MLP],
        ..LLAMA
    },
];

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// The names that `tests/goldens/gguf_names.py` has from the `gguf` package.
    #[test]
    fn tensors_have_the_names_of_the_gguf_package() {
        let names = include_str!("../../../../tests/goldens/gguf_names.json");
        let names: serde_json::Value = serde_json::from_str(names).unwrap();
        for architecture in ARCHITECTURES {
            // The package does not have DeepSeek's MTP layers yet, which are named as GLM's.
            let [known, further] = [architecture.name, "glm4moe"].map(|name| &names[name]);
            let known = known.as_array().unwrap();
            let layer = architecture.layer.iter().copied().flatten();
            for source in layer.flat_map(|tensor| [Some(tensor.source), tensor.joined]).flatten() {
                let known = match source.starts_with("nextn.") {
                    true => further.as_array().unwrap(),
                    false => known,
                };
                let is_known = known.iter().any(|name| name == source);
                assert!(is_known, "{}: {source}", architecture.name);
            }
        }
    }
}
