//! `nereid tune`: finds the configuration with which models serve a load best, on a server of its own.
//!
//! This module reads flags and prints; [`nereid_tune`] searches and measures. The scratch server is this program under
//! a subcommand that only the tuner calls, so that it ends with the tuner, however that ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::Arguments;
use super::check::print;
use super::serve;
use super::server_flags::Words;
use super::subcommands::{mistake, unknown_option};
use nereid_tune::report::{json, text};
use nereid_tune::{
    Comparison, Constraint, Goal, InputSource, LoadRule, Metric, Objective, Plan, Search, Setting, Slo, TuneError,
    Verdict,
};

/// The first word of the command line of a scratch server; the second one is the process that it belongs to.
pub const SERVER: &str = "serve-for-tune";

/// The command line is of no use, or the run failed.
const FAILED: u8 = 2;
/// Nothing is better beyond noise.
const NOTHING_BETTER: u8 = 3;
/// No configuration keeps the limits.
const LIMITS_NOT_MET: u8 = 4;
/// As of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Values of a list.
const LIST_MAX: usize = 64;
const BUDGET_SECS: f64 = 60.0;

pub const USAGE: &str = "\
Usage: nereid tune <model>[,<model>…] --model-repository=<directory> [options] [-- <flags of the server>]

Finds the configuration with which the models serve a load best: instances, largest batch, delay of the dynamic batcher,
preferred batch sizes, threads of ONNX Runtime, and --run-to-completion. Starts a server of its own on free ports of
this machine, changes configurations by load requests, and measures each with the load generator of `nereid perf`. The
repository is only read. Of an ensemble, the models that it is made of are tuned.

  --model-repository=<directory>
                       The repository. Can be repeated.

Goal:
  --objective=throughput|latency|memory
                       What shall be better: requests a second, p99, or memory of the server. Default: throughput; with
                       --rate latency.
  --slo=<limits>       p99=<ms>[,error=<rate>]: what a configuration must keep.
  --constraint=<metric><=<value>
                       A limit for throughput, p99 (ms) or memory (bytes), with <= or >=. Can be repeated.
  --max-memory=<bytes>
                       Memory of the server that is not exceeded; K, M and G stand for powers of 1024.
  --weights=<list>     Of the models, in their order: the goal is the weighted mean of their gains. Default: 1 each.

Load:
  --concurrency=<list>
                       Closed loop with so many requests at a time. Default: 2 x batch x instances of each candidate.
  --rate=<n>           Open loop: requests a second, at random times. Latency counts from when a request was due.
  --input-data=<source>
                       zero, random, a directory or a JSON file, as `nereid perf` has them. Default: random.
  --shape=<name:sizes>
                       Of an input with open dimensions, without the batch: INPUT0:3,224,224. Can be repeated.
  --recording=<file>   Requests of a file of nereid serve --record, in the place of made ones.

Search:
  --search=auto|exhaustive|quick
                       auto: racing along each field; exhaustive: every combination; quick: Model Analyzer's climb.
                       Default: auto.
  --budget=<seconds>   The time for all of it. Default: 60.
  --set=<field>=<list>
                       The values of a field: instances, max_batch_size, max_queue_delay_microseconds,
                       preferred_batch_size, intra_op_thread_count, run_to_completion, parameters.<key>, each with
                       <model>/ before it or for all models. Can be repeated.
  --seed=<n>           Of made contents and times. Default: 1.

Results:
  --report=<directory>
                       Write tune.json, report.html, points.csv and <model>/config.pbtxt there.
  --json               Print tune.json on stdout instead of the summary.
  --resume=<file>      A tune.json: its points are not measured again. Slices keep their length.

Exit codes: 0 found better; 3 nothing is better beyond noise, or the budget was over before that was known, as it then
says; 4 no configuration keeps the limits; 2 the command line is of no use or the run failed; 130 interrupted, with what
was measured kept.
";

#[derive(Debug)]
struct TuneArguments {
    plan: Plan,
    is_json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let parsed = match parse(arguments) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => {
            print(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            let _ = std::io::stderr().write_all(mistake("tune", &text).as_bytes());
            return ExitCode::from(FAILED);
        }
    };
    match tuned(parsed) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            match error {
                TuneError::Interrupted => ExitCode::from(INTERRUPTED),
                TuneError::Usage(_) | TuneError::Failed(_) | TuneError::System { .. } => ExitCode::from(FAILED),
            }
        }
    }
}

