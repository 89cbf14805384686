//! Models written in Python: `model.py` files run by worker processes, one for each instance (DESIGN, decision 14).

#![allow(unsafe_code)]

mod inbound;
mod link;
mod marshal;
mod message;
mod outbound;
mod process;
