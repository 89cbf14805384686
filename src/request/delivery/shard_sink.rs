//! The sink of the requests that came over a shard's connections: what answers them posts to that shard.

use super::{Delivery, Job, Sink};
use nereid_memory::{BlockMut, Exhausted, Pool};
use nereid_queue::Post;

/// Posts answers, each with the key of its request, and jobs to the shard that is the home of its requests.
pub struct ShardSink<M> {
    mailbox: M,
    pool: Pool,
}

impl<M> ShardSink<M> {
    /// Outputs are written into memory of `pool`.
    pub fn new(mailbox: M, pool: Pool) -> ShardSink<M> {
        ShardSink { mailbox, pool }
    }
}

impl<M: Post<(u64, Delivery)> + Post<Box<dyn Job>>> Sink for ShardSink<M> {
    fn deliver(&self, key: u64, delivery: Delivery) {
        self.mailbox.post((key, delivery));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.pool.get(byte_size)
    }

    fn takes_what_was_put_aside(&self) -> bool {
        true
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.mailbox.post(job);
    }
}

impl<M> std::fmt::Debug for ShardSink<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardSink")
    }
}