fn tuned(TuneArguments { mut plan, is_json }: TuneArguments) -> Result<u8, TuneError> {
    let program = std::env::current_exe()
        .map_err(|source| TuneError::System { what: "the path of this program".to_owned(), source })?;
    plan.server = vec![program.into(), SERVER.into(), std::process::id().to_string().into()];
    let outcome = nereid_tune::run(&plan, &mut |point, _| {
        if point.bursts() == 1 {
            let _ = writeln!(std::io::stderr(), "{}", text::progress(point));
        }
    })?;
    if let Some(directory) = &plan.report {
        nereid_tune::write_report(&outcome, directory)?;
    }
    print(&if is_json { json::text(&outcome) } else { text::summary(&outcome) });
    Ok(match outcome.verdict {
        Verdict::Better => 0,
        Verdict::NothingBetter => NOTHING_BETTER,
        Verdict::LimitsNotMet => LIMITS_NOT_MET,
        Verdict::Interrupted => INTERRUPTED,
    })
}

/// The scratch server: a server that ends with the tuner.
pub fn serve_for_tune(arguments: &Arguments) -> ExitCode {
    let [parent, words @ ..] = arguments.words.as_slice() else {
        let _ = writeln!(std::io::stderr(), "error: {SERVER} is called by nereid tune only");
        return ExitCode::from(FAILED);
    };
    let parent = parent.to_str().and_then(|parent| parent.parse().ok()).and_then(Pid::from_raw);
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        let _ = writeln!(std::io::stderr(), "error: the scratch server cannot be tied to the tuner: {error}");
        return ExitCode::from(FAILED);
    }
    if getppid() != parent {
        let _ = writeln!(std::io::stderr(), "error: the tuner has ended");
        return ExitCode::from(FAILED);
    }
    serve::run_named(&Arguments { program: arguments.program.clone(), words: words.to_vec() })
}

