//! The traffic rules of models, shown and changed over HTTP (docs/traffic.md). gRPC has no such calls.
//!
//! A shard answers at once: what changes are a few numbers, which all shards read from the same place.

use super::base::Management;
use crate::api::error;
use crate::api::routes::TrafficAction;
use crate::repository::traffic::{CANARY, Sticky, Traffic};
use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::http1::Response;
use nereid_protocol::json::{AccessError, Document, GatherSink, Writer};
use nereid_protocol::service::{CallKey, HttpReply, Replies};
use nereid_request::Status;

/// Bytes of a request's JSON; the weights of all versions take far less.
const BODY_BYTES_MAX: usize = 64 * 1024;

impl Management {
    /// Shows the rule of a model, or changes it as the body says and then shows it.
    pub(in crate::api) fn traffic(
        &self,
        call: CallKey,
        model: &[u8],
        action: TrafficAction,
        body: Option<&Slice>,
        replies: &mut Replies,
    ) {
        let shown = self.changed_traffic(model, action, body);
        let reply = shown.map(|traffic| error::reply(200, error::JSON, to_json(traffic, &self.pool)));
        let reply: Response = reply.unwrap_or_else(|status| error::http_error(&self.pool, &status, error::JSON));
        replies.push(call, HttpReply::Answer(reply));
    }

    fn changed_traffic(&self, model: &[u8], action: TrafficAction, body: Option<&Slice>) -> Result<&Traffic, Status> {
        self.facts.check_not_exiting()?;
        // The errors of an unknown model are those of every call.
        self.models.lookup(model, None)?;
        let traffic = self.models.traffic(model).ok_or_else(|| {
            let name = String::from_utf8_lossy(model);
            let text = "has no traffic rule; add the parameter 'nereid.traffic.weights' to its configuration";
            Status::invalid(format!("model '{name}' {text}"))
        })?;
        let Some(body) = body else { return Ok(traffic) };
        match action {
            TrafficAction::Rule => traffic.set_weights(&weights_of(body)?)?,
            TrafficAction::Promote => traffic.promote(label_of(body)?.as_deref().unwrap_or(CANARY))?,
            TrafficAction::RollBack => traffic.roll_back(label_of(body)?.as_deref())?,
        }
        Ok(traffic)
    }
}

fn parsed(body: &Slice) -> Result<Document, Status> {
    if body.len() > BODY_BYTES_MAX {
        let text = format!("a body of {} bytes exceeds the limit of {BODY_BYTES_MAX} bytes", body.len());
        return Err(Status::invalid(text));
    }
    Document::parse(body.clone()).map_err(|error| Status::invalid(error.to_string()))
}

fn wrong(error: AccessError) -> Status {
    Status::invalid(error.to_string())
}

/// `{"weights": {"1": 90, "2": 10}}`.
fn weights_of(body: &Slice) -> Result<Vec<(String, u32)>, Status> {
    let document = parsed(body)?;
    let weights = document.root().find("weights").ok_or_else(|| {
        Status::invalid("the body has no weights; send {\"weights\": {\"<version or label>\": <percent>, …}}")
    })?;
    let members = weights.members().map_err(wrong)?;
    let weight = |(name, value): (std::borrow::Cow<'_, [u8]>, nereid_protocol::json::Value<'_>)| {
        let name = String::from_utf8_lossy(&name).into_owned();
        let weight = value.as_u64().ok().and_then(|weight| u32::try_from(weight).ok());
        let text = || Status::invalid(format!("the weight of '{name}' is not a whole number of percent"));
        let weight = weight.ok_or_else(text)?;
        Ok((name, weight))
    };
    members.map(weight).collect()
}

/// `{"label": "canary"}`; the body is optional.
fn label_of(body: &Slice) -> Result<Option<String>, Status> {
    if body.is_empty() {
        return Ok(None);
    }
    let document = parsed(body)?;
    let Some(label) = document.root().find("label") else { return Ok(None) };
    Ok(Some(String::from_utf8_lossy(&label.as_str().map_err(wrong)?).into_owned()))
}

