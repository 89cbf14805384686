//! Every pointer of every function, read from the header: NULL is refused, and with the check of handles also a handle
//! of another type and an address that is not a handle.
//!
//! The calls are made by a backend that is written here, from the header's declarations, while it executes a request:
//! it has live handles of most kinds for the other arguments.

use std::fmt::Write;

use crate::border::compiler;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// Where NULL is an answer and not a mistake: (function, parameter).
const MAY_BE_NULL: &[(&str, &str)] = &[
    // Nothing to delete.
    ("TRITONSERVER_MessageDelete", "message"),
    ("TRITONSERVER_MetricArgsDelete", "args"),
    ("TRITONSERVER_InferenceTraceDelete", "trace"),
    ("TRITONSERVER_BufferAttributesDelete", "buffer_attributes"),
    // An error makes an error response, none a good one.
    ("TRITONBACKEND_ResponseSend", "error"),
    ("TRITONBACKEND_ModelInstanceResponseStatisticsSetError", "error"),
    // A memory that is freed may be none.
    ("TRITONBACKEND_MemoryManagerFree", "buffer"),
    // What the user may leave out, and what is only stored.
    ("TRITONSERVER_BufferAttributesSetCudaIpcHandle", "cuda_ipc_handle"),
    ("TRITONBACKEND_BackendSetState", "state"),
    ("TRITONBACKEND_ModelSetState", "state"),
    ("TRITONBACKEND_ModelInstanceSetState", "state"),
    ("TRITONREPOAGENT_ModelSetState", "state"),
    ("TRITONREPOAGENT_SetState", "state"),
    // Setters that keep a handle for later: the report looks at it.
    ("TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance", "model_instance"),
    ("TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory", "response_factory"),
    // A caller that does not know the size, or the name.
    ("TRITONBACKEND_RequestOutputBufferProperties", "byte_size"),
    ("TRITONBACKEND_RequestOutputBufferProperties", "name"),
    // No policy: what is there for all.
    ("TRITONBACKEND_InputPropertiesForHostPolicy", "host_policy_name"),
    ("TRITONBACKEND_InputBufferForHostPolicy", "host_policy_name"),
    // A pointer that only goes back to the application's own functions.
    ("TRITONSERVER_InferenceRequestSetReleaseCallback", "request_release_userp"),
    ("TRITONSERVER_InferenceRequestSetResponseCallback", "response_allocator_userp"),
    ("TRITONSERVER_InferenceRequestSetResponseCallback", "response_userp"),
    ("TRITONSERVER_InferenceTraceNew", "trace_userp"),
    ("TRITONSERVER_InferenceTraceTensorNew", "trace_userp"),
    // Functions that an allocator may do without.
    ("TRITONSERVER_ResponseAllocatorNew", "start_fn"),
    ("TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction", "buffer_attributes_fn"),
    ("TRITONSERVER_ResponseAllocatorSetQueryFunction", "query_fn"),
    // Messages go to no function; what it gets back is its own affair.
    ("TRITONSERVER_ServerOptionsSetLogCallback", "callback"),
    ("TRITONSERVER_ServerOptionsSetLogCallback", "userp"),
    // An inference that nobody traces.
    ("TRITONSERVER_ServerInferAsync", "trace"),
    // An error without a text is an error still.
    ("TRITONSERVER_ErrorNew", "msg"),
    // What a model's properties mean is nothing for any of them, which a caller need not be told.
    ("TRITONSERVER_ServerModelBatchProperties", "voidp"),
    ("TRITONSERVER_ServerModelTransactionProperties", "voidp"),
    // The attributes at hand speak of no bytes.
    ("TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes", "base"),
];

/// Setters that keep a handle for later: the report looks at it.
const LOOKED_AT_LATER: &[&str] = &[
    "TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance",
    "TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory",
];

