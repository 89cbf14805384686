//! Loads and unloads of models by models (contract/python_backend.md section 3, "Model control").
//!
//! These operations may take long and must not block the thread that serves the worker's messages: each runs on a
//! thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::link::Link;
use super::super::marshal::{Malformed, Value, Writer};
use crate::Host;
use nereid_request::{Control, LoadUnderWay, Replacement, Status};

/// The most operations of one worker at a time.
const OPEN_MAX: usize = 32;

/// Sends the answer, on the thread of the operation.
pub type Reply = Box<dyn FnOnce(Result<Writer, Status>) + Send>;

/// An operation on the server, on behalf of a model that may be part of a load.
trait Operation: FnOnce(&dyn Control, &LoadUnderWay) -> Result<Writer, Status> + Send + 'static {}

impl<F: FnOnce(&dyn Control, &LoadUnderWay) -> Result<Writer, Status> + Send + 'static> Operation for F {}

/// See the [module](self).
pub struct Models {
    host: Host,
    /// The load of the calling model, if one is under way.
    load: LoadUnderWay,
    open: Arc<AtomicUsize>,
}

impl Models {
    pub fn new(host: Host, load: LoadUnderWay) -> Models {
        Models { host, load, open: Arc::default() }
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
        self.start(reply, move |control, load| control.load(load, &name, replacement).map(|()| none()));
        Ok(())
    }

