//! Reads from a model's .xml file whether its tensors have a batch dimension.
//!
//! OpenVINO keeps the layout of a tensor beside its shape, but its C interface has no call that reads it
//! (contract/frameworks.md section 8, "openvino, C API"). In the file, a layout is an attribute of the output port that
//! makes the tensor: of an input, its own; of a result, the port that an edge leads from.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// A file that is longer is not read to its end: then its layouts count as absent. Weights are in another file.
const XML_BYTES_MAX: u64 = 512 << 20;
/// The most ports with a layout, and results, that are kept.
const KEPT_MAX: usize = 65_536;

/// Why the layouts of a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("{0}")]
    File(#[from] std::io::Error),
    #[error("it is no XML: {0}")]
    Xml(#[from] quick_xml::Error),
    #[error("it has more than {KEPT_MAX} results or layouts")]
    TooMany,
}

/// True if the first dimension of every input and output is the batch (`N`).
pub fn batches(path: &Path) -> Result<bool, LayoutError> {
    let file = BufReader::new(File::open(path)?).take(XML_BYTES_MAX);
    Ok(Layouts::read(file)?.batches())
}

/// A port by the numbers of its layer and of itself.
type PortId = (String, String);

#[derive(Debug, Default)]
struct Layouts {
    parameters: HashSet<String>,
    results: HashSet<String>,
    /// Ports whose layout begins with `N`, and the parameters and results among their layers.
    batched: HashSet<PortId>,
    batched_layers: HashSet<String>,
    /// The port behind each layer that has only one input.
    sources: HashMap<String, PortId>,
}

/// The elements around the one that is read, from `net` inwards.
#[derive(Debug, Default)]
struct Position {
    depth: usize,
    is_input: bool,
    layer: String,
    port: String,
}

impl Layouts {
    fn read(file: impl BufRead) -> Result<Layouts, LayoutError> {
        let mut reader = Reader::from_reader(file);
        let (mut layouts, mut position, mut buffer) = (Layouts::default(), Position::default(), Vec::new());
        loop {
            buffer.clear();
            match reader.read_event_into(&mut buffer)? {
                Event::Start(element) => {
                    position.depth += 1;
                    layouts.enter(&element, &mut position)?;
                }
                Event::Empty(element) => {
                    position.depth += 1;
                    layouts.enter(&element, &mut position)?;
                    position.depth -= 1;
                }
                Event::End(_) => position.depth = position.depth.saturating_sub(1),
                // What is cut off may lack any layout.
                Event::Eof => return Ok(if position.depth == 0 { layouts } else { Layouts::default() }),
                _ => {}
            }
        }
    }

    /// Depths tell the model's own layers from those inside loops and branches, which have layers of their own:
    /// `net`, `layers`, `layer`, `output`, `port`, `rt_info`, `attribute`; and `net`, `edges`, `edge`.
    fn enter(&mut self, element: &BytesStart<'_>, position: &mut Position) -> Result<(), LayoutError> {
        let name = element.local_name();
        match (position.depth, name.as_ref()) {
            (3, b"layer") => {
                position.layer = attribute(element, "id");
                match attribute(element, "type").as_str() {
                    "Parameter" => self.parameters.insert(position.layer.clone()),
                    "Result" => self.results.insert(position.layer.clone()),
                    _ => false,
                };
            }
            (4, b"input" | b"output") => position.is_input = name.as_ref() == b"input",
            (5, b"port") => position.port = attribute(element, "id"),
            (7, b"attribute") if attribute(element, "name") == "layout" && has_batch(&attribute(element, "layout")) => {
                let layer = &position.layer;
                // Some files have the layout of a result at its own port.
                if self.parameters.contains(layer) || self.results.contains(layer) {
                    self.batched_layers.insert(layer.clone());
                }
                if !position.is_input {
                    self.batched.insert((layer.clone(), position.port.clone()));
                }
            }
            (3, b"edge") => {
                let from = (attribute(element, "from-layer"), attribute(element, "from-port"));
                let to = attribute(element, "to-layer");
                // Layers come first in every file.
                if self.results.contains(&to) {
                    self.sources.insert(to, from);
                }
            }
            _ => {}
        }
        let kept = [self.parameters.len(), self.results.len(), self.batched.len()];
        if kept.into_iter().any(|kept| kept > KEPT_MAX) { Err(LayoutError::TooMany) } else { Ok(()) }
    }

    fn batches(&self) -> bool {
        let of_layer = |layer: &String| self.batched_layers.contains(layer);
        let of_result = |result: &String| {
            let source = self.sources.get(result);
            of_layer(result) || source.is_some_and(|source| self.batched.contains(source))
        };
        let has_both = !self.parameters.is_empty() && !self.results.is_empty();
        has_both && self.parameters.iter().all(of_layer) && self.results.iter().all(of_result)
    }
}

fn attribute(element: &BytesStart<'_>, name: &str) -> String {
    let found = element.try_get_attribute(name).ok().flatten();
    found.map(|found| String::from_utf8_lossy(&found.value).into_owned()).unwrap_or_default()
}

/// `[N,C,H,W]`, `[N,...]`, `NCHW`
fn has_batch(layout: &str) -> bool {
    let inner = layout.trim().trim_start_matches('[').trim_start();
    inner.strip_prefix(['N', 'n']).is_some_and(|rest| {
        let is_short = !layout.contains(',');
        is_short || rest.trim_start().starts_with([',', ']'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with one input and one output.
    fn model(input: &str, made: &str, result: &str) -> String {
        let layout = |layout: &str| match layout {
            "" => String::new(),
            _ => format!("<rt_info><attribute name=\"layout\" version=\"0\" layout=\"{layout}\"/></rt_info>"),
        };
        format!(
            "<?xml version=\"1.0\"?><net name=\"m\" version=\"11\"><layers>\
             <layer id=\"7\" name=\"a\" type=\"Parameter\"><data shape=\"?,4\"/><rt_info><attribute name=\"layout\" \
             layout=\"[N]\"/></rt_info><output><port id=\"0\" names=\"a\"><dim>-1</dim>{}</port></output></layer>\
             <layer id=\"8\" name=\"b\" type=\"If\"><body><layers><layer id=\"7\" type=\"Parameter\"/></layers></body>\
             <output><port id=\"2\">{}</port></output></layer>\
             <layer id=\"9\" name=\"c\" type=\"Result\"><input><port id=\"0\">{}</port></input></layer></layers>\
             <edges><edge from-layer=\"7\" from-port=\"0\" to-layer=\"8\" to-port=\"0\"/>\
             <edge from-layer=\"8\" from-port=\"2\" to-layer=\"9\" to-port=\"0\"/></edges></net>",
            layout(input),
            layout(made),
            layout(result)
        )
    }

    fn batches(text: &str) -> Result<bool, LayoutError> {
        Ok(Layouts::read(text.as_bytes())?.batches())
    }

    #[test]
    fn every_input_and_output_must_have_the_batch_in_front() {
        for (input, made, result, expected) in [
            ("[N,...]", "[N,H]", "", true),
            ("[N,...]", "", "[N,...]", true),
            ("[N]", "[ N , C ]", "", true),
            ("NCHW", "nc", "", true),
            ("[N,...]", "", "", false),
            ("", "[N,...]", "", false),
            ("", "", "", false),
            ("[C,N]", "[N,C]", "", false),
            ("[...,N]", "[N,...]", "", false),
            ("[Name,C]", "[N,C]", "", false),
            ("[...]", "[...]", "", false),
        ] {
            let text = model(input, made, result);
            assert_eq!(batches(&text).unwrap(), expected, "{input} {made} {result}");
        }
    }

    #[test]
    fn other_files_have_no_layout() {
        assert!(!batches("").unwrap());
        assert!(!batches("<net></net>").unwrap());
        assert!(!batches("no markup at all").unwrap());
        assert!(!batches(&model("[N,C]", "[N,C]", "").replace("Result", "Sink")).unwrap(), "no result");
        assert!(!batches(&model("[N,C]", "[N,C]", "").replace("to-layer=\"9\"", "")).unwrap(), "no edge");
        assert!(matches!(batches("<net><layers></net>"), Err(LayoutError::Xml(_))));
        let cut = model("[N,C]", "[N,C]", "");
        for end in (0..cut.len()).step_by(7) {
            // A truncated file may be refused or lack layouts; it never has more than the whole.
            assert!(!batches(&cut[..end]).unwrap_or(false), "{end}");
        }
    }

    #[test]
    fn a_file_with_too_many_results_is_refused() {
        let results: String = (0..=KEPT_MAX).map(|id| format!("<layer id=\"{id}\" type=\"Result\"></layer>")).collect();
        let error = batches(&format!("<net><layers>{results}</layers></net>")).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 65536 results or layouts");
        let absent = super::batches(Path::new("/nowhere/model.xml")).unwrap_err();
        assert!(matches!(absent, LayoutError::File(_)));
    }
}