/// None if help is requested.
fn parse(arguments: &Arguments) -> Result<Option<TuneArguments>, String> {
    let end = arguments.words.iter().position(|word| word == "--");
    let (own, flags) = match end {
        Some(at) => (arguments.words.get(..at), arguments.words.get(at + 1..)),
        None => (Some(arguments.words.as_slice()), None),
    };
    let mut words = Words::new(own.unwrap_or_default());
    let mut models: Vec<String> = Vec::new();
    let mut repositories: Vec<PathBuf> = Vec::new();
    let (mut objective, mut slo, mut constraints, mut weights) = (None, None, Vec::new(), Vec::new());
    let (mut concurrency, mut rate, mut memory_max_bytes) = (None, None, None);
    let (mut search, mut budget, mut settings, mut seed) = (Search::Race, BUDGET_SECS, Vec::new(), 1);
    let (mut sources, mut shapes, mut recording) = (Vec::new(), BTreeMap::new(), None);
    let (mut report, mut resume, mut is_json) = (None, None, false);
    while let Some(name) = words.next_flag()? {
        match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--model-repository" | "--model-store" => repositories.push(words.value()?.into()),
            "--objective" => objective = Some(objective_of(&words.value()?)?),
            "--slo" => slo = Some(slo_of(&words.value()?)?),
            "--constraint" => constraints.push(constraint(&words.value()?)?),
            "--max-memory" => memory_max_bytes = Some(bytes(&words.value()?)?),
            "--weights" => weights = list("--weights", &words.value()?, |weight: &f64| *weight >= 0.0)?,
            "--concurrency" => {
                let fits = |count: &usize| (1..=1024).contains(count);
                concurrency = Some(list("--concurrency", &words.value()?, fits)?);
            }
            "--rate" => rate = Some(words.number(0.01, 1e7)?),
            "--input-data" => sources.push(words.value()?),
            "--shape" => {
                let (name, shape) = shape(&words.value()?)?;
                shapes.insert(name, shape);
            }
            "--recording" => recording = Some(PathBuf::from(words.value()?)),
            "--search" => {
                search = match words.value()?.as_str() {
                    "auto" | "race" => Search::Race,
                    "exhaustive" | "brute" => Search::Exhaustive,
                    "quick" => Search::Quick,
                    other => return Err(format!("--search={other}: the searches are auto, exhaustive and quick")),
                }
            }
            "--budget" => budget = words.number(1.0, 604_800.0)?,
            "--set" => settings.push(setting(&words.value()?)?),
            "--seed" => seed = words.number(0.0, 1e15)? as u64,
            "--report" => report = Some(PathBuf::from(words.value()?)),
            "--resume" => resume = Some(PathBuf::from(words.value()?)),
            "--json" => is_json = true,
            name if !name.starts_with('-') && models.is_empty() => models = models_of(name)?,
            name if name.starts_with('-') => return Err(unknown_option("tune", name)),
            _ => return Err(words.unknown()),
        }
    }
    if models.is_empty() {
        return Err("missing the model: nereid tune <model> --model-repository=<directory>".to_owned());
    }
    if repositories.is_empty() {
        return Err("missing --model-repository=<directory>: the repository of the model".to_owned());
    }
    if !weights.is_empty() && (weights.len() != models.len() || weights.iter().all(|weight| *weight == 0.0)) {
        return Err(format!("--weights has {} values for {} models, or only zeros", weights.len(), models.len()));
    }
    if recording.is_some() && !(sources.is_empty() && shapes.is_empty()) {
        return Err("--recording and --input-data or --shape name the requests twice".to_owned());
    }
    let load = match (concurrency, rate) {
        (Some(_), Some(_)) => return Err("--concurrency is a closed loop, --rate an open one: give one".to_owned()),
        (Some(list), None) => LoadRule::Concurrency(list),
        (None, Some(rate)) => LoadRule::Rate(rate),
        (None, None) => LoadRule::Follows,
    };
    let usual = if rate.is_some() { Objective::Latency } else { Objective::Throughput };
    let goal = Goal { objective: objective.unwrap_or(usual), slo, constraints, weights };
    let plan = Plan {
        models,
        repositories,
        goal,
        load,
        search,
        settings,
        input: input(&sources)?,
        shapes,
        recording,
        memory_max_bytes,
        budget: Duration::from_secs_f64(budget),
        seed,
        server: Vec::new(),
        flags: flags.unwrap_or_default().to_vec(),
        report,
        resume,
    };
    check_flags(&plan.flags)?;
    Ok(Some(TuneArguments { plan, is_json }))
}

/// What the scratch server decides itself cannot be given to it.
fn check_flags(flags: &[OsString]) -> Result<(), String> {
    /// Those that change what is measured, and why.
    const UNFIT: [(&str, &str); 6] = [
        ("--take-over", "it would take the listening sockets of the server that runs"),
        ("--model-load-on-demand", "a model that is loaded or unloaded by requests is another one in each measurement"),
        ("--model-idle-secs", "a model that is unloaded between measurements has no figures"),
        ("--model-count-max", "a model that is unloaded for another one has no figures"),
        ("--model-memory-byte-size", "a model that is unloaded for another one has no figures"),
        ("--model-device-memory-byte-size", "a model that is unloaded for another one has no figures"),
    ];
    const OWN: [&str; 10] = [
        "--model-repository",
        "--model-store",
        "--model-control-mode",
        "--http-port",
        "--http-address",
        "--grpc-port",
        "--grpc-address",
        "--exit-timeout-secs",
        "--drain-delay",
        "--log-file",
    ];
    for flag in flags {
        let text = flag.to_string_lossy();
        let name = text.split_once('=').map_or(text.as_ref(), |(name, _)| name);
        if OWN.contains(&name) {
            return Err(format!("-- {text}: the scratch server has its own {name}"));
        }
        if let Some((_, why)) = UNFIT.iter().find(|(unfit, _)| *unfit == name) {
            return Err(format!("-- {text}: the scratch server takes no {name}: {why}"));
        }
    }
    Ok(())
}

