//! `nereid top`: the models of a running server with their rates and latencies, on a terminal or once as a table.
//!
//! This module reads flags, the terminal and the clock; [`nereid_monitor`] reads the server and makes the view. A
//! thread of its own reads the server, so that keys work while a server does not answer.

mod terminal;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::Arguments;
use super::check::print;
use super::server_flags::{self, ServerFlags, Words};
use nereid_monitor::{Column, Command, Overview, Reading, Source, Unreachable, View, plain};
use terminal::Terminal;

/// No server answers at the address.
const UNREACHABLE: u8 = 2;
/// How long keys are waited for before readings and signals are looked for.
const TURN: Duration = Duration::from_millis(50);
/// Added to the number of a signal, as shells do.
const SIGNALLED: u8 = 128;

const INTRODUCTION: &str = "\
Usage: nereid top [-u <address>] [--interval=<secs>] [--once] [options]

Shows the models of a running server: state, rates, queue, batches and latencies, out of its metrics and its repository
index. It works with Triton as well, which exports fewer figures; what is missing is shown as n/a.

  --interval=<secs>    Seconds between two readings. Default: 1.
  --once               Print one table of all models, of one interval, and end.
  --sort=<column>      model, version, state, requests, failures, inferences, batch, queue, inflight, mean, p50 or p99.
                       Default: requests.
  --filter=<text>      Show only models whose names contain this.
";

const KEYS: &str = "
Keys: q quits; up, down, page up, page down, home, end select; left and right choose the column to sort by, r reverses;
/ filters by name; p pauses; enter shows one model with its phases, escape goes back.

Percentiles are those of the interval if the server has --metrics-config=histogram_phases=true, otherwise those of its
summaries (summary_latencies=true), otherwise n/a. NO_COLOR turns colours off.

Exit codes: 0 it was ended by a key, or --once printed its table; 1 the command line or the terminal is of no use; 2
with --once: no server answers at the address.
";

pub fn usage() -> String {
    format!("{INTRODUCTION}{}{KEYS}", server_flags::usage())
}

struct TopArguments {
    source: Source,
    interval: Duration,
    is_once: bool,
    sort: Column,
    filter: String,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let parsed = match parse(arguments) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => {
            print(&usage());
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            let _ = writeln!(std::io::stderr(), "error: {mistake}\nTry `nereid top --help`.");
            return ExitCode::FAILURE;
        }
    };
    let mut view = View::new(parsed.source.address());
    view.sort_by(parsed.sort);
    view.filter_by(&parsed.filter);
    if parsed.is_once {
        return once(parsed, view);
    }
    match watch(parsed, view) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// None if help is requested.
fn parse(arguments: &Arguments) -> Result<Option<TopArguments>, String> {
    let (mut server, mut interval, mut is_once) = (ServerFlags::default(), Duration::from_secs(1), false);
    let (mut sort, mut filter) = (Column::Requests, String::new());
    let mut words = Words::new(&arguments.words);
    while let Some(name) = words.next_flag()? {
        match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--once" => is_once = true,
            "--interval" => interval = Duration::from_secs_f64(words.number(0.1, 3600.0)?),
            "--sort" => sort = column(&words.value()?)?,
            "--filter" => filter = words.value()?,
            name if server.take(name, &mut words)? => {}
            _ => return Err(words.unknown()),
        }
    }
    Ok(Some(TopArguments { source: server.source()?, interval, is_once, sort, filter }))
}

fn column(name: &str) -> Result<Column, String> {
    let found = Column::ALL.into_iter().find(|column| column.name() == name);
    let names = || Column::ALL.map(Column::name).join(", ");
    found.ok_or_else(|| format!("--sort={name}: the columns are {}", names()))
}

/// Prints the figures of one interval.
fn once(arguments: TopArguments, mut view: View) -> ExitCode {
    let TopArguments { mut source, interval, .. } = arguments;
    let readings = source.read().and_then(|first| {
        thread::sleep(interval);
        Ok((first, source.read()?))
    });
    match readings {
        Ok((first, second)) => {
            let overview = Overview::between(Some(&first), &second);
            for note in &overview.notes {
                let _ = writeln!(std::io::stderr(), "note: {}", plain(note));
            }
            view.update(overview);
            print(&view.plain());
            ExitCode::SUCCESS
        }
        Err(unreachable) => {
            let _ = writeln!(std::io::stderr(), "error: {unreachable}");
            ExitCode::from(UNREACHABLE)
        }
    }
}

type Outcome = Result<Box<Reading>, Unreachable>;

/// Reads the server again and again, until nobody takes the readings any more.
fn read_on(mut source: Source, interval: Duration, readings: &SyncSender<Outcome>, stopped: &Receiver<()>) {
    loop {
        if readings.send(source.read().map(Box::new)).is_err() {
            return;
        }
        if stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn watch(arguments: TopArguments, mut view: View) -> std::io::Result<ExitCode> {
    let TopArguments { source, interval, .. } = arguments;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_usize(number, Arc::clone(&signal), usize::try_from(number).unwrap_or_default())?;
    }
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut terminal = Terminal::enter(has_colours)?;
    let (send, readings) = mpsc::sync_channel(1);
    // The thread ends with the channel; the process does not wait for a server that does not answer.
    let (_stop, stopped) = mpsc::channel();
    thread::Builder::new().name("top-reader".to_owned()).spawn(move || read_on(source, interval, &send, &stopped))?;
    let mut last: Option<Box<Reading>> = None;
    let (mut is_changed, mut drawn) = (true, (0, 0));
    loop {
        match readings.try_recv() {
            Ok(Ok(reading)) => {
                view.update(Overview::between(last.as_deref(), &reading));
                last = Some(reading);
                is_changed = true;
            }
            Ok(Err(unreachable)) => {
                // A server that comes back counts from 0.
                last = None;
                view.lose(unreachable.to_string());
                is_changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(std::io::Error::other("the thread that reads has ended")),
        }
        let size = terminal.size();
        if is_changed || size != drawn {
            terminal.draw(view.lines(size.0, size.1), size)?;
            (is_changed, drawn) = (false, size);
        }
        for key in terminal.keys(TURN)? {
            is_changed = true;
            if view.key(key) == Command::Quit {
                return Ok(ExitCode::SUCCESS);
            }
        }
        match u8::try_from(signal.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => {}
            Ok(number) => return Ok(ExitCode::from(SIGNALLED.saturating_add(number))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn parsed(line: &str) -> Result<Option<TopArguments>, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        parse(&Arguments { program: "nereid".into(), words })
    }

    #[test]
    fn flags_of_the_view_stand_beside_those_of_the_server() {
        let Ok(Some(given)) = parsed("-u h:1 --interval 0.5 --once --sort=p99 --filter=net") else {
            panic!("a valid line")
        };
        assert_eq!((given.source.address().as_str(), given.interval), ("h:1", Duration::from_millis(500)));
        assert_eq!((given.is_once, given.sort, given.filter.as_str()), (true, Column::P99, "net"));
        assert!(matches!(parsed("--once --help"), Ok(None)));
        for (line, part) in [
            ("--once=yes", "--once takes no value"),
            ("--interval=0", "'0' is not a number from 0.1 to 3600"),
            ("--sort=size", "--sort=size: the columns are model, version"),
            ("model", "'model' is neither"),
        ] {
            let Err(error) = parsed(line) else { panic!("{line}") };
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn the_usage_names_every_column() {
        let text = usage();
        assert!(Column::ALL.iter().all(|column| text.contains(column.name())));
        assert!(text.lines().all(|line| line.chars().count() <= 120));
    }
}
