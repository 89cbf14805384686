//! The course of a run: load points one after the other, each in windows until its figures are stable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::Expectation;
use super::check;
use super::exchange::RequestSet;
use super::generator_limit::{ClientSide, GeneratorLimit, Readings};
use super::interrupt::Interrupt;
use super::measurement::{ClientLimits, LoadPoint, Measurement, Progress, ServerSide, Stage, Step, WindowFigures};
use super::metadata_client::MetadataClient;
use super::metrics::{self, Figures, Scraper};
use super::plan::{Load, Plan, Service, Sweep, Window};
use super::regions::{ArenaLayout, Regions};
use super::request::Prepared;
use super::schedule::{Schedule, Share};
use super::stability::{WINDOWS, is_stable};
use super::sweep::Course;
use super::threads::{Assignment, Counts, LoopMode, Threads, connections_a_thread, connections_for, part};
use super::window_totals::WindowTotals;
use super::{PerfError, model_info::ModelInfo};

/// How often the session checks whether a window is over, and how often it reports progress.
const LOOK: Duration = Duration::from_millis(5);
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Requests that left late, in parts of all, from which on the client is too slow.
const LATE_PART: f64 = 0.01;

/// A run that is on its way.
struct Session<'a> {
    plan: &'a Plan,
    progress: &'a mut dyn Progress,
    interrupt: Interrupt,
    metadata_client: MetadataClient,
    threads: Threads,
    scraper: Option<Scraper>,
    composing: Vec<String>,
}

/// Why a point was left.
enum Left {
    /// The run was interrupted.
    Stopped,
    Failed(PerfError),
}

/// What one window brought.
struct Sample {
    totals: WindowTotals,
    figures: WindowFigures,
    server: Option<ServerSide>,
    composing: Vec<ServerSide>,
    metrics: Figures,
}

/// When a stage is over.
#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    Ended(u64),
}

pub fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<Vec<Measurement>, PerfError> {
    check::check_plan(plan)?;
    let mut metadata_client = MetadataClient::for_plan(plan)?;
    let model_info = match plan.service {
        Service::Triton => metadata_client.inspect(&plan.model, &plan.version)?,
        Service::OpenAi(_) => ModelInfo::named(&plan.model),
    };
    check::check_against(plan, &model_info)?;
    // From here on a signal has something to clean up.
    let interrupt = Interrupt::watch()?;
    let regions = Regions::create(plan, &model_info)?;
    let arena = ArenaLayout::of(plan, &model_info)?;
    let request_set = Arc::new(prepare(plan, regions.as_ref(), arena)?);
    let security = plan.target.security().map_err(PerfError::Plan)?;
    let threads = Threads::start(plan, &request_set, security)?;
    let scraper = plan.metrics.as_ref().map(Scraper::start).transpose()?;
    let composing = composing_models(plan, &model_info);
    let mut session = Session { plan, progress, interrupt, metadata_client, threads, scraper, composing };
    let measured = session.walk();
    // Requests end before the memory that they refer to.
    drop(session);
    drop(regions);
    measured
}

fn composing_models(plan: &Plan, model_info: &ModelInfo) -> Vec<String> {
    match plan.composing_models.is_empty() {
        true => model_info.composing_models.clone(),
        false => plan.composing_models.clone(),
    }
}

fn prepare(plan: &Plan, regions: Option<&Regions>, arena: Option<ArenaLayout>) -> Result<RequestSet, PerfError> {
    let mut templates = Vec::new();
    let mut expectations = Vec::new();
    for (at, template) in plan.work.streams.iter().flatten().enumerate() {
        let placement = regions.and_then(|regions| regions.placements.get(at));
        // Each ring makes its own of those in its arena.
        let in_arena = arena.as_ref().and_then(|arena| arena.placements.get(at));
        templates.push(Prepared::new(plan, template, placement.or(in_arena))?);
        expectations.push(template.expected.clone().map(|outputs| {
            let region = regions.zip(placement).map(|(all, own)| (Arc::clone(&all.file), own.clone()));
            Arc::new(Expectation::new(outputs, region))
        }));
    }
    Ok(RequestSet::new(plan, templates, expectations).in_arena(arena))
}

