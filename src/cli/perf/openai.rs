//! What `nereid perf --service-kind openai` needs beside the other flags: the route, prompts, the length of answers, a
//! key, and goals.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::given::{Given, Memory, Wire};
use super::mistake::Mistake;
use super::plan::PlanError;
use super::value::Value;
use nereid_perf::openai::{Goals, Interface, Length, OpenAi, PromptSource, Prompts, TOKENS_MAX};
use nereid_perf::{Client, Compression, Form, Plan, Service, SharedMemory, Target, Work};

/// Where OpenAI's clients look for their key.
pub const KEY_VARIABLE: &str = "OPENAI_API_KEY";
/// A long answer takes minutes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// genai-perf's.
const PROMPT_TOKENS: usize = 550;
const PROMPTS: usize = 1000;
const GOAL_MS_MAX: f64 = 1e9;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceKind {
    #[default]
    Triton,
    OpenAi,
}

#[derive(Debug, Clone, Default)]
pub struct OpenAiGiven {
    pub interface: Option<Interface>,
    pub endpoint: Option<String>,
    pub prompt: Option<Length>,
    pub prompts: Option<usize>,
    pub shared_prefix: Option<usize>,
    pub file: Option<PathBuf>,
    pub output: Option<Length>,
    pub is_output_exact: bool,
    pub has_no_usage: bool,
    pub key: Option<String>,
    pub extra: Map<String, Json>,
    pub goals: Goals,
}