/// The rule as it is applied now.
fn to_json(traffic: &Traffic, pool: &Pool) -> Gather {
    let mut body = Gather::new();
    let mut writer = Writer::new(GatherSink { gather: &mut body, pool });
    writer.begin_object();
    writer.key("model");
    writer.string(&traffic.name);
    writer.key("weights");
    writer.begin_object();
    for ruled in traffic.versions() {
        writer.key(ruled.version.to_string());
        writer.uint(u64::from(ruled.weight()));
    }
    writer.end_object();
    writer.key("labels");
    writer.begin_object();
    for (label, version) in traffic.labels() {
        writer.key(label);
        writer.int(version);
    }
    writer.end_object();
    writer.key("sticky");
    match &traffic.rule.sticky {
        Sticky::None => writer.null(),
        Sticky::Header(name) => writer.string(format!("header:{name}")),
        Sticky::Parameter(name) => writer.string(format!("parameter:{name}")),
        Sticky::Sequence => writer.string("sequence"),
    }
    writer.key("header");
    match &traffic.rule.header {
        None => writer.null(),
        Some(name) => writer.string(&**name),
    }
    writer.key("requests");
    writer.begin_object();
    for ruled in traffic.versions() {
        writer.key(ruled.version.to_string());
        writer.begin_object();
        for (reason, count) in ruled.counts() {
            writer.key(reason.name());
            writer.uint(count);
        }
        writer.end_object();
    }
    writer.end_object();
    write_shadow(traffic, &mut writer);
    write_rollback(traffic, &mut writer);
    writer.end_object();
    body
}

fn write_shadow(traffic: &Traffic, writer: &mut Writer<GatherSink<'_>>) {
    writer.key("shadow");
    let Some(shadow) = &traffic.shadow else { return writer.null() };
    writer.begin_object();
    writer.key("version");
    writer.int(shadow.rule().version);
    writer.key("share");
    writer.double(shadow.rule().share);
    writer.key("tolerance");
    writer.double(traffic.rule.tolerance);
    writer.key("in_flight");
    writer.uint(shadow.in_flight() as u64);
    for (result, count) in shadow.counts() {
        writer.key(result.name());
        writer.uint(count);
    }
    writer.end_object();
}

fn write_rollback(traffic: &Traffic, writer: &mut Writer<GatherSink<'_>>) {
    let reason = traffic.rolled_back();
    writer.key("rollback");
    writer.begin_object();
    writer.key("target");
    match &traffic.rule.rollback {
        None => writer.null(),
        Some(rollback) => writer.string(&*rollback.target),
    }
    writer.key("rolled_back");
    writer.bool(reason.is_some());
    writer.key("reason");
    match reason {
        None => writer.null(),
        Some(reason) => writer.string(reason),
    }
    writer.key("count");
    writer.uint(traffic.rollbacks());
    writer.end_object();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read() {
        let slice = |text: &str| Slice::copy_of(text.as_bytes());
        let weights = weights_of(&slice(r#"{"weights":{"1":90,"canary":10}}"#)).unwrap();
        assert_eq!(weights, [("1".to_owned(), 90), ("canary".to_owned(), 10)]);
        for (body, text) in [
            ("{}", "the body has no weights; send {\"weights\": {\"<version or label>\": <percent>, …}}"),
            (r#"{"weights":{"1":-5}}"#, "the weight of '1' is not a whole number of percent"),
            (r#"{"weights":{"1":1e99}}"#, "the weight of '1' is not a whole number of percent"),
            (r#"{"weights":[]}"#, "attempt to get members for non-object"),
        ] {
            assert_eq!(weights_of(&slice(body)), Err(Status::invalid(text)), "{body}");
        }
        assert!(weights_of(&slice("{")).is_err() && weights_of(&slice(&" ".repeat(BODY_BYTES_MAX + 1))).is_err());
        assert_eq!(label_of(&slice("")), Ok(None));
        assert_eq!(label_of(&slice("{}")), Ok(None));
        assert_eq!(label_of(&slice(r#"{"label":"canary"}"#)), Ok(Some("canary".to_owned())));
        assert_eq!(
            label_of(&slice(r#"{"label":1}"#)),
            Err(Status::invalid("attempt to access JSON non-string as string"))
        );
    }
}
