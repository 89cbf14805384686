//! Checks ensembles against the models that they are made of, as if all loadable models were loaded.

use std::collections::BTreeMap;

use super::super::lifecycle::parts_of;
use super::Inspection;
use nereid_model_config::validate::{StepModel, ensemble_cycle, ensemble_parts};
use nereid_wire::inference::ModelConfig;

impl Inspection {
    /// The names of the models that this ensemble is made of; none for any other model.
    pub fn parts(&self) -> Vec<String> {
        self.spec.as_ref().map(|spec| parts_of(&spec.config)).unwrap_or_default()
    }
}

/// A model that could be loaded, and the directory that it lies in.
pub struct Candidate<'a> {
    pub repository: &'a str,
    pub inspection: &'a Inspection,
    /// The first problem of the model.
    pub problem: Option<String>,
}

/// Problems of ensembles that come from their parts, by index in `candidates`.
pub fn misfits(candidates: &[Candidate<'_>], has_namespaces: bool) -> BTreeMap<usize, String> {
    let mut check = EnsembleCheck::new(candidates, has_namespaces);
    check.find_cycles();
    // Each after its parts: they decide whether it is decoupled.
    while let Some(at) = check.next() {
        check.check_ensemble(at);
    }
    check.misfits
}

struct EnsembleCheck<'a> {
    candidates: &'a [Candidate<'a>],
    has_namespaces: bool,
    /// The models of each name, in their order.
    holders: BTreeMap<&'a str, Vec<usize>>,
    /// Those of each ensemble that are there: looked up once, because every order is tried with them.
    parts: Vec<Vec<usize>>,
    /// Configurations as they would be served; none while that is undecided, and for models that would not load.
    configs: Vec<Option<ModelConfig>>,
    misfits: BTreeMap<usize, String>,
}

impl<'a> EnsembleCheck<'a> {
    fn new(candidates: &'a [Candidate<'a>], has_namespaces: bool) -> EnsembleCheck<'a> {
        let config = |candidate: &Candidate<'_>| {
            let is_plain = candidate.problem.is_none() && candidate.inspection.parts().is_empty();
            let spec = candidate.inspection.spec.as_ref().filter(|_| is_plain);
            spec.map(|spec| spec.config.clone())
        };
        let configs = candidates.iter().map(config).collect();
        let mut holders: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, candidate) in candidates.iter().enumerate() {
            holders.entry(&candidate.inspection.name).or_default().push(at);
        }
        let parts = Vec::new();
        let mut check = EnsembleCheck { candidates, has_namespaces, holders, parts, configs, misfits: BTreeMap::new() };
        check.parts = (0..candidates.len()).map(|at| check.find_parts(at)).collect();
        check
    }

    /// The model that an ensemble means by a name: the one in the same repository, else the only one.
    fn part(&self, ensemble: usize, name: &str) -> Option<usize> {
        let repository = self.candidates.get(ensemble)?.repository;
        let mut holders = self.holders.get(name)?.iter().copied();
        if self.has_namespaces
            && let Some(own) = holders.clone().find(|at| self.candidates[*at].repository == repository)
        {
            return Some(own);
        }
        holders.next().filter(|_| holders.next().is_none())
    }

    fn find_parts(&self, at: usize) -> Vec<usize> {
        let names = self.candidates[at].inspection.parts();
        names.iter().filter_map(|name| self.part(at, name)).collect()
    }

    /// Whether its configuration is still undecided.
    fn is_open(&self, at: usize) -> bool {
        self.candidates[at].problem.is_none() && self.configs[at].is_none() && !self.misfits.contains_key(&at)
    }

    fn find_cycles(&mut self) {
        // By name and index: a repository has each name once.
        let key = |at: usize| (self.candidates[at].inspection.name.clone(), at);
        let cycle = |at: usize| {
            let parts = |(_, at): &(String, usize)| self.parts[*at].iter().copied().map(key).collect();
            ensemble_cycle(&key(at), |(name, _)| name, parts).err()
        };
        let open = (0..self.candidates.len()).filter(|at| self.is_open(*at));
        let found: Vec<_> = open.filter_map(|at| Some((at, cycle(at)?.to_string()))).collect();
        self.misfits.extend(found);
    }

    fn next(&self) -> Option<usize> {
        let is_ready = |at: &usize| self.is_open(*at) && !self.parts[*at].iter().any(|part| self.is_open(*part));
        (0..self.candidates.len()).find(is_ready)
    }

    fn check_ensemble(&mut self, at: usize) {
        let Some(spec) = &self.candidates[at].inspection.spec else { return };
        let mut config = spec.config.clone();
        let part = |name: &str| {
            let Some(part) = self.part(at, name) else { return StepModel::Unknown };
            let candidate = &self.candidates[part];
            match (&self.configs[part], self.misfits.get(&part)) {
                (Some(config), _) => {
                    let versions = &candidate.inspection.chosen;
                    StepModel::Loaded(versions.iter().map(|version| (*version, config)).collect())
                }
                (None, Some(reason)) => StepModel::Invalid { reason: reason.clone() },
                (None, None) => StepModel::NotLoaded { reason: candidate.problem.clone() },
            }
        };
        match ensemble_parts(&spec.config, |step| part(&step.model_name)) {
            Ok(flow) => {
                config.model_transaction_policy.get_or_insert_default().decoupled = flow.decoupled;
                self.configs[at] = Some(config);
            }
            Err(error) => {
                self.misfits.insert(at, error.to_string());
            }
        }
    }
}
