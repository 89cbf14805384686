//! The life cycle of models in a whole server: loads, reports about them, and requests during changes
//! (contract/schedulers.md section 10; contract/model_config.md sections 3 to 7; contract/http.md and contract/grpc.md,
//! repository rows).

mod life_cycle {
    mod changes;
    mod clients;
    pub mod control;
    mod generations;
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
