//! The course of a run: the scratch server, the models and their space, the search, and what it means.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::TuneError;
use super::configuration::ModelFacts;
use super::goal::Objective;
use super::identity;
use super::interrupt::Interrupt;
use super::measurer::{Bench, Measurer, Told, slice_of};
use super::outcome::{Capacity, Outcome, Recommendation, RunFacts, Verdict, why};
use super::plan::{LoadRule, Plan, Search};
use super::point::Point;
use super::report::json;
use super::resume::{self, Earlier};
use super::search::{Burst, Found, Measure, Standing, Stop, search};
use super::server::{CallFailure, ScratchDirectory, ScratchServer, ServerPlan};
use super::space::{Choice, FieldKind, ServerFacts, Space};
use super::traffic::{self, Traffic};
use nereid_perf::report::Machine;
use nereid_perf::{ModelInfo, Protocol, Target};

const LOAD_MAX: Duration = Duration::from_secs(600);
const CALL_MAX: Duration = Duration::from_secs(30);
/// Models that are tuned together, and the depth of ensembles.
const MODELS_MAX: usize = 64;
/// The longest delay that is tried, and the shortest, in microseconds.
const DELAY_US_MAX: f64 = 100_000.0;
const DELAY_US_MIN: f64 = 50.0;
/// Of the probe: requests in flight.
const PROBE_CONCURRENCY: usize = 2;
/// Open files of the load generator, and of the server.
const FILES_WANTED: u64 = 16_384;
const NOT_BEGUN: &str = "the budget is over before anything was measured";
pub const FILE: &str = "tune.json";

