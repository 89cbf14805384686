//! `nereid replay`: sends the requests of a recording to a server and compares its answers, as a check before a release
//! and as a load like that of production.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::Arguments;
use super::check::print;
use super::server_flags::{ServerFlags, TLS_USAGE, Words};
use nereid_client::Endpoint;
use nereid_recording::{Contents, Protocol, Reader};
use nereid_replay::{CONCURRENCY_MAX, Outcome, Plan, Server, Speed, Summary, replay};

/// An answer differs or does not come, or the file is damaged.
const DIFFERENT: u8 = 1;
/// The command line or the file is of no use, no server answers, or nothing could be compared.
const USELESS: u8 = 2;

const GRPC_PORT: u16 = 8001;
/// Of random contents, so that they are the same each time.
const SEED: u64 = 1;

const INTRODUCTION: &str = "\
Usage: nereid replay <file> [-u <address>] [--compare] [options]

Sends the requests of a file that a server has recorded (nereid serve --record=<file>) to a server, at the times of the
recording, and reports latencies and differences: of the statuses, with --compare also of the outputs. Any server with
the KServe protocol will do.

  --compare            Compare names, datatypes, shapes and, where contents were recorded, values of outputs.
  --tolerance=<n>      How far two numbers with a fraction may be apart: absolutely below 1, as a part of the number
                       above. Integers and texts have to be equal. Default: 0.00001.
  --speed=<times>      The speed: 1 is that of the recording, 2 twice that, max as fast as it goes. Default: 1.
  --concurrency-max=<n>
                       Requests at a time, at most 1024. Default: 64; with --speed=max 8.
  --protocol=http|grpc
                       Send all requests over this protocol. Default: each over its own.
  --model=<name>=<other>
                       Send the requests of a model to another one. Can be repeated.
  --input-data=zero|random
                       What stands in for contents that were not recorded. Default: zero.
  --format=text|json   The form of the report. Default: text.

Server:
  --url=<address>      (also -u <address>) The HTTP port: host, host:port, http://…, https://… or unix:<path>.
                       Default: localhost:8000.
  --grpc-url=<address>
                       The gRPC port. Default: port 8001 of the same host; with --protocol=grpc --url names it too.
  --header=<name:value>
                       (also -H <name:value>) A header of each request, such as a key: a recording has none. Can be
                       repeated.
  --timeout-secs=<n>   The longest time until the head of an answer, and from then for each 64 KiB of it. Default: 60.
";

const EXIT_CODES: &str = "
Exit codes: 0 every answer is as it was recorded; 1 one differs or does not come, or the file is damaged; 2 the command
line or the file is of no use, no server answers, or nothing could be compared.
";

pub fn usage() -> String {
    format!("{INTRODUCTION}{TLS_USAGE}{EXIT_CODES}")
}

#[derive(Debug)]
struct ReplayArguments {
    file: PathBuf,
    plan: Plan,
    is_json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let parsed = match parse(arguments) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => {
            print(&usage());
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            let _ = writeln!(std::io::stderr(), "error: {mistake}\nTry `nereid replay --help`.");
            return ExitCode::from(USELESS);
        }
    };
    match replayed(&parsed.file, parsed.plan) {
        Ok(summary) => {
            print(&if parsed.is_json { format!("{:#}\n", summary.json()) } else { summary.text() });
            match summary.outcome() {
                Outcome::Equal => ExitCode::SUCCESS,
                Outcome::Different => ExitCode::from(DIFFERENT),
                Outcome::NotCompared => {
                    let text = "nothing could be compared: no request was sent whose answer was recorded";
                    let _ = writeln!(std::io::stderr(), "error: {text}");
                    ExitCode::from(USELESS)
                }
            }
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(USELESS)
        }
    }
}

fn replayed(file: &Path, plan: Plan) -> Result<Summary, String> {
    let reader = Reader::open(file).map_err(|error| error.to_string())?;
    replay(reader, plan).map_err(|error| error.to_string())
}

/// None if help is requested.
fn parse(arguments: &Arguments) -> Result<Option<ReplayArguments>, String> {
    // A file's name may contain an equals sign.
    let is_file = |word: &&std::ffi::OsString| !word.as_encoded_bytes().starts_with(b"-");
    let mut file = arguments.words.first().filter(is_file).map(PathBuf::from);
    let rest = if file.is_some() { arguments.words.get(1..) } else { Some(&arguments.words[..]) };
    let mut words = Words::new(rest.unwrap_or_default());
    let (mut server, mut grpc_url, mut protocol) = (ServerFlags::default(), None, None);
    let (mut speed, mut concurrency, mut tolerance) = (Speed::Times(1.0), None, 1e-5);
    let (mut compares, mut is_json, mut renames, mut contents) = (false, false, Vec::new(), Contents::Zero);
    while let Some(name) = words.next_flag()? {
        match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--compare" => compares = true,
            "--tolerance" => tolerance = words.number(0.0, 1e9)?,
            "--speed" => speed = speed_of(&words.value()?)?,
            "--concurrency-max" => concurrency = Some(words.number(1.0, CONCURRENCY_MAX as f64)? as usize),
            "--protocol" => {
                protocol = Some(match words.value()?.as_str() {
                    "http" => Protocol::Http,
                    "grpc" => Protocol::Grpc,
                    other => return Err(format!("--protocol={other}: the protocols are http and grpc")),
                });
            }
            "--model" => renames.push(rename(&words.value()?)?),
            "--input-data" => {
                contents = match words.value()?.as_str() {
                    "zero" => Contents::Zero,
                    "random" => Contents::Random(SEED),
                    other => return Err(format!("--input-data={other}: contents are zero or random")),
                }
            }
            "--format" => {
                is_json = match words.value()?.as_str() {
                    "json" => true,
                    "text" => false,
                    other => return Err(format!("--format={other}: the formats are text and json")),
                }
            }
            "--grpc-url" => grpc_url = Some(words.value()?),
            name if name != "--metrics-url" && server.take(name, &mut words)? => {}
            name if !name.starts_with('-') && file.is_none() => file = Some(PathBuf::from(OsStr::new(name))),
            _ => return Err(words.unknown()),
        }
    }
    let file = file.ok_or("missing the file of a recording: nereid replay <file>")?;
    let concurrency_max = concurrency.unwrap_or(if speed == Speed::Max { 8 } else { 64 });
    let server = server_of(&server, grpc_url.as_deref(), protocol)?;
    let plan = Plan { server, protocol, speed, concurrency_max, compares, tolerance, renames, contents };
    Ok(Some(ReplayArguments { file, plan, is_json }))
}

