//! The shared memory extensions: status, register and unregister (contract/http.md section 4,
//! contract/grpc.md section 6).
//!
//! The list is answered at once. Mapping and unmapping are system calls that may take their time, and so are opening
//! and closing memory of devices; they, and lists that are long, are left to the registry's own thread, and their
//! answers come by mail. Without a driver there is no CUDA memory: registering it is refused, and there is none to
//! list.

pub(super) mod listing;

use crate::api::error::too_large;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use self::listing::Listing;
use super::base::Management;
use super::outcome::{Outcome, Protocol, RegionOutcome};
use super::repository::from_base64;
use crate::api::error;
use crate::api::mail::Mail;
use crate::api::routes::{MemoryKind, RegionAction};
use nereid_gpu::driver::IpcHandle;
use nereid_gpu::{IpcAllocation, OpenError};
use nereid_memory::regions::{REGIONS_MAX, RegisterError, TEXT_BYTES_MAX, Unregistered};
use nereid_memory::{Gather, Pool, Slice};
use nereid_observe::log::verbose;
use nereid_protocol::grpc::Encoder;
use nereid_protocol::http1::Response;
use nereid_protocol::json::{Document, Value};
use nereid_protocol::service::{CallKey, Replies};
use nereid_request::{RefusalReason, SharedMemory, Status};
use nereid_wire::inference as wire;

/// Regions whose list a shard writes itself.
const LISTED_AT_ONCE: usize = 256;
/// Bytes of a request, which is read on a shard: a name, a key and two numbers need less.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// What a client requests.
#[derive(Debug, Clone, PartialEq)]
enum RegionRequest {
    Register {
        name: Box<[u8]>,
        key: Box<[u8]>,
        offset: u64,
        byte_size: u64,
    },
    RegisterCuda {
        name: Box<[u8]>,
        handle: Box<[u8]>,
        device_id: i64,
        byte_size: u64,
    },
    /// `None`: all of them.
    Unregister(MemoryKind, Option<Box<[u8]>>),
    Status(MemoryKind, Option<Box<[u8]>>),
}

type Answer = Result<RegionOutcome, Status>;

/// What the server has and allows.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// `--allow-client-shm`.
    is_allowed: bool,
    has_gpus: bool,
}

impl RegionRequest {
    fn carry_out(self, memory: &SharedMemory) -> Answer {
        match self {
            RegionRequest::Register { name, key, offset, byte_size } => {
                let done = memory.register(&name, &key, (offset, byte_size));
                done.map_err(|error| status_of(&error, &name, &key))?;
                Ok(RegionOutcome::Changed)
            }
            RegionRequest::RegisterCuda { name, handle, device_id, byte_size } => {
                let refused = |error: OpenError| cuda_status_of(&error, &name);
                let handle: &IpcHandle = (&*handle)
                    .try_into()
                    .map_err(|_| refused(OpenError::InvalidArgs(format!("a handle of {} bytes", handle.len()))))?;
                memory.register_cuda(&name, IpcAllocation { handle, device_id, byte_size }).map_err(refused)?;
                Ok(RegionOutcome::Changed)
            }
            RegionRequest::Unregister(MemoryKind::Cuda, name) => {
                let regions = memory.gpus.regions();
                let names: Vec<Box<[u8]>> = match name {
                    Some(name) => vec![name],
                    None => regions.list().iter().map(|region| region.name().into()).collect(),
                };
                unregister("cuda", &names, |name| Ok(regions.unregister(name)))?;
                Ok(RegionOutcome::Changed)
            }
            RegionRequest::Unregister(MemoryKind::System, name) => {
                let regions = &memory.system;
                let names: Vec<Box<[u8]>> = match name {
                    Some(name) => vec![name],
                    None => regions.list().iter().map(|region| region.name().into()).collect(),
                };
                unregister("system", &names, |name| regions.unregister(name))?;
                Ok(RegionOutcome::Changed)
            }
            RegionRequest::Status(kind, name) => Listing::of(kind, name.as_deref(), memory).map(RegionOutcome::Listed),
        }
    }
}