/// Tunes. `tell` is called after each burst with what is known of its point.
pub fn run(plan: &Plan, tell: &mut dyn FnMut(&Point, &Space)) -> Result<Outcome, TuneError> {
    let began = Instant::now();
    let began_unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let interrupt = Interrupt::watch()?;
    let earlier = plan.resume.as_deref().map(Earlier::read).transpose().map_err(TuneError::Usage)?;
    if let Some(directory) = &plan.report {
        std::fs::create_dir_all(directory).map_err(|source| TuneError::System {
            what: format!("the directory of the report, {}", directory.display()),
            source,
        })?;
    }
    raise_file_limit();
    // Dropped last: the server writes its log there.
    let directory = ScratchDirectory::make()?;
    let server_plan = ServerPlan {
        command: plan.server.clone(),
        repositories: plan.repositories.clone(),
        flags: plan.flags.clone(),
        more: Vec::new(),
    };
    let mut server = ScratchServer::start(&server_plan, &directory, &interrupt)?;
    let Models { targets, mut tuned } = load(plan, &mut server, &interrupt)?;
    let infos = inspect(plan, &server)?;
    let traffic = traffic::make(plan, &infos)?;
    let machine = Machine::here();
    let all: Vec<ModelFacts> = targets.iter().filter(|facts| facts.is_ensemble()).chain(&tuned).cloned().collect();
    let identity = identity::of(plan, &all, &machine);
    if let (Some(earlier), Some(path)) = (&earlier, &plan.resume) {
        earlier.check(path, &identity).map_err(TuneError::Usage)?;
    }
    let earlier = earlier.unwrap_or_default();
    let slice = earlier.slice.unwrap_or_else(|| slice_of(plan.budget));
    let (server_plan, directory, interrupt) = (&server_plan, &directory, &interrupt);
    let setup = Setup { plan, server_plan, directory, interrupt, began, slice };
    let mut executions_us = earlier.executions_us.clone();
    if executions_us.is_empty() {
        let (probed, returned) = setup.probe(server, &targets, &tuned, &traffic)?;
        (executions_us, server) = (probed, returned);
    }
    for facts in &mut tuned {
        facts.execution_us = executions_us.get(&facts.name).copied();
    }
    let mut ladders = earlier.ladders.clone();
    for facts in &tuned {
        ladders.entry(facts.name.clone()).or_insert_with(|| ladder(facts.execution_us));
    }
    let server_facts = ServerFacts { cores: machine.cores, run_to_completion: run_to_completion(plan) };
    let rule = load_rule(plan, &targets, &tuned);
    let space = Space::new(&tuned, &plan.settings, &ladders, &rule, &server_facts).map_err(TuneError::Usage)?;
    if space.is_single() {
        let text = "there is nothing to vary: no field of these models has a second value; name one with --set";
        return Err(TuneError::Usage(text.to_owned()));
    }
    let bench = setup.bench(&space, &targets, &tuned, &traffic);
    let mut outcome = Outcome {
        plan: plan.clone(),
        facts: RunFacts { machine, began_unix_ns, identity, ladders, executions_us, slice },
        seconds: 0.0,
        tuned: tuned.clone(),
        space: space.clone(),
        choices: space.size(),
        points: Vec::new(),
        points_left: Vec::new(),
        verdict: Verdict::Interrupted,
        baseline: None,
        best: None,
        gain: None,
        is_kept_alone: false,
        drift: 0.0,
        capacity: None,
        recommendations: Vec::new(),
        server_flag: None,
        why: String::new(),
        ended_early: None,
        measured: 0,
    };
    let mut trouble = None;
    let (found, points, measured, capacity) = {
        let (outcome, trouble, space) = (&mut outcome, &mut trouble, &space);
        let keep = move |told: &Told<'_>| {
            if let Some(point) = told.points.get(told.at) {
                tell(point, space);
            }
            if let Some(directory) = &plan.report {
                outcome.points = told.points.to_vec();
                outcome.points_left = told.left.values().cloned().collect();
                outcome.seconds = began.elapsed().as_secs_f64();
                let written = resume::write(&directory.join(FILE), &json::text(outcome));
                // What a later one keeps is not lost.
                *trouble = written.err();
            }
        };
        let mut measurer = Measurer::new(bench, server, earlier.points, Box::new(keep));
        let found = search(&mut measurer, space, plan.search);
        let capacity = capacity_of(&mut measurer, space, &found);
        let numbers = [&found.baseline.choice, &found.best.choice].map(|choice| measurer.number(choice));
        let points = (std::mem::take(&mut measurer.points), std::mem::take(&mut measurer.remembered));
        ((found, numbers), points, measurer.measured, capacity)
    };
    let (found, numbers) = found;
    let (points, left) = points;
    outcome.points_left = left.into_values().collect();
    (outcome.points, outcome.measured, outcome.capacity) = (points, measured, capacity);
    outcome.seconds = began.elapsed().as_secs_f64();
    conclude(&mut outcome, &found, numbers)?;
    match (trouble, &plan.report) {
        (Some(source), Some(directory)) => {
            Err(TuneError::System { what: directory.join(FILE).display().to_string(), source })
        }
        _ => Ok(outcome),
    }
}

/// Over HTTP each request in flight has a connection, and shells often allow a thousand files. The server inherits it.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(FILES_WANTED, |most| most.min(FILES_WANTED));
    if limit.current.is_some_and(|current| current < most) {
        // Without it, loads with many requests at a time fail, and say so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
}

/// Models that get load, and those whose configuration changes.
struct Models {
    targets: Vec<ModelFacts>,
    tuned: Vec<ModelFacts>,
}

fn failed(model: &str, failure: CallFailure) -> TuneError {
    match failure {
        CallFailure::Interrupted => TuneError::Interrupted,
        CallFailure::Refused(text) | CallFailure::Gone(text) => {
            let next = format!("`nereid check` explains what is wrong with model '{model}'");
            TuneError::Failed(format!("model '{model}' does not load as it is: {text}; {next}"))
        }
    }
}

