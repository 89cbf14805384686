//! The C names of the types behind handles.

/// A kind of handle, identified by the Rust type behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleKind(&'static str);

/// Types of which every handle is in the registry, so that an unregistered one is invalid.
const KNOWN: &[(&str, &str)] = &[
    ("Access", "TRITONSERVER_Server"),
    ("AgentHandle", "TRITONREPOAGENT_Agent"),
    ("AgentModelHandle", "TRITONREPOAGENT_AgentModel"),
    ("AllocatorHandle", "TRITONCACHE_Allocator"),
    ("AttributeHandle", "TRITONBACKEND_BackendAttribute"),
    ("BackendHandle", "TRITONBACKEND_Backend"),
    ("BufferAttributes", "TRITONSERVER_BufferAttributes"),
    ("EntryHandle", "TRITONCACHE_CacheEntry"),
    ("Error", "TRITONSERVER_Error"),
    ("FactoryHandle", "TRITONBACKEND_ResponseFactory"),
    ("Frontend", "NEREID_Frontend"),
    ("InferenceRequest", "TRITONSERVER_InferenceRequest"),
    ("InferenceResponse", "TRITONSERVER_InferenceResponse"),
    ("InputTensor", "TRITONBACKEND_Input"),
    ("InstanceHandle", "TRITONBACKEND_ModelInstance"),
    ("MemoryManager", "TRITONBACKEND_MemoryManager"),
    ("Message", "TRITONSERVER_Message"),
    ("Metric", "TRITONSERVER_Metric"),
    ("MetricArgs", "TRITONSERVER_MetricArgs"),
    ("MetricFamily", "TRITONSERVER_MetricFamily"),
    ("Metrics", "TRITONSERVER_Metrics"),
    ("ModelHandle", "TRITONBACKEND_Model"),
    ("Observation", "TRITONSERVER_InferenceTrace"),
    ("OutputHandle", "TRITONBACKEND_Output"),
    ("Parameter", "TRITONSERVER_Parameter"),
    ("Request", "TRITONBACKEND_Request"),
    ("ResponseAllocator", "TRITONSERVER_ResponseAllocator"),
    ("ResponseHandle", "TRITONBACKEND_Response"),
    ("ResponseStatisticsHandle", "TRITONBACKEND_ModelInstanceResponseStatistics"),
    ("ServerOptions", "TRITONSERVER_ServerOptions"),
    ("StateHandle", "TRITONBACKEND_State"),
];

pub fn kind_of<T>() -> HandleKind {
    HandleKind(std::any::type_name::<T>())
}

impl HandleKind {
    /// The type without its path.
    fn bare(self) -> &'static str {
        let plain = self.0.split('<').next().unwrap_or(self.0);
        plain.rsplit("::").next().unwrap_or(plain)
    }

    fn known(self) -> Option<&'static str> {
        // A list of handles is not a handle itself.
        if self.0.starts_with('*') {
            return None;
        }
        KNOWN.iter().find(|(bare, _)| *bare == self.bare()).map(|(_, name)| *name)
    }

    /// Whether every handle of this kind is in the registry.
    pub fn is_complete(self) -> bool {
        self.known().is_some()
    }

    /// The name in C, or else the name of the Rust type.
    pub fn name(self) -> &'static str {
        self.known().unwrap_or_else(|| self.bare())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_names_of_c() {
        assert_eq!(kind_of::<nereid_request::Request>().name(), "TRITONBACKEND_Request");
        assert_eq!(kind_of::<crate::abi::server::Error>().name(), "TRITONSERVER_Error");
        assert_eq!(kind_of::<Vec<String>>().name(), "Vec");
        assert!(!kind_of::<Vec<String>>().is_complete());
        assert!(!kind_of::<*const crate::abi::server::Error>().is_complete());
    }
}
