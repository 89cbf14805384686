//! OpenAI's interface of a whole server (contract/openai.md): its bytes, the models behind it, and OpenAI's own
//! clients.
//!
//! The models are those of tests/python_models/openai_*: they say what commands in their prompts ask for.

mod access;
mod answers;
mod clients;
mod cors;
mod described;
mod ends;
mod events;
mod extensions;
mod forms;
pub mod frontend;
mod limits;
mod lora;
mod marked;
mod models;
mod overload;
mod prompts;
mod routes;
mod schema;
mod subcommand;
mod tools;
mod traced;
mod vectors;
