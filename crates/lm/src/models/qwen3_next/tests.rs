//! Which configs are accepted, and what they mean.

use serde_json::json;

use super::*;

/// Layers that attend and layers with experts in a config with these changes, of eight, or the
/// key that is refused.
fn check(changes: serde_json::Value, expected: Result<(&[i32], &[i32]), &str>) {
    let mut config = json!({
        "hidden_size": 32, "num_hidden_layers": 8, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-6, "vocab_size": 128, "max_position_embeddings": 4096, "rope_theta": 1e6,
        "partial_rotary_factor": 0.25, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1, "norm_topk_prob": true,
    });
    for (name, value) in changes.as_object().expect("an object") {
        config[name] = value.clone();
    }
    let args = ModelArgs::deserialize(&config).expect("arguments");
    let found = args.shape().map_err(|error| match error {
        LmError::Config { name, .. } => name,
        other => panic!("{changes}: {other}"),
    });
    let layers = |shape: &Shape, is_wanted: &dyn Fn(&Shape, i32) -> bool| -> Vec<i32> {
        (0..shape.layers).filter(|&layer| is_wanted(shape, layer)).collect()
    };
    let found = found.map(|shape| {
        let attending = layers(&shape, &Shape::attends);
        (attending, layers(&shape, &|shape, layer| shape.experts.are_in(layer)))
    });
    assert_eq!(
        found,
        expected.map(|(attending, sparse)| (attending.to_vec(), sparse.to_vec())),
        "{changes}"
    );
}

#[test]
fn the_config_says_which_layers_attend_and_which_have_experts() {
    const ALL: &[i32] = &[0, 1, 2, 3, 4, 5, 6, 7];
    check(json!({}), Ok((&[3, 7], ALL)));
    check(json!({"full_attention_interval": 3}), Ok((&[2, 5], ALL)));
    check(
        json!({"full_attention_interval": 1, "num_experts": 0, "num_experts_per_tok": 1}),
        Ok((ALL, &[])),
    );
    check(json!({"decoder_sparse_step": 2, "mlp_only_layers": [3]}), Ok((&[3, 7], &[1, 5, 7])));
    check(
        json!({"layer_types": ["linear_attention", "full_attention"], "full_attention_interval": 2}),
        Ok((&[1, 3, 5, 7], ALL)),
    );
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    check(json!({"num_key_value_heads": 3}), Err("num_key_value_heads"));
    check(json!({"linear_num_key_heads": 3}), Err("linear_num_key_heads"));
    check(json!({"linear_conv_kernel_dim": 1}), Err("linear_conv_kernel_dim"));
    check(json!({"full_attention_interval": 9}), Err("full_attention_interval"));
    check(json!({"full_attention_interval": 0}), Err("full_attention_interval"));
    check(json!({"layer_types": ["full_attention"]}), Err("layer_types"));
    check(json!({"partial_rotary_factor": 1.5}), Err("partial_rotary_factor"));
    check(json!({"partial_rotary_factor": 0.2}), Err("partial_rotary_factor"));
    check(json!({"partial_rotary_factor": null}), Err("partial_rotary_factor"));
    check(json!({"num_experts_per_tok": 9}), Err("num_experts_per_tok"));
    check(json!({"rope_theta": 0.0}), Err("rope_theta"));
}
