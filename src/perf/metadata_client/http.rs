//! Questions over HTTP, with answers in JSON.

use serde_json::{Value, json};

use crate::measurement::{Phase, ServerSide};
use crate::model_info::{ModelInfo, TensorFacts};
use crate::request::escape;
use nereid_client::{CallError, HttpClient};

pub struct HttpMetadataClient(HttpClient);

impl HttpMetadataClient {
    pub fn new(client: HttpClient) -> HttpMetadataClient {
        HttpMetadataClient(client)
    }

    pub fn inspect(&mut self, model: &str, version: &str) -> Result<ModelInfo, CallError> {
        let path = path_of(model, version);
        let server = self.0.call("GET", "/v2", "")?;
        let metadata = self.0.call("GET", &path, "")?;
        // Configurations are an extension of the protocol, which other servers do not have.
        let config = match self.0.call("GET", &format!("{path}/config"), "") {
            Err(CallError::Refused(_)) => Value::Null,
            config => config?,
        };
        Ok(model_info(model, version, &server, &metadata, &config))
    }

    pub fn statistics(&mut self, model: &str, version: &str) -> Result<ServerSide, CallError> {
        let answer = self.0.call("GET", &format!("{}/stats", path_of(model, version)), "")?;
        Ok(server_side(model, version, &answer))
    }

    pub fn register(&mut self, region: &str, key: &str, byte_size: u64) -> Result<(), CallError> {
        let body = json!({"key": key, "offset": 0, "byte_size": byte_size}).to_string();
        let target = format!("/v2/systemsharedmemory/region/{}/register", escape(region));
        self.0.call("POST", &target, &body).map(drop)
    }

    pub fn unregister(&mut self, region: &str) -> Result<(), CallError> {
        let target = format!("/v2/systemsharedmemory/region/{}/unregister", escape(region));
        self.0.call("POST", &target, "").map(drop)
    }
}

