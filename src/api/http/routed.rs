//! A request whose version the traffic rule of its model chooses once the body is read: parameters and the id of its
//! sequence stand there.

use std::sync::Arc;

use super::dialect::Dialect;
use crate::api::infer::{AnswerForm, Decode, Progress};
use crate::repository::traffic::Route;
use nereid_memory::Pool;
use nereid_request::{Request, SharedMemory, Status};
use nereid_scheduler::ServedModel;

/// Around the decoder of a request; passes everything on until the request is complete.
pub struct Routed {
    decoder: Box<dyn Decode>,
    route: Route,
    /// The last step was the last one, and did not fail.
    is_ready: bool,
}

impl Routed {
    /// `decoder` itself, if there is no route.
    pub fn around(decoder: Box<dyn Decode>, route: Option<Box<Route>>) -> Box<dyn Decode> {
        match route {
            None => decoder,
            Some(route) => Box::new(Routed { decoder, route: *route, is_ready: false }),
        }
    }
}

impl Decode for Routed {
    fn step(&mut self, pool: &Pool, regions: &SharedMemory) -> Result<Progress, Status> {
        let progress = self.decoder.step(pool, regions);
        self.is_ready = matches!(progress, Ok(Progress::Ready));
        progress
    }

    fn dialect(&self) -> Dialect {
        self.decoder.dialect()
    }

    fn finish(self: Box<Self>) -> (Arc<ServedModel>, Box<Request>, AnswerForm) {
        let (model, mut request, form) = self.decoder.finish();
        match self.is_ready {
            true => (self.route.settle(&mut request, &model), request, form),
            // It is refused.
            false => (model, request, form),
        }
    }
}
