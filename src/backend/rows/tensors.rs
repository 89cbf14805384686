//! The tensors of a batch's requests by their numbers in the configuration. A backend looks up every input and every
//! output of each request, and one request may have thousands.

use smallvec::SmallVec;

use nereid_request::{ByNumber, InputTensor, OutputTensor, Request, RequestedOutput};

/// Brings the outputs of a response in the order in which the request names them.
pub fn sort_as_named(outputs: &mut [OutputTensor], request: &Request) {
    let named = ByNumber::new(&request.outputs);
    outputs.sort_by_key(|output| named.place(output.index));
}

/// See the [module](self).
#[derive(Debug)]
pub struct Tensors<'a>(SmallVec<[OfRequest<'a>; 4]>);

#[derive(Debug)]
struct OfRequest<'a> {
    inputs: ByNumber<'a, InputTensor>,
    outputs: ByNumber<'a, RequestedOutput>,
}

impl<'a> OfRequest<'a> {
    fn new(request: &'a Request) -> OfRequest<'a> {
        OfRequest { inputs: ByNumber::new(&request.inputs), outputs: ByNumber::new(&request.outputs) }
    }
}

impl<'a> Tensors<'a> {
    pub fn new(requests: &'a [Box<Request>]) -> Tensors<'a> {
        Tensors(requests.iter().map(|request| OfRequest::new(request)).collect())
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Input number `index` of each request, in their order; `None` where it is absent.
    pub fn inputs(&self, index: usize) -> impl Iterator<Item = Option<&'a InputTensor>> + Clone {
        self.0.iter().map(move |one| one.inputs.get(index))
    }

    /// Input number `index` of the request at `at`.
    pub fn input(&self, at: usize, index: usize) -> Option<&'a InputTensor> {
        self.0.get(at)?.inputs.get(index)
    }

    /// Whether the request at `at` names output number `index`.
    pub fn is_requested(&self, at: usize, index: usize) -> bool {
        self.0.get(at).is_some_and(|one| one.outputs.get(index).is_some())
    }
}
