//! Memory that an output is written to: a block of the pool, or the window that its client has set aside for it.

use std::ops::{Deref, DerefMut};

use super::{BlockMut, Slice, Window};

#[derive(Debug)]
pub enum Target {
    Block(BlockMut),
    Window(Window),
}

impl Target {
    /// Nothing more is written: the bytes become a tensor's.
    pub fn freeze(self) -> Slice {
        match self {
            Target::Block(block) => block.freeze(),
            Target::Window(window) => window.slice(),
        }
    }
}

impl From<BlockMut> for Target {
    fn from(block: BlockMut) -> Target {
        Target::Block(block)
    }
}

impl Deref for Target {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Target::Block(block) => block,
            Target::Window(window) => window.bytes(),
        }
    }
}

impl DerefMut for Target {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Target::Block(block) => block,
            Target::Window(window) => window.bytes_mut(),
        }
    }
}