/// Why an allocation of a device is not registered, in the words of contract/http.md section 4. What the driver said is
/// logged.
fn cuda_status_of(error: &OpenError, name: &[u8]) -> Status {
    let name = String::from_utf8_lossy(name);
    match error {
        OpenError::Exists => Status::already_exists(format!("shared memory region '{name}' already in manager")),
        OpenError::NoDevice => Status::invalid("failed to register shared memory region: invalid args"),
        OpenError::InvalidArgs(cause) => {
            tracing::warn!("CUDA shared memory region '{name}' is not registered: {cause}");
            Status::invalid("failed to register shared memory region: invalid args")
        }
        OpenError::TooLong => {
            Status::invalid(format!("failed to register shared memory region '{name}': invalid args"))
        }
        OpenError::LongName => Status::invalid(format!(
            "cannot register shared memory region: a name or a key has more than {TEXT_BYTES_MAX} bytes"
        )),
        OpenError::TooMany => Status::unavailable(format!(
            "cannot register shared memory region '{name}': more than {REGIONS_MAX} shared memory regions"
        )),
    }
}

/// The texts of contract/http.md section 4.
fn status_of(error: &RegisterError, name: &[u8], key: &[u8]) -> Status {
    let (name, key) = (String::from_utf8_lossy(name), String::from_utf8_lossy(key));
    match error {
        RegisterError::InvalidKey => {
            Status::invalid(format!("cannot register shared memory region '{name}' - invalid shm key '{key}'"))
        }
        RegisterError::ReservedKey => Status::invalid(format!(
            "cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved prefix \
             '{}'",
            RegisterError::RESERVED
        )),
        RegisterError::Exists => Status::already_exists(format!("shared memory region '{name}' already in manager")),
        RegisterError::Unopenable => Status::internal(format!("Unable to open shared memory region: '{key}'")),
        RegisterError::InvalidArgs | RegisterError::Unmappable(_) => {
            Status::invalid(format!("failed to register shared memory region '{name}': {error}"))
        }
        RegisterError::TooLong => Status::invalid(format!("cannot register shared memory region: {error}")),
        RegisterError::TooMany | RegisterError::NoHandler(_) => {
            Status::unavailable(format!("cannot register shared memory region '{name}': {error}"))
        }
    }
}

/// Unregisters one after the other; what cannot be is named at the end.
fn unregister(
    kind: &str,
    names: &[Box<[u8]>],
    one: impl Fn(&[u8]) -> std::io::Result<Unregistered>,
) -> Result<(), Status> {
    let mut failed = String::new();
    for name in names {
        let outcome = one(name);
        let name = String::from_utf8_lossy(name);
        match outcome {
            Ok(Unregistered::Now) => {}
            Ok(Unregistered::WithLastUse) => {
                verbose!(1, "Shared memory region '{name}' will be unregistered after in-flight requests complete.");
            }
            Err(error) => {
                tracing::warn!("shared memory region '{name}' is not unmapped: {error}");
                failed.push_str(&format!("{name} ,"));
            }
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => {
            Err(Status::internal(format!("Failed to unregister the following {kind} shared memory regions: {failed}")))
        }
    }
}

fn disabled() -> Status {
    let text = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";
    Status::unsupported(text)
}

fn no_gpus(name: &[u8]) -> Status {
    let name = String::from_utf8_lossy(name);
    Status::invalid(format!("failed to register CUDA shared memory region: '{name}', GPUs not supported"))
}

/// The request of a route, after all checks that need no region.
fn read_http(
    kind: MemoryKind,
    action: RegionAction,
    name: Option<&[u8]>,
    body: &Slice,
    terms: Terms,
) -> Result<RegionRequest, Status> {
    let named = name.map(Box::from);
    match action {
        RegionAction::Status => return Ok(RegionRequest::Status(kind, named)),
        _ if !terms.is_allowed => return Err(disabled()),
        RegionAction::Unregister => return Ok(RegionRequest::Unregister(kind, named)),
        RegionAction::Register => {}
    }
    let kind_name = match kind {
        MemoryKind::System => "system",
        MemoryKind::Cuda => "cuda",
    };
    let text = || Status::invalid(format!("'region name' is necessary to register {kind_name} shared memory region"));
    let name = named.ok_or_else(text)?;
    if kind == MemoryKind::Cuda && !terms.has_gpus {
        return Err(no_gpus(&name));
    }
    check_length(body)?;
    let document = Document::parse(body.clone()).map_err(internal)?;
    match kind {
        MemoryKind::System => system_registration(name, document.root()),
        MemoryKind::Cuda => cuda_registration(name, document.root()),
    }
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

fn required<'d>(root: Value<'d>, field: &str) -> Result<Value<'d>, Status> {
    let missing = || Status::invalid(format!("Shared memory register request has no '{field}' field"));
    root.find(field).ok_or_else(missing)
}