/// Where these calls are refused for another reason before the pointer would be used, and how the message begins then:
/// the handles at hand have no profile, state and so on.
const REFUSED_BEFORE: &[(&str, &str, &str)] = &[
    ("TRITONBACKEND_ModelInstanceProfileName", "profile_name", "out of bounds index 0"),
    ("TRITONBACKEND_ModelInstanceSecondaryDeviceProperties", "kind", "out of bounds index 0"),
    ("TRITONBACKEND_ModelInstanceSecondaryDeviceProperties", "id", "out of bounds index 0"),
    ("TRITONBACKEND_StateNew", "shape", "unable to add state 'INPUT0'"),
    (
        "TRITONBACKEND_RequestCorrelationIdString",
        "id",
        "[request id: <id_unknown>] correlation ID in request is not a string",
    ),
    (
        "TRITONSERVER_InferenceRequestCorrelationIdString",
        "correlation_id",
        "given request's correlation id is not a string",
    ),
    (
        "TRITONSERVER_InferenceRequestIsCancelled",
        "is_cancelled",
        "It is not possible to query cancellation status before calling TRITONSERVER_InferAsync.",
    ),
];

/// The same of wrong handles.
const WRONG_HANDLE_REFUSED_BEFORE: &[(&str, &str, &str)] = &[
    (
        "TRITONSERVER_ServerInferAsync",
        "trace",
        "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0'",
    ),
    ("TRITONSERVER_MetricNewWithArgs", "args", "labels must not be NULL"),
];

/// Functions whose results may all be left out: only the handle is needed.
const ASKS_WHAT_IT_LIKES: &[&str] = &[
    "TRITONBACKEND_InputProperties",
    "TRITONBACKEND_InputPropertiesForHostPolicy",
    "TRITONBACKEND_InferenceResponseOutput",
    "TRITONBACKEND_InferenceResponseOutputByName",
];

#[derive(Debug)]
struct Parameter {
    kind: String,
    name: String,
}

#[derive(Debug)]
struct Function {
    result: String,
    name: String,
    parameters: Vec<Parameter>,
}

/// The functions that the header says the server offers.
fn offered(header: &str) -> Vec<Function> {
    let starts = ["TRITONSERVER", "TRITONBACKEND", "TRITONREPOAGENT", "TRITONCACHE", "NEREID"]
        .map(|api| format!("{api}_DECLSPEC "));
    let mut functions = Vec::new();
    let lines: Vec<&str> = header.lines().filter(|line| !line.starts_with('#')).collect();
    for statement in lines.join("\n").split(';') {
        let text = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some(declaration) = starts.iter().find_map(|start| text.rsplit_once(start.as_str())) else { continue };
        let declaration = declaration.1;
        let (head, tail) = declaration.split_once('(').expect("a function");
        let at = head.rfind([' ', '*']).expect("a result and a name");
        let (result, name) = head.split_at(at + 1);
        let list = tail.trim_end_matches(')');
        let parameters =
            list.split(',').map(str::trim).filter(|parameter| !parameter.is_empty() && *parameter != "void");
        let parameters = parameters.map(|parameter| {
            let at = parameter.rfind([' ', '*']).expect("a type and a name");
            Parameter { kind: parameter[..=at].trim().to_owned(), name: parameter[at + 1..].to_owned() }
        });
        functions.push(Function {
            result: result.replace(' ', ""),
            name: name.to_owned(),
            parameters: parameters.collect(),
        });
    }
    functions
}

impl Parameter {
    fn is_pointer(&self) -> bool {
        self.kind.ends_with('*') || self.is_function()
    }

    fn is_function(&self) -> bool {
        self.kind.ends_with("Fn_t")
    }

    /// The kind of handle it is, if it is one.
    fn handle(&self, kinds: &[String]) -> Option<String> {
        let bare = self.kind.replace("const ", "");
        let bare = bare.strip_suffix('*')?.trim();
        kinds.iter().find(|kind| *kind == bare).cloned()
    }

