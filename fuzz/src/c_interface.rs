//! Sequences of calls of the C interface, with the ledger of handles on.
//!
//! A call succeeds if its handles are live ones of the kinds that it takes; any other handle, one that was given back
//! above all, is an INVALID_ARG. When everything is given back, the ledger is empty.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Once;

use tritonserver::abi::fuzzing::held_handles;
use tritonserver::abi::server::buffer_attributes::{
    BufferAttributes, TRITONSERVER_BufferAttributesByteSize, TRITONSERVER_BufferAttributesDelete,
    TRITONSERVER_BufferAttributesNew, TRITONSERVER_BufferAttributesSetByteSize,
};
use tritonserver::abi::server::custom_metrics::{
    Metric, MetricArgs, MetricFamily, TRITONSERVER_GetMetricFamilyKind, TRITONSERVER_MetricArgsDelete,
    TRITONSERVER_MetricArgsNew, TRITONSERVER_MetricArgsSetHistogram, TRITONSERVER_MetricDelete,
    TRITONSERVER_MetricFamilyDelete, TRITONSERVER_MetricFamilyNew, TRITONSERVER_MetricIncrement,
    TRITONSERVER_MetricNewWithArgs,
};
use tritonserver::abi::server::options::{
    ServerOptions, TRITONSERVER_ServerOptionsDelete, TRITONSERVER_ServerOptionsNew,
    TRITONSERVER_ServerOptionsSetServerId,
};
use tritonserver::abi::server::parameters::{Parameter, TRITONSERVER_ParameterDelete, TRITONSERVER_ParameterNew};
use tritonserver::abi::server::{
    Error, Message, TRITONSERVER_ErrorCodeString, TRITONSERVER_ErrorDelete, TRITONSERVER_ErrorMessage,
    TRITONSERVER_ErrorNew, TRITONSERVER_MessageDelete, TRITONSERVER_MessageNewFromSerializedJson,
    TRITONSERVER_MessageSerializeToJson,
};

use crate::{Target, split};

pub const TARGET: Target = Target { name: "c_interface", run, runs: 2_500, words: &[], seeds };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Options,
    Attributes,
    Family,
    Args,
    Metric,
    Parameter,
    Error,
}

const KINDS: [Kind; 8] = [
    Kind::Message,
    Kind::Options,
    Kind::Attributes,
    Kind::Family,
    Kind::Args,
    Kind::Metric,
    Kind::Parameter,
    Kind::Error,
];

/// What the application holds, or held.
#[derive(Debug, Clone, Copy)]
struct Handle {
    kind: Kind,
    at: *mut c_void,
    is_live: bool,
    /// Of arguments: they have buckets. Of a metric: the number of its family among the handles.
    detail: usize,
}

/// Objects at a time; with all their deaths fewer than the ledger remembers.
const HANDLES_MAX: usize = 64;

fn run(data: &[u8]) -> bool {
    static ON: Once = Once::new();
    // SAFETY: the first call of this program into the interface follows, and nothing reads the environment meanwhile.
    ON.call_once(|| unsafe { std::env::set_var("NEREID_CHECK_HANDLES", "1") });
    let (_, mut calls) = split(data);
    let mut application = Application::default();
    while let [call, which, other, rest @ ..] = calls {
        calls = rest;
        application.call(*call, usize::from(*which), usize::from(*other));
    }
    let calls = application.calls;
    application.give_all_back();
    let held = held_handles();
    assert!(held.is_empty(), "the ledger has {held:?}");
    calls > 0
}

#[derive(Default)]
struct Application {
    handles: Vec<Handle>,
    /// Calls that succeeded, creations aside.
    calls: usize,
}

