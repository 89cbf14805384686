//! The graph of ensembles and the models that they are made of.
//!
//! An ensemble is in the graph from the moment that its configuration is read until it is unloaded, whether it serves
//! or not: one with a missing part is reloaded with that part.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::super::models::ModelId;
use nereid_model_config::normalize::ENSEMBLE_PLATFORM;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_ensembling::Step;

#[derive(Debug, Default)]
pub struct Graph {
    ensembles: BTreeMap<ModelId, Node>,
    /// The ensembles with a step of that name; none of the sets is empty.
    users: BTreeMap<String, BTreeSet<ModelId>>,
    /// Models that were requested by their own names.
    explicit: BTreeSet<ModelId>,
}

/// One ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The models that its steps name, each once.
    parts: Vec<String>,
    /// Why it does not fit its parts.
    problem: Option<String>,
}

/// The models that the steps of an ensemble name, each once; none for any other model.
pub fn parts_of(config: &ModelConfig) -> Vec<String> {
    let mut seen = HashSet::new();
    let names = steps_of(config).iter().map(|step| &step.model_name);
    names.filter(|name| seen.insert(*name)).cloned().collect()
}

/// The steps of an ensemble; none for any other model.
pub fn steps_of(config: &ModelConfig) -> &[Step] {
    match &config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(ensemble)) if config.platform == ENSEMBLE_PLATFORM => &ensemble.step,
        _ => &[],
    }
}

impl Graph {
    /// Records the parts of a model, and returns the previous node. A model without parts is no ensemble.
    pub fn put(&mut self, id: &ModelId, parts: Vec<String>) -> Option<Node> {
        self.replace(id, (!parts.is_empty()).then_some(Node { parts, problem: None }))
    }

    /// Undoes a [`put`](Graph::put).
    pub fn restore(&mut self, id: &ModelId, before: Option<Node>) {
        self.replace(id, before);
    }

    /// Removes an unloaded model.
    pub fn forget(&mut self, id: &ModelId) {
        self.replace(id, None);
        self.explicit.remove(id);
    }

    fn replace(&mut self, id: &ModelId, node: Option<Node>) -> Option<Node> {
        let before = self.ensembles.remove(id);
        for part in before.iter().flat_map(|before| &before.parts) {
            if let Some(users) = self.users.get_mut(part) {
                users.remove(id);
                if users.is_empty() {
                    self.users.remove(part);
                }
            }
        }
        if let Some(node) = node {
            for part in &node.parts {
                self.users.entry(part.clone()).or_default().insert(id.clone());
            }
            self.ensembles.insert(id.clone(), node);
        }
        before
    }

    pub fn parts(&self, id: &ModelId) -> Vec<String> {
        self.ensembles.get(id).map(|node| node.parts.clone()).unwrap_or_default()
    }

    pub fn set_problem(&mut self, id: &ModelId, problem: Option<String>) {
        if let Some(node) = self.ensembles.get_mut(id) {
            node.problem = problem;
        }
    }

    pub fn problem(&self, id: &ModelId) -> Option<String> {
        self.ensembles.get(id)?.problem.clone()
    }

    pub fn mark_requested(&mut self, id: &ModelId) {
        self.explicit.insert(id.clone());
    }

    pub fn is_requested(&self, id: &ModelId) -> bool {
        self.explicit.contains(id)
    }

    pub fn has(&self, id: &ModelId) -> bool {
        self.ensembles.contains_key(id)
    }

    /// The ensemble that an ensemble of `namespace` refers to by `name`: the one of its own namespace, else the only
    /// one of that name.
    pub fn ensemble(&self, namespace: &str, name: &str) -> Option<ModelId> {
        let own = ModelId { name: name.to_owned(), namespace: namespace.to_owned() };
        if self.ensembles.contains_key(&own) {
            return Some(own);
        }
        let lowest = ModelId { name: name.to_owned(), namespace: String::new() };
        let mut same = self.ensembles.range(lowest..).map(|(id, _)| id).take_while(|id| id.name == name);
        let first = same.next()?;
        same.next().is_none().then(|| first.clone())
    }

