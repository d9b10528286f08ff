//! Names that a model's folder can have.

/// The longest name of a file that the usual file systems have.
pub const MAX_MODEL_NAME_BYTES: usize = 255;

/// Whether a folder of this name is listed as a model: one that neither leads elsewhere nor is hidden.
pub fn is_model_name(name: &str) -> bool {
    let length = 1..=MAX_MODEL_NAME_BYTES;
    length.contains(&name.len())
        && !name.starts_with('.')
        && !name.contains(['/', '\\'])
        && !name.contains(char::is_control)
}

/// Whether a folder of this name in a model's folder says how its hidden states are pooled, such as
/// `1_Pooling`, in its config.json.
pub fn is_pooling_folder(name: &str) -> bool {
    let number = name.strip_suffix("_Pooling");
    number.is_some_and(|number| {
        (1..=2).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
