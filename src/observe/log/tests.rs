//! Tests of whole messages, from the macro to the sink.

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Memory {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

struct Log {
    logger: Logger,
    plain: Memory,
    errors: Memory,
}

impl Log {
    fn new(settings: &LogSettings, escapes: bool) -> Log {
        let (plain, errors) = (Memory::default(), Memory::default());
        let sinks = Sinks { plain: Box::new(plain.clone()), errors: Some(Box::new(errors.clone())), fallback: None };
        Log { logger: Logger::with_sinks(settings, escapes, sinks, CAPACITY).unwrap(), plain, errors }
    }

    fn run(&self, log: impl FnOnce()) {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(self.logger.layer()), log);
        assert!(self.logger.flush());
    }

    /// The text after the prefix, of every line of both sinks.
    fn messages(&self) -> (Vec<String>, Vec<String>) {
        let messages = |text: String| text.lines().map(|line| check_prefix(line).to_owned()).collect();
        (messages(self.plain.text()), messages(self.errors.text()))
    }
}

/// `<L>MMDD hh:mm:ss.uuuuuu <pid> tests.rs:<line>] `; returns what follows.
fn check_prefix(line: &str) -> &str {
    let (prefix, message) = line.split_once("] ").unwrap();
    let shape: String = prefix.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    assert!(shape.starts_with(['E', 'W', 'I']), "{line}");
    let rest = shape[1..].strip_prefix("0000 00:00:00.000000 ").unwrap();
    let (pid, place) = rest.split_once(' ').unwrap();
    assert!(!pid.is_empty() && pid.trim_matches('0').is_empty(), "{line}");
    assert_eq!(prefix.split(' ').nth(2).unwrap(), std::process::id().to_string());
    let number = place.strip_prefix("tests.rs:").or_else(|| place.strip_prefix("writer.rs:")).unwrap();
    assert!(!number.is_empty() && number.trim_matches('0').is_empty(), "{line}");
    message
}

