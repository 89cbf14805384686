//! Models are reloaded, deleted, half copied, corrupted, and come and go.

use std::fs;

use super::Fault;
use crate::chaos::campaign::Campaign;
use crate::chaos::models::{flipping, generation, program_of, write};
use crate::chaos::prober::{load, unload};

pub const RELOADED: Fault = Fault { name: "model reloaded", inject: reload };
pub const DELETED: Fault = Fault { name: "model deleted", inject: delete };
pub const HALF_COPIED: Fault = Fault { name: "model half copied", inject: half_copy };
pub const CORRUPTED: Fault = Fault { name: "model corrupted", inject: corrupt };
pub const FLIPPED: Fault = Fault { name: "model unloaded and loaded", inject: flip };

/// The number of the next generation, whose answers are allowed from now on.
fn next(campaign: &Campaign) -> u64 {
    let next = campaign.site.generations.begun() + 1;
    campaign.site.generations.begin(next);
    next
}

/// Loads `generation`; from then on no older one may answer.
fn load_and_confirm(campaign: &mut Campaign, number: u64) -> bool {
    let is_loaded = load(&campaign.site.server, "generation");
    if is_loaded {
        campaign.site.generations.confirm(number);
    }
    is_loaded
}

fn reload(campaign: &mut Campaign) {
    let number = next(campaign);
    generation(campaign.site.repository.path(), number);
    if load_and_confirm(campaign, number) {
        campaign.injected(RELOADED.name, 1);
    }
}

fn delete(campaign: &mut Campaign) {
    let folder = campaign.site.repository.path().join("generation");
    fs::remove_dir_all(&folder).expect("delete a model");
    let is_loaded = load(&campaign.site.server, "generation");
    assert!(!is_loaded, "{}: a model that was deleted is loaded", campaign.place());
    campaign.go_on_for(20, 100);
    campaign.injected(DELETED.name, 1);
    reload(campaign);
}

/// The file of a model ends somewhere, as while it is copied.
fn half_copy(campaign: &mut Campaign) {
    let number = next(campaign);
    let repository = campaign.site.repository.path().to_owned();
    generation(&repository, number);
    let program = program_of(number);
    let cut = &program[..campaign.random.below(program.len())];
    write(&repository, "generation/1/model.py", cut);
    load_and_confirm(campaign, number);
    campaign.go_on_for(20, 100);
    campaign.injected(HALF_COPIED.name, 1);
    reload(campaign);
}

/// Bytes within the file of a model are others, such that it cannot be read.
fn corrupt(campaign: &mut Campaign) {
    let number = next(campaign);
    let repository = campaign.site.repository.path().to_owned();
    generation(&repository, number);
    let file = ["generation/1/model.py", "generation/config.pbtxt"][campaign.random.below(2)];
    let mut bytes = fs::read(repository.join(file)).expect("a file of a model");
    let at = campaign.random.below(bytes.len() - 16);
    bytes[at..at + 16].fill(0xff);
    fs::write(repository.join(file), bytes).expect("a file of a model");
    let is_loaded = load(&campaign.site.server, "generation");
    assert!(!is_loaded, "{}: {file} is loaded, which is corrupt", campaign.place());
    campaign.go_on_for(20, 100);
    campaign.injected(CORRUPTED.name, 1);
    reload(campaign);
}

fn flip(campaign: &mut Campaign) {
    unload(&campaign.site.server, "flipping");
    campaign.go_on_for(5, 50);
    flipping(campaign.site.repository.path());
    if load(&campaign.site.server, "flipping") {
        campaign.injected(FLIPPED.name, 1);
    }
}
