//! Lists a thousand models and says how long that takes: `cargo run --release -p cairn-hub --example
//! list`. The first list reads every config.json and index, the others find that nothing changed.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use cairn_hub::{CacheVariables, ModelFolders};

const NUM_MODELS: usize = 1000;
const NUM_LISTS: usize = 20;

fn main() -> io::Result<()> {
    let home = tempfile::tempdir()?;
    let at = |path: &str| home.path().join(path);
    // Half of them in the shared cache, as links; the others in LM Studio's folder and an added one.
    for index in 0..NUM_MODELS {
        match index % 4 {
            0 | 1 => {
                let repo = at(&format!("hub/models--ann--model-{index}"));
                write_model(&repo.join("blobs"), index)?;
                fs::create_dir_all(repo.join("refs"))?;
                fs::write(repo.join("refs/main"), "1")?;
                fs::create_dir_all(repo.join("snapshots/1"))?;
                for entry in fs::read_dir(repo.join("blobs"))? {
                    let name = entry?.file_name();
                    let target = Path::new("../../blobs").join(&name);
                    symlink(target, repo.join("snapshots/1").join(name))?;
                }
            }
            2 => write_model(&at(&format!(".lmstudio/models/bob/model-{index}")), index)?,
            _ => write_model(&at(&format!("added/cat/model-{index}")), index)?,
        }
    }
    let variables = CacheVariables {
        home: Some(home.path().to_owned()),
        hf_hub_cache: Some(at("hub")),
        ..CacheVariables::default()
    };
    let folders = ModelFolders::new(home.path(), &variables);
    folders.set_added(vec![at("added")]);
    let mut milliseconds = Vec::new();
    for _ in 0..=NUM_LISTS {
        let start = Instant::now();
        let models = folders.list();
        milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
        let num_whole = models.iter().filter(|model| model.problem.is_none()).count();
        assert_eq!((models.len(), num_whole), (NUM_MODELS, NUM_MODELS));
    }
    let first = milliseconds.remove(0);
    milliseconds.sort_by(f64::total_cmp);
    println!("{NUM_MODELS} models: {first:.1} ms at first");
    let (least, median) = (milliseconds[0], milliseconds[NUM_LISTS / 2]);
    println!(
        "nothing changed: {least:.1} ms at least, {median:.1} ms in the median of {NUM_LISTS}"
    );
    Ok(())
}

/// The files that a model of medium size has, with an index of a few hundred tensors.
fn write_model(folder: &Path, index: usize) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let shards = [1, 2].map(|part| format!("model-0000{part}-of-00002.safetensors"));
    let tensors: Vec<String> = (0..400)
        .map(|tensor| {
            format!(r#""model.layers.{tensor}.self_attn.q_proj.weight": "{}""#, shards[tensor % 2])
        })
        .collect();
    let weight_map = format!(r#"{{"weight_map": {{{}}}}}"#, tensors.join(","));
    let config = format!(r#"{{"model_type": "llama", "hidden_size": {index}}}"#);
    for (name, text) in [
        ("config.json", config.as_str()),
        ("model.safetensors.index.json", &weight_map),
        (&shards[0], "1234"),
        (&shards[1], "1234"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{}"),
        ("special_tokens_map.json", "{}"),
        ("generation_config.json", "{}"),
        ("chat_template.jinja", "{}"),
        ("README.md", "A model."),
    ] {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}
