//! `nereid quickstart` with an example, a data folder and ports of its own.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::server::{binary, free_port, signal};
use nereid_test_support::variant::usual;

/// A running quickstart.
pub struct Quickstart {
    child: Option<Child>,
    pub http: u16,
    pub openai: u16,
}

impl Drop for Quickstart {
    /// A failing test leaves nothing behind.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Quickstart {
    pub fn start(example: &str, data: &Path, python: &Python) -> Quickstart {
        let [http, grpc, metrics, openai] = [free_port(), free_port(), free_port(), free_port()];
        let mut command = Command::new(binary());
        command.args(["quickstart", "--with", example]).arg(format!("--io-engine={}", usual().io_engine));
        command.args([format!("--http-port={http}"), format!("--grpc-port={grpc}")]);
        command.args([format!("--metrics-port={metrics}"), format!("--openai-port={openai}")]);
        command.env("XDG_DATA_HOME", data).env("NEREID_ONNXRUNTIME_LIBRARY", python.onnxruntime());
        command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Quickstart { child: Some(command.spawn().expect("start")), http, openai }
    }

    /// Waits until it is ready; false where it ended instead.
    pub fn is_ready(&mut self) -> bool {
        loop {
            if self.child.as_mut().is_none_or(|child| child.try_wait().expect("ask for its state").is_some()) {
                return false;
            }
            if std::net::TcpStream::connect(("127.0.0.1", self.http)).is_ok() {
                let mut peer = Peer::connect(([127, 0, 0, 1], self.http).into());
                if peer.get("/v2/health/ready").status == 200 {
                    return true;
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Ends it, unless it has ended.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut child = self.child.take().expect("it was started");
        if child.try_wait().expect("ask for its state").is_none() {
            signal(child.id(), "TERM");
        }
        let output = child.wait_with_output().expect("the end");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (output.status.code(), text)
    }
}