    /// An argument that is right, as far as that can be known without knowing the function.
    fn good(&self, kinds: &[String]) -> String {
        let is_count = self.name.contains("count") || self.name.contains("size") || self.name.contains("version");
        match self.handle(kinds) {
            Some(kind) => format!("h_{kind}"),
            None if self.is_function() => format!("({})nothing", self.kind),
            None if self.kind == "const char*" && self.name == "model_name" => "\"other\"".to_owned(),
            None if self.kind == "const char*" => "\"INPUT0\"".to_owned(),
            None if self.kind.ends_with("TRITONSERVER_DataType") => "TRITONSERVER_TYPE_INT32".to_owned(),
            None if self.kind.ends_with('*') => "(void*)scratch".to_owned(),
            None if is_count => "1".to_owned(),
            None => "0".to_owned(),
        }
    }
}

/// The kinds of handles of the header: the structs that it only names.
fn kinds(header: &str) -> Vec<String> {
    let named = header.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(';'));
    named.map(str::to_owned).collect()
}

/// Whether the backend has a handle of that kind.
fn is_at_hand(kind: &str) -> bool {
    EPILOGUE.contains(&format!("&h_{kind}")) || EPILOGUE.contains(&format!("h_{kind} = "))
}

/// One call with `bad` in place of the parameter `at`.
fn call(function: &Function, at: usize, bad: &str, kinds: &[String]) -> String {
    let argument = |(index, parameter): (usize, &Parameter)| match index == at {
        true => bad.to_owned(),
        false => parameter.good(kinds),
    };
    let arguments: Vec<String> = function.parameters.iter().enumerate().map(argument).collect();
    format!("{}({})", function.name, arguments.join(", "))
}

/// How many calls a part of the backend makes, and how many of them return an error that is judged.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    made: usize,
    judged: usize,
}

/// The source of the backend, and its calls: those with NULL, and those with wrong handles.
fn source(header: &str) -> (String, [Calls; 2]) {
    let (functions, kinds) = (offered(header), kinds(header));
    let mut text = String::from(PROLOGUE);
    for kind in &kinds {
        let _ = writeln!(text, "static {kind}* h_{kind};");
    }
    let mut counts = [Calls::default(); 2];
    let [mut nulls, mut others] = ["nulls", "others"].map(|name| format!("\nstatic void {name}(void) {{\n"));
    for function in &functions {
        let name = &function.name;
        let _ = writeln!(text, "#pragma weak {name}");
        for (at, parameter) in function.parameters.iter().enumerate().filter(|(_, parameter)| parameter.is_pointer()) {
            let is_handle = parameter.handle(&kinds).is_some();
            let is_optional = MAY_BE_NULL.contains(&(name.as_str(), parameter.name.as_str()))
                || (ASKS_WHAT_IT_LIKES.contains(&name.as_str()) && !is_handle && parameter.kind != "const char*");
            let before = REFUSED_BEFORE.iter().find(|row| row.0 == name && row.1 == parameter.name);
            let check = |into: &mut String, counts: &mut Calls, bad: &str, what: &str, begin: &str| {
                counts.made += 1;
                counts.judged += usize::from(function.result == "TRITONSERVER_Error*");
                let call = call(function, at, bad, &kinds);
                let told = format!("{name}: {what} as {}", parameter.name);
                // Of some kinds the backend has no handle to give: NULL stands for it, and may be found first.
                let others = function.parameters.iter().enumerate().filter(|(index, _)| *index != at);
                let lacks = others.filter_map(|(_, parameter)| parameter.handle(&kinds)).any(|kind| !is_at_hand(&kind));
                let line = match function.result == "TRITONSERVER_Error*" {
                    true => {
                        let (any_code, or_null) = (u8::from(before.is_some()), u8::from(lacks));
                        format!("  if ({name}) refused(\"{told}\", \"{begin}\", {any_code}, {or_null}, {call});")
                    }
                    false => format!("  if ({name}) {{ enter(\"{told}\"); (void){call}; }}"),
                };
                let _ = writeln!(into, "{line}");
            };
            if !is_optional {
                check(&mut nulls, &mut counts[0], "NULL", "NULL", before.map_or("", |row| row.2));
            }
            let is_kept = at > 0 && LOOKED_AT_LATER.contains(&name.as_str());
            if let Some(kind) = parameter.handle(&kinds).filter(|_| !is_kept) {
                let other = if kind == "TRITONSERVER_Message" {
                    "TRITONSERVER_BufferAttributes"
                } else {
                    "TRITONSERVER_Message"
                };
                let rows = WRONG_HANDLE_REFUSED_BEFORE.iter();
                let row = rows.copied().find(|row| row.0 == name && row.1 == parameter.name);
                let begin = row.map_or(name.as_str(), |row| row.2);
                check(&mut others, &mut counts[1], &format!("(void*)h_{other}"), "another kind", begin);
                check(&mut others, &mut counts[1], "(void*)scratch", "no handle", begin);
            }
        }
    }
    text += &nulls;
    text += "}\n";
    text += &others;
    text += "}\n";
    text += EPILOGUE;
    (text, counts)
}

