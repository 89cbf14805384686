//! The metrics port: one path, whose page is written on a control thread in the format that its reader accepts.

use std::sync::Arc;

use super::events::quality;
use crate::api::error;
use crate::api::mail::{Control, Mail, Post, RenderMetrics};
use crate::api::routes::Method;
use nereid_memory::{Gather, Pool};
use nereid_observe::metrics::PageFormat;
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
    /// `GET /metrics`, and HEAD; rendering walks every model, so it is done elsewhere.
    pub fn http(&self, call: CallKey, head: &http1::Head, replies: &mut Replies) {
        if !matches!(Method::from(head.method()), Method::Get | Method::Head) {
            let reply = error::error_body(&self.pool, 405, "Method Not Allowed", None);
            return replies.push(call, HttpReply::Answer(reply));
        }
        if !matches!(head.path(), "/metrics" | "/metrics/") {
            return replies.push(call, HttpReply::Answer(Response::empty(200)));
        }
        // A page is cheap to drop: nothing to cancel.
        self.render_for(call, head);
    }

    /// Has the page rendered on a control thread, which posts it.
    pub fn render_for(&self, call: CallKey, head: &http1::Head) {
        let format = accepted(head.headers_named("Accept"));
        let job = PageJob { call, format, post: Some(Arc::clone(&self.post)) };
        let (render, pool) = (Arc::clone(&self.render), self.pool.clone());
        (self.control)(Box::new(move || job.end(render(format), &pool)));
    }

    /// Answers a call with the page that was posted.
    pub fn rendered(&self, call: CallKey, format: PageFormat, page: Option<Gather>, replies: &mut Replies) {
        let reply = match page {
            Some(page) => error::reply(200, Some(format.content_type()), page),
            None => {
                let text = "the server has too much to do to write its metrics";
                error::http_error(&self.pool, &Status::refused(RefusalReason::Operations, text), None)
            }
        };
        replies.push(call, HttpReply::Answer(reply));
    }
}

/// The format that the reader likes best; the text format unless the other one is named (RFC 9110, section 12.5.1).
/// Ranges such as `*/*` do not count: every client sends them.
fn accepted<'a>(fields: impl Iterator<Item = &'a [u8]>) -> PageFormat {
    let (mut open_metrics, mut text) = (0, 0);
    for range in fields.flat_map(|field| field.split(|&byte| byte == b',')) {
        let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let Some(name) = parts.next() else { continue };
        let version = parts.clone().find_map(|part| part.strip_prefix(b"version="));
        let best = if name.eq_ignore_ascii_case(b"application/openmetrics-text") {
            // The drafts before 1.0.0 are others.
            if version.is_some_and(|version| version != b"1.0.0" && version != b"\"1.0.0\"") {
                continue;
            }
            &mut open_metrics
        } else if name.eq_ignore_ascii_case(b"text/plain") {
            &mut text
        } else {
            continue;
        };
        *best = (*best).max(quality(parts));
    }
    if open_metrics > 0 && open_metrics >= text { PageFormat::OpenMetrics } else { PageFormat::Text }
}

/// A call that waits for the page. It is answered when this is dropped, too.
struct PageJob {
    call: CallKey,
    format: PageFormat,
    post: Option<Post>,
}

impl PageJob {
    /// The page is copied here, on the thread that made it: with many models it has megabytes. Each part is freed when
    /// it is copied, so that the page does not exist twice.
    fn end(mut self, parts: Vec<String>, pool: &Pool) {
        let mut body = Gather::new();
        parts.into_iter().for_each(|part| body.put(pool, part.as_bytes()));
        if let Some(post) = self.post.take() {
            post(Mail::Metrics { call: self.call, format: self.format, page: Some(body) });
        }
    }
}

impl Drop for PageJob {
    fn drop(&mut self) {
        if let Some(post) = self.post.take() {
            post(Mail::Metrics { call: self.call, format: self.format, page: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_format_is_the_one_that_readers_like_best() {
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                            q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let open_metrics: [&[&str]; 6] = [
            &[prometheus_2],
            &[prometheus_3],
            &["Application/OpenMetrics-Text"],
            &["application/openmetrics-text; version=\"1.0.0\"; charset=utf-8"],
            &["text/plain;q=0.5", "application/openmetrics-text;q=0.5"],
            &["*/*", "application/openmetrics-text;q=0.001"],
        ];
        let text: [&[&str]; 7] = [
            &[],
            &["*/*"],
            &["text/plain"],
            &["application/openmetrics-text;version=0.0.1"],
            &["application/openmetrics-text;q=0"],
            &["application/openmetrics-text;q=0.4, text/plain;q=0.5"],
            &[";;,,", "text/html"],
        ];
        let of = |fields: &[&'static str]| accepted(fields.iter().map(|field| field.as_bytes()));
        open_metrics.iter().for_each(|fields| assert_eq!(of(fields), PageFormat::OpenMetrics, "{fields:?}"));
        text.iter().for_each(|fields| assert_eq!(of(fields), PageFormat::Text, "{fields:?}"));
    }

    /// The call is answered once, whatever happens to the job.
    #[test]
    fn a_job_answers_once_also_where_nobody_runs_it() {
        type Posted = Vec<(CallKey, Option<Vec<u8>>)>;
        let posted: Arc<Mutex<Posted>> = Arc::default();
        let job = |call: u64| {
            let posted = Arc::clone(&posted);
            let post = move |mail: Mail| match mail {
                Mail::Metrics { call, page, .. } => {
                    posted.lock().unwrap().push((call, page.map(|mut page| page.to_vec())));
                }
                _ => panic!("another mail"),
            };
            PageJob { call: CallKey(call), format: PageFormat::Text, post: Some(Arc::new(post)) }
        };
        job(1).end(vec!["the ".to_owned(), "page".to_owned()], &Pool::new(1 << 16));
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
