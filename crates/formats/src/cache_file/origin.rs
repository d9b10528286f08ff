//! The model that made a prompt-cache file, and how it differs from the loaded one.

/// The model that made a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOrigin {
    /// Identifies the model's files on one computer.
    pub fingerprint: String,
    /// Hashes that identify the model on any computer. Files of earlier versions have none, nor do
    /// exports made while another model was loaded.
    pub parts: Option<ModelParts>,
}

/// Hashes of a model's parts, and the precision that it is computed in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // as on `cairn_lm::ModelIdentity`
pub struct ModelParts {
    pub config: String,
    pub weights: String,
    pub tokenizer: String,
    pub template: String,
    pub precision: String,
}

/// How the model that made a file differs from the loaded one. Follows the name of the file in a
/// sentence, and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelMismatch {
    /// The same model, computed in another precision.
    #[error(
        "it was made in another precision ({file}; here the model is computed in {loaded}): make the file anew"
    )]
    Precision {
        /// The precision of the file.
        file: String,
        /// The precision of the loaded model.
        loaded: String,
    },
    /// A model of the same name with other files.
    #[error(
        "it was made with another revision of {loaded} ({differing}): load that one, or make the file anew"
    )]
    Revision {
        /// The name of the loaded model.
        loaded: String,
        /// Which parts differ.
        differing: String,
    },
    /// A model of another name.
    #[error(
        "it was made with another model ({file}; {loaded} is loaded): load that one, or make the file anew"
    )]
    Model {
        /// The name that the file gives its model.
        file: String,
        /// The name of the loaded model.
        loaded: String,
    },
    /// A model that the file does not name.
    #[error(
        "it was made with another model than {loaded} ({differing}): load that one, or make the file anew"
    )]
    Unnamed {
        /// The name of the loaded model.
        loaded: String,
        /// Which parts differ.
        differing: String,
    },
}

impl ModelOrigin {
    /// How this origin of a file, which names its model `model`, differs from that of the loaded
    /// model, which is named `loaded_name`; `None` where it is the same model.
    pub fn mismatch(
        &self,
        model: &str,
        loaded: &ModelOrigin,
        loaded_name: &str,
    ) -> Option<ModelMismatch> {
        if self.fingerprint == loaded.fingerprint {
            return None;
        }
        let differing = match (&self.parts, &loaded.parts) {
            (Some(file), Some(own)) => {
                let differing = file.differing(own);
                // The template is not compared: it shapes only what comes after.
                if differing.is_empty() {
                    let (file, loaded) = (file.precision.clone(), own.precision.clone());
                    return (file != loaded).then_some(ModelMismatch::Precision { file, loaded });
                }
                differing
            }
            _ => "its fingerprint differs".to_owned(),
        };
        let loaded = loaded_name.to_owned();
        Some(if model.is_empty() {
            ModelMismatch::Unnamed { loaded, differing }
        } else if last_name(model) == last_name(loaded_name) {
            ModelMismatch::Revision { loaded, differing }
        } else {
            ModelMismatch::Model { file: model.to_owned(), loaded }
        })
    }
}

impl ModelParts {
    /// The parts that differ, in words.
    fn differing(&self, other: &ModelParts) -> String {
        let parts = [
            ("its configuration differs", self.config != other.config),
            ("its weights differ", self.weights != other.weights),
            ("its tokenizer differs", self.tokenizer != other.tokenizer),
        ];
        let differing: Vec<&str> =
            parts.into_iter().filter(|(_, differs)| *differs).map(|(words, _)| words).collect();
        differing.join(", ")
    }
}

/// The part of a model's name that is the same for `owner/name` and for a folder's path.
fn last_name(name: &str) -> &str {
    name.trim_end_matches('/').rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_to_the_loaded_model_is_named() {
        let origin = |fingerprint: &str, parts: Option<[&str; 5]>| ModelOrigin {
            fingerprint: fingerprint.to_owned(),
            parts: parts.map(|parts| {
                let [config, weights, tokenizer, template, precision] = parts.map(str::to_owned);
                ModelParts { config, weights, tokenizer, template, precision }
            }),
        };
        let own = ["c", "w", "t", "m", "float32"];
        let loaded = origin("f", Some(own));
        let check = |file: ModelOrigin, model: &str, expected: Option<&str>| {
            let found =
                file.mismatch(model, &loaded, "org/Stone-1B").map(|mismatch| mismatch.to_string());
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            assert!(
                found.clone().unwrap_or_default().contains(expected.unwrap_or_default()),
                "{found:?}"
            );
        };
        check(origin("f", None), "other", None);
        // The same files on another computer, whatever its template has become.
        check(origin("g", Some(own)), "/elsewhere/Stone-1B", None);
        check(origin("g", Some(["c", "w", "t", "n", "float32"])), "org/Stone-1B", None);
        check(
            origin("g", Some(["c", "w", "t", "m", "as stored"])),
            "org/Stone-1B",
            Some("in another precision (as stored; here"),
        );
        check(
            origin("g", Some(["c", "v", "t", "m", "float32"])),
            "org/Stone-1B",
            Some("another revision of org/Stone-1B (its weights differ)"),
        );
        check(
            origin("g", Some(["d", "w", "u", "m", "float32"])),
            "x/Stone-1B",
            Some("its configuration differs, its tokenizer differs"),
        );
        check(
            origin("g", None),
            "Stone-1B",
            Some("another revision of org/Stone-1B (its fingerprint differs)"),
        );
        check(
            origin("g", Some(["d", "v", "u", "m", "float32"])),
            "Rock-2B",
            Some("another model (Rock-2B; org/Stone-1B is loaded)"),
        );
        check(origin("g", None), "", Some("another model than org/Stone-1B"));
    }
}
