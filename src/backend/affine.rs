//! `affine`: each output is `scale * input + bias`, on the CPU or on a GPU.
//!
//! A model is any number of pairs of 32-bit tensors of one shape, `INPUT<i>` and `OUTPUT<i>`, and the parameters
//! `scale` and `bias` (1 and 0). Its computation is negligible, so its cost is the server's cost of moving a batch to a
//! device and back; it measures the GPU path as `identity` measures the network path.

mod buckets;
mod device;
mod host;
mod model;

use std::sync::Arc;

use self::device::DeviceInstance;
use self::host::HostInstance;
use self::model::AffineModel;
use super::{Attributes, Backend, Instance, InstanceContext, Model, ModelContext};
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

/// The backend; its models share no state.
#[derive(Debug, Default)]
pub struct AffineBackend;

impl Backend for AffineBackend {
    fn name(&self) -> &str {
        "affine"
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            preferred_groups: vec![PreferredGroup::new(Kind::Gpu, 1), PreferredGroup::new(Kind::Cpu, 1)],
            parallel_instance_loading: true,
            ..Attributes::default()
        }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        AffineModel::read(context).map(drop)
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(AffineModel::read(&context)?))
    }
}

impl Model for AffineModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        match (context.kind, context.gpu.clone()) {
            (Kind::Gpu, Some(gpu)) => Ok(Box::new(DeviceInstance::new(context, &gpu, *self)?)),
            (Kind::Gpu, None) => {
                Err(Status::unsupported(format!("instance '{}' has no GPU {}", context.name, context.device)))
            }
            _ => Ok(Box::new(HostInstance::new(context, *self))),
        }
    }
}

#[cfg(test)]
mod tests;