/// The code of an error and its message; the error is given back.
fn ended(error: *mut Error) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error came from a call just now, and its texts are copied before it is deleted.
    unsafe {
        let text = |text: *const c_char| CStr::from_ptr(text).to_string_lossy().into_owned();
        let described =
            format!("{}: {}", text(TRITONSERVER_ErrorCodeString(error)), text(TRITONSERVER_ErrorMessage(error)));
        TRITONSERVER_ErrorDelete(error);
        Err(described)
    }
}

impl Application {
    fn call(&mut self, call: u8, which: usize, other: usize) {
        match call % 4 {
            0 => self.create(KINDS[which % KINDS.len()], other),
            1 => self.delete(which, KINDS[other % KINDS.len()]),
            // Of its own kind more often than of any.
            2 => {
                let kind = self.handles.get(which % HANDLES_MAX).map_or(Kind::Message, |handle| handle.kind);
                self.delete(which, kind);
            }
            _ => self.use_as(which, other),
        }
    }

    /// NULL where there is no handle of that number.
    fn handle(&self, which: usize) -> Option<Handle> {
        self.handles.get(which % HANDLES_MAX).copied()
    }

    fn add(&mut self, kind: Kind, at: *mut c_void, detail: usize) {
        assert!(!at.is_null(), "{kind:?} is NULL");
        // An address that was used before means the new object.
        self.handles.iter_mut().filter(|handle| handle.at == at).for_each(|handle| {
            assert!(!handle.is_live, "two live objects at one address");
            handle.at = null_mut();
        });
        self.handles.push(Handle { kind, at, is_live: true, detail });
    }

    fn create(&mut self, kind: Kind, other: usize) {
        if self.handles.len() >= HANDLES_MAX {
            return;
        }
        // SAFETY: every pointer is that of a live variable or a constant text; handles may be anything, which the
        // ledger finds out before they are used.
        unsafe {
            match kind {
                Kind::Message => {
                    let json = c"{\"a\":[1,2]}";
                    let mut message = null_mut();
                    ended(TRITONSERVER_MessageNewFromSerializedJson(&mut message, json.as_ptr(), 11))
                        .expect("a message");
                    self.add(kind, message.cast(), 0);
                }
                Kind::Options => {
                    let mut options = null_mut();
                    ended(TRITONSERVER_ServerOptionsNew(&mut options)).expect("options");
                    self.add(kind, options.cast(), 0);
                }
                Kind::Attributes => {
                    let mut attributes = null_mut();
                    ended(TRITONSERVER_BufferAttributesNew(&mut attributes)).expect("attributes");
                    self.add(kind, attributes.cast(), 0);
                }
                Kind::Family => {
                    let mut family = null_mut();
                    // A counter or a histogram, each of a name of its own.
                    let (number, name) =
                        if other.is_multiple_of(2) { (0, c"fuzz_counter") } else { (2, c"fuzz_histogram") };
                    let made = TRITONSERVER_MetricFamilyNew(&mut family, number, name.as_ptr(), c"help".as_ptr());
                    ended(made).expect("a family");
                    self.add(kind, family.cast(), number as usize);
                }
                Kind::Args => {
                    let mut args = null_mut();
                    ended(TRITONSERVER_MetricArgsNew(&mut args)).expect("arguments");
                    self.add(kind, args.cast(), 0);
                }
                Kind::Metric => self.create_metric(other),
                Kind::Parameter => {
                    let parameter = TRITONSERVER_ParameterNew(c"name".as_ptr(), 0, c"value".as_ptr().cast());
                    self.add(kind, parameter.cast(), 0);
                }
                Kind::Error => {
                    let error = TRITONSERVER_ErrorNew(2, c"lost".as_ptr());
                    self.add(kind, error.cast(), 0);
                }
            }
        }
    }