const PROLOGUE: &str = r#"/* Written by a test from the header. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonbackend.h"
#include "triton/core/tritoncache.h"
#include "triton/core/tritonrepoagent.h"
#include "triton/core/tritonserver.h"

static char scratch[4096] __attribute__((aligned(64)));
static int calls, judged, wrong;

static void nothing(void) {}

/* The last line before a crash says which call it was in. */
static void enter(const char* what) {
  memset(scratch, 0, sizeof scratch);
  ++calls;
  fprintf(stderr, "mechanical: %s\n", what);
}

/* `name` is what the message has to begin with; without one it says that something is NULL. */
static void judge(const char* what, const char* name, int any_code, int or_null, TRITONSERVER_Error* error) {
  const char* text = error == NULL ? "it succeeded" : TRITONSERVER_ErrorMessage(error);
  const int is_refused =
      error != NULL && (any_code || TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_INVALID_ARG);
  /* In our words, or in Triton's where it has some. */
  const int is_null = strstr(text, "NULL") != NULL || strstr(text, "nullptr") != NULL ||
                      strstr(text, "are not provided while") != NULL;
  const int is_named = name[0] != 0 ? strncmp(text, name, strlen(name)) == 0 || (or_null && is_null) : is_null;
  ++judged;
  if (!is_refused || !is_named) {
    fprintf(stderr, "mechanical WRONG: %s: %s\n", what, text);
    ++wrong;
  }
  TRITONSERVER_ErrorDelete(error);
}

#define refused(what, name, any_code, or_null, call) \
  do {                                               \
    enter(what);                                     \
    TRITONSERVER_Error* error = call;                \
    judge(what, name, any_code, or_null, error);     \
  } while (0)

"#;

