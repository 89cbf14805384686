//! The metrics port: one path, whose page is written on a control thread.

use std::sync::Arc;

use crate::api::error;
use crate::api::mail::{Control, Mail, Post, RenderMetrics};
use crate::api::routes::Method;
use nereid_memory::{Gather, Pool};
use nereid_observe::metrics::CONTENT_TYPE;
use nereid_protocol::http1::{self, Response};
use nereid_protocol::service::{CallKey, HttpReply, Replies};
use nereid_request::{RefusalReason, Status};

/// Answers calls for the page.
pub struct MetricsPage {
    pub pool: Pool,
    pub post: Post,
    pub control: Control,
    pub render: RenderMetrics,
}

impl MetricsPage {
    /// `GET /metrics`; rendering walks every model, so it is done elsewhere.
    pub fn http(&self, call: CallKey, head: &http1::Head, replies: &mut Replies) {
        if Method::from(head.method()) != Method::Get {
            let reply = error::error_body(&self.pool, 405, "Method Not Allowed", None);
            return replies.push(call, HttpReply::Answer(reply));
        }
        if !matches!(head.path(), "/metrics" | "/metrics/") {
            return replies.push(call, HttpReply::Answer(Response::empty(200)));
        }
        // A page is cheap to drop: nothing to cancel.
        self.render_for(call);
    }

    /// Has the page rendered on a control thread, which posts it.
    pub fn render_for(&self, call: CallKey) {
        let job = PageJob { call, post: Some(Arc::clone(&self.post)) };
        let (render, pool) = (Arc::clone(&self.render), self.pool.clone());
        (self.control)(Box::new(move || job.end(&render(), &pool)));
    }

    /// Answers a call with the page that was posted.
    pub fn rendered(&self, call: CallKey, page: Option<Gather>, replies: &mut Replies) {
        let reply = match page {
            Some(page) => error::reply(200, Some(CONTENT_TYPE), page),
            None => {
                let text = "the server has too much to do to write its metrics";
                error::http_error(&self.pool, &Status::refused(RefusalReason::Operations, text), None)
            }
        };
        replies.push(call, HttpReply::Answer(reply));
    }
}

/// A call that waits for the page. It is answered when this is dropped, too.
struct PageJob {
    call: CallKey,
    post: Option<Post>,
}

impl PageJob {
    /// The page is copied here, on the thread that made it: with many models it has megabytes.
    fn end(mut self, page: &str, pool: &Pool) {
        let mut body = Gather::new();
        body.put(pool, page.as_bytes());
        if let Some(post) = self.post.take() {
            post(Mail::Metrics { call: self.call, page: Some(body) });
        }
    }
}

impl Drop for PageJob {
    fn drop(&mut self) {
        if let Some(post) = self.post.take() {
            post(Mail::Metrics { call: self.call, page: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The call is answered once, whatever happens to the job.
    #[test]
    fn a_job_answers_once_also_where_nobody_runs_it() {
        type Posted = Vec<(CallKey, Option<Vec<u8>>)>;
        let posted: Arc<Mutex<Posted>> = Arc::default();
        let job = |call: u64| {
            let posted = Arc::clone(&posted);
            let post = move |mail: Mail| match mail {
                Mail::Metrics { call, page } => {
                    posted.lock().unwrap().push((call, page.map(|mut page| page.to_vec())));
                }
                _ => panic!("another mail"),
            };
            PageJob { call: CallKey(call), post: Some(Arc::new(post)) }
        };
        job(1).end("the page", &Pool::new(1 << 16));
        drop(job(2));
        let panicking = job(3);
        let ended = std::thread::spawn(move || {
            let _job = panicking;
            panic!("meant to");
        });
        assert!(ended.join().is_err());
        let expected = [(CallKey(1), Some(b"the page".to_vec())), (CallKey(2), None), (CallKey(3), None)];
        assert_eq!(*posted.lock().unwrap(), expected);
    }
}
