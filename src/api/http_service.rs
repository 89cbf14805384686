//! The routes of the HTTP port and of the metrics port (http.md).

use std::sync::Arc;

use super::infer::http_request::Decoder;
use super::repository::{Ask, not_ours};
use super::routes::{Method, Route, Target, route};
use super::{Api, Mail, error, statistics};
use crate::memory::{Gather, Slice};
use crate::model_config::json as config_json;
use crate::observe::log::verbose;
use crate::protocol::http1::{self, Response};
use crate::protocol::service::{CallKey, Port, Replies, Reply, Token};
use crate::repository::parse_version;
use crate::request::Status;

/// Says how many leading bytes of an inference body are JSON.
const HEADER_LENGTH: &str = "Inference-Header-Content-Length";

fn method_of(method: http1::Method) -> Method {
    match method {
        http1::Method::Get => Method::Get,
        http1::Method::Post => Method::Post,
        _ => Method::Other,
    }
}

/// How Triton's log shows a method (cli.md section 5).
fn method_number(method: http1::Method) -> u8 {
    match method {
        http1::Method::Get => 0,
        http1::Method::Head => 1,
        http1::Method::Post => 2,
        http1::Method::Put => 3,
        http1::Method::Delete => 4,
        _ => 5,
    }
}

/// Reads a header as C++'s `stoi` does: blanks, a sign, digits, and whatever follows them.
fn parse_int32(name: &str, value: &[u8]) -> Result<i64, Status> {
    let shown = String::from_utf8_lossy(value);
    let trimmed = value.trim_ascii_start();
    let (sign, digits) = match trimmed.split_first() {
        Some((b'-', rest)) => (-1, rest),
        Some((b'+', rest)) => (1, rest),
        _ => (1, trimmed),
    };
    let digits = &digits[..digits.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    if digits.is_empty() {
        return Err(Status::invalid(format!("Unable to parse {name}, got: {shown}")));
    }
    let number = digits.iter().try_fold(0i64, |number, digit| {
        number.checked_mul(10)?.checked_add(i64::from(digit - b'0')).filter(|number| *number <= 1 << 31)
    });
    let number = number.map(|number| sign * number).filter(|number| i32::try_from(*number).is_ok());
    number.ok_or_else(|| {
        Status::invalid(format!(
            "Unable to parse {name}, value is out of range [ {}, {} ], got: {shown}",
            i32::MIN,
            i32::MAX
        ))
    })
}

fn json(body: Gather) -> Response {
    error::reply(200, error::JSON, body)
}

impl Api {
    /// Where a body goes: the binary tail of an inference request is to be aligned. A body that is JSON throughout and
    /// too long is refused before it is received.
    pub(super) fn plan_body(&mut self, port: Port, head: &http1::Head) -> http1::BodyPlan {
        let header_len = head.header(HEADER_LENGTH).map(|value| parse_int32(HEADER_LENGTH, value));
        let most = self.facts.http_input_bytes_max;
        match (header_len, head.body_length()) {
            (Some(length), _) if port == Port::Http => {
                http1::BodyPlan::Store { align_at: length.ok().and_then(|at| usize::try_from(at).ok()).unwrap_or(0) }
            }
            (None, http1::BodyLength::Known(length)) if length > most as u64 && length <= i32::MAX as u64 => {
                http1::BodyPlan::Reject(error::http_error(&self.pool, &too_long(length, most), error::JSON))
            }
            _ => http1::BodyPlan::Store { align_at: 0 },
        }
    }

    pub(super) fn http_request(
        &mut self,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        replies: &mut Replies,
    ) -> Option<Token> {
        let path = head.path();
        verbose!(1, "HTTP request: {} {path}", method_number(head.method()));
        let Some(found) = route(path.as_bytes()) else {
            let reply = error::error_body(&self.pool, 404, "Not Found", None);
            replies.push(call, Reply::Http(reply));
            return None;
        };
        if !found.methods().contains(&method_of(head.method())) {
            let reply = error::error_body(&self.pool, 405, "Method Not Allowed", found.content_type());
            replies.push(call, Reply::Http(reply));
            return None;
        }
        if let Route::Infer(target) = found {
            return match self.begin_infer(call, target, head, body, replies) {
                Ok(token) => token,
                Err((status, content_type)) => {
                    replies.push(call, Reply::Http(error::http_error(&self.pool, &status, content_type)));
                    None
                }
            };
        }
        if let Some(ask) = ask_of(found, &body) {
            match ask {
                Ok(ask) => self.ask_repository(call, ask, replies),
                Err(status) => {
                    replies.push(call, Reply::Http(error::http_error(&self.pool, &status, found.content_type())));
                }
            }
            return None;
        }
        let answer = match found {
            Route::Logging => self.logging_http((head.method() == http1::Method::Post).then_some(&body)),
            _ => self.manage_http(found),
        };
        let reply = answer.unwrap_or_else(|status| error::http_error(&self.pool, &status, found.content_type()));
        replies.push(call, Reply::Http(reply));
        None
    }

    /// The routes that are answered at once.
    fn manage_http(&mut self, route: Route<'_>) -> Result<Response, Status> {
        let version = |target: &Target<'_>| parse_version(target.version.unwrap_or_default());
        match route {
            Route::ServerMetadata => Ok(json(self.server_json())),
            Route::Live => Ok(Response::empty(if self.is_live()? { 200 } else { 400 })),
            Route::Ready => Ok(Response::empty(if self.is_ready()? { 200 } else { 400 })),
            Route::ModelReady(target) => {
                self.is_model_ready(target.model, target.version.unwrap_or_default())?;
                Ok(Response::empty(200))
            }
            Route::ModelMetadata(target) => {
                let facts = self.model_facts(target.model, target.version.unwrap_or_default())?;
                Ok(json(facts.to_json(&self.pool)))
            }
            Route::ModelConfig(target) => {
                let model = Arc::clone(self.models.lookup(target.model, version(&target)?)?);
                let mut text = Gather::new();
                text.put(&self.pool, config_json::write(&model.spec.config, 1)?.as_bytes());
                Ok(json(text))
            }
            Route::ModelStatistics(target) => {
                self.check_not_exiting()?;
                let models = self.models.statistics_of(target.model, version(&target)?)?;
                Ok(json(statistics::to_json(&models, &self.pool)))
            }
            Route::AllStatistics => {
                self.check_not_exiting()?;
                Ok(json(statistics::to_json(&self.models.ready().collect::<Vec<_>>(), &self.pool)))
            }
            Route::Unbuilt(feature, _) => {
                Err(Status::unsupported(format!("{feature} is not supported by this version of Nereid")))
            }
            Route::Infer(_) | Route::RepositoryIndex | Route::Load(..) | Route::Unload(..) | Route::Logging => {
                Err(Status::internal("this route has its own way in"))
            }
        }
    }

    /// Checks an inference request up to its body, and begins to decode that.
    fn begin_infer(
        &mut self,
        call: CallKey,
        target: Target<'_>,
        head: &http1::Head,
        body: Slice,
        replies: &mut Replies,
    ) -> Result<Option<Token>, (Status, Option<&'static str>)> {
        let plain = |status| (status, None);
        let model = self.find(target.model, target.version.unwrap_or_default()).map_err(plain)?;
        if model.spec.decoupled {
            let text = "HTTP end point doesn't support models with decoupled transaction policy";
            return Err(plain(Status::unsupported(text)));
        }
        match head.header("Content-Encoding") {
            None | Some(b"" | b"identity") => {}
            Some(encoding @ (b"gzip" | b"deflate")) => {
                let encoding = String::from_utf8_lossy(encoding);
                let text = format!("Content-Encoding '{encoding}' is not supported by this version of Nereid");
                return Err(plain(Status::unsupported(text)));
            }
            Some(_) => {
                let mut reply = error::error_body(&self.pool, 501, "Unsupported compression type", None);
                reply.head = reply.head.header("Accept-Encoding", "gzip, deflate");
                replies.push(call, Reply::Http(reply));
                return Ok(None);
            }
        }
        if let Some(length) = head.header("Content-Length") {
            parse_int32("Content-Length", length).map_err(plain)?;
        }
        let header_len = match head.header(HEADER_LENGTH) {
            None => body.len(),
            Some(value) => {
                let length = parse_int32(HEADER_LENGTH, value).map_err(plain)?;
                usize::try_from(length).ok().filter(|length| *length <= body.len()).ok_or_else(|| {
                    let text = format!("inference header size should be in range (0, {}), got: {length}", body.len());
                    plain(Status::invalid(text))
                })?
            }
        };
        let labelled = |status| (status, error::JSON);
        let most = self.facts.http_input_bytes_max;
        if header_len > most {
            return Err(labelled(too_long(header_len as u64, most)));
        }
        let (token, request) = self.new_request().map_err(labelled)?;
        // Of an empty body too: without a length of its own the JSON is as long as the body.
        let is_raw = header_len == 0;
        let decoder = match is_raw {
            true => Decoder::raw_binary(model, request, body, most),
            false => Decoder::new(model, request, body, header_len, most),
        };
        match decoder {
            Ok(decoder) => {
                self.decode(token.0, call, Box::new(decoder), replies);
                Ok(Some(token))
            }
            Err((status, request)) => {
                self.give_up(token, request);
                Err(labelled(status))
            }
        }
    }

    /// `GET /metrics`; rendering walks every model, so it is done elsewhere.
    pub(super) fn http_metrics(&mut self, call: CallKey, head: &http1::Head, replies: &mut Replies) -> Option<Token> {
        if method_of(head.method()) != Method::Get {
            let reply = error::error_body(&self.pool, 405, "Method Not Allowed", None);
            replies.push(call, Reply::Http(reply));
            return None;
        }
        if !matches!(head.path(), "/metrics" | "/metrics/") {
            replies.push(call, Reply::Http(Response::empty(200)));
            return None;
        }
        let (render, post) = (Arc::clone(&self.render_metrics), Arc::clone(&self.post));
        (self.control)(Box::new(move || post(Mail::Metrics { call, page: render() })));
        // A page is cheap to drop: nothing to cancel.
        None
    }

    pub(super) fn metrics_rendered(&mut self, call: CallKey, page: &str, replies: &mut Replies) {
        let mut body = Gather::new();
        body.put(&self.pool, page.as_bytes());
        replies.push(call, Reply::Http(error::reply(200, Some("text/plain; charset=utf-8"), body)));
    }
}

/// What a route asks of the repository, if it does.
fn ask_of(route: Route<'_>, body: &Slice) -> Option<Result<Ask, Status>> {
    let body = body.clone();
    let named = |repository: &[u8], model: &[u8]| {
        not_ours(&String::from_utf8_lossy(repository))?;
        Ok(String::from_utf8_lossy(model).into_owned())
    };
    Some(match route {
        Route::RepositoryIndex => Ok(Ask::HttpIndex { body }),
        Route::Load(repository, model) => named(repository, model).map(|model| Ask::HttpLoad { model, body }),
        Route::Unload(repository, model) => named(repository, model).map(|model| Ask::HttpUnload { model, body }),
        _ => return None,
    })
}

fn too_long(length: u64, most: usize) -> Status {
    Status::invalid(format!(
        "request JSON size of {length} bytes exceeds the maximum allowed input size of {most} bytes. Use \
         --http-max-input-size to increase the limit."
    ))
}

impl Route<'_> {
    /// The label of error bodies of this route (http.md section 1).
    fn content_type(&self) -> Option<&'static str> {
        match self {
            Route::Live | Route::Ready | Route::ModelReady(_) | Route::Infer(_) => None,
            _ => error::JSON,
        }
    }
}
