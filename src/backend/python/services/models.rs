//! Models that are loaded and unloaded by models (python_backend.md section 3, "Model control").
//!
//! All of it may take its time, and who serves the worker's messages must not: each question has a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::link::Link;
use super::super::marshal::{Malformed, Value, Writer};
use crate::backend::Host;
use crate::request::{Control, Replacement, Status};

/// Questions of one worker that wait for their answers.
const OPEN_MAX: usize = 32;

/// Where an answer goes, on the thread that has it.
pub type Reply = Box<dyn FnOnce(Result<Writer, Status>) + Send>;

/// See the [module](self).
pub struct Models {
    host: Host,
    open: Arc<AtomicUsize>,
}

impl Models {
    pub fn new(host: Host) -> Models {
        Models { host, open: Arc::default() }
    }

    /// (name, configuration or "", files) -> None
    pub fn load(&self, link: &Link, values: &[Value<'_>], reply: Reply) -> Result<(), Malformed> {
        let [name, config, files] = values else { return Err(Malformed::Form) };
        let (name, config) = (name.as_text()?.into_owned(), config.as_text()?.into_owned());
        let files = files.as_sequence()?.iter().map(|file| {
            let [path, data] = file.as_tuple()?;
            let contents = match data {
                Value::Bytes(bytes) => bytes.to_vec(),
                place => link.data(place).ok_or(Malformed::Form)?.to_vec(),
            };
            Ok((path.as_text()?.into_owned(), contents))
        });
        let files = files.collect::<Result<Vec<_>, Malformed>>()?;
        let config = Some(config).filter(|config| !config.is_empty());
        let replacement = Replacement { config, files };
        self.ask(reply, move |control| control.load(&name, replacement).map(|()| none()));
        Ok(())
    }

    /// (name, whether its dependents go too) -> None
    pub fn unload(&self, values: &[Value<'_>], reply: Reply) -> Result<(), Malformed> {
        let [name, with_dependents] = values else { return Err(Malformed::Form) };
        let (name, with_dependents) = (name.as_text()?.into_owned(), with_dependents.as_bool()?);
        self.ask(reply, move |control| control.unload(&name, with_dependents).map(|()| none()));
        Ok(())
    }

    /// (name, version or -1) -> bool
    pub fn is_ready(&self, values: &[Value<'_>], reply: Reply) -> Result<(), Malformed> {
        let [name, version] = values else { return Err(Malformed::Form) };
        let (name, version) = (name.as_text()?.into_owned(), version.as_int::<i64>()?);
        let version = Some(version).filter(|version| *version != -1);
        self.ask(reply, move |control| {
            control.is_ready(&name, version).map(|is_ready| {
                let mut writer = Writer::default();
                writer.bool(is_ready);
                writer
            })
        });
        Ok(())
    }

    fn ask(&self, reply: Reply, question: impl FnOnce(&dyn Control) -> Result<Writer, Status> + Send + 'static) {
        let Some(control) = self.host.control() else { return reply(Err(Status::unavailable("Server not ready"))) };
        let open = Asked::begin(&self.open);
        if self.open.load(Ordering::Acquire) > OPEN_MAX {
            let text = format!("a model's instance may wait for {OPEN_MAX} answers about models at a time");
            return reply(Err(Status::unavailable(text)));
        }
        // Whoever asked is answered, also where the thread cannot be started or the answer panics.
        let pledge = Pledge { reply: Some(reply), _open: open };
        let work = move || {
            let mut pledge = pledge;
            let answer = question(&*control);
            // Before whoever asked may go on.
            drop(control);
            pledge.keep(answer);
        };
        // A closure that was never run is dropped, and the pledge with it.
        let _ = std::thread::Builder::new().name("model-control".to_owned()).spawn(work);
    }
}

fn none() -> Writer {
    let mut writer = Writer::default();
    writer.none();
    writer
}

/// One question, counted as long as it is open.
struct Asked(Arc<AtomicUsize>);

impl Asked {
    fn begin(open: &Arc<AtomicUsize>) -> Asked {
        open.fetch_add(1, Ordering::AcqRel);
        Asked(Arc::clone(open))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The promise of an answer.
struct Pledge {
    reply: Option<Reply>,
    _open: Asked,
}

impl Pledge {
    fn keep(&mut self, answer: Result<Writer, Status>) {
        if let Some(reply) = self.reply.take() {
            reply(answer);
        }
    }
}

impl Drop for Pledge {
    fn drop(&mut self) {
        self.keep(Err(Status::internal("the operation on the model repository has come to nothing")));
    }
}
