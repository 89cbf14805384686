//! Looks at libraries that a set-up brings along: whether they could be opened. None is opened, so none of their code
//! runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::report::Report;
use crate::abi::symbols;
use nereid_backend::dynamic_symbols::{MACHINE, dynamic_symbols};
use nereid_backend::elf;
use nereid_backend::needed_libraries::needed_libraries;

/// What the functions of Triton's C interfaces begin with.
const PREFIXES: [&str; 4] = ["TRITONSERVER_", "TRITONBACKEND_", "TRITONREPOAGENT_", "TRITONCACHE_"];
/// Most names in a text.
const NAMES_MAX: usize = 8;
/// Folders that the loader searches by itself.
const LOADER_FOLDERS: [&str; 6] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];

/// Adds what is known of a library: `required` are the functions that it must export.
pub fn look_at(subject: &str, path: &Path, required: &[&str], report: &mut Report) {
    let shown = path.display();
    if let Err(fault) = fault(path, required) {
        let instead = vec![format!("build it for this host against Triton's headers, and put it in place of {shown}")];
        report.missing(subject, fault, instead);
        return;
    }
    report.works(subject, format!("{shown} exports what it must, and needs what this server has"));
    let absent = absent_libraries(path);
    if !absent.is_empty() {
        let text = format!("{shown} needs {}, which are in no folder that the loader searches", absent.join(", "));
        report.unseen(subject, text);
    }
}

fn fault(path: &Path, required: &[&str]) -> Result<(), String> {
    elf::check_whole(path)?;
    let shown = path.display();
    let symbols = dynamic_symbols(path).ok_or_else(|| format!("{shown}: this is no library of 64-bit Linux"))?;
    if symbols.machine != MACHINE {
        return Err(format!("{shown}: the library is for another kind of processor"));
    }
    if let Some(absent) = required.iter().find(|name| !symbols.exported.contains(**name)) {
        return Err(format!("unable to find required entrypoint '{absent}' in shared library: {shown}"));
    }
    let is_of_interface = |name: &&String| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let is_here = |name: &str| symbols::NAMES.binary_search(&name).is_ok();
    let absent: Vec<&str> =
        symbols.imported.iter().filter(is_of_interface).map(String::as_str).filter(|name| !is_here(name)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let names = absent.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    Err(format!("{shown} needs {} functions that this server does not have: {names}", absent.len()))
}

/// The libraries that it needs and that the loader would not find.
fn absent_libraries(path: &Path) -> Vec<String> {
    let mut folders: BTreeSet<PathBuf> = LOADER_FOLDERS.iter().map(PathBuf::from).collect();
    // Debian's folders for libraries of one kind of processor.
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    folders.extend(["/lib", "/usr/lib"].map(|folder| Path::new(folder).join(&triple)));
    folders.extend(path.parent().map(Path::to_owned));
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&variable));
    folders.extend(configured_folders());
    let is_absent = |name: &String| {
        // The server provides it to its plug-ins.
        name != "libtritonserver.so" && !folders.iter().any(|folder| folder.join(name).exists())
    };
    needed_libraries(path).unwrap_or_default().into_iter().filter(is_absent).take(NAMES_MAX).collect()
}

/// The folders that the host's administrator added.
fn configured_folders() -> Vec<PathBuf> {
    let files =
        std::fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let lines = files.filter_map(|file| std::fs::read_to_string(file).ok());
    lines
        .flat_map(|text| text.lines().filter(|line| line.starts_with('/')).map(PathBuf::from).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions_are_sorted_for_the_search() {
        assert!(symbols::NAMES.is_sorted() && symbols::NAMES.len() > 200);
    }

    #[test]
    fn what_could_not_be_opened_is_named() {
        let directory = std::env::temp_dir().join(format!("libraries-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("libx.so");
        std::fs::write(&file, "no library").unwrap();
        let program = std::env::current_exe().unwrap();
        for (path, required, part) in [
            (directory.join("none.so"), &[][..], "No such file"),
            (file, &[], "this is no library of 64-bit Linux"),
            (program, &["TRITONBACKEND_Nothing"], "unable to find required entrypoint 'TRITONBACKEND_Nothing'"),
        ] {
            let mut report = Report::default();
            look_at("backend x", &path, required, &mut report);
            let text = report.text(true);
            assert!(text.contains("Missing: 1") && text.contains(part), "{text}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