    /// A metric of any handle as its family, with any as its arguments or its label.
    fn create_metric(&mut self, other: usize) {
        let family_at = other % 8;
        let (family, args, label) = (self.handle(family_at), self.handle(other / 4), self.handle(other / 16));
        let mut metric: *mut Metric = null_mut();
        let labels: [*const Parameter; 1] = [label.map_or(null(), |label| label.at.cast::<Parameter>().cast_const())];
        let count = u64::from(other.is_multiple_of(3));
        // SAFETY: as in `create`.
        let made = ended(unsafe {
            TRITONSERVER_MetricNewWithArgs(
                &mut metric,
                family.map_or(null(), |family| family.at.cast::<MetricFamily>().cast_const()),
                labels.as_ptr(),
                count,
                args.map_or(null(), |args| args.at.cast::<MetricArgs>().cast_const()),
            )
        });
        let is = |handle: Option<Handle>, kind: Kind| {
            handle.is_some_and(|handle| handle.is_live && handle.kind == kind && !handle.at.is_null())
        };
        let has_args = args.is_some_and(|args| !args.at.is_null());
        let handles_are_right = is(family, Kind::Family)
            && (!has_args || is(args, Kind::Args))
            && (count == 0 || is(label, Kind::Parameter));
        match made {
            Ok(()) => {
                assert!(handles_are_right, "a metric of {family:?}, {args:?} and {label:?}");
                self.calls += 1;
                self.add(Kind::Metric, metric.cast(), family_at);
            }
            // Right handles may still be arguments of another kind of metric.
            Err(error) => assert!(error.starts_with("Invalid argument: "), "{error}"),
        }
    }

    /// Gives a handle back as one of `kind`.
    fn delete(&mut self, which: usize, kind: Kind) {
        let handle = self.handle(which);
        let at = handle.map_or(null_mut(), |handle| handle.at);
        let is_right = handle.is_some_and(|handle| handle.is_live && handle.kind == kind && !handle.at.is_null());
        let number = which % HANDLES_MAX;
        let has_metrics = is_right
            && kind == Kind::Family
            && self.handles.iter().any(|other| other.kind == Kind::Metric && other.is_live && other.detail == number);
        // SAFETY: as in `create`.
        let outcome = unsafe {
            match kind {
                Kind::Message => ended(TRITONSERVER_MessageDelete(at.cast::<Message>())),
                Kind::Options => ended(TRITONSERVER_ServerOptionsDelete(at.cast::<ServerOptions>())),
                Kind::Attributes => ended(TRITONSERVER_BufferAttributesDelete(at.cast::<BufferAttributes>())),
                Kind::Family => ended(TRITONSERVER_MetricFamilyDelete(at.cast::<MetricFamily>())),
                Kind::Args => ended(TRITONSERVER_MetricArgsDelete(at.cast::<MetricArgs>())),
                Kind::Metric => ended(TRITONSERVER_MetricDelete(at.cast::<Metric>())),
                // These two say nothing; the ledger shows what they did.
                Kind::Parameter => {
                    TRITONSERVER_ParameterDelete(at.cast::<Parameter>());
                    if is_right { Ok(()) } else { Err("Invalid argument: nothing is said".to_owned()) }
                }
                Kind::Error => {
                    TRITONSERVER_ErrorDelete(at.cast::<Error>());
                    if is_right { Ok(()) } else { Err("Invalid argument: nothing is said".to_owned()) }
                }
            }
        };
        match outcome {
            Ok(()) if at.is_null() => {}
            Ok(()) => {
                assert!(is_right && !has_metrics, "{handle:?} was deleted as {kind:?}");
                self.handles[number].is_live = false;
                self.calls += 1;
            }
            Err(error) if has_metrics => assert!(error.contains("dependent metrics"), "{error}"),
            Err(error) => {
                assert!(!is_right, "{handle:?} as {kind:?}: {error}");
                assert!(error.starts_with("Invalid argument: "), "{handle:?} as {kind:?}: {error}");
            }
        }
    }

