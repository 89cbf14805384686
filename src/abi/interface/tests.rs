//! The table holds what contract/c_api.md counts, the headers are what it makes, and what the crate exports has its
//! shape.

use std::collections::BTreeSet;

use super::table::{Interface, Table};
use super::{Header, headers};

fn table() -> Table {
    Table::own().unwrap_or_else(|error| panic!("{error}"))
}

/// How many functions each interface has in all, and how many of them the server offers (contract/c_api.md, first
/// section).
const COUNTS: [(&str, usize, usize); 5] = [
    ("TRITONSERVER", 173, 173),
    ("TRITONBACKEND", 105, 91),
    ("TRITONREPOAGENT", 17, 12),
    ("TRITONCACHE", 10, 6),
    ("NEREID", 9, 9),
];
/// Of all of them the server offers Triton's 282 and its own.
const OFFERED: usize = 282 + 9;

#[test]
fn the_table_has_what_the_specification_counts() {
    let table = table();
    assert_eq!(table.interfaces.len(), COUNTS.len());
    for (interface, (prefix, all, offered)) in table.interfaces.iter().zip(COUNTS) {
        let count = |given: &[bool]| {
            let groups = interface.groups.iter().filter(|group| given.contains(&group.is_given));
            groups.map(|group| group.functions.len()).sum::<usize>()
        };
        assert_eq!((interface.prefix.as_str(), count(&[true, false]), count(&[false])), (prefix, all, offered));
    }
    let count = |of: fn(&Interface) -> usize| table.interfaces.iter().map(of).collect::<Vec<_>>();
    assert_eq!(count(|it| it.handles.len()), [14, 13, 2, 3, 1]);
    assert_eq!(count(|it| it.enums.len()), [19, 2, 2, 0, 1]);
    assert_eq!(count(|it| it.callbacks.len()), [11, 0, 0, 0, 0]);
    let names: BTreeSet<_> = table.offered().map(|function| &function.name).collect();
    assert_eq!(names.len(), OFFERED);
}

#[test]
fn all_types_are_known() {
    let table = table();
    let callbacks = table.interfaces.iter().flat_map(|it| &it.callbacks);
    let groups = table.interfaces.iter().flat_map(|it| &it.groups);
    for function in callbacks.chain(groups.flat_map(|group| &group.functions)) {
        assert!(table.kinds(function).is_some(), "{function:?}");
        let types = function.parameters.iter().map(|(_, of)| of).chain([&function.result]);
        for named in types
            .flat_map(|of| of.split([' ', '*']))
            .filter(|word| word.starts_with("TRITON") || word.starts_with("NEREID"))
        {
            let known = table.interfaces.iter().any(|it| {
                it.handles.iter().any(|one| one.name == named)
                    || it.enums.iter().any(|one| one.name == named)
                    || it.callbacks.iter().any(|one| one.name == named)
            });
            assert!(known, "{}: {named}", function.name);
        }
    }
}

#[test]
fn the_committed_headers_are_those_of_the_table() {
    let committed = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("include/triton/core");
    for Header { name, text } in headers(&table()) {
        let found = std::fs::read_to_string(committed.join(name)).unwrap_or_default();
        let place = std::env::temp_dir().join(format!("nereid-headers-{}", std::process::id()));
        if found != text {
            std::fs::create_dir_all(&place).expect("a directory");
            std::fs::write(place.join(name), &text).expect("a file");
        }
        assert!(found == text, "include/triton/core/{name} is not up to date: {place:?} has what it should be");
        assert!(text.lines().all(|line| line.len() <= 120), "{name} has lines that are too long");
    }
}

#[test]
fn a_text_that_breaks_the_notation_says_where() {
    for (text, line) in [
        ("handle Early", 1),
        ("interface X 1", 1),
        ("interface X 1.2\nhandle", 2),
        ("interface X 1.2\nfunction F(a: int)", 2),
        ("interface X 1.2\ngroup g\nfunction F(a int)", 3),
        ("interface X 1.2\ngroup g\nfunction F(a: Q.Z*)", 3),
        ("interface X 1.2\ngroup g\nfunction F(a: int) int", 3),
        ("interface X 1.2\ngroup g\nfunction F(\n  a: int,", 3),
        ("interface X 1.2\nenum E STEM\n  VALUE", 3),
        ("interface X 1.2\nhandle H\n  VALUE = 1", 3),
        ("interface X 1.2\n    a comment", 2),
    ] {
        let error = Interface::parse("broken.txt", text).expect_err(text);
        assert_eq!((error.line, error.text), (line, "broken.txt"), "{text:?}: {error}");
    }
}

/// What a value is to a caller from C: the letters of [`Table::kinds`].
trait Kind {
    const KIND: char;
}

impl<T> Kind for *const T {
    const KIND: char = 'p';
}
impl<T> Kind for *mut T {
    const KIND: char = 'p';
}
/// A function that may be NULL.
impl<F> Kind for Option<F> {
    const KIND: char = if size_of::<Option<F>>() == size_of::<fn()>() { 'p' } else { '?' };
}

macro_rules! kinds {
    ($($of:ty: $kind:literal)*) => {$(
        impl Kind for $of {
            const KIND: char = $kind;
        }
    )*};
}

kinds! { u32: 'w' i32: 'w' u64: 'l' i64: 'l' usize: 'l' bool: 'b' f64: 'd' (): 'v' }

trait Signature {
    fn kinds(self) -> String;
}

macro_rules! signatures {
    ($(($($parameter:ident)*))*) => {$(
        impl<R: Kind, $($parameter: Kind),*> Signature for unsafe extern "C" fn($($parameter),*) -> R {
            fn kinds(self) -> String {
                String::from_iter([$($parameter::KIND,)* '>', R::KIND])
            }
        }
    )*};
}

signatures! {
    (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) (A B C D E F G H I)
    (A B C D E F G H I J) (A B C D E F G H I J K) (A B C D E F G H I J K L)
}

/// Where this does not compile, a function has another number of parameters than its declaration, or the module that
/// defines it is private.
#[test]
fn exported_functions_have_the_shape_of_their_declarations() {
    let signatures = include!(concat!(env!("OUT_DIR"), "/signatures.rs"));
    assert_eq!(signatures.len(), OFFERED);
    let wrong: Vec<_> = signatures.iter().filter(|(_, declared, defined)| declared != defined).collect();
    assert!(wrong.is_empty(), "declared and defined: {wrong:#?}");
}