/// Loads the models as they are, and finds what ensembles are made of, at any depth.
fn load(plan: &Plan, server: &mut ScratchServer, interrupt: &Interrupt) -> Result<Models, TuneError> {
    let mut targets = Vec::new();
    let mut tuned: Vec<ModelFacts> = Vec::new();
    for name in &plan.models {
        server.load(name, None, LOAD_MAX, interrupt).map_err(|failure| failed(name, failure))?;
        let config = server.config(name, CALL_MAX, interrupt).map_err(|failure| failed(name, failure))?;
        targets.push(ModelFacts::read(name, &config));
    }
    let mut left: Vec<(String, u64)> = targets.iter().map(|facts| (facts.name.clone(), 1)).collect();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    while let Some((name, batch_min)) = left.pop() {
        // A part of two ensembles takes the larger batches of both.
        let known = seen.get(&name).copied();
        if known.is_some_and(|known| known >= batch_min) {
            continue;
        }
        if seen.len() >= MODELS_MAX {
            return Err(TuneError::Usage(format!("more than {MODELS_MAX} models are made of one another")));
        }
        seen.insert(name.clone(), batch_min);
        let config = server.config(&name, CALL_MAX, interrupt).map_err(|failure| failed(&name, failure))?;
        if !config.is_object() {
            return Err(TuneError::Failed(format!("the server gives no configuration of model '{name}'")));
        }
        let facts = ModelFacts::read(&name, &config);
        if facts.is_ensemble() {
            let least = batch_min.max(facts.max_batch.max(1));
            left.extend(facts.parts().into_iter().map(|part| (part, least)));
            continue;
        }
        match tuned.iter_mut().find(|facts| facts.name == name) {
            Some(facts) => facts.batch_min = batch_min,
            None => tuned.push(ModelFacts { batch_min, ..facts }),
        }
    }
    // The same order in every run.
    tuned.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Models { targets, tuned })
}

fn inspect(plan: &Plan, server: &ScratchServer) -> Result<Vec<ModelInfo>, TuneError> {
    let target = Target { endpoint: server.http.clone(), tls: None, protocol: Protocol::Http };
    let info = |model: &String| nereid_perf::inspect(&target, model, "", &[]);
    plan.models.iter().map(info).collect::<Result<_, _>>().map_err(|error| TuneError::Failed(error.to_string()))
}

/// What the whole run has.
struct Setup<'a> {
    plan: &'a Plan,
    server_plan: &'a ServerPlan,
    directory: &'a ScratchDirectory,
    interrupt: &'a Interrupt,
    began: Instant,
    slice: Duration,
}

impl<'a> Setup<'a> {
    fn bench<'b>(
        &self,
        space: &'b Space,
        targets: &'b [ModelFacts],
        tuned: &'b [ModelFacts],
        traffic: &'b [Traffic],
    ) -> Bench<'b>
    where
        'a: 'b,
    {
        Bench {
            space,
            goal: &self.plan.goal,
            server_plan: self.server_plan,
            directory: self.directory,
            interrupt: self.interrupt,
            targets,
            tuned,
            traffic,
            memory_max_bytes: self.plan.memory_max_bytes,
            seed: self.plan.seed,
            began: self.began,
            budget: self.plan.budget,
            slice: self.slice,
        }
    }

    /// How long executions take now: delays are derived from it.
    fn probe(
        &self,
        server: ScratchServer,
        targets: &[ModelFacts],
        tuned: &[ModelFacts],
        traffic: &[Traffic],
    ) -> Result<(BTreeMap<String, f64>, ScratchServer), TuneError> {
        let facts = ServerFacts { cores: 1, run_to_completion: String::new() };
        let rule = LoadRule::Concurrency(vec![PROBE_CONCURRENCY]);
        let space = Space::new(&[], &[], &BTreeMap::new(), &rule, &facts).map_err(TuneError::Usage)?;
        let bench = self.bench(&space, targets, tuned, traffic);
        let mut measurer = Measurer::new(bench, server, BTreeMap::new(), Box::new(|_| {}));
        let point = measurer.probe().map_err(|stop| match stop {
            Stop::Interrupted => TuneError::Interrupted,
            Stop::Budget => TuneError::Failed(NOT_BEGUN.to_owned()),
            Stop::Failed(text) => TuneError::Failed(text),
        })?;
        let server = measurer.into_server();
        let server = server.ok_or_else(|| TuneError::Failed("the scratch server ended".to_owned()))?;
        let of = |facts: &ModelFacts| {
            let spans = point.spans_of(&facts.name).filter(|spans| spans.executions > 0)?;
            Some((facts.name.clone(), spans.compute_infer_us))
        };
        Ok((tuned.iter().filter_map(of).collect(), server))
    }
}

