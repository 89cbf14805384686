//! Launches: their count, and the operations of a launched graph.

use super::super::driver::Result;
use super::fault::{self, Fault};
use super::graph::Node;
use super::order::Span;
use super::work::Task;
use super::world::World;

impl World {
    /// Counts a launch. `Ok(Some(code))`: it fails with that code when it runs; `Err`: it fails at once.
    pub fn count_launch(&mut self, call: &'static str) -> Result<Option<i32>> {
        self.launches += 1;
        match self.fault {
            Some(Fault { code, launch }) if launch == self.launches => {
                let failure = fault::error(call, code);
                if failure.is_sticky() { Ok(Some(code)) } else { Err(failure) }
            }
            _ => Ok(None),
        }
    }

    /// Enqueues all of a graph in a stream: after all work that is there, and before all that follows.
    pub fn launch_graph(&mut self, call: &'static str, device: usize, stream: u64, graph: u64) -> Result<()> {
        let capture = self.stream(call, device, stream)?.capture;
        self.counts.graphs += 1;
        let Some(found) = self.graphs.get(&graph).filter(|graph| graph.device == device) else {
            return Err(self.violate(call, Some(device), "a graph that is destroyed, or another device's, or none"));
        };
        let (nodes, last) = (found.nodes.clone(), found.last.clone());
        if let Some(origin) = capture {
            let added = self.captures.get_mut(&origin).map_or(Ok(()), |capture| capture.add_graph(stream, &nodes));
            return added.map_err(|text| self.violate(call, Some(device), &text));
        }
        for Node { device: owner, task, .. } in nodes.iter() {
            for span in &task.spans {
                self.check_any_span(*owner, span, task.what).map_err(|text| self.violate(call, Some(device), &text))?;
            }
        }
        let fails = self.count_launch(call)?;
        if let Some((_, clock)) = &last {
            self.join_clock(stream, clock);
        }
        let (point, clock) = self.advance(stream);
        for Node { task, .. } in nodes.iter() {
            self.check_order(call, device, &clock, task)?;
        }
        let after: Vec<u64> = self.tail(stream).into_iter().chain(last.map(|(operation, _)| operation)).collect();
        let begin = self.place(device, stream, Task::nothing(), &after, fails);
        let mut places: Vec<u64> = Vec::new();
        for Node { device: owner, task, after } in nodes.iter() {
            self.history.add(point, &clock, &task.spans, task.what);
            let after: Vec<u64> = after.iter().map(|&node| places[node]).chain([begin]).collect();
            let place = self.place(*owner, stream, task.clone(), &after, None);
            places.push(place);
        }
        places.push(begin);
        let end = self.place(device, stream, Task::nothing(), &places, None);
        self.set_tail(stream, end);
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.last = Some((end, clock));
        }
        Ok(())
    }

    /// Checks a span of recorded work, in memory of the device or of the host.
    fn check_any_span(&self, device: usize, span: &Span, what: &str) -> std::result::Result<(), String> {
        match self.memory.touched_by(span) {
            Some(_) => self.check_device_span(device, span, what),
            None if self.memory.was_freed(span) => Err(format!("{what} uses memory that is freed")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::driver::DriverError;
    use super::super::spec::Spec;
    use super::*;

    #[test]
    fn the_launch_that_is_set_to_fail_does() {
        for (code, at_once) in [(DriverError::ILLEGAL_ADDRESS, false), (701, true)] {
            let mut world = World::new(Spec { fault: Some(Fault { code, launch: 2 }), ..Spec::prompt(1, 1) });
            assert_eq!(world.count_launch("cuLaunchKernel"), Ok(None));
            match world.count_launch("cuLaunchKernel") {
                Ok(failure) => assert_eq!((failure, at_once), (Some(code), false)),
                Err(error) => assert_eq!((error.code, at_once), (code, true)),
            }
            assert_eq!(world.count_launch("cuLaunchKernel"), Ok(None), "only that one");
        }
    }
}