    /// The ensembles that are made, directly or through others, of a model of these names; each after those that it is
    /// made of.
    pub fn dependents(&self, names: &BTreeSet<String>) -> Vec<ModelId> {
        let mut found: BTreeSet<&ModelId> = BTreeSet::new();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        while let Some(name) = names.pop() {
            let fresh = self.users.get(name).into_iter().flatten().filter(|id| found.insert(id));
            names.extend(fresh.map(|id| id.name.as_str()));
        }
        let (mut ordered, mut seen) = (Vec::new(), BTreeSet::new());
        // Depth first, without recursion: an ensemble is added after all that it is made of.
        let mut pending: Vec<(&ModelId, bool)> = found.iter().rev().map(|id| (*id, false)).collect();
        while let Some((id, is_over)) = pending.pop() {
            if is_over {
                ordered.push(id.clone());
                continue;
            }
            if !seen.insert(id) {
                continue;
            }
            pending.push((id, true));
            let parts = self.ensembles.get(id).map(|node| node.parts.as_slice()).unwrap_or_default();
            for part in parts {
                let lowest = ModelId { name: part.clone(), namespace: String::new() };
                let same = found.range::<ModelId, _>(&lowest..).take_while(|other| other.name == *part);
                pending.extend(same.filter(|other| !seen.contains(*other)).map(|id| (*id, false)));
            }
        }
        ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ModelId {
        ModelId { name: name.to_owned(), ..ModelId::default() }
    }

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (name, parts) in edges {
            graph.put(&id(name), parts.split(' ').map(str::to_owned).collect());
        }
        graph
    }

    fn dependents(graph: &Graph, names: &str) -> String {
        let names = names.split(' ').map(str::to_owned).collect();
        graph.dependents(&names).into_iter().map(|id| id.name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn dependents_come_behind_what_they_are_made_of() {
        let graph = graph(&[("a", "b x"), ("b", "c y"), ("c", "x"), ("z", "y b"), ("other", "w")]);
        for (changed, expected) in
            [("x", "c b a z"), ("y", "b a z"), ("w", "other"), ("a", ""), ("nobody", ""), ("w y", "b a other z")]
        {
            let got = dependents(&graph, changed);
            assert_eq!(
                got.split(' ').collect::<BTreeSet<_>>(),
                expected.split(' ').collect::<BTreeSet<_>>(),
                "{changed}"
            );
            let place = |name: &str| got.split(' ').position(|one| one == name);
            for (upper, lower) in [("a", "b"), ("b", "c"), ("z", "b")] {
                if let (Some(upper), Some(lower)) = (place(upper), place(lower)) {
                    assert!(upper > lower, "{got}");
                }
            }
        }
    }

    #[test]
    fn loops_end() {
        let graph = graph(&[("a", "b"), ("b", "a x"), ("self", "self")]);
        assert_eq!(dependents(&graph, "x").len(), "a b".len());
        assert_eq!(dependents(&graph, "self"), "self");
    }

    /// A part that no step names any more has no dependents, and one that is named again has.
    #[test]
    fn dependents_follow_the_parts() {
        let mut graph = graph(&[("a", "x y"), ("b", "y")]);
        let before = graph.put(&id("a"), vec!["z".to_owned()]);
        assert_eq!([dependents(&graph, "x"), dependents(&graph, "y"), dependents(&graph, "z")], ["", "b", "a"]);
        graph.restore(&id("a"), before);
        assert_eq!([dependents(&graph, "x"), dependents(&graph, "z")], ["a", ""]);
        graph.forget(&id("a"));
        graph.forget(&id("b"));
        assert!(graph.users.is_empty() && graph.ensembles.is_empty());
    }

    #[test]
    fn a_namespace_is_preferred() {
        let mut graph = Graph::default();
        let at = |namespace: &str| ModelId { name: "e".to_owned(), namespace: namespace.to_owned() };
        graph.put(&at("/one"), vec!["m".to_owned()]);
        assert_eq!(graph.ensemble("/two", "e"), Some(at("/one")));
        graph.put(&at("/two"), vec!["m".to_owned()]);
        assert_eq!(graph.ensemble("/two", "e"), Some(at("/two")));
        assert_eq!(graph.ensemble("/three", "e"), None);
        let before = graph.put(&at("/two"), vec![]);
        assert_eq!(graph.ensemble("/three", "e"), Some(at("/one")));
        graph.restore(&at("/two"), before);
        assert_eq!(graph.parts(&at("/two")), ["m"]);
    }
}
