//! Steps that would be late (`--deadline-admission`): which of them their models refuse, so that no sequence goes on
//! without its client.

use super::*;
use crate::direct::Direct;
use crate::{Next, PayloadSource, Services};
use nereid_request::{CorrelationId, SEQUENCE_END, SEQUENCE_START, Waker};

const START: u32 = SEQUENCE_START;
const END: u32 = SEQUENCE_END;
const EXECUTION_NS: u64 = 400_000_000;

/// Model `q` with the default scheduler, of which executions take long, and for which one request waits.
struct Busy {
    spec: Arc<ModelSpec>,
    scheduler: Direct,
    worker: usize,
    client: Arc<Client>,
}

impl Busy {
    fn new() -> Arc<Busy> {
        let spec = Arc::new(model("q", "I", "O", ""));
        let services = Services { deadline_admission: true, ..Services::default() };
        let scheduler = Direct::new(&Purpose::of(Arc::clone(&spec)), &services);
        let info = WorkerInfo { waker: Waker::new(|| ()), name: String::new(), device: 0, rate_limiter: None };
        let worker = scheduler.join(info).unwrap();
        let busy = Busy { spec, scheduler, worker, client: Arc::default() };
        busy.send(1);
        // The worker's clock is that of the test.
        let Next::Execute(mut payload) = busy.scheduler.poll(worker, EXECUTION_NS) else { panic!("a request waits") };
        payload.take().into_iter().for_each(|request| request.finish(Response::default()));
        busy.scheduler.executed(worker);
        assert!(matches!(busy.scheduler.poll(worker, 2 * EXECUTION_NS), Next::Sleep { .. }));
        busy.send(2);
        Arc::new(busy)
    }

    fn send(&self, key: u64) {
        self.scheduler.enqueue(request_to(&self.spec, &self.client, key, &[("I", "x")])).unwrap().wake_up.now();
    }

    /// Ends all that waits.
    fn end(&self) {
        while let Next::Execute(mut payload) = self.scheduler.poll(self.worker, 3 * EXECUTION_NS) {
            payload.take().into_iter().for_each(|request| request.fail(Status::internal("the end")));
            self.scheduler.executed(self.worker);
        }
    }
}

impl Composing for Busy {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn submit(&self, mut request: Box<Request>) -> Result<Accepted, Refused> {
        request.stamps.started_ns = now_ns();
        request.mark_queued(now_ns());
        self.scheduler.enqueue(request)
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        self.scheduler.cancel(ticket)
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        self.scheduler.expire(ticket)
    }
}

/// Model `p`, which answers when the test makes it, and model `q`.
struct Both(Arc<Part>, Arc<Busy>);

impl Models for Both {
    fn find(&self, wanted: &StepModel) -> Result<Arc<dyn Composing>, Status> {
        Ok(if wanted.name == "q" { Arc::clone(&self.1) as Arc<dyn Composing> } else { Arc::clone(&self.0) as _ })
    }
}

/// Whether `q` accepts, as a step of these, what the client of a sequence (0: of none) cannot wait for.
fn is_accepted(steps: &[&str], id: u64, flags: u32) -> bool {
    let spec = ensemble("X", "Y", steps, "", "");
    let (p, q, client) = (Kitchen::default().add(model("p", "I", "O", "")), Busy::new(), Client::at_home());
    let models = Arc::new(Both(Arc::clone(&p), Arc::clone(&q)));
    let ensemble = Ensemble::new(&spec, models, Arc::default()).unwrap();
    let mut request = request_to(&spec, &client, 1, &[("X", "x")]);
    (request.correlation_id, request.flags) = (CorrelationId::Number(id), flags);
    request.queueing.timeout_us = 1;
    validate(&mut request, &spec).unwrap();
    ensemble.enqueue(request).unwrap().wake_up.now();
    client.work_all();
    if let Some(request) = p.take() {
        request.finish(response_of(&p, &request, ""));
        drop(request);
        client.work_all();
    }
    let answered = client.answered(1);
    let is_refused = answered.contains("after the request's timeout");
    assert!(is_refused || answered.is_empty(), "{answered}");
    if is_refused {
        assert!(lock(&p.held).is_empty(), "nothing is left");
    }
    q.end();
    client.work_all();
    !is_refused
}

#[test]
fn a_late_step_behind_others_is_not_refused_in_a_sequence() {
    let steps = ["p I=X -> O=A", "q I=A -> O=Y"];
    for flags in [START, 0, END, START | END] {
        assert!(is_accepted(&steps, 7, flags), "the first step has executed the request: {flags}");
    }
    assert!(!is_accepted(&steps, 0, 0), "without a sequence the client can repeat it");
}

#[test]
fn a_late_first_step_is_refused_where_it_begins_a_sequence() {
    let steps = ["q I=X -> O=A", "p I=A -> O=Y"];
    for (id, flags, is_in_time) in
        [(7, START, false), (7, START | END, false), (7, 0, true), (7, END, true), (0, 0, false)]
    {
        assert_eq!(is_accepted(&steps, id, flags), is_in_time, "{id} {flags}");
    }
}

/// An ensemble within another one, and steps that begin at the same time.
#[test]
fn the_first_step_alone_begins_a_sequence() {
    let steps = ["p I=X -> O=A", "r I=X -> O=B", "q I=A J=B -> O=Y"];
    let parts = || vec![model("p", "I", "O", ""), model("r", "I", "O", ""), model("q", "I J", "O", "")];
    let continued = |id: u64, is_continued: bool| {
        let bench = Bench::new(ensemble("X", "Y", &steps, "", ""), parts());
        let mut request = request_to(&bench.spec, &bench.client, 1, &[("X", "x")]);
        (request.correlation_id, request.flags) = (CorrelationId::Number(id), START);
        request.ingress.continues_sequence = is_continued;
        let _ticket = bench.hand_in(request);
        let of = |part: &str| lock(&bench.part(part).held)[0].ingress.continues_sequence;
        let first = [of("p"), of("r")];
        bench.answer("p");
        bench.answer("r");
        let last = of("q");
        bench.answer("q");
        (first.into_iter().filter(|is_continued| *is_continued).count(), last)
    };
    assert_eq!(continued(7, false), (1, true), "one of them begins it");
    assert_eq!(continued(7, true), (2, true), "the ensemble is a step behind others");
    assert_eq!(continued(0, false), (0, false));
}
