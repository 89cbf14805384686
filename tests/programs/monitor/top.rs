//! `nereid top`: one table for scripts, and the view in a terminal of tmux.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::tmux::Terminal;
use super::{address, infer, models};
use nereid_test_support::http::Peer;
use nereid_test_support::server::{Server, free_port, run_to_end};
use nereid_test_support::variant::usual;
use nereid_test_support::{paths, server};

/// The page of Triton that the unit tests read, too.
const TRITON: &str = include_str!("../../../src/monitor/tests/triton.txt");

/// A row of the table as its columns: model, version, state, requests, errors, inferences, batch, queue, in flight,
/// mean, p50, p99.
fn row<'a>(table: &'a str, model: &str) -> Vec<&'a str> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = rows.filter(|row| row.first() == Some(&model));
    found.next().unwrap_or_else(|| panic!("no row of {model} in\n{table}"))
}

#[test]
fn one_table_has_the_rates_of_the_traffic() {
    let repository = models(["busy".to_owned(), "idle".to_owned()]);
    let server = Server::start(usual(), repository.path(), &["--metrics-config=histogram_phases=true"]);
    let (is_over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    // A machine that stands still for an interval answers nothing in it; and the page has a moment when a request is
    // counted, and its inference is not yet.
    let is_whole = |table: &str| {
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.any(|row| row.len() > 6 && row[0] == "busy" && row[3] != "0" && row[5] == row[3] && row[6] == "1")
    };
    let table = thread::scope(|scope| {
        scope.spawn(|| {
            let mut peer = Peer::connect(server.http);
            while !is_over.load(Ordering::Relaxed) {
                infer(&mut peer, "busy");
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        // From the first answer on, some requests fall into every interval.
        server.wait_until("a request is answered", || sent.load(Ordering::Relaxed) > 0);
        let at = address(&server);
        let mut tables = (0..10).map(|_| {
            let (status, out, err) = run_to_end(&["top", "--once", "--interval=2", &at[0], &at[1]]);
            let is_well = status.code() == Some(0) && err.is_empty();
            (is_well, out + &err)
        });
        let table = tables.find(|(is_well, table)| !is_well || is_whole(table));
        is_over.store(true, Ordering::Relaxed);
        let (is_well, table) = table.expect("none of ten tables has a rate, and the same one of inferences");
        assert!(is_well, "{table}");
        table
    });
    let busy = row(&table, "busy");
    assert_eq!((busy.len(), &busy[1..3]), (12, &["1", "READY"][..]), "{table}");
    let number = |text: &str| -> f64 {
        let (digits, factor) = text.strip_suffix('k').map_or((text, 1.0), |digits| (digits, 1e3));
        digits.parse::<f64>().unwrap_or_else(|error| panic!("{text}: {error}\n{table}")) * factor
    };
    // No more than were sent in all, with what rounding adds.
    let rate = number(busy[3]);
    assert!(rate > 0.0 && rate * 2.0 <= sent.load(Ordering::Relaxed) as f64 * 1.01 + 1.0, "{sent:?}\n{table}");
    assert_eq!((busy[4], busy[5], busy[6]), ("0", busy[3], "1"), "{table}");
    assert!(busy[9..].iter().all(|latency| latency.ends_with('s')), "latencies\n{table}");
    let idle = row(&table, "idle");
    assert_eq!((idle[3], idle[6], idle[9], idle[11]), ("0", "n/a", "n/a", "n/a"), "{table}");
    assert_eq!(row(&table, "TOTAL")[3], busy[3]);
    assert!(table.starts_with("MODEL "), "{table}");
    server.stop();
}

#[test]
fn one_table_needs_a_server() {
    let url = format!("--url=127.0.0.1:{}", free_port());
    let (status, out, err) = run_to_end(&["top", "--once", &url]);
    assert_eq!((status.code(), out.as_str()), (Some(2), ""), "{err}");
    assert!(err.contains("cannot connect"), "{err}");
    // The view needs a terminal.
    let (status, _, err) = run_to_end(&["top", &url]);
    assert_eq!(status.code(), Some(1));
    assert!(err.contains("--once prints one table"), "{err}");
}

/// A server with a page of Triton's, until the test ends.
fn stand_in() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || answer(BufReader::new(connection)));
        }
    });
    address
}

