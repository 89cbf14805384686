//! System shared memory of a run: one object for the inputs of all templates and for the outputs of each.
//!
//! Whatever happens, nothing of it stays: the object has a name only from the begin of a run to its end, the server
//! forgets it first, and dropping does both. Outputs have a place for each template, not for each request: requests of
//! one template request the same, so what they write over one another is the same.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::PerfError;
use super::metadata_client::MetadataClient;
use super::model_info::{ModelInfo, TensorFacts};
use super::plan::{Plan, SharedMemory, Template};
use super::request::Placement;
use nereid_memory::align_up;
use nereid_request::DataType;

const DIRECTORY: &str = "/dev/shm";
/// More than this is a mistake, rather than a load.
const BYTES_MAX: usize = 16 << 30;

/// Where the tensors of all templates lie in the arena of a ring: each ring has an arena of its own, with a name of its
/// own, and the same places in it.
#[derive(Debug)]
pub struct ArenaLayout {
    pub plan: Plan,
    /// Of each template, in the order of the streams, without the name.
    pub placements: Vec<Placement>,
    /// Bytes that the arena must have.
    pub bytes: usize,
}

impl ArenaLayout {
    /// None if the plan places no tensor in an arena.
    pub fn of(plan: &Plan, model_info: &ModelInfo) -> Result<Option<ArenaLayout>, PerfError> {
        let SharedMemory::Arena { output_bytes } = plan.work.shared_memory else { return Ok(None) };
        let (mut placements, mut bytes) = (Vec::new(), 0);
        for template in plan.work.streams.iter().flatten() {
            placements.push(place(template, model_info, output_bytes, "", &mut bytes)?);
        }
        Ok(Some(ArenaLayout { plan: plan.clone(), placements, bytes }))
    }
}

/// Dropping it removes the region from the server and from the system.
pub struct Regions {
    name: String,
    path: PathBuf,
    pub file: Arc<File>,
    /// Of each template, in the order of the streams.
    pub placements: Vec<Placement>,
    registered: bool,
    metadata_client: MetadataClient,
}

