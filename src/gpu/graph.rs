//! Work that is recorded once and launched as one (CUDA graphs).

use std::sync::Arc;

use super::buffer::DeviceBuffer;
use super::driver::{self, GraphHandle};
use super::stream::Stream;

/// Recorded work, with the buffers that it uses.
pub struct Graph {
    handle: GraphHandle,
    /// The device, by one of the buffers.
    buffers: Vec<Arc<DeviceBuffer>>,
    stream_gpu: super::device::Gpu,
}

impl Graph {
    /// Records the work that `enqueue` puts into the stream.
    ///
    /// # Safety
    /// The recorded work uses no other memory than `buffers`, and memory that outlives the graph.
    pub unsafe fn record(
        stream: &Stream,
        buffers: Vec<Arc<DeviceBuffer>>,
        enqueue: impl FnOnce(&Stream) -> driver::Result<()>,
    ) -> driver::Result<Graph> {
        let gpu = stream.gpu().clone();
        let (driver, ordinal) = (gpu.driver(), gpu.ordinal());
        let _alone = super::capture::exclusive();
        gpu.record_if_failed(driver.begin_capture(ordinal, stream.handle()))?;
        let enqueued = enqueue(stream);
        // Ended in any case: a stream in the middle of a recording cannot be used.
        let handle = gpu.record_if_failed(driver.end_capture(ordinal, stream.handle()));
        let graph = Graph { handle: handle?, buffers, stream_gpu: gpu };
        enqueued.map(|()| graph)
    }

    /// The caller keeps the graph, and has its buffers alone, until the launch is complete: a flight does.
    pub(super) fn launch(&self, stream: &Stream) -> driver::Result<()> {
        let gpu = stream.gpu();
        // SAFETY: the graph holds the memory, and the flight that launches holds the graph.
        gpu.record_if_failed(unsafe { gpu.driver().launch_graph(gpu.ordinal(), stream.handle(), self.handle) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: flights that launched it hold it until they are complete.
        unsafe { self.stream_gpu.driver().destroy_graph(self.stream_gpu.ordinal(), self.handle) }
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} buffers)", self.buffers.len())
    }
}
