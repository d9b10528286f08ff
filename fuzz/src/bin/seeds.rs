//! Writes the seeds of the `gguf` target: models of one layer with a vocabulary of nine tokens.

use std::path::Path;

use cairn_formats::gguf::GgmlType;
use cairn_formats::test_files::gguf::{HIDDEN, TestGguf, TestTensor};

const UP: &str = "blk.0.ffn_up.weight";
const VALUE: &str = "blk.0.attn_v.weight";
const EMBEDDING: &str = "token_embd.weight";

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/gguf");
    std::fs::create_dir_all(&folder)?;
    let mut quantized = small();
    quantized.store_as(UP, GgmlType::Q4_0);
    std::fs::write(folder.join("quantized"), quantized.bytes())?;

    let mut linear_rope = small();
    linear_rope.store_as(UP, GgmlType::Q4_1);
    linear_rope.store_as(VALUE, GgmlType::Q8_0);
    linear_rope.set_text("llama.rope.scaling.type", "linear");
    linear_rope.set_f32("llama.rope.scaling.factor", 2.0);
    linear_rope.set_text("tokenizer.ggml.pre", "llama-bpe");
    std::fs::write(folder.join("linear-rope"), linear_rope.bytes())?;

    let mut untied = small();
    untied.store_as(UP, GgmlType::F16);
    untied.version = 2;
    let TestTensor { shape, type_id, data, .. } = untied.tensor(EMBEDDING);
    let output = TestTensor {
        name: "output.weight".into(),
        shape: shape.clone(),
        type_id: *type_id,
        data: data.clone(),
    };
    untied.tensors.push(output);
    std::fs::write(folder.join("untied"), untied.bytes())
}

/// The test model with fewer tokens, so that a mutation is likely to meet a number that matters.
fn small() -> TestGguf {
    let tokens = ["h", "e", "l", "o", "he", "ll", "hell", "<|begin|>", "<|end|>"];
    let mut file = TestGguf::tiny();
    file.set_texts("tokenizer.ggml.tokens", &tokens.map(String::from));
    file.set_texts("tokenizer.ggml.merges", &["h e", "l l", "he ll"].map(String::from));
    let kinds = [1, 1, 1, 1, 1, 1, 1, 3, 3_i32];
    let bytes = kinds.iter().flat_map(|kind| kind.to_le_bytes()).collect();
    file.set_array("tokenizer.ggml.token_type", 5, kinds.len(), bytes);
    file.set_u32("tokenizer.ggml.bos_token_id", 7);
    file.set_u32("tokenizer.ggml.eos_token_id", 8);
    file.tensor(EMBEDDING).shape = vec![tokens.len(), HIDDEN];
    file.store_as(EMBEDDING, GgmlType::Q8_0);
    file
}
