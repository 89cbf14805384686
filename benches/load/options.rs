//! The options of the load, from the words behind `cargo bench --bench load --`.

use std::net::SocketAddr;
use std::time::Duration;

use super::kind::Kind;

pub const USAGE: &str = "\
usage: cargo bench --bench load -- --kind KIND --http HOST:PORT --grpc HOST:PORT [options]
  --kind KIND          grpc, http, json, stream, grpc-shm, http-shm: one FP32 tensor there and back;
                       sums-grpc, sums-http: sum and difference of two tensors of --datatype;
                       pair-grpc, pair-http: two FP32 tensors there and back, with an id and parameters;
                       burst: many responses to each request of a model like `repeat`;
                       live-grpc, live-http, metadata-grpc, metadata-http: state of a server or metadata of a model
  --model NAME         (default identity)
  --shape N[,N...]     of the tensor (default 16)
  --datatype NAME      of the tensors of sums: FP32, INT32 (default FP32)
  --connections N      (default 1)
  --in-flight N        requests in flight on each connection (default 1)
  --responses N        of a burst (default 128)
  --seconds S          measured seconds (default 3)
  --pid PID            the server, whose CPU time and memory are reported
  --unrepeated         no two requests are the same: a parameter counts them (grpc, http, json, grpc-shm, http-shm);
                       shapes, orders, parameters and ids vary as well (pair-grpc, pair-http)
  --echo               the server is a plain echo of what is sent (see --serve-floor)
  --serve-floor        is that echo: prints its port and ends with its input";

pub struct Options {
    pub kind: Kind,
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub model: &'static str,
    pub shape: &'static [i64],
    pub integers: bool,
    pub connections: usize,
    pub in_flight: usize,
    pub responses: usize,
    pub measured: Duration,
    pub pid: Option<u32>,
    pub echo: bool,
    pub unrepeated: bool,
}

pub enum Command {
    Run(Options),
    Print(String),
}

pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut options = Options {
        kind: Kind::Grpc,
        http: nowhere,
        grpc: nowhere,
        model: "identity",
        shape: &[16],
        integers: false,
        connections: 1,
        in_flight: 1,
        responses: 128,
        measured: Duration::from_secs(3),
        pid: None,
        echo: false,
        unrepeated: false,
    };
    let mut kind = None;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--bench" => {}
            "--help" => return Ok(Command::Print(USAGE.to_owned())),
            "--kind" => kind = Some(Kind::named(&value()?)?),
            "--http" => options.http = parsed(&value()?)?,
            "--grpc" => options.grpc = parsed(&value()?)?,
            // Of this process's life: there is one of each.
            "--model" => options.model = Box::leak(value()?.into_boxed_str()),
            "--shape" => {
                let dims: Result<Vec<i64>, String> = value()?.split(',').map(parsed).collect();
                options.shape = Box::leak(dims?.into_boxed_slice());
            }
            "--datatype" => {
                options.integers = match value()?.as_str() {
                    "FP32" => false,
                    "INT32" => true,
                    other => return Err(format!("no sums of {other}")),
                }
            }
            "--connections" => options.connections = count(&value()?)?,
            "--in-flight" => options.in_flight = count(&value()?)?,
            "--responses" => options.responses = count(&value()?)?,
            "--seconds" => {
                let seconds = Duration::try_from_secs_f64(parsed(&value()?)?).map_err(|error| error.to_string())?;
                options.measured = seconds;
            }
            "--pid" => options.pid = Some(parsed(&value()?)?),
            "--unrepeated" => options.unrepeated = true,
            "--echo" => options.echo = true,
            other => return Err(format!("unknown option {other}")),
        }
    }
    let Some(kind) = kind else {
        // `cargo test --all-targets` runs this binary too, without any of its own options.
        return Ok(Command::Print("skipped: this bench needs a server; benches/side_by_side starts some".to_owned()));
    };
    Ok(Command::Run(Options { kind, ..options }))
}

fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not understood"))
}

fn count(text: &str) -> Result<usize, String> {
    parsed(text).ok().filter(|&count| count > 0).ok_or_else(|| format!("{text} is no count"))
}
