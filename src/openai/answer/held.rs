//! Memory that an answer collects, as the pool counts it: a model that never ends must not take all of it.

use nereid_memory::{Charge, Pool};

use crate::error::Refusal;

#[derive(Default)]
pub(super) struct Held {
    charges: Vec<Charge>,
    charged: usize,
}

impl Held {
    /// So many bytes are collected. Each charge doubles what is charged, so that there are few.
    pub fn set(&mut self, bytes: usize, pool: &Pool) -> Result<(), Refusal> {
        if bytes > self.charged {
            let more = (bytes - self.charged).max(self.charged);
            let charge =
                pool.hold(more).map_err(|error| Refusal { status: 503, ..Refusal::server(error.to_string()) })?;
            self.charged = self.charged.saturating_add(more);
            self.charges.push(charge);
        }
        Ok(())
    }
}
