//! A model's life under a whole server: what is loaded when, what is told about it, what a request meets while it
//! changes (contract/schedulers.md section 10; contract/model_config.md sections 3 to 7; contract/http.md and
//! contract/grpc.md, repository rows).

mod life_cycle {
    mod changes;
    mod clients;
    pub mod control;
    mod hostile;
    mod in_flight;
    mod lines;
    mod modes;
    mod namespaces;
    mod overrides;
    mod poll;
    mod reload;
    mod startup;
    mod texts;
    mod versions;
}

mod judge {
    mod configs;
    mod differences;
    mod flags;
    mod life;
    mod wire;
}