const EPILOGUE: &str = r#"
#define expect(call)                                                                    \
  do {                                                                                  \
    TRITONSERVER_Error* failed = call;                                                  \
    if (failed != NULL) {                                                               \
      fprintf(stderr, "mechanical WRONG: %s: %s\n", #call, TRITONSERVER_ErrorMessage(failed)); \
      _Exit(3);                                                                         \
    }                                                                                   \
  } while (0)

static TRITONSERVER_Error* alloc(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType type, int64_t id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id) {
  (void)allocator, (void)name, (void)size, (void)type, (void)id, (void)userp;
  (void)buffer, (void)buffer_userp, (void)actual, (void)actual_id;
  return NULL;
}

static TRITONSERVER_Error* dealloc(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t size,
    TRITONSERVER_MemoryType type, int64_t id) {
  (void)allocator, (void)buffer, (void)buffer_userp, (void)size, (void)type, (void)id;
  return NULL;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes) {
  (void)backend;
  h_TRITONBACKEND_BackendAttribute = attributes;
  return NULL;
}

TRITONBACKEND_ISPEC TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  const int64_t dim = 1;
  (void)count;
  h_TRITONBACKEND_BackendAttribute = NULL;
  h_TRITONBACKEND_ModelInstance = instance;
  h_TRITONBACKEND_Request = requests[0];
  expect(TRITONBACKEND_ModelInstanceModel(instance, &h_TRITONBACKEND_Model));
  expect(TRITONBACKEND_ModelBackend(h_TRITONBACKEND_Model, &h_TRITONBACKEND_Backend));
  expect(TRITONBACKEND_RequestInputByIndex(requests[0], 0, &h_TRITONBACKEND_Input));
  expect(TRITONBACKEND_ResponseNew(&h_TRITONBACKEND_Response, requests[0]));
  expect(TRITONBACKEND_ResponseOutput(
      h_TRITONBACKEND_Response, &h_TRITONBACKEND_Output, "OUTPUT0", TRITONSERVER_TYPE_INT32, &dim, 1));
  expect(TRITONBACKEND_ResponseFactoryNew(&h_TRITONBACKEND_ResponseFactory, requests[0]));
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&h_TRITONBACKEND_ModelInstanceResponseStatistics));
  expect(TRITONSERVER_MessageNewFromSerializedJson(&h_TRITONSERVER_Message, "{}", 2));
  expect(TRITONSERVER_BufferAttributesNew(&h_TRITONSERVER_BufferAttributes));
  h_TRITONSERVER_Error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "kept");
  if (TRITONBACKEND_ModelServer) expect(TRITONBACKEND_ModelServer(h_TRITONBACKEND_Model, &h_TRITONSERVER_Server));
  if (TRITONBACKEND_BackendMemoryManager)
    expect(TRITONBACKEND_BackendMemoryManager(h_TRITONBACKEND_Backend, &h_TRITONBACKEND_MemoryManager));
  if (TRITONSERVER_ServerOptionsNew) expect(TRITONSERVER_ServerOptionsNew(&h_TRITONSERVER_ServerOptions));
  if (TRITONSERVER_ParameterNew)
    h_TRITONSERVER_Parameter = TRITONSERVER_ParameterNew("name", TRITONSERVER_PARAMETER_STRING, "text");
  if (TRITONSERVER_ResponseAllocatorNew)
    expect(TRITONSERVER_ResponseAllocatorNew(&h_TRITONSERVER_ResponseAllocator, alloc, dealloc, NULL));
  if (TRITONSERVER_InferenceRequestNew)
    expect(TRITONSERVER_InferenceRequestNew(&h_TRITONSERVER_InferenceRequest, h_TRITONSERVER_Server, "other", -1));
  if (TRITONSERVER_InferenceRequestAddInput)
    expect(TRITONSERVER_InferenceRequestAddInput(
        h_TRITONSERVER_InferenceRequest, "INPUT0", TRITONSERVER_TYPE_INT32, &dim, 1));
  if (TRITONSERVER_ServerMetrics) {
    TRITONSERVER_Error* error = TRITONSERVER_ServerMetrics(h_TRITONSERVER_Server, &h_TRITONSERVER_Metrics);
    if (error != NULL) h_TRITONSERVER_Metrics = NULL;
    TRITONSERVER_ErrorDelete(error);
  }
  if (TRITONSERVER_MetricFamilyNew)
    expect(TRITONSERVER_MetricFamilyNew(
        &h_TRITONSERVER_MetricFamily, TRITONSERVER_METRIC_KIND_GAUGE, "mechanical", "made by a test"));
  if (TRITONSERVER_MetricNew)
    expect(TRITONSERVER_MetricNew(&h_TRITONSERVER_Metric, h_TRITONSERVER_MetricFamily, NULL, 0));
  if (TRITONSERVER_MetricArgsNew) expect(TRITONSERVER_MetricArgsNew(&h_TRITONSERVER_MetricArgs));

  nulls();
  if (getenv("NEREID_CHECK_HANDLES") != NULL) others();
  fprintf(stderr, "mechanical: %d calls, %d judged, %d wrong\n", calls, judged, wrong);

  if (TRITONSERVER_MetricArgsDelete) expect(TRITONSERVER_MetricArgsDelete(h_TRITONSERVER_MetricArgs));
  if (TRITONSERVER_MetricDelete) expect(TRITONSERVER_MetricDelete(h_TRITONSERVER_Metric));
  if (TRITONSERVER_MetricFamilyDelete) expect(TRITONSERVER_MetricFamilyDelete(h_TRITONSERVER_MetricFamily));
  if (TRITONSERVER_MetricsDelete && h_TRITONSERVER_Metrics) expect(TRITONSERVER_MetricsDelete(h_TRITONSERVER_Metrics));
  if (TRITONSERVER_InferenceRequestDelete) expect(TRITONSERVER_InferenceRequestDelete(h_TRITONSERVER_InferenceRequest));
  if (TRITONSERVER_ResponseAllocatorDelete)
    expect(TRITONSERVER_ResponseAllocatorDelete(h_TRITONSERVER_ResponseAllocator));
  if (TRITONSERVER_ParameterDelete) TRITONSERVER_ParameterDelete(h_TRITONSERVER_Parameter);
  if (TRITONSERVER_ServerOptionsDelete) expect(TRITONSERVER_ServerOptionsDelete(h_TRITONSERVER_ServerOptions));
  TRITONSERVER_ErrorDelete(h_TRITONSERVER_Error);
  expect(TRITONSERVER_BufferAttributesDelete(h_TRITONSERVER_BufferAttributes));
  expect(TRITONSERVER_MessageDelete(h_TRITONSERVER_Message));
  expect(TRITONBACKEND_ModelInstanceResponseStatisticsDelete(h_TRITONBACKEND_ModelInstanceResponseStatistics));
  expect(TRITONBACKEND_ResponseFactoryDelete(h_TRITONBACKEND_ResponseFactory));
  expect(TRITONBACKEND_ResponseDelete(h_TRITONBACKEND_Response));
  expect(TRITONBACKEND_ResponseNew(&h_TRITONBACKEND_Response, requests[0]));
  expect(TRITONBACKEND_ResponseSend(h_TRITONBACKEND_Response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
  expect(TRITONBACKEND_RequestRelease(requests[0], TRITONSERVER_REQUEST_RELEASE_ALL));
  return NULL;
}
"#;

#[test]
fn every_pointer_is_looked_at_before_it_is_used() {
    let header =
        std::fs::read_to_string(compiler::root().join("include/triton/core/tritonserver.h")).expect("the header");
    let functions = offered(&header);
    assert_eq!(functions.len(), 291, "the functions that the server offers, its own nine included");
    let fallible = functions.iter().filter(|function| function.result == "TRITONSERVER_Error*").count();
    assert!(fallible > 250, "{fallible} functions return an error");
    let (text, [nulls, others]) = source(&header);
    let directory = compiler::workshop().join("mechanical");
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("mechanical.c");
    std::fs::write(&file, text).expect("the source");
    let library = directory.join("backends/mechanical/libtriton_mechanical.so");
    if !compiler::library(
        &file,
        &library,
        &["-Wno-cast-function-type", "-Wno-unused-variable", "-Wno-unused-function", "-Wno-address"],
    ) {
        return;
    }
    for (checks, environment) in [(false, &[][..]), (true, &[("NEREID_CHECK_HANDLES", "1")][..])] {
        let repository = Repository::new();
        repository.identity_of("mechanical", "m", 0, &[Pair::new("INT32", "-1")], "");
        repository.identity("other", 0, &[Pair::new("INT32", "-1")]);
        let flag = format!("--backend-directory={}", directory.join("backends").display());
        let server = Server::start_in(usual(), repository.path(), &[&flag], "/v2/health/ready", environment);
        let body =
            br#"{"parameters":{"some":"text"},"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
        let mut peer = Peer::connect(server.http);
        let answer = peer.post("/v2/models/m/infer", &[], body);
        assert_eq!(answer.status, 200, "{}:\n{}", answer.text(), server.log());
        assert_eq!(peer.get("/v2/models/other/ready").status, 200);
        let log = server.stop();
        let wrong: Vec<&str> = log.lines().filter(|line| line.starts_with("mechanical WRONG")).collect();
        let made = nulls.made + if checks { others.made } else { 0 };
        let judged = nulls.judged + if checks { others.judged } else { 0 };
        assert!(wrong.is_empty(), "{} of {made} calls:\n{}", wrong.len(), wrong.join("\n"));
        // A function that the server lacks would not be called, and nothing said of it.
        assert!(log.contains(&format!("mechanical: {made} calls, {judged} judged, 0 wrong")), "{made} {judged}: {log}");
        assert!(!checks || log.contains("at the server's end all handles were given back"), "{log}");
    }
}