fn models_of(text: &str) -> Result<Vec<String>, String> {
    let models: Vec<String> = text.split(',').map(str::to_owned).collect();
    let is_double = |(at, name): (usize, &String)| models.iter().take(at).any(|other| other == name);
    if models.iter().any(String::is_empty) || models.iter().enumerate().any(is_double) {
        return Err(format!("'{text}' is no list of different models"));
    }
    if models.len() > LIST_MAX {
        return Err(format!("more than {LIST_MAX} models"));
    }
    Ok(models)
}

fn list<T: std::str::FromStr>(flag: &str, text: &str, fits: impl Fn(&T) -> bool) -> Result<Vec<T>, String> {
    let wrong = |word: &str| format!("{flag}={text}: '{word}' is no value of it");
    let values = text.split(',').map(|word| word.parse().ok().filter(&fits).ok_or_else(|| wrong(word)));
    let values: Vec<T> = values.collect::<Result<_, _>>()?;
    match values.len() > LIST_MAX {
        true => Err(format!("{flag}: more than {LIST_MAX} values")),
        false => Ok(values),
    }
}

fn objective_of(text: &str) -> Result<Objective, String> {
    match text {
        "throughput" => Ok(Objective::Throughput),
        "latency" | "p99" => Ok(Objective::Latency),
        "memory" => Ok(Objective::Memory),
        other => Err(format!("--objective={other}: the objectives are throughput, latency and memory")),
    }
}

fn slo_of(text: &str) -> Result<Slo, String> {
    let wrong = || format!("--slo={text}: it has the form p99=<ms>[,error=<rate>], with a rate from 0 to 1");
    let (mut p99_ms, mut error_rate) = (None, None);
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        let number: f64 = value.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(wrong)?;
        match name {
            "p99" if number > 0.0 => p99_ms = Some(number),
            "error" if (0.0..=1.0).contains(&number) => error_rate = Some(number),
            _ => return Err(wrong()),
        }
    }
    Ok(Slo { p99_ms: p99_ms.ok_or_else(wrong)?, error_rate })
}