impl Session<'_> {
    fn walk(&mut self) -> Result<Vec<Measurement>, PerfError> {
        let mut course = Course::new(&self.plan.load, &self.plan.rules);
        let mut measured = Vec::new();
        while let Some(point) = course.point() {
            self.progress.point(point);
            match self.measure(point) {
                Ok(measurement) => {
                    match measurement.is_void() && !measurement.limits.unsustainable {
                        true => course.void(),
                        false => course.measured(measurement.within_threshold && !measurement.limits.unsustainable),
                    }
                    self.progress.measured(&measurement);
                    measured.push(measurement);
                    if self.look_for_end().is_err() {
                        break;
                    }
                }
                Err(Left::Stopped) => break,
                // An interrupted run, perhaps because the server hangs, keeps the points before.
                Err(Left::Failed(_)) if self.look_for_end().is_err() && !measured.is_empty() => break,
                Err(Left::Failed(error)) => return Err(error),
            }
        }
        Ok(measured)
    }

    fn measure(&mut self, point: LoadPoint) -> Result<Measurement, Left> {
        self.threads.connect(self.connections(point)).map_err(Left::Failed)?;
        let warm_up = self.plan.rules.warm_up_requests;
        if warm_up > 0 {
            let before = self.begin(point, Some(warm_up), 0);
            self.wait(Stage::WarmUp, before, Until::Ended(warm_up))?;
            self.come_home()?;
        }
        let (samples, windows) = match self.plan.rules.request_count {
            Some(count) => {
                let sample = self.measure_count(point, count)?;
                let figures = sample.figures;
                (vec![sample], vec![figures])
            }
            None => self.measure_windows(point)?,
        };
        Ok(self.conclude(point, samples, windows))
    }

    /// Exactly so many requests, unless the run is interrupted.
    fn measure_count(&mut self, point: LoadPoint, count: u64) -> Result<Sample, Left> {
        let watched = self.watch_server()?;
        self.open_window()?;
        let before = self.begin(point, Some(count), self.plan.records_max);
        let is_cut = self.wait_for_window(1, before, Until::Ended(count))?;
        // Sequences end in good order before the statistics are read, but behind the window.
        let mut totals = self.mark(self.plan.records_max)?;
        if is_cut && totals.counts.ended() == 0 {
            return Err(Left::Stopped);
        }
        if !is_cut && totals.last_ns > totals.began_ns {
            // Not when the session noticed that the last one had ended.
            totals.ended_ns = totals.last_ns;
        }
        let sample = self.sample(totals, watched, is_cut);
        self.leave()?;
        sample
    }

    /// Windows without a gap between them, until three agree or there were too many.
    fn measure_windows(&mut self, point: LoadPoint) -> Result<(Vec<Sample>, Vec<WindowFigures>), Left> {
        let before = self.begin(point, None, self.plan.records_max);
        // Connections settle before anything counts.
        self.wait(Stage::WarmUp, before, Until::Ended(1))?;
        let mut watched = self.watch_server()?;
        self.open_window()?;
        let mut figures: Vec<WindowFigures> = Vec::new();
        let mut samples: Vec<Sample> = Vec::new();
        for trial in 1..=self.plan.rules.trials_max {
            let before = self.threads.counts();
            let until = match self.plan.rules.window {
                Window::Time(time) => Until::Time(time),
                Window::Count(count) => Until::Ended(count),
            };
            let is_cut = self.wait_for_window(trial, before, until)?;
            // Whole windows are better evidence than one that was cut off.
            if is_cut && !samples.is_empty() {
                break;
            }
            let totals = self.mark(self.plan.records_max)?;
            if is_cut && totals.counts.ended() == 0 {
                return Err(Left::Stopped);
            }
            let unsustainable = totals.unsustainable;
            let sample = self.sample(totals, watched, is_cut)?;
            figures.push(sample.figures);
            samples.push(sample);
            if samples.len() > WINDOWS {
                samples.remove(0);
            }
            if unsustainable || is_cut || is_stable(&figures, &self.plan.rules) {
                break;
            }
            watched = self.watch_server()?;
        }
        self.leave()?;
        Ok((samples, figures))
    }

    /// `is_cut`: the run was interrupted, and returns what was measured even if the server does not answer any more.
    fn sample(
        &mut self,
        totals: WindowTotals,
        before: Option<(ServerSide, Vec<ServerSide>)>,
        is_cut: bool,
    ) -> Result<Sample, Left> {
        let after = match self.watch_server() {
            Ok(after) => after,
            Err(_) if is_cut => None,
            Err(left) => return Err(left),
        };
        let grown = before.zip(after).map(|((before, parts_before), (after, parts_after))| {
            let parts = parts_after.iter().zip(&parts_before).map(|(after, before)| after.since(before)).collect();
            (after.since(&before), parts)
        });
        let (server, composing) = grown.map_or((None, Vec::new()), |(server, parts)| (Some(server), parts));
        let metrics = self.scraper.as_ref().map(Scraper::take).unwrap_or_default();
        let mean_ns = totals.histograms.latency_ns.mean();
        let judged_ns = match self.plan.rules.percentile {
            Some(percentile) => totals.histograms.latency_ns.value_at_percentile(percentile) as f64,
            None => mean_ns,
        };
        let figures = WindowFigures {
            wall: Duration::from_nanos(totals.wall_ns()),
            completed: totals.counts.completed,
            failed: totals.counts.failed,
            mean_ns,
            judged_ns,
            counted: true,
        };
        Ok(Sample { totals, figures, server, composing, metrics })
    }

    /// Joins the counted windows, which are the last ones of those that were tried.
    fn conclude(&self, point: LoadPoint, samples: Vec<Sample>, mut windows: Vec<WindowFigures>) -> Measurement {
        let rules = &self.plan.rules;
        let uncounted = windows.len().saturating_sub(samples.len());
        windows.iter_mut().take(uncounted).for_each(|window| window.counted = false);
        let mut sum = WindowTotals::default();
        let mut wall = Duration::ZERO;
        let mut server: Option<ServerSide> = None;
        let mut composing: Vec<ServerSide> = Vec::new();
        let mut figures = Figures::new();
        for mut sample in samples {
            wall += sample.figures.wall;
            sum.add_window(&mut sample.totals, self.plan.records_max);
            match (&mut server, sample.server) {
                (Some(sum), Some(part)) => sum.add(&part),
                (sum, part) => *sum = part.or(sum.take()),
            }
            if composing.is_empty() {
                composing = sample.composing;
            } else {
                composing.iter_mut().zip(&sample.composing).for_each(|(sum, part)| sum.add(part));
            }
            metrics::join(&mut figures, sample.metrics);
        }
        let judged_ns = match rules.percentile {
            Some(percentile) => sum.histograms.latency_ns.value_at_percentile(percentile) as f64,
            None => sum.histograms.latency_ns.mean(),
        };
        let stable = match rules.request_count {
            Some(count) => sum.counts.ended() >= count || sum.unsustainable,
            None => is_stable(&windows, rules),
        };
        let schedule_lag = &sum.histograms.schedule_lag_ns;
        let generator = GeneratorLimit::judge(&Readings {
            threads: &sum.threads,
            wall,
            schedule_lag_p50_ns: (!schedule_lag.is_empty()).then(|| schedule_lag.value_at_quantile(0.5)),
            latency_p50_ns: sum.histograms.latency_ns.value_at_quantile(0.5),
            is_outrun: sum.is_outrun,
        });
        let within = |threshold: Duration| sum.counts.completed > 0 && judged_ns <= threshold.as_nanos() as f64;
        Measurement {
            load: point,
            stable: stable && !sum.unsustainable,
            within_threshold: rules.latency_threshold.is_none_or(within),
            limits: ClientLimits {
                generator,
                behind_schedule: sum.counts.sent > 0 && sum.late as f64 > LATE_PART * sum.counts.sent as f64,
                unsustainable: sum.unsustainable,
            },
            timeline: sum.timeline(),
            histograms: sum.histograms,
            generation: sum.generation,
            counts: sum.counts,
            errors: sum.errors,
            wall,
            client: ClientSide { threads: sum.threads, connections: sum.connections, engine: self.threads.engine() },
            windows,
            server,
            composing,
            metrics: figures,
            records: sum.records,
            records_dropped: sum.records_dropped,
        }
    }

    /// Statistics as they are now, where they are wanted.
    fn watch_server(&mut self) -> Result<Option<(ServerSide, Vec<ServerSide>)>, Left> {
        if !self.plan.server_statistics {
            return Ok(None);
        }
        let own = self.metadata_client.statistics(&self.plan.model, &self.plan.version).map_err(Left::Failed)?;
        let mut parts = Vec::with_capacity(self.composing.len());
        for model in &self.composing {
            parts.push(self.metadata_client.statistics(model, "").map_err(Left::Failed)?);
        }
        Ok(Some((own, parts)))
    }

    fn connections(&self, point: LoadPoint) -> usize {
        let client = &self.plan.client;
        if let Some(connections) = client.connections {
            return connections;
        }
        match point {
            LoadPoint::Concurrency(most) => connections_for(self.plan, most),
            // More come as they are needed.
            LoadPoint::Rate(_) | LoadPoint::Intervals(_) => connections_a_thread(self.plan) * self.threads.number(),
        }
    }

    /// Gives every thread its part, and returns the counts before: read afterwards, they may contain the first
    /// requests, and a thread that waits for the last of them waits for ever.
    fn begin(&self, point: LoadPoint, budget: Option<u64>, records_max: usize) -> Counts {
        let before = self.threads.counts();
        let began_ns = nereid_clock::now_ns();
        let rules = &self.plan.rules;
        let threads = &self.threads;
        let at_once = match (&self.plan.work.sequences, point) {
            (Some(_), LoadPoint::Concurrency(most)) => most,
            (Some(sequences), _) => sequences.at_once,
            (None, _) => 0,
        };
        // A thread without a place for a request, or for a sequence, has nothing to do.
        let workers = match (point, at_once) {
            (LoadPoint::Concurrency(most), _) => threads.number().min(most),
            (_, 0) => threads.number(),
            (_, at_once) => threads.number().min(at_once),
        };
        let part_of = |whole: usize, thread: usize| if thread < workers { part(whole, thread, workers) } else { 0 };
        threads.begin(|thread| {
            let share = Share { thread, threads: workers };
            let outstanding_max = part_of(self.plan.client.outstanding_max, thread).max(1);
            let mode = match (point, &self.plan.load) {
                (LoadPoint::Concurrency(most), _) => LoopMode::Closed(part_of(most, thread)),
                _ if thread >= workers => LoopMode::Closed(0),
                (LoadPoint::Rate(rate), Load::Rate { spacing, .. }) => {
                    let schedule = Schedule::at_rate(rate, *spacing, share, rules.seed, began_ns);
                    LoopMode::Open { schedule, outstanding_max }
                }
                (_, Load::Intervals(intervals)) => match Schedule::of_intervals(intervals, share, began_ns) {
                    Some(schedule) => LoopMode::Open { schedule, outstanding_max },
                    None => LoopMode::Closed(0),
                },
                (_, Load::Recorded(times)) => match Schedule::of_times(times, share, began_ns) {
                    Some(schedule) => LoopMode::Open { schedule, outstanding_max },
                    None => LoopMode::Closed(0),
                },
                (_, Load::Concurrency(Sweep { .. }) | Load::Rate { .. }) => LoopMode::Closed(0),
            };
            Assignment {
                mode,
                share,
                budget: budget.map(|budget| part_of(usize::try_from(budget).unwrap_or(usize::MAX), thread) as u64),
                sequences: part_of(at_once, thread),
                point_began_ns: began_ns,
                records_max: records_max / workers.max(1),
            }
        });
        before
    }

    /// Forgets what was counted so far: a window begins.
    fn open_window(&mut self) -> Result<(), Left> {
        self.scraper.iter().for_each(|scraper| drop(scraper.take()));
        self.mark(0).map(drop)
    }

    fn mark(&mut self, records_max: usize) -> Result<WindowTotals, Left> {
        let mut totals = self.threads.mark(records_max).map_err(|reason| Left::Failed(self.away(reason)))?;
        // It may have been found out before the window began.
        let counts = self.threads.counts();
        totals.unsustainable |= counts.unsustainable;
        totals.is_outrun |= counts.is_outrun;
        Ok(totals)
    }

    fn away(&self, reason: String) -> PerfError {
        PerfError::Unreachable { endpoint: self.plan.target.endpoint.clone(), reason }
    }

    /// Waits for the end of a stage, telling how it goes.
    fn wait(&mut self, stage: Stage, before: Counts, until: Until) -> Result<(), Left> {
        let began = Instant::now();
        let mut reported = began;
        loop {
            let elapsed = began.elapsed();
            let now = self.threads.counts();
            let ended = now.ended().saturating_sub(before.ended());
            let over = now.unsustainable
                || match until {
                    Until::Time(time) => elapsed >= time,
                    Until::Ended(count) => ended >= count,
                };
            if over || reported.elapsed() >= REPORT_INTERVAL {
                reported = Instant::now();
                let done = match until {
                    Until::Time(time) => elapsed.as_secs_f64() / time.as_secs_f64().max(1e-9),
                    Until::Ended(count) => ended as f64 / count.max(1) as f64,
                };
                let completed = now.completed.saturating_sub(before.completed);
                let seconds = elapsed.as_secs_f64();
                self.progress.step(Step {
                    stage,
                    elapsed,
                    completed,
                    failed: now.failed.saturating_sub(before.failed),
                    rate: if seconds > 0.0 { completed as f64 / seconds } else { 0.0 },
                    done: done.clamp(0.0, 1.0),
                });
            }
            if over {
                return Ok(());
            }
            self.look_for_end()?;
            let left = match until {
                Until::Time(time) => time.saturating_sub(elapsed).min(REPORT_INTERVAL),
                Until::Ended(_) => LOOK,
            };
            self.threads.watch(left).map_err(|reason| Left::Failed(self.away(reason)))?;
        }
    }

    /// True if the run was interrupted before the window ended.
    fn wait_for_window(&mut self, trial: u32, before: Counts, until: Until) -> Result<bool, Left> {
        match self.wait(Stage::Trial(trial), before, until) {
            Ok(()) => Ok(false),
            Err(Left::Stopped) => Ok(true),
            Err(failed) => Err(failed),
        }
    }

    fn look_for_end(&mut self) -> Result<(), Left> {
        if self.interrupt.is_raised() || self.progress.stop_wanted() { Err(Left::Stopped) } else { Ok(()) }
    }

    /// Comes home behind the last window. An interrupted run does not wait for that; what was measured counts.
    fn leave(&mut self) -> Result<(), Left> {
        match self.come_home() {
            Err(Left::Stopped) => Ok(()),
            outcome => outcome,
        }
    }

    /// Begins nothing more, and waits for what is in flight.
    fn come_home(&mut self) -> Result<(), Left> {
        let Session { threads, interrupt, progress, .. } = self;
        let began = Instant::now();
        let before = threads.counts();
        let mut stopped = false;
        let rested = threads.rest(|| {
            let now = threads.counts();
            progress.step(Step {
                stage: Stage::Drain,
                elapsed: began.elapsed(),
                completed: now.completed.saturating_sub(before.completed),
                failed: now.failed.saturating_sub(before.failed),
                rate: 0.0,
                done: 0.0,
            });
            stopped = interrupt.is_raised() || progress.stop_wanted();
            !stopped
        });
        rested.map_err(|reason| Left::Failed(self.away(reason)))?;
        if stopped { Err(Left::Stopped) } else { Ok(()) }
    }
}
