//! An affine model on a GPU: batches are pipelined over the device: copy in, kernel, copy out.

use std::collections::VecDeque;
use std::sync::Arc;

use super::buckets::Buckets;
use super::model::{AffineModel, output_of, pairs};
use crate::pipeline::{Batch, Pipelined, UNDER_WAY_MAX};
use crate::{Instance, InstanceContext};
use nereid_clock::now_ns;
use nereid_gpu::flight::{Fetched, Output};
use nereid_gpu::kernels::AFFINE;
use nereid_gpu::{DeviceSlice, DeviceTarget, DriverError, Flight, Gpu, Kernel, Lanes, Piece};
use nereid_memory::Slice;
use nereid_request::shared::OutputDestination;
use nereid_request::{InputTensor, OutputTensor, Request, Response, Status};
use nereid_scheduler::Payload;

pub struct DeviceInstance {
    /// Declared before the lanes, which the batches under way use.
    under_way: VecDeque<Batch<Vec<Pending>>>,
    buckets: Buckets,
    kernel: Kernel,
    lanes: Arc<Lanes>,
    context: InstanceContext,
    model: AffineModel,
}

/// One request of a batch.
pub struct Pending {
    request: Box<Request>,
    /// Its outputs, in the order of the request, with the sources of their data.
    outputs: Vec<Option<(OutputTensor, Source)>>,
}

/// The source of an output's data when the batch has completed.
enum Source {
    /// Part of the bytes that were fetched to the host.
    Host(Fetched, std::ops::Range<usize>),
    /// Part of an output on the device.
    Device(Output, std::ops::Range<usize>),
    /// The client's memory, which has the data already.
    Target(DeviceTarget),
}

/// One request's part of an input, and the place for the output that is computed from it.
struct ColumnPart {
    /// Index of the request in the batch.
    request: usize,
    /// Index among the request's outputs.
    position: usize,
    tensor: OutputTensor,
    len: usize,
    destination: OutputDestination,
}

/// All parts of one input of the model.
#[derive(Default)]
struct Column {
    index: usize,
    pieces: Vec<Piece>,
    parts: Vec<ColumnPart>,
    len: usize,
}

impl DeviceInstance {
    pub fn new(context: InstanceContext, gpu: &Gpu, model: AffineModel) -> Result<DeviceInstance, Status> {
        let lanes = Lanes::new(gpu, context.model.gpus.pinned())?;
        let kernel = gpu.kernel(&AFFINE)?;
        let buckets = match model.records_graphs {
            true => Buckets::record(&context, &model, &lanes, &kernel)?,
            false => Buckets::default(),
        };
        Ok(DeviceInstance { under_way: VecDeque::new(), buckets, kernel, lanes, context, model })
    }

    /// The parts that one request adds to the columns, each with the index of its input.
    fn parts(&self, request: &Request, number: usize) -> Result<Vec<(usize, Vec<Piece>, ColumnPart)>, Status> {
        let part = |(position, (input, wanted)): (usize, (&InputTensor, &nereid_request::RequestedOutput))| {
            let pieces: Vec<Piece> = match input.on_device() {
                Some(slice) => vec![Piece::Device(slice.clone())],
                None => {
                    let data = input.data_for(self.context.host_policy.name.as_bytes());
                    data.iter().filter(|piece| !piece.is_empty()).cloned().map(Piece::Host).collect()
                }
            };
            let len = pieces.iter().map(Piece::len).sum();
            let destination = request.destination_of(&wanted.name, len)?;
            let tensor = output_of(input, wanted);
            Ok((input.index, pieces, ColumnPart { request: number, position, tensor, len, destination }))
        };
        pairs(request)?.into_iter().enumerate().map(part).collect()
    }

    /// Enqueues the copies of inputs, the kernel and the copies of outputs.
    fn fly(&self, columns: Vec<Column>, rows: u64, requests: &mut [Pending]) -> Result<(Flight, u64), DriverError> {
        let mut flight = Flight::new(&self.lanes)?;
        let outputs = self.compute(&mut flight, &columns, rows)?;
        let compute_start_ns = now_ns();
        for (column, output) in columns.into_iter().zip(outputs) {
            send_out(&mut flight, column, output, requests)?;
        }
        flight.seal()?;
        Ok((flight, compute_start_ns))
    }