impl Value<'_> {
    /// `mean[:deviation]`.
    pub fn length(&self) -> Result<Length, Mistake> {
        let expected = || self.wrong(&format!("<mean[:deviation]> in tokens, with a mean from 1 to {TOKENS_MAX}"));
        let (mean, deviation) = self.text()?.split_once(':').unwrap_or((self.text()?, "0"));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|count| *count <= TOKENS_MAX);
        match (number(mean), number(deviation)) {
            (Some(mean), Some(deviation)) if mean > 0 => Ok(Length { mean, deviation }),
            _ => Err(expected()),
        }
    }

    /// `ttft:50,itl:10,latency:2000`.
    pub fn goals(&self) -> Result<Goals, Mistake> {
        let expected = || self.wrong("a list like ttft:50,itl:10,latency:2000 with milliseconds above 0, each once");
        let mut goals = Goals::default();
        for part in self.text()?.split(',') {
            let (name, ms) = part.split_once(':').ok_or_else(expected)?;
            let ms = ms.trim().parse::<f64>().ok().filter(|ms| *ms > 0.0 && *ms <= GOAL_MS_MAX);
            let goal = match name.trim() {
                "ttft" => &mut goals.first_token,
                "itl" | "tpot" => &mut goals.between_tokens,
                "latency" => &mut goals.latency,
                _ => return Err(expected()),
            };
            let is_second = goal.replace(Duration::from_secs_f64(ms.ok_or_else(expected)? / 1e3)).is_some();
            if is_second {
                return Err(expected());
            }
        }
        Ok(goals)
    }

    /// `name:value`, where the value is JSON or else a text; or an object with several.
    pub fn extra_inputs(&self) -> Result<Map<String, Json>, Mistake> {
        let text = self.text()?;
        if text.starts_with('{') {
            return serde_json::from_str(text).map_err(|_| self.wrong("a JSON object"));
        }
        let (name, value) = text.split_once(':').unwrap_or_default();
        if name.is_empty() {
            return Err(self.wrong("<name>:<value> of a member, or a JSON object"));
        }
        let value = serde_json::from_str(value).unwrap_or_else(|_| Json::String(value.to_owned()));
        Ok(Map::from_iter([(name.to_owned(), value)]))
    }

    /// A path from the server's root, or from the base of the URL.
    pub fn endpoint(&self) -> Result<String, Mistake> {
        let path = self.text()?.trim_start_matches('/');
        match !path.is_empty() && path.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(path.to_owned()),
            false => Err(self.wrong("a path such as v1/chat/completions")),
        }
    }

    pub fn key(&self) -> Result<String, Mistake> {
        let key = self.text()?;
        // The key itself is not shown.
        let wrong = || Mistake::Other(format!("{}: a key has visible letters of ASCII alone", self.flag));
        if is_key(key) { Ok(key.to_owned()) } else { Err(wrong()) }
    }
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Given {
    pub fn check_service(&self) -> Result<(), Mistake> {
        match self.service {
            ServiceKind::Triton => self.check_triton(),
            ServiceKind::OpenAi => self.check_openai(),
        }
    }

    fn check_triton(&self) -> Result<(), Mistake> {
        let own = &self.openai;
        let flags = [
            ("--endpoint-type", own.interface.is_some()),
            ("--endpoint", own.endpoint.is_some()),
            ("--prompt-tokens", own.prompt.is_some()),
            ("--num-prompts", own.prompts.is_some()),
            ("--shared-prefix-tokens", own.shared_prefix.is_some()),
            ("--input-file", own.file.is_some()),
            ("--output-tokens", own.output.is_some()),
            ("--exact-output-tokens", own.is_output_exact),
            ("--no-usage", own.has_no_usage),
            ("--api-key", own.key.is_some()),
            ("--extra-inputs", !own.extra.is_empty()),
            ("--goodput", own.goals != Goals::default()),
        ];
        match flags.iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((flag, _)) => Err(Mistake::Without { flag, needs: "--service-kind openai" }),
        }
    }

    fn check_openai(&self) -> Result<(), Mistake> {
        let sequences = &self.sequences;
        let default = Given::default().sequences;
        let has_sequences = sequences.at_once != default.at_once
            || sequences.length.is_some()
            || sequences.variation_percent.is_some()
            || sequences.ids != default.ids;
        let foreign = [
            ("-i grpc", self.wire == Wire::Grpc, ": OpenAI's interface is spoken over HTTP"),
            ("-i ipc", self.wire == Wire::Ipc, ": OpenAI's interface is spoken over HTTP"),
            ("-x", !self.version.is_empty(), ": models have no versions there"),
            ("--bls-composing-models", !self.composing.is_empty(), ": there are no statistics of models"),
            ("flags of sequences", has_sequences, ""),
            ("-b", self.batch != 1, ": a request has one prompt"),
            ("--input-data", !self.sources.is_empty(), ": give prompts with --input-file"),
            ("--input-recording", self.recording.is_some(), ": give prompts with --input-file"),
            ("--shape", !self.shapes.is_empty(), ": prompts have no shapes; --prompt-tokens sets their length"),
            ("--string-data", self.string.is_some(), ": give prompts with --input-file"),
            ("--shared-memory", self.memory != Memory::None, ""),
            ("tensor formats", self.input_form.is_some() || self.output_form.is_some(), ""),
            ("--http-compression-algorithm", self.http_compression.is_some(), ""),
            ("--request-parameter", !self.parameters.is_empty(), ": use --extra-inputs"),
            ("--request-priority", self.priority != 0, ": use --extra-inputs"),
            ("--queue-timeout", self.queue_timeout_us.is_some(), ""),
        ];
        if let Some((flag, _, hint)) = foreign.iter().find(|(_, is_given, _)| *is_given) {
            return Err(Mistake::Conflict(flag, "--service-kind openai", hint));
        }
        let own = &self.openai;
        if own.file.is_some() && (own.prompt.is_some() || own.prompts.is_some()) {
            let flags = "--prompt-tokens and --num-prompts";
            return Err(Mistake::Conflict("--input-file", flags, ": prompts have one source"));
        }
        if own.is_output_exact && own.output.is_none() {
            return Err(Mistake::Without { flag: "--exact-output-tokens", needs: "--output-tokens" });
        }
        let needs_stream = own.goals.first_token.is_some() || own.goals.between_tokens.is_some();
        if needs_stream && !self.streaming {
            return Err(Mistake::Without { flag: "--goodput with ttft or itl", needs: "--streaming" });
        }
        if own.has_no_usage && !self.streaming {
            return Err(Mistake::Without { flag: "--no-usage", needs: "--streaming: other answers have it anyway" });
        }
        if own.key.is_some() && self.authorization().is_some() {
            return Err(Mistake::Conflict("--api-key", "-H Authorization", ": there is one key"));
        }
        Ok(())
    }

    fn authorization(&self) -> Option<&str> {
        let named = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        named.map(|(_, value)| value.as_str())
    }

    /// Takes the key of the environment, where the command line has none. True if it did.
    pub fn take_key(&mut self, variable: Option<String>) -> Result<bool, Mistake> {
        let has_own = self.openai.key.is_some() || self.authorization().is_some();
        let Some(key) = variable.filter(|key| !key.is_empty()) else { return Ok(false) };
        if self.service != ServiceKind::OpenAi || has_own {
            return Ok(false);
        }
        if !is_key(&key) {
            return Err(Mistake::Other(format!("{KEY_VARIABLE}: a key has visible letters of ASCII alone")));
        }
        self.openai.key = Some(key);
        Ok(true)
    }

    /// The URL without what follows the server, and that base: `http://h:1/v1` is `http://h:1` and `/v1`.
    pub fn split_base(url: &str) -> (&str, &str) {
        let begin = url.find("://").map_or(0, |at| at.saturating_add(3));
        let slash = url.get(begin..).and_then(|rest| rest.find('/')).map(|at| begin.saturating_add(at));
        match slash.and_then(|at| url.split_at_checked(at)) {
            Some((server, base)) if !url.starts_with("unix:") => (server, base.trim_end_matches('/')),
            _ => (url, ""),
        }
    }

    fn interface(&self) -> Interface {
        let given = self.openai.endpoint.as_deref().unwrap_or_default();
        let is_chat = given.is_empty() || given.ends_with(Interface::Chat.route());
        let named = match !is_chat && given.ends_with(Interface::Completions.route()) {
            true => Interface::Completions,
            false => Interface::Chat,
        };
        self.openai.interface.unwrap_or(named)
    }

    fn openai(&self) -> OpenAi {
        let (own, interface) = (&self.openai, self.interface());
        let (_, base) = Given::split_base(self.url.as_deref().unwrap_or_default());
        let route = match (&own.endpoint, base) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, "") => format!("v1/{}", interface.route()),
            (None, _) => interface.route().to_owned(),
        };
        let length = own.prompt.unwrap_or(Length { mean: PROMPT_TOKENS, deviation: 0 });
        let source = match &own.file {
            Some(path) => PromptSource::File(path.clone()),
            None => PromptSource::Synthetic { length, count: own.prompts.unwrap_or(PROMPTS) },
        };
        OpenAi {
            interface,
            path: format!("{base}/{route}"),
            streaming: self.streaming,
            asks_usage: !own.has_no_usage,
            prompts: Prompts { source, shared_prefix: own.shared_prefix.unwrap_or(0) },
            output: own.output,
            is_output_exact: own.is_output_exact,
            extra: own.extra.clone(),
            goals: own.goals,
        }
    }

    /// A plan that needs no description of the model.
    pub(super) fn openai_plan(&self, target: Target, cores: usize) -> Result<Plan, PlanError> {
        let openai = self.openai();
        let mut headers = self.headers.clone();
        headers.extend(self.openai.key.iter().map(|key| ("Authorization".to_owned(), format!("Bearer {key}"))));
        let work = Work {
            streams: vec![openai.templates(&self.model, self.rules.seed)?],
            headers,
            sequences: None,
            input_form: Form::Json,
            output_form: Form::Json,
            compression: Compression::None,
            shared_memory: SharedMemory::None,
            decoupled: false,
            priority: 0,
            queue_timeout_us: None,
            recording: None,
        };
        Ok(Plan {
            metrics: self.metrics_source(&target)?,
            target,
            service: Service::OpenAi(Box::new(openai)),
            model: self.model.clone(),
            version: String::new(),
            work,
            load: self.load()?,
            rules: self.rules(),
            client: Client { request_timeout: self.request_timeout.unwrap_or(REQUEST_TIMEOUT), ..self.client(cores) },
            server_statistics: false,
            composing_models: Vec::new(),
            records_max: self.records_max(),
        })
    }
}

#[cfg(test)]
mod tests;
