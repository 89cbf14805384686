//! The kernels of this server, each with a function that launches it on memory of a flight.

use std::sync::Arc;

use super::buffer::DeviceBuffer;
use super::driver::{self, Access, Argument, DeviceAddress, Extent, Program};
use super::flight::{Flight, Input, Lanes, Output};
use super::graph::Graph;
use super::kernel::Kernel;

/// Threads of a block: enough to fill any device, and allowed on all.
const BLOCK_THREADS: u32 = 256;
/// Beyond this many blocks, each thread takes several elements.
const BLOCKS_MAX: u32 = 4096;

/// `out[i] = scale * in[i] + bias` over 32-bit numbers, in steps of the whole grid.
pub static AFFINE: Program = Program {
    name: "nereid_affine_f32",
    ptx: concat!(include_str!("kernels/affine.ptx"), "\0"),
    on_host: affine_on_host,
};

/// What an affine kernel computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affine {
    pub scale: f32,
    pub bias: f32,
}

impl Affine {
    /// Launches the kernel on `count` numbers.
    ///
    /// # Panics
    /// If input or output are shorter.
    pub fn launch(
        self,
        flight: &mut Flight,
        kernel: &Kernel,
        input: Input,
        output: Output,
        count: usize,
    ) -> driver::Result<()> {
        let len = checked_len(count, flight.input_len(input), flight.output_len(output));
        let (from, to) = (flight.input_address(input), flight.output_address(output));
        let accesses = accesses(from, to, len);
        // SAFETY: the kernel takes these arguments and reads and writes what the accesses name, which is the flight's.
        unsafe { flight.launch(kernel, extent(count), &self.arguments(from, to, count), &accesses) }
    }

    /// Records the launch for buffers that are kept.
    ///
    /// # Panics
    /// If they are too short.
    pub fn record(
        self,
        lanes: &Lanes,
        kernel: &Kernel,
        pairs: &[(Arc<DeviceBuffer>, Arc<DeviceBuffer>, usize)],
    ) -> driver::Result<Graph> {
        let buffers = pairs.iter().flat_map(|(input, output, _)| [Arc::clone(input), Arc::clone(output)]).collect();
        let enqueue = |stream: &super::stream::Stream| {
            pairs.iter().try_for_each(|(input, output, count)| {
                let len = checked_len(*count, input.len(), output.len());
                let (from, to) = (input.address(), output.address());
                let accesses = accesses(from, to, len);
                // SAFETY: as above; the buffers are the graph's.
                unsafe { stream.launch(kernel, extent(*count), &self.arguments(from, to, *count), &accesses) }
            })
        };
        // SAFETY: the launches use these buffers.
        unsafe { Graph::record(lanes.compute(), buffers, enqueue) }
    }

    fn arguments(self, from: DeviceAddress, to: DeviceAddress, count: usize) -> [Argument; 5] {
        [
            Argument::Address(to),
            Argument::Address(from),
            Argument::U64(count as u64),
            Argument::F32(self.scale),
            Argument::F32(self.bias),
        ]
    }

    /// The same computation on the host.
    pub fn apply(self, value: f32) -> f32 {
        self.scale.mul_add(value, self.bias)
    }
}

fn checked_len(count: usize, input: usize, output: usize) -> usize {
    let len = count.checked_mul(4).filter(|len| *len <= input && *len <= output);
    len.expect("both hold as many numbers: their sizes come from the same count")
}

fn accesses(from: DeviceAddress, to: DeviceAddress, len: usize) -> [Access; 2] {
    [Access { at: from, len, writes: false }, Access { at: to, len, writes: true }]
}

fn extent(count: usize) -> Extent {
    let blocks = count.div_ceil(BLOCK_THREADS as usize).clamp(1, BLOCKS_MAX as usize);
    Extent { blocks: u32::try_from(blocks).unwrap_or(BLOCKS_MAX), threads: BLOCK_THREADS }
}

/// # Safety
/// See [`Program::on_host`].
unsafe fn affine_on_host(arguments: &[Argument]) {
    let &[
        Argument::Address(to),
        Argument::Address(from),
        Argument::U64(count),
        Argument::F32(scale),
        Argument::F32(bias),
    ] = arguments
    else {
        return;
    };
    let affine = Affine { scale, bias };
    for at in 0..usize::try_from(count).unwrap_or(0) {
        let (from, to) = (from.offset(at * 4).0 as usize, to.offset(at * 4).0 as usize);
        // SAFETY: by contract both ranges hold as many numbers, and no other code uses them meanwhile.
        unsafe {
            let value = std::ptr::with_exposed_provenance::<f32>(from).read_unaligned();
            std::ptr::with_exposed_provenance_mut::<f32>(to).write_unaligned(affine.apply(value));
        }
    }
}
