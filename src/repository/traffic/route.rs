//! The way of one request to a version, in two steps: what its head decides, and what the rest of it decides.

use std::sync::Arc;

use super::Traffic;
use super::choice::{mix, number_of, of_parameter, of_sequence, place, random};
use super::counts::Reason;
use super::link::Link;
use super::rule::Sticky;
use nereid_request::Request;
use nereid_scheduler::ServedModel;

/// The value of a header of a request, by its name in lower case.
pub type Fields<'a> = &'a dyn Fn(&str) -> Option<&'a [u8]>;

/// A rule with the versions that are ready, as one map of models has them.
#[derive(Debug)]
pub struct RuledModel {
    pub traffic: Arc<Traffic>,
    /// Ascending.
    pub ready: Vec<Arc<ServedModel>>,
}

/// What the head of a request has decided.
#[derive(Debug)]
pub struct Route {
    ruled: Arc<RuledModel>,
    fixed: Option<(Arc<ServedModel>, Reason)>,
    /// The number of its key, if its head has that.
    key: Option<u64>,
}

/// The version of a request.
#[derive(Debug, Clone)]
pub struct Chosen {
    pub model: Arc<ServedModel>,
    ruled: Arc<RuledModel>,
}

impl RuledModel {
    pub fn ready(&self, version: i64) -> Option<&Arc<ServedModel>> {
        self.ready.iter().find(|model| model.version == version)
    }

    /// The version that a number falls on. That of a version that is not ready is spread over the others; if no version
    /// that has weight is ready, the highest gets it.
    fn pick(&self, number: u64) -> Option<&Arc<ServedModel>> {
        let versions = self.traffic.versions();
        let weights = versions.iter().map(|ruled| ruled.weight());
        let found = place(number, weights).and_then(|at| self.ready(versions.get(at)?.version));
        found
            .or_else(|| {
                let is_ready = |version| self.ready(version).is_some();
                let weights = versions.iter().map(|ruled| if is_ready(ruled.version) { ruled.weight() } else { 0 });
                place(mix(number), weights).and_then(|at| self.ready(versions.get(at)?.version))
            })
            .or_else(|| self.ready.last())
    }
}

impl Route {
    /// The route of a request that names no version and has not chosen one in a header.
    pub fn open(ruled: &Arc<RuledModel>, fields: Fields<'_>) -> Route {
        let key = match &ruled.traffic.rule.sticky {
            Sticky::Header(name) => fields(name).map(number_of),
            Sticky::None | Sticky::Parameter(_) | Sticky::Sequence => None,
        };
        Route { ruled: Arc::clone(ruled), fixed: None, key }
    }

    /// The route of a request whose version is certain.
    pub fn fixed(ruled: &Arc<RuledModel>, model: &Arc<ServedModel>, reason: Reason) -> Route {
        Route { ruled: Arc::clone(ruled), fixed: Some((Arc::clone(model), reason)), key: None }
    }

    /// Chooses the version, and counts. `request`: as far as it is read; `latest`: the version that its head was
    /// checked against.
    pub fn choose(self, request: Option<&Request>, latest: &Arc<ServedModel>) -> Chosen {
        let Route { ruled, fixed, key } = self;
        let (model, reason) = match fixed {
            Some(fixed) => fixed,
            None => {
                let sequence = request.and_then(of_sequence);
                let key = sequence.or(key).or_else(|| match &ruled.traffic.rule.sticky {
                    Sticky::Parameter(name) => of_parameter(request?, name),
                    Sticky::None | Sticky::Header(_) | Sticky::Sequence => None,
                });
                let reason = if key.is_some() { Reason::Sticky } else { Reason::Weight };
                (Arc::clone(ruled.pick(key.unwrap_or_else(random)).unwrap_or(latest)), reason)
            }
        };
        if let Some(version) = ruled.traffic.version(model.version) {
            version.count(reason);
        }
        Chosen { model, ruled }
    }

    /// Chooses the version of a request that is read and not checked, and prepares the request for it.
    pub fn settle(self, request: &mut Request, latest: &Arc<ServedModel>) -> Arc<ServedModel> {
        let chosen = self.choose(Some(request), latest);
        chosen.attach(request);
        chosen.model
    }
}

impl Chosen {
    /// Lets the rule see the answer, where it needs to; makes a copy for the shadow version, if it is its turn.
    pub fn attach(&self, request: &mut Request) {
        let Chosen { model, ruled } = self;
        let traffic = &ruled.traffic;
        let is_watched = traffic.is_watched(model.version);
        let shadow = traffic.shadow.as_ref().filter(|shadow| shadow.rule().version != model.version);
        let draft = shadow.and_then(|shadow| shadow.draft(request, ruled.ready(shadow.rule().version)));
        if is_watched || draft.is_some() {
            Link::attach(request, traffic, model.version, is_watched, draft);
        }
    }
}
