//! Namespaces of functions, in which Codex offers its helpers and the tools of MCP servers. A model knows
//! no namespaces: it is offered each function under one name, and calls are told to the program with both.

use std::collections::HashMap;

/// A function in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Function {
    /// The name that the model sees, which does not depend on the other tools: a prompt stays the same when
    /// some are added.
    pub(super) fn shown_name(&self) -> String {
        format!("{}__{}", self.namespace.trim_end_matches('_'), self.name)
    }
}

/// The functions of a request's namespaces, by the names that the model sees.
#[derive(Debug, Default)]
pub(super) struct Namespaces(HashMap<String, Function>);

impl Namespaces {
    pub(super) fn add(&mut self, function: Function) {
        self.0.insert(function.shown_name(), function);
    }

    /// The function that a model calls by this name; none for a tool without a namespace.
    pub(super) fn called(&self, shown_name: &str) -> Option<&Function> {
        self.0.get(shown_name)
    }
}