#[test]
fn severities_go_to_their_streams_as_json() {
    let log = Log::new(&LogSettings::default(), true);
    log.run(|| {
        tracing::info!("plain {}", "\"text\"\n");
        tracing::warn!("careful");
        tracing::error!(model = "a\nb", count = 3, error = %"broken", "failed");
        tracing::debug!("not shown");
        tracing::trace!("not shown");
        verbose!(1, "not shown");
    });
    let (plain, errors) = log.messages();
    assert_eq!(plain, [r#""plain \"text\"\n""#]);
    assert_eq!(errors, [r#""careful""#, r#""failed model=a\nb count=3 error=broken""#]);
    assert!(log.plain.text().starts_with('I'));
    let letters: Vec<_> = log.errors.text().lines().map(|line| line.chars().next().unwrap()).collect();
    assert_eq!(letters, ['W', 'E']);
}

#[test]
fn a_message_names_its_file_and_the_root_of_a_crate_with_its_folder() {
    let named = ["src/net/lib.rs", "src/net/http.rs", "/build/src/net/lib.rs", "lib.rs", "main.rs"];
    assert_eq!(named.map(super::layer::source_name), ["net/lib.rs", "http.rs", "net/lib.rs", "lib.rs", "main.rs"]);
}

#[test]
fn every_severity_has_its_switch_while_running() {
    let log = Log::new(&LogSettings { info: false, warning: false, error: false, ..LogSettings::default() }, true);
    let one_each = || {
        log.run(|| {
            tracing::info!("i");
            tracing::warn!("w");
            tracing::error!("e");
        });
        let taken = log.messages();
        log.plain.0.lock().unwrap().clear();
        log.errors.0.lock().unwrap().clear();
        taken
    };
    let texts = |texts: &[&str]| texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>();
    assert_eq!(one_each(), (vec![], vec![]));
    log.logger.set_info(true);
    assert_eq!(one_each(), (texts(&["i"]), vec![]));
    log.logger.set_error(true);
    assert_eq!(one_each(), (texts(&["i"]), texts(&["e"])));
    log.logger.set_info(false);
    log.logger.set_warning(true);
    assert_eq!(one_each(), (vec![], texts(&["w", "e"])));
    let expected = LogSettings { info: false, ..LogSettings::default() };
    assert_eq!(log.logger.settings(), expected);
}

#[test]
fn verbose_levels_reach_to_the_largest() {
    let log = Log::new(&LogSettings { info: false, verbose_level: 2, ..LogSettings::default() }, true);
    let all = || {
        tracing::debug!("one");
        tracing::trace!("two");
        verbose!(2, "two, too");
        verbose!(3, "three");
        verbose!(i32::MAX, "largest");
        verbose!(0, "zero");
        verbose!(-1, "negative");
    };
    log.run(all);
    let shown = [r#""one""#, r#""two""#, r#""two, too""#, r#""zero""#, r#""negative""#];
    assert_eq!(log.messages().0, shown);
    assert!(log.plain.text().lines().all(|line| line.starts_with('I')), "verbose lines use I");
    log.plain.0.lock().unwrap().clear();
    log.logger.set_verbose_level(i32::MAX as u32);
    log.run(all);
    assert_eq!(log.messages().0.len(), 7);
    log.plain.0.lock().unwrap().clear();
    log.logger.set_verbose_level(0);
    log.run(all);
    assert_eq!(log.messages().0.len(), 0);
}

#[test]
fn switched_off_messages_are_not_formatted() {
    struct Never;
    impl std::fmt::Display for Never {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("formatted");
        }
    }
    let log = Log::new(&LogSettings { verbose_level: 1, ..LogSettings::default() }, true);
    log.run(|| verbose!(2, "{}", Never));
    assert_eq!(log.plain.text(), "");
}

#[test]
fn formats_change_while_running_and_escaping_can_be_off() {
    let log = Log::new(&LogSettings { format: LogFormat::Iso8601, ..LogSettings::default() }, false);
    log.run(|| tracing::info!("two\nlines"));
    let text = log.plain.text();
    let (moment, rest) = text.split_once(' ').unwrap();
    let shape: String = moment.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    assert_eq!(shape, "0000-00-00T00:00:00Z");
    assert!(rest.starts_with(&format!("I {} tests.rs:", std::process::id())) && rest.ends_with("] two\nlines\n"));
    log.logger.set_format(LogFormat::Default);
    assert_eq!(log.logger.settings().format, LogFormat::Default);
    log.run(|| tracing::info!("x"));
    assert_eq!(check_prefix(log.plain.text().lines().last().unwrap()), "x");
}

#[test]
fn objects_stand_below_their_heading() {
    let log = Log::new(&LogSettings::default(), true);
    let mut table = Table::new(["Backend", "Path"]);
    table.push(["onnxruntime", "<built in>"]);
    log.run(|| {
        tracing::info!(object = %table, "");
        tracing::info!(object = %table, "Backends");
    });
    let text = log.plain.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(check_prefix(lines[0]), "");
    assert_eq!(lines[2], "| Backend     | Path       |");
    assert_eq!(check_prefix(lines[6]), "\"Backends\"");
    assert_eq!(lines[7..].join("\n"), table.to_string());
}

#[test]
fn long_messages_are_cut() {
    let log = Log::new(&LogSettings::default(), true);
    log.run(|| tracing::info!(more = "y", "{}", "x".repeat(2 * MAX_MESSAGE_BYTES)));
    let messages = log.messages().0;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0], format!("\"{}...\"", "x".repeat(MAX_MESSAGE_BYTES)));
}

/// A sink that reports each write, and waits for permission.
struct Gate {
    arrived: Sender<()>,
    open: Receiver<()>,
    memory: Memory,
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.arrived.send(());
        let _ = self.open.recv();
        self.memory.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_queue_drops_messages_and_logs_their_number() {
    let (arrived, has_arrived) = channel();
    let (opener, open) = channel();
    let memory = Memory::default();
    let gate = Gate { arrived, open, memory: memory.clone() };
    let sinks = Sinks { plain: Box::new(gate), errors: None, fallback: None };
    let logger = Logger::with_sinks(&LogSettings::default(), true, sinks, 4).unwrap();
    let subscriber = tracing_subscriber::registry().with(logger.layer());
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!("first");
        has_arrived.recv().unwrap();
        for number in 0..10 {
            tracing::info!("{number}");
        }
    });
    assert_eq!(logger.dropped(), 6, "the thread is writing, four wait");
    drop(opener);
    assert!(logger.flush());
    let text = memory.text();
    let messages: Vec<_> = text.lines().map(check_prefix).collect();
    let report = "\"6 log messages were dropped\"";
    assert_eq!(messages, ["\"first\"", "\"0\"", "\"1\"", "\"2\"", "\"3\"", report]);
    assert!(text.lines().last().unwrap().starts_with('W'));
}

#[test]
fn large_records_are_bounded_by_their_bytes() {
    let (arrived, has_arrived) = channel();
    let (opener, open) = channel();
    let gate = Gate { arrived, open, memory: Memory::default() };
    let sinks = Sinks { plain: Box::new(gate), errors: None, fallback: None };
    let logger = Logger::with_sinks(&LogSettings::default(), true, sinks, CAPACITY).unwrap();
    let subscriber = tracing_subscriber::registry().with(logger.layer());
    let object = "x".repeat(MAX_OBJECT_BYTES);
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!("first");
        has_arrived.recv().unwrap();
        for _ in 0..2 * BYTES_WAITING_MAX / MAX_OBJECT_BYTES {
            tracing::info!(object = %object, "");
        }
    });
    let dropped = logger.dropped() as usize;
    let most = BYTES_WAITING_MAX / MAX_OBJECT_BYTES;
    assert!((most..2 * most).contains(&dropped), "{dropped}");
    drop(opener);
    assert!(logger.flush());
}

