//! Which model answers where none is named and none is loaded.

use cairn_hub::starter;

use crate::app::App;
use crate::wire::{Fit, Model};

/// Which of these models answers where none is named and none is loaded.
pub(super) async fn proposed(app: &App, models: &[Model]) -> Option<usize> {
    propose(&app.settings().default_model, last_used_path(app).await.as_deref(), models)
}

/// Which of these models a person has used or set, or is the only one.
pub(super) async fn chosen_before(app: &App, models: &[Model]) -> Option<usize> {
    known(&app.settings().default_model, last_used_path(app).await.as_deref(), models)
}

async fn last_used_path(app: &App) -> Option<String> {
    app.store.last_used_model().await.unwrap_or_default().map(|(path, _)| path)
}

/// The model to load when none is named: the one of [`known`], or the one that fits best.
fn propose(default_name: &str, last_used_path: Option<&str>, models: &[Model]) -> Option<usize> {
    known(default_name, last_used_path, models).or_else(|| best_fitting(models))
}

/// The model in the settings, the last one used, the starter, or the only one.
fn known(default_name: &str, last_used_path: Option<&str>, models: &[Model]) -> Option<usize> {
    let usable = || usable(models);
    let index = |(index, _): (usize, &Model)| index;
    let by_default = || usable().find(|(_, model)| model.name == default_name);
    let last_used = || usable().find(|(_, model)| Some(model.path.as_str()) == last_used_path);
    let is_starter = |name: &str| name.rsplit('/').next() == Some(starter::MODEL_NAME);
    let starter = || usable().find(|(_, model)| is_starter(&model.name));
    let only = || if usable().count() == 1 { usable().next() } else { None };
    by_default().or_else(last_used).or_else(starter).or_else(only).map(index)
}

/// The largest one that fits well, else the largest one that just fits. Of models of which that is not
/// known, or that are too large, the smallest.
fn best_fitting(models: &[Model]) -> Option<usize> {
    let rank = |model: &Model| match model.facts.as_ref().map(|facts| facts.memory.fit) {
        Some(Fit::Well) => (3, i128::from(model.bytes)),
        Some(Fit::Tight) => (2, i128::from(model.bytes)),
        None => (1, -i128::from(model.bytes)),
        Some(Fit::TooLarge) => (0, -i128::from(model.bytes)),
    };
    // Of equal ones the first in the list.
    usable(models).rev().max_by_key(|(_, model)| rank(model)).map(|(index, _)| index)
}

fn usable(models: &[Model]) -> impl DoubleEndedIterator<Item = (usize, &Model)> {
    models.iter().enumerate().filter(|(_, model)| model.problem.is_none() && !model.is_set_aside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MemoryNeed, ModelFacts, ModelProblem, ModelProblemKind, ModelSource};

    fn model(name: &str) -> Model {
        Model {
            name: name.trim_start_matches('!').to_owned(),
            alias: None,
            is_pinned: false,
            path: format!("/models/{name}"),
            model_type: "llama".to_owned(),
            bytes: 1,
            source: ModelSource::Imported,
            can_delete: true,
            problem: name.starts_with('!').then(|| ModelProblem {
                kind: ModelProblemKind::Broken,
                what: None,
                detail: "config.json is not JSON".to_owned(),
            }),
            facts: None,
            is_being_checked: false,
            is_proposed: false,
            is_set_aside: false,
            is_being_measured: false,
        }
    }

    #[test]
    fn at_the_start_the_default_the_last_used_the_starter_or_the_only_model_is_loaded() {
        fn check(
            default_name: &str,
            last_used: Option<&str>,
            names: &[&str],
            expected: Option<&str>,
        ) {
            let models: Vec<Model> = names.iter().map(|name| model(name)).collect();
            let last_used = last_used.map(|name| format!("/models/{name}"));
            let chosen = known(default_name, last_used.as_deref(), &models);
            assert_eq!(
                chosen.map(|index| models[index].name.as_str()),
                expected,
                "for {default_name:?}, {last_used:?}, {names:?}"
            );
        }
        let starter = "HuggingFaceTB/SmolLM2-135M-Instruct";
        check("", None, &[], None);
        check("", None, &["a"], Some("a"));
        check("", None, &["a", "b"], None);
        check("", None, &["a", "!b"], Some("a"));
        check("", None, &["a", starter], Some(starter));
        check("", Some("a"), &["a", starter], Some("a"));
        check("", Some("gone"), &["a", starter], Some(starter));
        check("b", Some("a"), &["a", "b"], Some("b"));
        check("gone", Some("a"), &["a", "b"], Some("a"));
        check("b", None, &["a", "!b"], Some("a"));
        check("", None, &["a", "!SmolLM2-135M-Instruct", "b"], None);
    }

    #[test]
    fn of_several_models_that_nobody_has_used_the_best_fitting_is_proposed() {
        fn check(last_used: Option<&str>, models: &[(&str, u64, Option<Fit>)], expected: &str) {
            let described = |&(name, bytes, fit): &(&str, u64, Option<Fit>)| Model {
                bytes,
                facts: fit.map(facts),
                ..model(name)
            };
            let models: Vec<Model> = models.iter().map(described).collect();
            let last_used = last_used.map(|name| format!("/models/{name}"));
            let proposed = propose("", last_used.as_deref(), &models).unwrap();
            assert_eq!(models[proposed].name, expected, "of {models:?}");
        }
        let (well, tight, large) = (Some(Fit::Well), Some(Fit::Tight), Some(Fit::TooLarge));
        check(None, &[("a", 1, well), ("b", 2, well), ("c", 3, tight), ("d", 4, large)], "b");
        check(None, &[("a", 1, tight), ("b", 2, tight), ("c", 3, large)], "b");
        check(None, &[("a", 1, None), ("b", 2, None), ("c", 1, large)], "a");
        check(None, &[("a", 3, large), ("b", 2, large)], "b");
        check(None, &[("a", 1, well), ("b", 1, well)], "a");
        check(None, &[("a", 1, well), ("!b", 2, well), ("c", 2, None)], "a");
        check(Some("a"), &[("a", 1, large), ("b", 2, well)], "a");
        assert_eq!(propose("", None, &[model("!a")]), None);
    }

    fn facts(fit: Fit) -> ModelFacts {
        ModelFacts {
            parameters: 1,
            quantization_bits: None,
            context_length: 1,
            memory: MemoryNeed {
                context_tokens: 1,
                weight_bytes: 1,
                kv_bytes: 1,
                total_bytes: 1,
                longest_tokens: 1,
                longest_bytes: 1,
                budget_bytes: 1,
                fit,
            },
            takes_tools: None,
            rounded_weights: None,
        }
    }
}