    /// (name, whether its dependents are unloaded too) -> None
    pub fn unload(&self, values: &[Value<'_>], reply: Reply) -> Result<(), Malformed> {
        let [name, with_dependents] = values else { return Err(Malformed::Form) };
        let (name, with_dependents) = (name.as_text()?.into_owned(), with_dependents.as_bool()?);
        self.start(reply, move |control, load| control.unload(load, &name, with_dependents).map(|()| none()));
        Ok(())
    }

    /// (name, version or -1) -> bool
    pub fn is_ready(&self, values: &[Value<'_>], reply: Reply) -> Result<(), Malformed> {
        let [name, version] = values else { return Err(Malformed::Form) };
        let (name, version) = (name.as_text()?.into_owned(), version.as_int::<i64>()?);
        let version = Some(version).filter(|version| *version != -1);
        self.start(reply, move |control, _| {
            control.is_ready(&name, version).map(|is_ready| {
                let mut writer = Writer::default();
                writer.bool(is_ready);
                writer
            })
        });
        Ok(())
    }

    fn start(&self, reply: Reply, operation: impl Operation) {
        let Some(control) = self.host.control() else { return reply(Err(Status::unavailable("Server not ready"))) };
        let open = OpenOperation::begin(&self.open);
        if self.open.load(Ordering::Acquire) > OPEN_MAX {
            let text = format!("a model's instance may wait for {OPEN_MAX} answers about models at a time");
            return reply(Err(Status::unavailable(text)));
        }
        // The worker gets an answer also if the thread cannot be started or the operation panics.
        let reply_once = ReplyOnce { reply: Some(reply), _open: open };
        let load = self.load.clone();
        let work = move || {
            let mut reply_once = reply_once;
            let answer = operation(&*control, &load);
            // Before the answer lets the worker continue.
            drop(control);
            reply_once.send(answer);
        };
        // If the thread does not start, the closure is dropped, and the `ReplyOnce` in it answers.
        let _ = std::thread::Builder::new().name("model-control".to_owned()).spawn(work);
    }
}

fn none() -> Writer {
    let mut writer = Writer::default();
    writer.none();
    writer
}

/// Counts one open operation until it is dropped.
struct OpenOperation(Arc<AtomicUsize>);

impl OpenOperation {
    fn begin(open: &Arc<AtomicUsize>) -> OpenOperation {
        open.fetch_add(1, Ordering::AcqRel);
        OpenOperation(Arc::clone(open))
    }
}

impl Drop for OpenOperation {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Sends an answer exactly once: an error if it is dropped without one.
struct ReplyOnce {
    reply: Option<Reply>,
    _open: OpenOperation,
}

impl ReplyOnce {
    fn send(&mut self, answer: Result<Writer, Status>) {
        if let Some(reply) = self.reply.take() {
            reply(answer);
        }
    }
}

impl Drop for ReplyOnce {
    fn drop(&mut self) {
        self.send(Err(Status::internal("the operation on the model repository has come to nothing")));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Condvar, Mutex};

    use super::super::super::link::Bounds;
    use super::*;
    use nereid_request::{Callee, Submit};

    /// Records the operations, once the gate is open.
    #[derive(Default)]
    struct Server {
        asked: Mutex<Vec<String>>,
        is_open: Mutex<bool>,
        opened: Condvar,
    }

    impl Server {
        fn open(&self) {
            *self.is_open.lock().unwrap() = true;
            self.opened.notify_all();
        }

        fn note(&self, what: String) {
            let is_open = self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap();
            drop(is_open);
            assert!(!what.contains("panic"), "on purpose");
            self.asked.lock().unwrap().push(what);
        }
    }

    impl Submit for Server {
        fn find(&self, _model: &[u8], _version: i64) -> Result<Arc<dyn Callee>, Status> {
            Err(Status::not_found("nobody"))
        }
    }

    impl Control for Server {
        fn load(&self, caller: &LoadUnderWay, model: &str, replacement: Replacement) -> Result<(), Status> {
            self.note(format!("load {model} {replacement:?} for {:?}", caller.operation()));
            Err(Status::invalid("not today"))
        }

        fn unload(&self, caller: &LoadUnderWay, model: &str, with_dependents: bool) -> Result<(), Status> {
            self.note(format!("unload {model} {with_dependents} for {:?}", caller.operation()));
            Ok(())
        }

        fn is_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Status> {
            self.note(format!("ready {model} {version:?}"));
            Ok(true)
        }
    }

    type Answer = Result<Vec<u8>, Status>;

    fn reply(answer_sender: &Sender<Answer>) -> Reply {
        let answer_sender = answer_sender.clone();
        Box::new(move |answer| drop(answer_sender.send(answer.map(Writer::finish))))
    }

    fn rig(load: LoadUnderWay) -> (Arc<Server>, Models, Sender<Answer>, Receiver<Answer>) {
        let server = Arc::new(Server::default());
        let (answer_sender, answers) = channel();
        (Arc::clone(&server), Models::new(Host::new(server), load), answer_sender, answers)
    }

    fn text(value: &'static str) -> Value<'static> {
        Value::Str(value.as_bytes())
    }

    #[test]
    fn questions_are_passed_on_and_answered() {
        let load = LoadUnderWay::default();
        let (server, models, answer_sender, answers) = rig(load.clone());
        let under_way = load.begin(7);
        server.open();
        let bounds = Bounds { first_bytes: 4096, growth_bytes: 4096, max_bytes: 4096 };
        let (link, _socket) = Link::new(bounds, 0, false, Default::default()).unwrap();
        let file = Value::Tuple(vec![text("file:1/model.py"), Value::Bytes(b"code")]);
        let load = [text("m"), text("{}"), Value::Tuple(vec![file])];
        models.load(&link, &load, reply(&answer_sender)).unwrap();
        assert_eq!(answers.recv().unwrap(), Err(Status::invalid("not today")));
        models.load(&link, &[text("m"), text(""), Value::Tuple(vec![])], reply(&answer_sender)).unwrap();
        assert!(answers.recv().unwrap().is_err());
        drop(under_way);
        models.unload(&[text("m"), Value::Bool(true)], reply(&answer_sender)).unwrap();
        assert_eq!(answers.recv().unwrap(), Ok(b"N".to_vec()));
        for version in [-1, 3] {
            models.is_ready(&[text("m"), Value::Int(version)], reply(&answer_sender)).unwrap();
            assert_eq!(answers.recv().unwrap(), Ok(b"T".to_vec()));
        }
        let files = "[(\"file:1/model.py\", [99, 111, 100, 101])]";
        assert_eq!(
            *server.asked.lock().unwrap(),
            [
                format!("load m Replacement {{ config: Some(\"{{}}\"), files: {files} }} for Some(7)"),
                "load m Replacement { config: None, files: [] } for Some(7)".to_owned(),
                "unload m true for None".to_owned(),
                "ready m None".to_owned(),
                "ready m Some(3)".to_owned(),
            ]
        );
        // A range outside the worker's memory, and a value of another type.
        let place = Value::Tuple(vec![Value::Int(1), Value::Int(0), Value::Int(9)]);
        let file = Value::Tuple(vec![text("file:x"), place]);
        assert!(models.load(&link, &[text("m"), text(""), Value::Tuple(vec![file])], reply(&answer_sender)).is_err());
        assert!(models.unload(&[text("m")], reply(&answer_sender)).is_err());
        assert!(models.is_ready(&[text("m"), text("1")], reply(&answer_sender)).is_err());
    }

    #[test]
    fn who_asks_is_answered_whatever_happens_and_nobody_waits() {
        let (server, models, answer_sender, answers) = rig(LoadUnderWay::default());
        for _ in 0..OPEN_MAX {
            models.unload(&[text("m"), Value::Bool(false)], reply(&answer_sender)).unwrap();
        }
        // All of them wait; this thread does not.
        models.unload(&[text("m"), Value::Bool(false)], reply(&answer_sender)).unwrap();
        let refused = answers.recv().unwrap().unwrap_err();
        assert_eq!(refused.code, nereid_request::Code::Unavailable);
        server.open();
        (0..OPEN_MAX).for_each(|_| assert!(answers.recv().unwrap().is_ok()));
        models.unload(&[text("panic"), Value::Bool(false)], reply(&answer_sender)).unwrap();
        let text = "the operation on the model repository has come to nothing";
        assert_eq!(answers.recv().unwrap(), Err(Status::internal(text)));
        // Without a server.
        Models::new(Host::default(), LoadUnderWay::default())
            .unload(&[self::text("m"), Value::Bool(false)], reply(&answer_sender))
            .unwrap();
        assert_eq!(answers.recv().unwrap(), Err(Status::unavailable("Server not ready")));
    }
}
