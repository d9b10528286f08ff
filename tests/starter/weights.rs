//! The import changes no weight: what MLX unpacks from the imported folder is what GGUF says, bit
//! for bit.

use std::collections::HashMap;
use std::ops::ControlFlow;

use cairn_formats::gguf::{GgufImport, import_gguf};
use mlx_rs::{Array, ops};

use crate::gguf::Gguf;

const HEAD_DIM: usize = 64;
const NUM_LAYERS: usize = 30;
const GROUP_SIZE: usize = 32;

/// The weights of a module as MLX computes them.
fn imported(tensors: &HashMap<String, Array>, module: &str, columns: usize) -> Vec<f32> {
    let weight = &tensors[&format!("{module}.weight")];
    let values = match (
        tensors.get(&format!("{module}.scales")),
        tensors.get(&format!("{module}.biases")),
    ) {
        (Some(scales), Some(biases)) => {
            assert_eq!(scales.dim(1) as usize, columns / GROUP_SIZE, "{module}");
            let bits = weight.dim(1) * 32 / columns as i32;
            ops::dequantize(weight, scales, biases, GROUP_SIZE as i32, bits).expect("dequantizes")
        }
        _ => weight.clone(),
    };
    values.eval().expect("computes");
    values.as_slice::<f32>().to_vec()
}

/// The rows of query and key heads in the checkpoint's order: GGUF has the two halves of a head
/// interleaved.
fn checkpoint_order(values: &[f32], columns: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks_exact(columns).collect();
    let row_in_gguf = |row: usize| {
        let (head, within) = (row / HEAD_DIM, row % HEAD_DIM);
        let (half, index) = (within / (HEAD_DIM / 2), within % (HEAD_DIM / 2));
        head * HEAD_DIM + 2 * index + half
    };
    (0..rows.len()).flat_map(|row| rows[row_in_gguf(row)]).copied().collect()
}

#[test]
fn every_kind_of_weight_is_the_same_as_in_the_gguf_file() {
    // Imported anew: the folder that other tests share may be older than the importer.
    let models = tempfile::tempdir_in(cairn_tests::starter_gguf().parent().expect("a folder"))
        .expect("a folder");
    let mut on_progress = |_, _| ControlFlow::Continue(());
    let options = GgufImport::default();
    let starter = cairn_tests::starter_gguf();
    let model = import_gguf(&starter, models.path(), options, &mut on_progress).expect("imports");
    assert_eq!(model.rounding.num_tensors, 0);
    let folder = model.folder;
    let tensors = Array::load_safetensors(folder.join("model.safetensors")).expect("loads");
    let gguf = Gguf::open(&cairn_tests::starter_gguf());

    let check = |name: &str, module: &str, format: &str| {
        let columns = gguf.columns(name);
        let mut expected = gguf.values(name);
        if module.ends_with("q_proj") || module.ends_with("k_proj") {
            expected = checkpoint_order(&expected, columns);
        }
        assert_eq!(gguf.format(name), format, "{name}");
        let found = imported(&tensors, module, columns);
        assert_eq!(found.len(), expected.len(), "{name}");
        // Adding zero turns -0 into 0: the sign of a zero is all that may differ.
        let differing = found
            .iter()
            .zip(&expected)
            .position(|(a, b)| (a + 0.0).to_bits() != (b + 0.0).to_bits());
        assert_eq!(differing, None, "{name} differs from {module}");
    };
    check("token_embd.weight", "model.embed_tokens", "Q8_0");
    check("output_norm.weight", "model.norm", "F32");
    for layer in [0, NUM_LAYERS / 2, NUM_LAYERS - 1] {
        for (name, module, format) in [
            ("attn_norm", "input_layernorm", "F32"),
            ("attn_q", "self_attn.q_proj", "Q4_1"),
            ("attn_k", "self_attn.k_proj", "Q4_1"),
            ("attn_v", "self_attn.v_proj", "Q4_1"),
            ("attn_output", "self_attn.o_proj", "Q4_1"),
            ("ffn_norm", "post_attention_layernorm", "F32"),
            ("ffn_gate", "mlp.gate_proj", "Q4_1"),
            ("ffn_up", "mlp.up_proj", "Q4_1"),
            ("ffn_down", "mlp.down_proj", "Q4_1"),
        ] {
            check(
                &format!("blk.{layer}.{name}.weight"),
                &format!("model.layers.{layer}.{module}"),
                format,
            );
        }
    }
    // Every tensor of the file has its weight in the folder.
    assert_eq!(
        tensors.keys().filter(|name| name.ends_with(".weight")).count(),
        gguf.names().count()
    );
    assert_eq!(gguf.names().count(), 2 + 9 * NUM_LAYERS);
}