fn speed_of(text: &str) -> Result<Speed, String> {
    let times = || text.parse().ok().filter(|times| (1e-3..=1e6).contains(times));
    match text {
        "max" => Ok(Speed::Max),
        _ => times()
            .map(Speed::Times)
            .ok_or_else(|| format!("--speed={text}: it is max or a number from 0.001 to 1000000")),
    }
}

fn rename(text: &str) -> Result<(String, String), String> {
    let names = text.split_once('=').filter(|(name, other)| !name.is_empty() && !other.is_empty());
    let names = names.map(|(name, other)| (name.to_owned(), other.to_owned()));
    names.ok_or_else(|| format!("--model={text}: it has the form <recorded name>=<other name>"))
}

fn server_of(flags: &ServerFlags, grpc_url: Option<&str>, protocol: Option<Protocol>) -> Result<Server, String> {
    let address = flags.address()?;
    let mut has_tls = address.has_tls;
    let grpc = match (grpc_url, &address.endpoint) {
        (Some(url), _) => {
            let wrong = || format!("--grpc-url: '{url}' is not host, host:port, http://…, https://… or unix:<path>");
            let (scheme, endpoint) = Endpoint::parse(url, GRPC_PORT).ok_or_else(wrong)?;
            has_tls |= scheme == "https";
            match scheme {
                "" | "http" | "https" | "grpc" | "unix" => endpoint,
                _ => return Err(wrong()),
            }
        }
        (None, endpoint) if protocol == Some(Protocol::Grpc) && flags.has_url() => endpoint.clone(),
        (None, Endpoint::Tcp { host, .. }) => Endpoint::Tcp { host: host.clone(), port: GRPC_PORT },
        (None, Endpoint::Unix(path)) => Endpoint::Unix(path.clone()),
    };
    Ok(Server {
        http: address.endpoint,
        grpc,
        tls: has_tls.then_some(address.tls),
        headers: address.headers,
        patience: flags.patience().unwrap_or(Duration::from_secs(60)),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn parsed(line: &str) -> Result<Option<ReplayArguments>, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        parse(&Arguments { program: "nereid".into(), words })
    }

    fn plan(line: &str) -> Plan {
        parsed(line).unwrap().unwrap().plan
    }

    #[test]
    fn a_command_line_becomes_a_plan() {
        let first = plan("f");
        let shown = |plan: &Plan| (plan.server.http.to_string(), plan.server.grpc.to_string());
        assert_eq!(shown(&first), ("localhost:8000".to_owned(), "localhost:8001".to_owned()));
        assert_eq!((first.speed, first.concurrency_max, first.compares), (Speed::Times(1.0), 64, false));
        let all = "a=b --compare --speed=max --model x=y --model=z=w --tolerance=0.5 --input-data=random -u h:1";
        assert_eq!(parsed(all).unwrap().unwrap().file, PathBuf::from("a=b"));
        let all = plan(all);
        assert_eq!(shown(&all), ("h:1".to_owned(), "h:8001".to_owned()));
        assert_eq!((all.speed, all.concurrency_max, all.tolerance), (Speed::Max, 8, 0.5));
        assert_eq!((all.model("x"), all.model("z"), all.model("q")), ("y", "w", "q"));
        assert_eq!(plan("--protocol=grpc -u h:7 f").server.grpc.to_string(), "h:7");
        assert_eq!(plan("f --protocol=grpc").server.grpc.to_string(), "localhost:8001");
        assert_eq!(plan("f --grpc-url=g:5").server.grpc.to_string(), "g:5");
        assert!(parsed("--help").unwrap().is_none());
    }

    #[test]
    fn mistakes_have_their_texts() {
        for (line, part) in [
            ("", "missing the file"),
            ("f g", "'g' is neither a flag"),
            ("f --speed=0", "it is max or a number"),
            ("f --speed=fast", "it is max or a number"),
            ("f --model=x", "<recorded name>=<other name>"),
            ("f --protocol=tcp", "http and grpc"),
            ("f --format=xml", "text and json"),
            ("f --input-data=some", "zero or random"),
            ("f --metrics-url=h", "there is no --metrics-url"),
            ("f --concurrency-max=0", "not a number from 1 to 1024"),
            ("f --grpc-url=ftp://h", "--grpc-url: 'ftp://h'"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