fn system_registration(name: Box<[u8]>, root: Value<'_>) -> Result<RegionRequest, Status> {
    let key = required(root, "key")?.as_str().map_err(internal)?;
    let offset = root.find("offset").map_or(Ok(0), Value::as_u64).map_err(internal)?;
    let byte_size = required(root, "byte_size")?.as_u64().map_err(internal)?;
    Ok(RegionRequest::Register { name, key: key.into_owned().into(), offset, byte_size })
}

fn cuda_registration(name: Box<[u8]>, root: Value<'_>) -> Result<RegionRequest, Status> {
    let text = required(root, "raw_handle")?.member("b64").and_then(Value::as_str).map_err(internal)?;
    let number = |field: &str| root.member(field).map_err(internal);
    let byte_size = number("byte_size")?.as_u64().map_err(internal)?;
    let device_id = number("device_id")?.as_u64().map_err(internal)?;
    let handle = from_base64(&text)?;
    if handle.len() != size_of::<IpcHandle>() {
        return Err(Status::invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"));
    }
    // No device has a larger number.
    let device_id = i64::try_from(device_id).unwrap_or(i64::MAX);
    Ok(RegionRequest::RegisterCuda { name, handle: handle.into(), device_id, byte_size })
}

fn check_length(request: &Slice) -> Result<(), Status> {
    match request.len() <= REQUEST_BYTES_MAX {
        true => Ok(()),
        false => Err(Status::invalid(format!(
            "a shared memory request has {} bytes, at most {REQUEST_BYTES_MAX} are read",
            request.len()
        ))),
    }
}

fn decode<M: prost::Message + Default>(message: &Slice) -> Result<M, Status> {
    check_length(message)?;
    M::decode(&**message).map_err(|_| Status::internal("Unable to parse request"))
}

/// The request of an RPC. An empty name means all, except to register.
fn read_grpc(kind: MemoryKind, action: RegionAction, message: &Slice, terms: Terms) -> Result<RegionRequest, Status> {
    let some = |name: String| Some(name).filter(|name| !name.is_empty()).map(|name| name.into_bytes().into());
    match (kind, action) {
        (MemoryKind::System, RegionAction::Status) => {
            Ok(RegionRequest::Status(kind, some(decode::<wire::SystemSharedMemoryStatusRequest>(message)?.name)))
        }
        (MemoryKind::Cuda, RegionAction::Status) => {
            Ok(RegionRequest::Status(kind, some(decode::<wire::CudaSharedMemoryStatusRequest>(message)?.name)))
        }
        // Before anything else (contract/grpc.md section 6).
        (MemoryKind::Cuda, RegionAction::Register) if !terms.has_gpus => {
            Err(no_gpus(decode::<wire::CudaSharedMemoryRegisterRequest>(message)?.name.as_bytes()))
        }
        _ if !terms.is_allowed => Err(disabled()),
        (MemoryKind::System, RegionAction::Register) => {
            let request: wire::SystemSharedMemoryRegisterRequest = decode(message)?;
            let wire::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request;
            let (name, key) = (name.into_bytes().into(), key.into_bytes().into());
            Ok(RegionRequest::Register { name, key, offset, byte_size })
        }
        (MemoryKind::Cuda, RegionAction::Register) => {
            let request: wire::CudaSharedMemoryRegisterRequest = decode(message)?;
            let wire::CudaSharedMemoryRegisterRequest { name, raw_handle, device_id, byte_size } = request;
            let (name, handle) = (name.into_bytes().into(), Box::from(&raw_handle[..]));
            Ok(RegionRequest::RegisterCuda { name, handle, device_id, byte_size })
        }
        (MemoryKind::System, RegionAction::Unregister) => Ok(RegionRequest::Unregister(
            kind,
            some(decode::<wire::SystemSharedMemoryUnregisterRequest>(message)?.name),
        )),
        (MemoryKind::Cuda, RegionAction::Unregister) => {
            Ok(RegionRequest::Unregister(kind, some(decode::<wire::CudaSharedMemoryUnregisterRequest>(message)?.name)))
        }
    }
}

impl Management {
    /// `/v2/systemsharedmemory…` and `/v2/cudasharedmemory…`.
    pub(super) fn regions_http(
        &mut self,
        call: CallKey,
        (kind, action, name): (MemoryKind, RegionAction, Option<&[u8]>),
        body: &Slice,
        replies: &mut Replies,
    ) {
        let request = read_http(kind, action, name, body, self.terms());
        self.run_on_regions(call, Protocol::Http, request, replies);
    }

    /// The RPCs of the family.
    pub(super) fn regions_grpc(
        &mut self,
        call: CallKey,
        (kind, action): (MemoryKind, RegionAction),
        message: &Slice,
        replies: &mut Replies,
    ) {
        let request = read_grpc(kind, action, message, self.terms());
        self.run_on_regions(call, Protocol::Grpc, request, replies);
    }

    fn terms(&self) -> Terms {
        let is_allowed = self.facts.settings.allow_client_shm;
        Terms { is_allowed, has_gpus: self.facts.regions.gpus.is_supported() }
    }

    fn run_on_regions(
        &mut self,
        call: CallKey,
        protocol: Protocol,
        request: Result<RegionRequest, Status>,
        replies: &mut Replies,
    ) {
        let request = match request {
            Ok(request) => request,
            Err(status) => return self.done(call, protocol, Err(status), replies),
        };
        let regions = &self.facts.regions;
        if matches!(request, RegionRequest::Status(..)) && regions.len() <= LISTED_AT_ONCE {
            let answer = request.carry_out(regions).map(Outcome::Regions);
            return self.done(call, protocol, answer, replies);
        }
        let (facts, post, pool) = (Arc::clone(&self.facts), Arc::clone(&self.post), self.pool.clone());
        let queued = regions.job_thread().try_run(move || {
            let outcome =
                guarded(|| request.carry_out(&facts.regions).and_then(|found| written(found, protocol, &pool)));
            post(Mail::Done { call, protocol, outcome });
        });
        if let Err(refused) = queued {
            self.done(call, protocol, Err(Status::refused(RefusalReason::Operations, refused.to_string())), replies);
        }
    }

    /// The answer over HTTP.
    pub(super) fn regions_reply(&mut self, outcome: RegionOutcome) -> Response {
        match outcome {
            RegionOutcome::Changed => error::reply(200, error::JSON, Gather::new()),
            RegionOutcome::Listed(listing) => error::reply(200, error::JSON, listing.to_json(&self.pool)),
            RegionOutcome::Written(body) => error::reply(200, error::JSON, body),
        }
    }

    /// The framed answer over gRPC.
    pub(super) fn regions_message(&mut self, outcome: RegionOutcome) -> Result<Gather, Status> {
        match outcome {
            // The answers of all four are empty.
            RegionOutcome::Changed => self.frame(&wire::SystemSharedMemoryRegisterResponse {}),
            RegionOutcome::Listed(Listing::System(regions)) => self.frame(&listing::system_message(&regions)),
            RegionOutcome::Listed(Listing::Cuda(regions)) => self.frame(&listing::cuda_message(&regions)),
            RegionOutcome::Written(framed) => Ok(framed),
        }
    }
}

/// Writes what a shard would have to write at length.
fn written(outcome: RegionOutcome, protocol: Protocol, pool: &Pool) -> Result<RegionOutcome, Status> {
    let RegionOutcome::Listed(listing) = outcome else { return Ok(outcome) };
    let mut written = Gather::new();
    match (protocol, &listing) {
        (Protocol::Http, listing) => written = listing.to_json(pool),
        (Protocol::Grpc, Listing::System(regions)) => {
            Encoder::new().message(&listing::system_message(regions), pool, &mut written).map_err(too_large)?;
        }
        (Protocol::Grpc, Listing::Cuda(regions)) => {
            Encoder::new().message(&listing::cuda_message(regions), pool, &mut written).map_err(too_large)?;
        }
    }
    Ok(RegionOutcome::Written(written))
}

/// The call is answered even if the operation panics.
fn guarded(operation: impl FnOnce() -> Result<RegionOutcome, Status>) -> Result<Outcome, Status> {
    let done = catch_unwind(AssertUnwindSafe(operation));
    done.unwrap_or_else(|_| Err(Status::internal("the operation on shared memory panicked"))).map(Outcome::Regions)
}

#[cfg(test)]
mod tests;