/// Delays beside 0: a quarter, a half and the whole of an execution, rounded to 1, 2 or 5 times a power of ten.
fn ladder(execution_us: Option<f64>) -> Vec<u64> {
    let execution_us = execution_us.unwrap_or(1000.0);
    let round = |us: f64| {
        let us = us.clamp(DELAY_US_MIN, DELAY_US_MAX);
        let power = 10f64.powf(us.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| *step * power >= us * 0.8).unwrap_or(10.0);
        (step * power) as u64
    };
    let mut delays: Vec<u64> = [0.25, 0.5, 1.0].into_iter().map(|part| round(execution_us * part)).collect();
    delays.sort_unstable();
    delays.dedup();
    delays
}

/// The value of the flag that the user gives the server.
fn run_to_completion(plan: &Plan) -> String {
    let words: Vec<String> = plan.flags.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut found = "auto".to_owned();
    for (at, word) in words.iter().enumerate() {
        match word.strip_prefix("--run-to-completion") {
            Some("") => found = words.get(at + 1).cloned().unwrap_or(found),
            Some(value) => found = value.trim_start_matches('=').to_owned(),
            None => {}
        }
    }
    found.to_lowercase()
}

/// A load that follows the candidate compares nothing but throughput: for other objectives it stays that of the present
/// configuration.
fn load_rule(plan: &Plan, targets: &[ModelFacts], tuned: &[ModelFacts]) -> LoadRule {
    if plan.load != LoadRule::Follows || plan.goal.objective == Objective::Throughput {
        return plan.load.clone();
    }
    let nothing = Space { fields: Vec::new(), loads: super::space::Loads::of(&LoadRule::Follows), cores: 1 };
    let choice = nothing.baseline();
    let width = |target: &ModelFacts| match target.is_ensemble() {
        true => tuned.iter().map(|facts| facts.width(&nothing, &choice)).max().unwrap_or(1),
        false => target.width(&nothing, &choice),
    };
    let most = targets.iter().map(width).max().unwrap_or(1);
    LoadRule::Concurrency(vec![usize::try_from((2 * most).min(1024)).unwrap_or(2)])
}

/// Where the limits are not kept at the loads that are wanted: the highest one below at which the best choice keeps
/// them.
fn capacity_of(measurer: &mut Measurer<'_>, space: &Space, found: &Found) -> Option<Capacity> {
    let is_over = found.stopped.is_some() || found.keeps_limits || found.best.failure.is_some();
    if is_over || !space.loads.is_dimension {
        return None;
    }
    for load in space.loads.wanted..space.loads.levels.len() {
        let choice = Choice { load, ..found.best.choice.clone() };
        match measurer.burst(&choice) {
            Ok(Burst::Measured { standing: Standing::Fits, .. }) => {
                let point = measurer.point(&choice)?;
                return Some(Capacity {
                    throughput: point.throughput()?.mean,
                    load: point.load.clone(),
                    p99_ms: point.p99_ms(),
                });
            }
            Ok(_) => {}
            Err(_) => return None,
        }
    }
    None
}