impl Regions {
    /// None if the plan wants no shared memory.
    pub fn create(plan: &Plan, model_info: &ModelInfo) -> Result<Option<Regions>, PerfError> {
        let SharedMemory::System { output_bytes } = plan.work.shared_memory else { return Ok(None) };
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("nereid-perf-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut end = 0usize;
        let mut placements = Vec::new();
        for template in plan.work.streams.iter().flatten() {
            placements.push(place(template, model_info, output_bytes, &name, &mut end)?);
        }
        let path = PathBuf::from(DIRECTORY).join(&name);
        let system = |source| PerfError::System { what: format!("shared memory {}", path.display()), source };
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path).map_err(system)?;
        let mut regions = Regions {
            name: name.clone(),
            path: path.clone(),
            file: Arc::new(file),
            placements,
            registered: false,
            metadata_client: MetadataClient::for_plan(plan)?,
        };
        regions.file.set_len(end as u64).map_err(system)?;
        for (template, placement) in plan.work.streams.iter().flatten().zip(&regions.placements) {
            for (input, offset) in template.inputs.iter().zip(&placement.inputs) {
                regions.file.write_all_at(&input.data, *offset).map_err(system)?;
            }
        }
        regions.metadata_client.register(&name, &format!("/{name}"), end as u64)?;
        regions.registered = true;
        Ok(Some(regions))
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        if self.registered {
            // A server that is gone has forgotten it.
            let _ = self.metadata_client.unregister(&self.name);
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Places for the tensors of a template behind `end`, which moves.
fn place(
    template: &Template,
    model_info: &ModelInfo,
    output_bytes: usize,
    region: &str,
    end: &mut usize,
) -> Result<Placement, PerfError> {
    let mut take = |len: usize| -> Result<u64, PerfError> {
        let at = align_up(*end);
        // A tensor without bytes lies somewhere too.
        let behind = at.checked_add(len.max(1)).filter(|behind| *behind <= BYTES_MAX);
        *end = behind.ok_or_else(|| {
            PerfError::Plan(format!("the tensors of all requests take more than {BYTES_MAX} bytes of shared memory"))
        })?;
        Ok(at as u64)
    };
    let inputs = template.inputs.iter().map(|input| take(input.data.len())).collect::<Result<_, _>>()?;
    let batch = template.inputs.first().and_then(|input| input.shape.first()).copied().unwrap_or(1);
    let batch = Some(batch).filter(|_| model_info.max_batch_size > 0);
    let wanted = |facts: &&TensorFacts| template.outputs.is_empty() || template.outputs.contains(&facts.name);
    let mut outputs = Vec::new();
    for facts in model_info.outputs.iter().filter(wanted) {
        let room = byte_size(facts, batch).unwrap_or(output_bytes);
        outputs.push((facts.name.clone(), take(room)?, room as u64));
    }
    Ok(Placement { region: region.to_owned(), inputs, outputs })
}

/// Bytes of an output, where its shape determines that; the first dimension is the batch's, if there is one.
fn byte_size(facts: &TensorFacts, batch: Option<i64>) -> Option<usize> {
    let element = DataType::from_name(facts.datatype.as_bytes()).map(DataType::byte_size).filter(|size| *size > 0)?;
    let mut bytes = element;
    for (at, dim) in facts.shape.iter().enumerate() {
        let dim = match batch {
            Some(batch) if at == 0 && !facts.is_shape_tensor => batch,
            _ => *dim,
        };
        bytes = bytes.checked_mul(usize::try_from(dim).ok()?)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Input;
    use nereid_memory::Slice;

    fn facts(name: &str, datatype: &str, shape: &[i64]) -> TensorFacts {
        TensorFacts { name: name.into(), datatype: datatype.into(), shape: shape.to_vec(), ..TensorFacts::default() }
    }

    #[test]
    fn outputs_have_the_room_that_their_shapes_say() {
        let cases = [
            (facts("a", "FP32", &[2, 3]), None, Some(24)),
            (facts("a", "FP16", &[-1, 3]), Some(4), Some(24)),
            (facts("a", "FP16", &[-1, 3]), None, None),
            (facts("a", "BYTES", &[3]), None, None),
            (facts("a", "INT8", &[]), None, Some(1)),
            (facts("a", "INT64", &[i64::MAX, 9]), None, None),
            (facts("a", "NONE", &[1]), None, None),
        ];
        for (facts, batch, bytes) in cases {
            assert_eq!(byte_size(&facts, batch), bytes, "{facts:?}");
        }
    }

    #[test]
    fn no_two_tensors_share_a_place() {
        let input = |len: usize| Input {
            name: "x".into(),
            datatype: "INT8".into(),
            shape: vec![1, len as i64],
            data: Slice::copy_of(&vec![0; len]),
        };
        let model_info = ModelInfo {
            max_batch_size: 8,
            outputs: vec![facts("o", "INT8", &[-1, 100]), facts("p", "BYTES", &[-1, 1])],
            ..ModelInfo::default()
        };
        let mut end = 0;
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for outputs in [vec![], vec!["p".to_owned()]] {
            let template = Template { inputs: vec![input(65), input(0)], outputs, ..Template::default() };
            let placement = place(&template, &model_info, 1000, "r", &mut end).unwrap();
            taken.extend(placement.inputs.iter().zip([65, 1]).map(|(at, len)| (*at, *at + len)));
            taken.extend(placement.outputs.iter().map(|(_, at, room)| (*at, *at + room)));
        }
        assert_eq!(taken.len(), 7);
        assert!(taken.iter().all(|(at, _)| at % 64 == 0));
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{taken:?}");
        assert!(taken.last().unwrap().1 <= end as u64);
        let huge = Template { inputs: vec![input(1)], ..Template::default() };
        assert!(place(&huge, &model_info, usize::MAX, "r", &mut end).is_err());
    }
}