fn answer(mut connection: BufReader<std::net::TcpStream>) {
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let before = head.len();
            if !connection.read_line(&mut head).is_ok_and(|read| read > 0) {
                return;
            }
            let line = head[before..].to_lowercase();
            length = line.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().unwrap_or(0));
        }
        let mut body = vec![0; length];
        if std::io::Read::read_exact(&mut connection, &mut body).is_err() {
            return;
        }
        let path = head.split_whitespace().nth(1).unwrap_or_default();
        let (status, body) = match path {
            "/v2/health/live" | "/v2/health/ready" => ("200 OK", ""),
            "/v2" => ("200 OK", r#"{"name": "triton", "version": "2.60.0", "extensions": []}"#),
            "/v2/repository/index" => ("200 OK", r#"[{"name": "resnet", "version": "1", "state": "READY"}]"#),
            "/metrics" => ("200 OK", TRITON),
            _ => ("404 Not Found", ""),
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if connection.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn a_server_of_triton_shows_what_it_exports() {
    // The page is found at the HTTP port.
    let url = format!("--url={}", stand_in());
    let (status, out, err) = run_to_end(&["top", "--once", "--interval=0.1", "--sort=model", &url]);
    assert_eq!((status.code(), err.as_str()), (Some(0), ""), "{out}");
    let resnet = row(&out, "resnet");
    // Nothing happened within the interval; the summary states percentiles.
    assert_eq!((resnet[3], resnet[7], resnet[9], resnet[10], resnet[11]), ("0", "7", "n/a", "1.8ms", "4.1ms"), "{out}");
    assert_eq!(row(&out, "ensemble")[2], "-", "it is in no index");
    let (status, out, _) = run_to_end(&["status", &url]);
    assert!(status.code() == Some(0) && out.contains("uptime: n/a") && out.contains("1540 requests answered"), "{out}");
}

/// `nereid top` for this server, with variables before it.
fn top(variables: &str, server: &Server) -> String {
    let [url, metrics] = address(server);
    format!("{variables} {} top --interval 0.2 {url} {metrics}", paths::server().display())
}

#[test]
fn three_hundred_models_scroll_sort_and_open_in_a_terminal() {
    let repository = models((0..300).map(|at| format!("model-{at:03}")));
    let server = Server::start(usual(), repository.path(), &["--metrics-config=histogram_phases=true"]);
    let line = format!("{}; echo ended with $?; stty -a; sleep 1000", top("", &server));
    let Some(terminal) = Terminal::start(80, 24, &line) else { return };
    let screen = terminal.wait_for_text("models  300 ready");
    for part in ["READY", "shards 1", "connections ", "  P99\n"] {
        assert!(screen.contains(part), "{part:?} in\n{screen}");
    }
    assert!(has_colours(&terminal.screen_with_colours()), "READY is green");
    // The busiest model is the first row.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut peer = Peer::connect(server.http);
            while !is_over.load(Ordering::Relaxed) {
                infer(&mut peer, "model-277");
            }
        });
        let first = |screen: &str| {
            let mut lines = screen.lines().skip_while(|line| !line.starts_with("MODEL"));
            lines.nth(1).unwrap_or_default().to_owned()
        };
        terminal.wait_for("the busy model", |screen| first(screen).starts_with("model-277"));
        // Left, to the names; the selected row moves with the keys, and the table scrolls.
        terminal.press(&["Left", "Left", "Left"]);
        terminal.wait_for("the order of names", |screen| first(screen).starts_with("model-000"));
        terminal.press(&["Down", "End"]);
        terminal.wait_for("the last model", |screen| screen.contains("\nmodel-299"));
        terminal.press(&["Home"]);
        terminal.wait_for("the first model", |screen| screen.contains("\nmodel-000"));
        terminal.press(&["/", "2", "7", "7", "Enter"]);
        terminal.wait_for("one model", |screen| {
            screen.contains("filter: 277") && first(screen).starts_with("model-277") && !screen.contains("model-000")
        });
        terminal.press(&["Down", "Enter"]);
        let detail = terminal.wait_for("the detail with a sparkline", |screen| {
            screen.contains("model-277  version 1") && screen.contains('█')
        });
        for phase in ["request", "queue", "input", "infer", "output"] {
            assert!(detail.contains(&format!("\n{phase} ")), "{phase} in\n{detail}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // What follows an escape at once belongs to it for the terminal.
    terminal.press(&["Escape"]);
    terminal.wait_for("the table", |screen| screen.contains("MODEL"));
    terminal.press(&["Escape"]);
    terminal.wait_for("all models", |screen| !screen.contains("filter: 277"));
    terminal.press(&["p"]);
    terminal.wait_for("the pause", |screen| screen.contains("PAUSED") && screen.contains("MODEL"));
    terminal.resize(140, 40);
    terminal.wait_for("more columns on a wider screen", |screen| screen.contains("P50") && screen.contains("INF/S"));
    terminal.press(&["q"]);
    terminal.wait_for_text("ended with 0");
    let screen = terminal.wait_for("a terminal that echoes lines", echoes_lines);
    assert!(!screen.contains("MODEL"), "the former screen is back:\n{screen}");
    server.stop();
}

#[test]
fn a_server_that_restarts_is_read_again_and_a_signal_restores_the_terminal() {
    let repository = models(["m".to_owned()]);
    let first = Server::start(usual(), repository.path(), &[]);
    let line = format!("{}; echo ended with $?; stty -a; sleep 1000", top("NO_COLOR=1", &first));
    let Some(terminal) = Terminal::start(80, 24, &line) else { return };
    let (http, metrics) = (first.http, first.metrics);
    terminal.wait_for_text("models  1 ready");
    let colours = terminal.screen_with_colours();
    assert!(!has_colours(&colours), "NO_COLOR leaves no colour: {colours:?}");
    first.stop();
    terminal.wait_for("the server is away", |screen| {
        screen.contains("AWAY") && screen.contains("cannot connect to") && screen.contains("trying again")
    });
    // Another server at the same ports.
    let ports = [format!("--http-port={}", http.port()), format!("--metrics-port={}", metrics.port())];
    let second = Server::start_saying(usual(), repository.path(), &[&ports[0], &ports[1]], "Started HTTPService at ");
    terminal.wait_for("the server is back", |screen| screen.contains("READY") && !screen.contains("trying again"));
    let pid = pid_of_top(&http);
    server::signal(pid, "TERM");
    terminal.wait_for_text("ended with 143");
    let screen = terminal.wait_for("a terminal that echoes lines", echoes_lines);
    assert!(!screen.contains("MODEL"), "the former screen is back:\n{screen}");
    drop(second);
}

/// Whether a text is in another colour than that of the terminal.
fn has_colours(screen: &str) -> bool {
    screen.contains("\u{1b}[38;") || ('1'..='6').any(|colour| screen.contains(&format!("\u{1b}[3{colour}m")))
}

/// What `stty -a` prints of a terminal that is not raw.
fn echoes_lines(screen: &str) -> bool {
    screen.split_whitespace().any(|word| word == "icanon") && screen.split_whitespace().any(|word| word == "echo")
}

/// The process of `nereid top` for this address.
fn pid_of_top(http: &SocketAddr) -> u32 {
    let wanted = format!("top\0--interval\00.2\0--url={http}\0");
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_top = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    };
    numbers.find(is_top).expect("a process of nereid top")
}