fn constraint(text: &str) -> Result<Constraint, String> {
    let wrong = || format!("--constraint={text}: it has the form throughput|p99|memory<=<value> or >=<value>");
    let (name, comparison, value) = match (text.split_once("<="), text.split_once(">=")) {
        (Some((name, value)), None) => (name, Comparison::AtMost, value),
        (None, Some((name, value))) => (name, Comparison::AtLeast, value),
        _ => return Err(wrong()),
    };
    let metric = match name.trim() {
        "throughput" => Metric::Throughput,
        "p99" => Metric::P99,
        "memory" => Metric::Memory,
        _ => return Err(wrong()),
    };
    let limit = match metric {
        Metric::Memory => bytes(value.trim()).map_err(|_| wrong())? as f64,
        Metric::Throughput | Metric::P99 => value.trim().parse().map_err(|_| wrong())?,
    };
    match limit.is_finite() && limit > 0.0 {
        true => Ok(Constraint { metric, comparison, limit }),
        false => Err(wrong()),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no number of bytes, with K, M or G behind it or not");
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (text.get(..at), 10),
        Some((at, 'm' | 'M')) => (text.get(..at), 20),
        Some((at, 'g' | 'G')) => (text.get(..at), 30),
        _ => (Some(text), 0),
    };
    let number: u64 = digits.and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

fn shape(text: &str) -> Result<(String, Vec<i64>), String> {
    let wrong = || format!("--shape={text}: it has the form <input>:<size>,<size>,…");
    let (name, sizes) = text.rsplit_once(':').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    let sizes = sizes.split(',').map(|size| size.parse::<i64>().ok().filter(|size| *size >= 0).ok_or_else(wrong));
    Ok((name.to_owned(), sizes.collect::<Result<_, _>>()?))
}

fn setting(text: &str) -> Result<Setting, String> {
    let wrong = || format!("--set={text}: it has the form <field>=<value>,<value>,…");
    let (field, values) = text.split_once('=').filter(|(field, _)| !field.is_empty()).ok_or_else(wrong)?;
    Ok(Setting { field: field.to_owned(), values: values.split(',').map(str::to_owned).collect() })
}

fn input(sources: &[String]) -> Result<InputSource, String> {
    let is_directory = |path: &String| PathBuf::from(path).is_dir();
    match sources {
        [] => Ok(InputSource::Random),
        [source] if source == "random" => Ok(InputSource::Random),
        [source] if source == "zero" => Ok(InputSource::Zero),
        [path] if is_directory(path) => Ok(InputSource::Directory(path.into())),
        files if files.iter().any(|file| file == "random" || file == "zero" || is_directory(file)) => {
            Err("--input-data names several sources, and not all are JSON files".to_owned())
        }
        files => Ok(InputSource::Json(files.iter().map(PathBuf::from).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<TuneArguments>, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        parse(&Arguments { program: "nereid".into(), words })
    }

    #[test]
    fn a_command_line_becomes_a_plan() {
        let plan = parsed("m,n --model-repository=/models").unwrap().unwrap().plan;
        assert_eq!((plan.models.len(), plan.load.clone(), plan.search), (2, LoadRule::Follows, Search::Race));
        assert_eq!((plan.goal.objective, plan.budget.as_secs(), plan.seed), (Objective::Throughput, 60, 1));
        let line = "--model-repository /a --model-repository /b m --slo=p99=20,error=0.01 --constraint memory<=2G \
                    --constraint=throughput>=50 --max-memory=512M --rate=80 --search exhaustive --budget=5 \
                    --set=m/instances=1,2 --set parameters.x=a,b --seed=7 --shape=I:1,2 --report=/r --json \
                    -- --io-cores=1 --backend-config=x,y=z";
        let TuneArguments { plan, is_json } = parsed(line).unwrap().unwrap();
        assert!(is_json);
        assert_eq!(plan.goal.slo, Some(Slo { p99_ms: 20.0, error_rate: Some(0.01) }));
        assert_eq!(plan.goal.objective, Objective::Latency, "with a rate");
        assert_eq!(plan.goal.constraints[0].limit, (2u64 << 30) as f64);
        assert_eq!(plan.goal.constraints[1].comparison, Comparison::AtLeast);
        assert_eq!((plan.memory_max_bytes, plan.load), (Some(512 << 20), LoadRule::Rate(80.0)));
        assert_eq!(plan.settings[0].values, ["1", "2"]);
        assert_eq!(plan.settings[1].field, "parameters.x");
        assert_eq!((plan.flags.len(), plan.repositories.len(), plan.shapes["I"].as_slice()), (2, 2, &[1, 2][..]));
        assert!(parsed("m --help").unwrap().is_none());
    }

    #[test]
    fn mistakes_have_their_texts() {
        for (line, part) in [
            ("", "missing the model"),
            ("m", "missing --model-repository"),
            ("m n --model-repository=/", "'n' is neither a flag"),
            ("m --model-repository=/ --budgt=3", "did you mean '--budget'?"),
            ("m --model-repository=/ --json=1", "--json takes no value"),
            ("m --model-repository=/ --slo=p50=3", "p99=<ms>[,error=<rate>]"),
            ("m --model-repository=/ --slo=error=0.5", "p99=<ms>[,error=<rate>]"),
            ("m --model-repository=/ --constraint=p99=3", "it has the form"),
            ("m --model-repository=/ --constraint=cpu<=3", "it has the form"),
            ("m --model-repository=/ --max-memory=3T", "no number of bytes"),
            ("m --model-repository=/ --concurrency=0", "'0' is no value"),
            ("m --model-repository=/ --concurrency=1 --rate=1", "give one"),
            ("m --model-repository=/ --rate=0", "not a number from"),
            ("m --model-repository=/ --search=fast", "auto, exhaustive and quick"),
            ("m --model-repository=/ --set=instances", "<field>=<value>"),
            ("m --model-repository=/ --shape=I", "<input>:<size>"),
            ("m --model-repository=/ --weights=1,2", "2 values for 1 models"),
            ("m,m --model-repository=/", "no list of different models"),
            ("m --model-repository=/ --recording=f --shape=I:1", "twice"),
            ("m --model-repository=/ -- --http-port=1", "the scratch server has its own --http-port"),
            ("m --model-repository=/ -- --take-over=/x", "would take the listening sockets"),
            ("m --model-repository=/ -- --model-load-on-demand", "takes no --model-load-on-demand: a model that"),
            ("m --model-repository=/ --objective=speed", "throughput, latency and memory"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