fn path_of(model: &str, version: &str) -> String {
    match version {
        "" => format!("/v2/models/{}", escape(model)),
        version => format!("/v2/models/{}/versions/{}", escape(model), escape(version)),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn members(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn model_info(model: &str, version: &str, server: &Value, metadata: &Value, config: &Value) -> ModelInfo {
    let configured = |kind: &str, name: &str| {
        members(&config[kind]).iter().find(|tensor| tensor["name"] == name).cloned().unwrap_or(Value::Null)
    };
    let tensors = |metadata_kind: &str, config_kind: &str| -> Vec<TensorFacts> {
        let facts = members(&metadata[metadata_kind]).iter().map(|tensor| {
            let name = text(&tensor["name"]);
            let config = configured(config_kind, &name);
            let flag = |name: &str| config[name].as_bool().unwrap_or(false);
            TensorFacts {
                datatype: text(&tensor["datatype"]),
                shape: members(&tensor["shape"]).iter().filter_map(Value::as_i64).collect(),
                optional: flag("optional"),
                is_shape_tensor: flag("is_shape_tensor"),
                name,
            }
        });
        facts.collect()
    };
    let steps = members(&config["ensemble_scheduling"]["step"]).iter();
    let mut composing: Vec<String> = steps.map(|step| text(&step["model_name"])).collect();
    composing.sort_unstable();
    composing.dedup();
    let chosen = members(&metadata["versions"]).last().map(text).unwrap_or_default();
    ModelInfo {
        server: text(&server["name"]),
        server_version: text(&server["version"]),
        server_build: String::new(),
        model: model.to_owned(),
        version: if version.is_empty() { chosen } else { version.to_owned() },
        platform: text(&metadata["platform"]),
        max_batch_size: config["max_batch_size"].as_u64().unwrap_or(0),
        decoupled: config["model_transaction_policy"]["decoupled"].as_bool().unwrap_or(false),
        sequences: !config["sequence_batching"].is_null(),
        response_cache: config["response_cache"]["enable"].as_bool().unwrap_or(false),
        inputs: tensors("inputs", "input"),
        outputs: tensors("outputs", "output"),
        composing_models: composing,
    }
}

fn server_side(model: &str, version: &str, answer: &Value) -> ServerSide {
    let mut sum = ServerSide { model: model.to_owned(), version: version.to_owned(), ..ServerSide::default() };
    for statistics in members(&answer["model_stats"]) {
        let counts = &statistics["inference_stats"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let phase = |name: &str| Phase { count: number(&counts[name]["count"]), ns: number(&counts[name]["ns"]) };
        sum.add(&ServerSide {
            inferences: number(&statistics["inference_count"]),
            executions: number(&statistics["execution_count"]),
            success: phase("success"),
            fail: phase("fail"),
            queue: phase("queue"),
            compute_input: phase("compute_input"),
            compute_infer: phase("compute_infer"),
            compute_output: phase("compute_output"),
            cache_hit: phase("cache_hit"),
            cache_miss: phase("cache_miss"),
            ..ServerSide::default()
        });
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};

    use nereid_client::Wire;

    use super::*;

    #[test]
    fn a_model_is_read_from_metadata_and_configuration() {
        let server = json!({"name": "triton", "version": "2.51"});
        let metadata = json!({
            "name": "m", "versions": ["1", "3"], "platform": "ensemble",
            "inputs": [
                {"name": "A", "datatype": "FP32", "shape": [-1, 4]},
                {"name": "B", "datatype": "BYTES", "shape": [2]},
            ],
            "outputs": [{"name": "C", "datatype": "INT8", "shape": []}],
        });
        let config = json!({
            "max_batch_size": 8,
            "input": [{"name": "B", "optional": true, "is_shape_tensor": true}, {"name": "A"}],
            "model_transaction_policy": {"decoupled": true},
            "sequence_batching": {},
            "ensemble_scheduling": {"step": [{"model_name": "y"}, {"model_name": "x"}, {"model_name": "y"}]},
        });
        let model_info = model_info("m", "", &server, &metadata, &config);
        assert_eq!((model_info.version.as_str(), model_info.max_batch_size), ("3", 8));
        assert!(model_info.decoupled && model_info.sequences && !model_info.response_cache);
        assert_eq!(model_info.composing_models, ["x", "y"]);
        assert_eq!(model_info.inputs[0].shape, [-1, 4]);
        assert!(
            model_info.inputs[1].optional && model_info.inputs[1].is_shape_tensor && !model_info.inputs[0].optional
        );
        // Whatever a server answers, nothing panics.
        let nothing = super::model_info("m", "5", &Value::Null, &json!([1]), &json!("x"));
        assert_eq!((nothing.version.as_str(), nothing.inputs.len()), ("5", 0));
    }

    /// A client of a peer that gives these answers, one for each request.
    fn client_of(answers: &'static [(&'static str, &'static str)]) -> HttpMetadataClient {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::thread::spawn(move || {
            let mut connection = BufReader::new(listener.accept().unwrap().0);
            for (status, body) in answers {
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    connection.read_line(&mut line).unwrap();
                }
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                connection.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        HttpMetadataClient::new(HttpClient::new(Wire::Tcp(peer), "peer".to_owned(), Vec::new()))
    }

    #[test]
    fn a_server_without_configurations_describes_a_model_by_its_metadata() {
        const SERVER: (&str, &str) = ("200 OK", r#"{"name": "other", "version": "1"}"#);
        const INPUTS: &str = r#"{"name": "m", "inputs": [{"name": "A", "datatype": "FP32", "shape": [-1, 4]}]}"#;
        const ABSENT: (&str, &str) = ("404 Not Found", r#"{"detail": "Not Found"}"#);
        let found = client_of(&[SERVER, ("200 OK", INPUTS), ABSENT]).inspect("m", "").ok().unwrap();
        assert_eq!((found.inputs[0].shape.as_slice(), found.max_batch_size), (&[-1, 4][..], 0));
        let refused = client_of(&[SERVER, ABSENT]).inspect("m", "");
        assert!(matches!(refused, Err(CallError::Refused(_))), "without metadata nothing is known");
    }

    #[test]
    fn statistics_of_versions_are_added_up() {
        let one = json!({
            "inference_count": 10, "execution_count": 5,
            "inference_stats": {"queue": {"count": 5, "ns": 700}, "success": {"count": 5, "ns": 900}},
        });
        let sum = server_side("m", "", &json!({"model_stats": [one, one, {}]}));
        assert_eq!((sum.inferences, sum.executions, sum.queue), (20, 10, Phase { count: 10, ns: 1400 }));
        assert_eq!(sum.mean_batch(), 2.0);
    }
}