#[test]
fn failing_sinks_are_counted_and_do_not_end_the_log() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let errors = Memory::default();
    let sinks = Sinks { plain: Box::new(Broken), errors: Some(Box::new(errors.clone())), fallback: None };
    let logger = Logger::with_sinks(&LogSettings::default(), true, sinks, CAPACITY).unwrap();
    let subscriber = tracing_subscriber::registry().with(logger.layer());
    tracing::subscriber::with_default(subscriber, || tracing::info!("lost"));
    assert!(logger.flush());
    assert_eq!(logger.dropped(), 1);
    assert_eq!(check_prefix(errors.text().trim_end()), "\"1 log messages were dropped\"");
}

#[test]
fn a_file_takes_all_severities_and_is_appended_to() {
    let path = std::env::temp_dir().join(format!("nereid-log-test-{}", std::process::id()));
    std::fs::write(&path, "before\n").unwrap();
    let settings = LogSettings { file: Some(path.clone()), ..LogSettings::default() };
    let logger = Logger::start(&settings, true).unwrap();
    assert_eq!(logger.settings(), settings);
    let subscriber = tracing_subscriber::registry().with(logger.layer());
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!("i");
        tracing::error!("e");
    });
    assert!(logger.flush());
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("before"));
    assert_eq!(lines.map(check_prefix).collect::<Vec<_>>(), ["\"i\"", "\"e\""]);
    let settings = LogSettings { file: Some("/nowhere/at/all".into()), ..LogSettings::default() };
    let error = Logger::start(&settings, true).unwrap_err().to_string();
    assert!(error.starts_with("failed to open log file '/nowhere/at/all': "), "{error}");
}

#[test]
fn a_disk_that_fills_up_is_reported_once_and_counted() {
    /// Writes while it is not full.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<bool>>, Memory);
    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if *self.0.lock().unwrap() { Err(io::ErrorKind::StorageFull.into()) } else { self.1.write(bytes) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (disk, fallback) = (Disk::default(), Memory::default());
    let sinks = Sinks { plain: Box::new(disk.clone()), errors: None, fallback: Some(Box::new(fallback.clone())) };
    let logger = Logger::with_sinks(&LogSettings::default(), true, sinks, CAPACITY).unwrap();
    let log = |text: &str| {
        let subscriber = tracing_subscriber::registry().with(logger.layer());
        tracing::subscriber::with_default(subscriber, || tracing::info!("{text}"));
        assert!(logger.flush());
    };
    log("before");
    *disk.0.lock().unwrap() = true;
    log("lost");
    log("lost, too");
    assert_eq!(logger.dropped(), 2);
    assert_eq!(logger.layer.queue.failure(), Some("no storage space".to_owned()));
    let report = "the log cannot be written, its messages are dropped and counted: no storage space\n";
    assert_eq!(fallback.text(), report, "once");
    *disk.0.lock().unwrap() = false;
    log("after");
    assert_eq!(logger.layer.queue.failure(), None);
    let text = disk.1.text();
    // The report comes when the thread has time for it, which may be before the next message.
    let mut messages: Vec<_> = text.lines().map(check_prefix).collect();
    messages[1..].sort_unstable();
    assert_eq!(messages, ["\"before\"", "\"2 log messages were dropped\"", "\"after\""]);
    *disk.0.lock().unwrap() = true;
    log("lost again");
    assert_eq!(fallback.text(), report.repeat(2), "and once more, when it begins again");
}

#[test]
fn a_full_disk_is_found_when_the_log_starts() {
    let settings = LogSettings { file: Some("/dev/full".into()), ..LogSettings::default() };
    let logger = Logger::start(&settings, true).unwrap();
    let subscriber = tracing_subscriber::registry().with(logger.layer());
    tracing::subscriber::with_default(subscriber, || tracing::info!("first"));
    let error = logger.check_file().unwrap_err().to_string();
    assert!(error.starts_with("failed to write log file '/dev/full': No space left on device"), "{error}");
}

#[test]
fn a_flush_does_not_wait_for_ever() {
    let (arrived, has_arrived) = channel();
    let (opener, open) = channel();
    let gate = Gate { arrived, open, memory: Memory::default() };
    let sinks = Sinks { plain: Box::new(gate), errors: None, fallback: None };
    let logger = Logger::with_sinks(&LogSettings::default(), true, sinks, 1).unwrap();
    let subscriber = tracing_subscriber::registry().with(logger.layer());
    let queue = &logger.layer.queue;
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!("first");
        has_arrived.recv().unwrap();
        assert!(!queue.flush(Duration::ZERO), "its place is taken, its turn does not come");
        assert!(!queue.flush(Duration::ZERO), "not even a place");
    });
    drop(opener);
    assert!(logger.flush());
}
