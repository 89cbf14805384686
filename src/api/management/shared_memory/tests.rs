//! The texts of contract/http.md section 4 and contract/grpc.md section 6, and the order of the checks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;

use super::*;
use nereid_gpu::driver::Driver as _;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpus, Settings};
use nereid_memory::regions::testing::{Object, registry};
use nereid_request::Code;

use MemoryKind::{Cuda, System};
use RegionAction::{Register, Status as List, Unregister};

const DISABLED: &str = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";

/// Without a driver.
fn terms(is_allowed: bool) -> Terms {
    Terms { is_allowed, has_gpus: false }
}

const GPUS: Terms = Terms { is_allowed: true, has_gpus: true };

fn body(text: &str) -> Slice {
    Slice::copy_of(text.as_bytes())
}

fn http(kind: MemoryKind, action: RegionAction, name: Option<&str>, text: &str) -> Result<RegionRequest, Status> {
    read_http(kind, action, name.map(str::as_bytes), &body(text), terms(true))
}

#[test]
fn what_a_registration_over_http_lacks_is_named_in_order() {
    for (name, text, code, expected) in [
        (None, "", Code::InvalidArg, "'region name' is necessary to register system shared memory region"),
        (Some("r"), "", Code::Internal, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (Some("r"), r#"{"offset":"x"}"#, Code::InvalidArg, "Shared memory register request has no 'key' field"),
        (Some("r"), r#"{"key":1}"#, Code::Internal, "attempt to access JSON non-string as string"),
        (
            Some("r"),
            r#"{"key":"","offset":-1}"#,
            Code::Internal,
            "attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            Some("r"),
            r#"{"key":"","offset":0}"#,
            Code::InvalidArg,
            "Shared memory register request has no 'byte_size' field",
        ),
        (
            Some("r"),
            r#"{"key":"","byte_size":1.0}"#,
            Code::Internal,
            "attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
    ] {
        let status = http(System, Register, name, text).unwrap_err();
        assert_eq!((status.code, &*status.message), (code, expected), "{name:?} {text}");
    }
    let expected =
        |offset, byte_size| RegionRequest::Register { name: b"r"[..].into(), key: b"/k"[..].into(), offset, byte_size };
    let found = http(System, Register, Some("r"), r#"{"key":"/k","byte_size":18446744073709551615}"#);
    assert_eq!(found, Ok(expected(0, u64::MAX)));
    let found = http(System, Register, Some("r"), r#"{"byte_size":5,"offset":4096,"key":"/k"}"#);
    assert_eq!(found, Ok(expected(4096, 5)));
}

#[test]
fn without_the_flag_only_the_list_is_answered_over_http() {
    let closed =
        |kind, action, name: Option<&str>| read_http(kind, action, name.map(str::as_bytes), &body(""), terms(false));
    for kind in [System, Cuda] {
        for (action, name) in [(Register, None), (Register, Some("r")), (Unregister, None), (Unregister, Some("r"))] {
            assert_eq!(closed(kind, action, name), Err(Status::unsupported(DISABLED)), "{kind:?} {action:?} {name:?}");
        }
        assert_eq!(closed(kind, List, None), Ok(RegionRequest::Status(kind, None)));
    }
}

#[test]
fn there_is_no_cuda_memory_to_register() {
    let text = "failed to register CUDA shared memory region: 'r', GPUs not supported";
    for sent in ["", "{}", r#"{"raw_handle":{"b64":"AA=="},"device_id":0,"byte_size":1}"#] {
        assert_eq!(http(Cuda, Register, Some("r"), sent), Err(Status::invalid(text)), "{sent}");
    }
    let nameless = "'region name' is necessary to register cuda shared memory region";
    assert_eq!(http(Cuda, Register, None, ""), Err(Status::invalid(nameless)));
    let message = wire::CudaSharedMemoryRegisterRequest { name: "r".to_owned(), ..Default::default() };
    for is_allowed in [true, false] {
        let found = read_grpc(Cuda, Register, &Slice::copy_of(&message.encode_to_vec()), terms(is_allowed));
        assert_eq!(found, Err(Status::invalid(text)), "before the flag is looked at");
    }
}

#[test]
fn messages_are_read_as_routes_are() {
    let read = |kind, action, message: Vec<u8>| read_grpc(kind, action, &Slice::copy_of(&message), terms(true));
    let named = || Some(Box::from(&b"r"[..]));
    let name = || "r".to_owned();
    let status = wire::SystemSharedMemoryStatusRequest { name: name() }.encode_to_vec();
    assert_eq!(read(System, List, status), Ok(RegionRequest::Status(System, named())));
    assert_eq!(read(Cuda, List, vec![]), Ok(RegionRequest::Status(Cuda, None)));
    let unregister = wire::SystemSharedMemoryUnregisterRequest { name: name() }.encode_to_vec();
    assert_eq!(read(System, Unregister, unregister), Ok(RegionRequest::Unregister(System, named())));
    assert_eq!(read(Cuda, Unregister, vec![]), Ok(RegionRequest::Unregister(Cuda, None)));
    // An empty name is one to register, and means all otherwise.
    let register =
        wire::SystemSharedMemoryRegisterRequest { key: "/k".to_owned(), offset: 1, byte_size: 2, ..Default::default() };
    let expected = RegionRequest::Register { name: [].into(), key: b"/k"[..].into(), offset: 1, byte_size: 2 };
    assert_eq!(read(System, Register, register.encode_to_vec()), Ok(expected));
    assert_eq!(read(System, Unregister, vec![0xff]).unwrap_err().message, "Unable to parse request");
    for (kind, action) in [(System, Register), (System, Unregister), (Cuda, Unregister)] {
        assert_eq!(read_grpc(kind, action, &Slice::empty(), terms(false)), Err(Status::unsupported(DISABLED)));
    }
    for kind in [System, Cuda] {
        assert_eq!(read_grpc(kind, List, &Slice::empty(), terms(false)), Ok(RegionRequest::Status(kind, None)));
    }
}

#[test]
fn long_requests_are_not_read() {
    let long = "x".repeat(REQUEST_BYTES_MAX + 1);
    let text = "a shared memory request has 65537 bytes, at most 65536 are read";
    assert_eq!(http(System, Register, Some("r"), &long), Err(Status::invalid(text)));
    for (kind, action) in [(System, List), (System, Register), (Cuda, Register), (Cuda, Unregister)] {
        assert_eq!(
            read_grpc(kind, action, &body(&long), terms(true)),
            Err(Status::invalid(text)),
            "{kind:?} {action:?}"
        );
    }
}

#[test]
fn every_refusal_of_the_registry_has_its_text_and_code() {
    let of = |error: RegisterError| {
        let status = status_of(&error, b"r", b"/k");
        (status.code, status.message.into_owned())
    };
    let failed = "failed to register shared memory region 'r': ";
    for (error, code, text) in [
        (
            RegisterError::InvalidKey,
            Code::InvalidArg,
            "cannot register shared memory region 'r' - invalid shm key '/k'".to_owned(),
        ),
        (
            RegisterError::ReservedKey,
            Code::InvalidArg,
            "cannot register shared memory region 'r' with key '/k' as the key contains the reserved prefix \
             'triton_python_backend_shm_region_'"
                .to_owned(),
        ),
        (RegisterError::Exists, Code::AlreadyExists, "shared memory region 'r' already in manager".to_owned()),
        (RegisterError::Unopenable, Code::Internal, "Unable to open shared memory region: '/k'".to_owned()),
        (RegisterError::InvalidArgs, Code::InvalidArg, format!("{failed}invalid args")),
        (
            RegisterError::Unmappable("Invalid argument".to_owned()),
            Code::InvalidArg,
            format!("{failed}unable to process address spaceInvalid argument"),
        ),
        (
            RegisterError::TooMany,
            Code::Unavailable,
            "cannot register shared memory region 'r': more than 16384 shared memory regions".to_owned(),
        ),
        (
            RegisterError::TooLong,
            Code::InvalidArg,
            "cannot register shared memory region: a name or a key has more than 4096 bytes".to_owned(),
        ),
    ] {
        assert_eq!(of(error), (code, text));
    }
}

#[test]
fn regions_that_stay_mapped_are_named_together() {
    let names: Vec<Box<[u8]>> = [&b"a"[..], b"b", b"c"].map(Box::from).into();
    let fails = |kind, failing: &'static [&'static [u8]]| {
        unregister(kind, &names, |name| match failing.contains(&name) {
            true => Err(std::io::Error::other("no")),
            false => Ok(Unregistered::Now),
        })
    };
    for kind in ["system", "cuda"] {
        assert_eq!(fails(kind, &[]), Ok(()));
        let text = format!("Failed to unregister the following {kind} shared memory regions: a ,b ,");
        assert_eq!(fails(kind, &[b"a", b"b"]), Err(Status::internal(text)));
    }
}

#[test]
fn the_list_knows_names_and_kinds() {
    let object = Object::new(b"abcd");
    let regions = SharedMemory { system: registry(b"r", &object, 4), ..SharedMemory::default() };
    let message = |kind, name: &str| Listing::of(kind, Some(name.as_bytes()), &regions).unwrap_err();
    assert_eq!(message(System, "x"), Status::not_found("Unable to find system shared memory region: 'x'"));
    assert_eq!(message(Cuda, "x"), Status::not_found("Unable to find cuda shared memory region: 'x'"));
    let text = "The region named 'r' is registered as system shared memory, not CUDA shared memory";
    assert_eq!(message(Cuda, "r"), Status::not_found(text));
    let pool = Pool::new(1 << 20);
    let shown = |kind, name: Option<&[u8]>| {
        let listing = Listing::of(kind, name, &regions).unwrap();
        String::from_utf8(listing.to_json(&pool).to_vec()).unwrap()
    };
    let key = String::from_utf8_lossy(object.key()).into_owned();
    let row = format!(r#"[{{"name":"r","key":"{key}","offset":0,"byte_size":4}}]"#);
    assert_eq!(shown(System, None), row);
    assert_eq!(shown(System, Some(b"r")), row);
    assert_eq!(shown(Cuda, None), "[]");
    // Names of the wrong kind, and of no kind, are unregistered without a word.
    for (kind, name) in [(Cuda, Some("r")), (Cuda, None), (System, Some("x"))] {
        let request = RegionRequest::Unregister(kind, name.map(|name| name.as_bytes().into()));
        assert!(matches!(request.carry_out(&regions), Ok(RegionOutcome::Changed)));
        assert_eq!(regions.len(), 1, "{kind:?} {name:?}");
    }
    assert!(RegionRequest::Unregister(System, None).carry_out(&regions).is_ok());
    assert!(regions.is_empty());
}

#[test]
fn long_lists_are_written_elsewhere_and_say_the_same() {
    let object = Object::new(b"abcd");
    let regions = SharedMemory { system: registry(b"r", &object, 4), ..SharedMemory::default() };
    let pool = Pool::new(1 << 20);
    let listed = || RegionRequest::Status(System, None).carry_out(&regions).unwrap();
    let RegionOutcome::Written(mut json) = written(listed(), Protocol::Http, &pool).unwrap() else { panic!() };
    let all = Listing::of(System, None, &regions).unwrap();
    assert_eq!(json.to_vec(), all.to_json(&pool).to_vec());
    let RegionOutcome::Written(mut framed) = written(listed(), Protocol::Grpc, &pool).unwrap() else { panic!() };
    let framed = framed.to_vec();
    let message = listing::system_message(&regions.system.list());
    assert_eq!(wire::SystemSharedMemoryStatusResponse::decode(&framed[5..]).unwrap(), message);
    assert_eq!(message.regions["r"].byte_size, 4);
}

#[test]
fn a_panic_is_answered() {
    assert_eq!(guarded(|| panic!("a bug")).unwrap_err().message, "the operation on shared memory panicked");
}

/// A server with devices, one of which lends an allocation of 16 bytes.
struct Devices {
    memory: SharedMemory,
    driver: Arc<Simulated>,
    handle: IpcHandle,
}

fn devices() -> Devices {
    let driver = Arc::new(Simulated::new(Spec::prompt(2, 5)));
    let gpus = Gpus::with(Arc::clone(&driver) as Arc<_>, &Settings::default());
    let at = driver.allocate(1, 16).unwrap();
    let handle = driver.ipc_export(1, at).unwrap();
    Devices { memory: SharedMemory::new(gpus), driver, handle }
}

fn registration(name: &str, handle: &[u8], device_id: i64, byte_size: u64) -> RegionRequest {
    RegionRequest::RegisterCuda { name: name.as_bytes().into(), handle: handle.into(), device_id, byte_size }
}

#[test]
fn what_a_registration_of_a_device_lacks_over_http_is_named_in_order() {
    let read = |text: &str| read_http(Cuda, Register, Some(b"r"), &body(text), GPUS);
    let no_handle = "Shared memory register request has no 'raw_handle' field";
    let bad_handle = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
    let whole = STANDARD.encode([7; 64]);
    let with = |handle: &str, rest: &str| format!(r#"{{"raw_handle":{{"b64":"{handle}"}}{rest}}}"#);
    let not_a_number = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    for (text, code, expected) in [
        ("{}".to_owned(), Code::InvalidArg, no_handle),
        (r#"{"raw_handle":{}}"#.to_owned(), Code::Internal, "attempt to access non-existing object member 'b64'"),
        (with("", ""), Code::Internal, "attempt to access non-existing object member 'byte_size'"),
        (with("", r#","byte_size":1"#), Code::Internal, "attempt to access non-existing object member 'device_id'"),
        (with("", r#","byte_size":-1,"device_id":0"#), Code::Internal, not_a_number),
        (with("", r#","byte_size":1,"device_id":-1"#), Code::Internal, not_a_number),
        (with("AAAA", r#","byte_size":1,"device_id":0"#), Code::InvalidArg, bad_handle),
        (with(&STANDARD.encode([7; 65]), r#","byte_size":1,"device_id":0"#), Code::InvalidArg, bad_handle),
    ] {
        let status = read(&text).unwrap_err();
        assert_eq!((status.code, &*status.message), (code, expected), "{text}");
    }
    let found = read(&with(&whole, r#","byte_size":5,"device_id":1"#));
    assert_eq!(found, Ok(registration("r", &[7; 64], 1, 5)));
    let nameless = "'region name' is necessary to register cuda shared memory region";
    assert_eq!(read_http(Cuda, Register, None, &body(""), GPUS), Err(Status::invalid(nameless)));
    let closed = Terms { is_allowed: false, has_gpus: true };
    assert_eq!(read_http(Cuda, Register, Some(b"r"), &body(""), closed), Err(Status::unsupported(DISABLED)));
}

#[test]
fn a_registration_of_a_device_over_grpc_is_read_as_it_is() {
    let message = wire::CudaSharedMemoryRegisterRequest {
        name: String::new(),
        raw_handle: vec![7; 64].into(),
        device_id: -3,
        byte_size: 9,
    };
    let message = Slice::copy_of(&message.encode_to_vec());
    assert_eq!(read_grpc(Cuda, Register, &message, GPUS), Ok(registration("", &[7; 64], -3, 9)));
    let closed = Terms { is_allowed: false, has_gpus: true };
    assert_eq!(read_grpc(Cuda, Register, &message, closed), Err(Status::unsupported(DISABLED)));
}

#[test]
fn memory_of_a_device_is_registered_listed_and_taken_off() {
    let Devices { memory, driver, handle } = devices();
    let refused = |request: RegionRequest| request.carry_out(&memory).unwrap_err();
    let invalid = Status::invalid("failed to register shared memory region: invalid args");
    assert_eq!(refused(registration("r", &[1; 64], 1, 1)), invalid, "a handle of nothing");
    assert_eq!(refused(registration("r", &[1; 63], 1, 1)), invalid, "no handle");
    for device in [2, -1, i64::MAX] {
        assert_eq!(refused(registration("r", &handle, device, 1)), invalid, "no device {device}");
    }
    let beyond = Status::invalid("failed to register shared memory region 'r': invalid args");
    assert_eq!(refused(registration("r", &handle, 1, 17)), beyond);
    assert!(registration("r", &handle, 1, 16).carry_out(&memory).is_ok());
    assert!(registration("also", &handle, 0, 4).carry_out(&memory).is_ok(), "the same memory by another name");
    let taken = Status::already_exists("shared memory region 'r' already in manager");
    assert_eq!(refused(registration("r", &handle, 1, 16)), taken);
    let pool = Pool::new(1 << 20);
    let listed = |kind, name: Option<&[u8]>| Listing::of(kind, name, &memory);
    let rows = r#"[{"name":"also","device_id":0,"byte_size":4},{"name":"r","device_id":1,"byte_size":16}]"#;
    assert_eq!(listed(Cuda, None).unwrap().to_json(&pool).to_vec(), rows.as_bytes());
    let message = listing::cuda_message(&memory.gpus.regions().list());
    let row =
        wire::cuda_shared_memory_status_response::RegionStatus { name: "r".to_owned(), device_id: 1, byte_size: 16 };
    assert_eq!((message.regions.len(), &message.regions["r"]), (2, &row));
    let wrong = "The region named 'r' is registered as CUDA shared memory, not system shared memory";
    assert_eq!(listed(System, Some(b"r")).unwrap_err(), Status::not_found(wrong));
    let unknown = "Unable to find cuda shared memory region: 'x'";
    assert_eq!(listed(Cuda, Some(b"x")).unwrap_err(), Status::not_found(unknown));
    for (kind, name, left) in [(System, Some(b"r"), 2), (Cuda, Some(b"x"), 2), (Cuda, Some(b"r"), 1), (Cuda, None, 0)] {
        let request = RegionRequest::Unregister(kind, name.map(|name| name[..].into()));
        assert!(request.carry_out(&memory).is_ok());
        assert_eq!(memory.len(), left, "{kind:?} {name:?}");
    }
    drop(memory);
    assert_eq!(driver.violations(), [] as [&str; 0]);
}

#[test]
fn both_kinds_share_one_space_of_names() {
    let Devices { memory, handle, .. } = devices();
    let object = Object::new(b"abcd");
    let key = || Box::from(object.key());
    let system =
        |name: &str, key| RegionRequest::Register { name: name.as_bytes().into(), key, offset: 0, byte_size: 4 };
    assert!(registration("r", &handle, 1, 16).carry_out(&memory).is_ok());
    let taken = |name: &str| Status::already_exists(format!("shared memory region '{name}' already in manager"));
    assert_eq!(system("r", key()).carry_out(&memory).unwrap_err(), taken("r"));
    let text = "cannot register shared memory region 'r' - invalid shm key '//'";
    let bad_key = system("r", Box::from(&b"//"[..])).carry_out(&memory).unwrap_err();
    assert_eq!(bad_key, Status::invalid(text), "the key is looked at first");
    assert!(system("s", key()).carry_out(&memory).is_ok());
    assert_eq!(registration("s", &handle, 1, 16).carry_out(&memory).unwrap_err(), taken("s"));
}

#[test]
fn a_region_that_is_used_goes_with_its_last_use() {
    let Devices { memory, driver, handle } = devices();
    let unregister = || RegionRequest::Unregister(Cuda, Some(b"r"[..].into())).carry_out(&memory).unwrap();
    assert!(registration("r", &handle, 1, 16).carry_out(&memory).is_ok());
    let one = memory.gpus.regions().get(b"r").unwrap();
    let slice = one.slice(8, 8).unwrap();
    unregister();
    assert_eq!(memory.len(), 1, "it stays listed");
    let other = memory.gpus.regions().get(b"r").unwrap();
    one.end();
    drop(one);
    assert_eq!(memory.len(), 1);
    drop(other);
    assert_eq!(memory.len(), 0);
    assert!(memory.gpus.regions().get(b"r").is_none());
    // It is open as long as its bytes are in use.
    let mut bytes = [1; 8];
    slice.gpu().fetch(&slice, &mut bytes).unwrap();
    drop(slice);
    assert!(registration("r", &handle, 1, 16).carry_out(&memory).is_ok(), "the name is free");
    assert_eq!(driver.violations(), [] as [&str; 0]);
}