    fn compute(&self, flight: &mut Flight, columns: &[Column], rows: u64) -> Result<Vec<Output>, DriverError> {
        if let Some(outputs) = self.replay(flight, columns, rows)? {
            return Ok(outputs);
        }
        let mut pairs = Vec::with_capacity(columns.len());
        for column in columns {
            let input = flight.add_input(&column.pieces)?;
            let output = match &column.parts[..] {
                [ColumnPart { destination: OutputDestination::At(target), len, .. }]
                    if target.gpu().is_same(flight.gpu()) && *len == target.len() =>
                {
                    flight.output_at(target.clone())
                }
                _ => flight.output(column.len)?,
            };
            pairs.push((input, output, column.len / 4));
        }
        for (input, output, count) in &pairs {
            self.model.affine.launch(flight, &self.kernel, *input, *output, *count)?;
        }
        Ok(pairs.into_iter().map(|(_, output, _)| output).collect())
    }

    /// Runs the launch that was recorded for batches of this size, if there is one.
    fn replay(&self, flight: &mut Flight, columns: &[Column], rows: u64) -> Result<Option<Vec<Output>>, DriverError> {
        // An output that stays on the device would keep the bucket's buffers in use.
        let stays = |part: &ColumnPart| matches!(part.destination, OutputDestination::OnDevice);
        let rows = rows.max(1);
        let row_bytes = |column: &Column| {
            let rows = usize::try_from(rows).ok()?;
            column.len.is_multiple_of(rows).then(|| column.len / rows)
        };
        let count = |column: &Column| row_bytes(column).filter(|bytes| bytes.is_multiple_of(4)).map(|bytes| bytes / 4);
        let are_in_order = columns.iter().enumerate().all(|(at, column)| column.index == at);
        if !are_in_order || columns.iter().flat_map(|column| &column.parts).any(stays) {
            return Ok(None);
        }
        let Some(row_counts) = columns.iter().map(count).collect::<Option<Vec<usize>>>() else { return Ok(None) };
        let Some(bucket) = self.buckets.find(rows, &row_counts) else { return Ok(None) };
        for (column, buffer) in columns.iter().zip(&bucket.inputs) {
            flight.add_input_in(buffer, &column.pieces)?;
        }
        flight.run(&bucket.graph)?;
        Ok(Some(bucket.outputs.iter().map(|buffer| flight.output_to(buffer)).collect()))
    }
}

/// Puts a request's part into the column of its input.
fn add(columns: &mut Vec<Column>, index: usize, pieces: Vec<Piece>, part: ColumnPart) {
    let at = columns.iter().position(|column| column.index >= index).unwrap_or(columns.len());
    if columns.get(at).is_none_or(|column| column.index != index) {
        columns.insert(at, Column { index, ..Column::default() });
    }
    if let Some(column) = columns.get_mut(at) {
        column.pieces.extend(pieces);
        column.len += part.len;
        column.parts.push(part);
    }
}

/// Enqueues the copies of an output for all requests: adjacent parts for the host are one copy.
fn send_out(flight: &mut Flight, column: Column, output: Output, requests: &mut [Pending]) -> Result<(), DriverError> {
    let is_host = |part: &ColumnPart| matches!(part.destination, OutputDestination::OnHost);
    let mut at = 0;
    let mut parts = column.parts.into_iter().peekable();
    while let Some(part) = parts.next() {
        let mut run = vec![part];
        while is_host(&run[0]) && parts.peek().is_some_and(is_host) {
            run.extend(parts.next());
        }
        let len: usize = run.iter().map(|part| part.len).sum();
        let fetched = if is_host(&run[0]) { Some(flight.fetch(output, at, len)?) } else { None };
        let mut offset = 0;
        for ColumnPart { request, position, tensor, len, destination } in run {
            let source = match (fetched, destination) {
                (Some(fetched), _) => Source::Host(fetched, offset..offset + len),
                (None, OutputDestination::At(target)) => {
                    if flight.output_address(output) != target.address() {
                        flight.deliver(output, at, len, &target)?;
                    }
                    Source::Target(target)
                }
                (None, _) => Source::Device(output, at..at + len),
            };
            if let Some(slot) = requests.get_mut(request).and_then(|pending| pending.outputs.get_mut(position)) {
                *slot = Some((tensor, source));
            }
            offset += len;
        }
        at += len;
    }
    Ok(())
}