    /// Passes a handle to a function of any kind.
    fn use_as(&mut self, which: usize, other: usize) {
        let handle = self.handle(which);
        let at = handle.map_or(null_mut(), |handle| handle.at);
        let own = handle.map_or(Kind::Message, |handle| handle.kind);
        let kind = if other.is_multiple_of(2) { own } else { KINDS[other / 2 % KINDS.len()] };
        // SAFETY: as in `create`.
        let outcome = unsafe {
            match kind {
                Kind::Message => {
                    let (mut base, mut len) = (null(), 0);
                    ended(TRITONSERVER_MessageSerializeToJson(at.cast::<Message>(), &mut base, &mut len))
                }
                Kind::Options => {
                    ended(TRITONSERVER_ServerOptionsSetServerId(at.cast::<ServerOptions>(), c"id".as_ptr()))
                }
                Kind::Attributes if other % 4 < 2 => {
                    ended(TRITONSERVER_BufferAttributesSetByteSize(at.cast::<BufferAttributes>(), other))
                }
                Kind::Attributes => {
                    let mut size = 0;
                    ended(TRITONSERVER_BufferAttributesByteSize(at.cast::<BufferAttributes>(), &mut size))
                }
                Kind::Family => {
                    let mut kind = 0;
                    ended(TRITONSERVER_GetMetricFamilyKind(at.cast::<MetricFamily>(), &mut kind))
                }
                Kind::Args => {
                    let buckets = [0.5, 1.0];
                    ended(TRITONSERVER_MetricArgsSetHistogram(at.cast::<MetricArgs>(), buckets.as_ptr(), 2))
                }
                Kind::Metric => match ended(TRITONSERVER_MetricIncrement(at.cast::<Metric>(), 1.0)) {
                    // A histogram cannot be incremented.
                    Err(error) if error.starts_with("Unsupported: ") => Ok(()),
                    outcome => outcome,
                },
                // No function takes one alone.
                Kind::Parameter => return,
                Kind::Error => {
                    let text = CStr::from_ptr(TRITONSERVER_ErrorMessage(at.cast::<Error>()));
                    if text == c"lost" { Ok(()) } else { Err("Invalid argument: no text".to_owned()) }
                }
            }
        };
        let is_right = handle.is_some_and(|handle| handle.is_live && handle.kind == kind && !handle.at.is_null());
        match outcome {
            Ok(()) => {
                assert!(is_right, "{handle:?} was taken for a {kind:?}");
                self.calls += 1;
            }
            Err(error) => {
                assert!(!is_right, "{handle:?} as {kind:?}: {error}");
                assert!(error.starts_with("Invalid argument: "), "{handle:?} as {kind:?}: {error}");
            }
        }
    }

    /// Metrics before their families.
    fn give_all_back(&mut self) {
        for is_last in [false, true] {
            for number in 0..self.handles.len() {
                let Handle { kind, is_live, .. } = self.handles[number];
                if is_live && (kind == Kind::Family) == is_last {
                    self.delete(number, kind);
                    assert!(!self.handles[number].is_live, "{kind:?} could not be given back");
                }
            }
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    // Creations of every kind, uses and deletions, first in order.
    let create_all: Vec<u8> = (0..8).flat_map(|kind| [0, kind, 0]).collect();
    let use_all: Vec<u8> = (0..8).flat_map(|which| [3, which, 0]).collect();
    let delete_all: Vec<u8> = (0..8).flat_map(|which| [2, which, 0]).collect();
    let histogram = [0, 3, 1, 0, 4, 0, 3, 1, 0, 0, 5, 4, 2, 1, 0, 0, 5, 4, 3, 2, 0];
    let seeds = [
        [&create_all[..], &use_all, &delete_all].concat(),
        [&create_all[..], &delete_all, &use_all, &delete_all].concat(),
        histogram.to_vec(),
        [&create_all[..], &[1, 0, 1, 1, 1, 2, 1, 2, 3, 1, 3, 4, 3, 0, 3, 3, 1, 5, 3, 2, 7]].concat(),
    ];
    seeds.into_iter().map(|seed| [&[0; 4][..], &seed].concat()).collect()
}