/// What the search means.
fn conclude(outcome: &mut Outcome, found: &Found, numbers: [Option<usize>; 2]) -> Result<(), TuneError> {
    [outcome.baseline, outcome.best] = numbers;
    (outcome.gain, outcome.drift, outcome.is_kept_alone) = (found.gain, found.drift, found.is_kept_alone);
    outcome.verdict = match &found.stopped {
        Some(Stop::Interrupted) if outcome.points.is_empty() => return Err(TuneError::Interrupted),
        Some(Stop::Budget) if outcome.points.is_empty() => return Err(TuneError::Failed(NOT_BEGUN.to_owned())),
        Some(Stop::Failed(text)) => return Err(TuneError::Failed(text.clone())),
        Some(Stop::Interrupted) => Verdict::Interrupted,
        _ if !found.keeps_limits => Verdict::LimitsNotMet,
        _ if found.is_better => Verdict::Better,
        _ => Verdict::NothingBetter,
    };
    outcome.ended_early = match &found.stopped {
        Some(Stop::Budget) => Some("the budget was over before the last comparison; give a longer one".to_owned()),
        Some(Stop::Interrupted) => Some("interrupted".to_owned()),
        _ if outcome.plan.search == Search::Exhaustive && found.is_cut => {
            Some("the budget was over before every combination was measured; give a longer one".to_owned())
        }
        _ if found.is_cut && outcome.verdict != Verdict::Better => {
            Some("the budget was over before the search came to its end; give a longer one".to_owned())
        }
        _ => None,
    };
    if outcome.verdict == Verdict::Better {
        let choice = &found.best.choice;
        outcome.recommendations = outcome
            .tuned
            .iter()
            .filter_map(|facts| {
                let diff = facts.diff(&outcome.space, choice);
                let fragment = facts.fragment(&outcome.space, choice);
                (!diff.is_empty()).then(|| Recommendation { model: facts.name.clone(), fragment, diff })
            })
            .collect();
        let at = outcome.space.position(None, &FieldKind::RunToCompletion);
        let changed =
            at.filter(|at| choice.values.get(*at).copied() != outcome.space.fields.get(*at).map(|field| field.start));
        let value = changed.and_then(|at| outcome.space.value(choice, at));
        outcome.server_flag = value.map(|value| format!("--run-to-completion={value}"));
        let pair = (outcome.point(outcome.baseline), outcome.point(outcome.best));
        if let (Some(baseline), Some(best)) = pair {
            outcome.why = why(baseline, best, outcome.facts.machine.cores);
        }
    }
    Ok(())
}

/// Writes all files of a report.
pub fn write_report(outcome: &Outcome, directory: &Path) -> Result<(), TuneError> {
    let put = |name: &str, text: &str| {
        let path = directory.join(name);
        resume::write(&path, text).map_err(|source| TuneError::System { what: path.display().to_string(), source })
    };
    put(FILE, &json::text(outcome))?;
    put("report.html", &super::report::html::render(outcome))?;
    put("points.csv", &super::report::csv::render(outcome))?;
    for one in &outcome.recommendations {
        // A name is one of a model, which is the name of a directory.
        let folder = directory.join(one.model.replace(['/', '\0'], "_"));
        std::fs::create_dir_all(&folder)
            .map_err(|source| TuneError::System { what: folder.display().to_string(), source })?;
        let path = folder.join("config.pbtxt");
        let text = format!("# The fields that change; the others stay as they are.\n{}", one.fragment);
        resume::write(&path, &text).map_err(|source| TuneError::System { what: path.display().to_string(), source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_follow_the_time_of_an_execution() {
        assert_eq!(ladder(Some(20_000.0)), [5000, 10_000, 20_000]);
        assert_eq!(ladder(Some(1.0)), [50]);
        assert_eq!(ladder(Some(1e9)), [100_000]);
        assert_eq!(ladder(None), [200, 500, 1000]);
    }
}