/// The results of a batch.
struct AffineResults {
    fetched: Vec<(Fetched, Slice)>,
    outputs: Vec<Option<DeviceSlice>>,
}

impl AffineResults {
    fn of(flight: &mut Flight, requests: &[Pending]) -> AffineResults {
        let mut fetched: Vec<(Fetched, Slice)> = Vec::new();
        for (_, source) in requests.iter().flat_map(|pending| pending.outputs.iter().flatten()) {
            if let Source::Host(number, _) = source
                && fetched.iter().all(|(known, _)| known != number)
                && let Some(slice) = flight.take_fetched(*number)
            {
                fetched.push((*number, slice));
            }
        }
        AffineResults { fetched, outputs: flight.take_outputs() }
    }

    /// The response with its data.
    fn complete(&self, pending: Pending) -> (Box<Request>, Response) {
        let Pending { request, outputs } = pending;
        let mut response = Response::new(request.id.clone());
        for (mut output, source) in outputs.into_iter().flatten() {
            match source {
                Source::Host(number, range) => {
                    let slice = self.fetched.iter().find(|(known, _)| *known == number);
                    output.data.extend(slice.map(|(_, slice)| slice.window(range)));
                }
                Source::Device(number, range) => {
                    let slice = self.outputs.get(number.index()).and_then(Option::as_ref);
                    output.on_device = slice.map(|slice| Box::new(slice.window(range)));
                }
                Source::Target(target) => output.on_device = Some(Box::new(target.freeze())),
            }
            response.outputs.push(output);
        }
        (request, response)
    }
}

impl Pipelined for DeviceInstance {
    type Cargo = Vec<Pending>;

    fn context(&self) -> &InstanceContext {
        &self.context
    }

    fn under_way(&mut self) -> &mut VecDeque<Batch<Vec<Pending>>> {
        &mut self.under_way
    }

    fn launch(&mut self, payload: &mut Payload) {
        let start_ns = now_ns();
        let requests = payload.take();
        let rows = requests.iter().map(|request| self.model.rows(request)).fold(0, u64::saturating_add);
        let mut fitting = Vec::with_capacity(requests.len());
        let mut columns: Vec<Column> = Vec::new();
        for request in requests {
            match self.parts(&request, fitting.len()) {
                Ok(parts) => {
                    parts.into_iter().for_each(|(index, pieces, part)| add(&mut columns, index, pieces, part));
                    fitting.push(request);
                }
                Err(status) => self.context.fail(request, status),
            }
        }
        if fitting.is_empty() {
            return;
        }
        let mut requests: Vec<Pending> = fitting
            .into_iter()
            .map(|request| Pending { outputs: request.outputs.iter().map(|_| None).collect(), request })
            .collect();
        match self.fly(columns, rows, &mut requests) {
            Ok((flight, compute_start_ns)) => {
                self.under_way.push_back(Batch::new(flight, requests, rows, (start_ns, compute_start_ns)));
            }
            Err(error) => self.fail(Self::requests(requests), &error),
        }
    }

    fn answer(&self, mut batch: Batch<Vec<Pending>>) {
        let execution = batch.execution();
        let results = AffineResults::of(&mut batch.flight, &batch.cargo);
        self.context.report_batch(batch.rows, &execution);
        for pending in batch.cargo {
            let (request, response) = results.complete(pending);
            self.context.succeed(request, response, &execution);
        }
    }

    fn requests(cargo: Vec<Pending>) -> impl Iterator<Item = Box<Request>> {
        cargo.into_iter().map(|pending| pending.request)
    }
}

impl Instance for DeviceInstance {
    fn takes_device_tensors(&self) -> bool {
        true
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        self.execute_up_to(UNDER_WAY_MAX, payload);
        Ok(())
    }
}
