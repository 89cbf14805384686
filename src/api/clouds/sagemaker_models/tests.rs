//! What a request to load may say, and where its model is looked for.

use std::fs;
use std::path::PathBuf;

use super::*;

fn read(body: &str) -> Result<Load, String> {
    Load::read(&Slice::copy_of(body.as_bytes())).map_err(|status| status.message.into_owned())
}

#[test]
fn bodies_of_loads() {
    let good = read(r#"{"model_name":"h","url":"/opt/ml/models/x/model","more":1}"#).unwrap();
    assert_eq!(good, Load { hash: "h".to_owned(), url: "/opt/ml/models/x/model".to_owned() });
    for (body, text) in [
        ("", "failed to parse the request JSON buffer: "),
        ("{", "failed to parse the request JSON buffer: "),
        ("{}", "Unable to parse 'model_name': attempt to access non-existing object member 'model_name'"),
        (r#"{"model_name":"h"}"#, "Unable to parse 'url': attempt to access non-existing object member 'url'"),
        (r#"{"model_name":1,"url":"x"}"#, "Unable to parse 'model_name': attempt to access JSON non-string as string"),
        (r#"{"model_name":"","url":"/opt/ml/models/x/model"}"#, "invalid model name ''"),
        (r#"{"model_name":"..","url":"/opt/ml/models/x/model"}"#, "invalid model name '..'"),
        (r#"{"model_name":"a/b","url":"/opt/ml/models/x/model"}"#, "invalid model name 'a/b'"),
    ] {
        let error = read(body).unwrap_err();
        assert!(error.starts_with(text), "{body}: {error}");
    }
    let long = format!(r#"{{"model_name":"{}","url":"x"}}"#, "h".repeat(TEXT_BYTES_MAX + 1));
    assert_eq!(read(&long).unwrap_err(), "'model_name' is no text of at most 4096 bytes");
}

#[test]
fn urls_lie_where_models_do() {
    for url in ["/opt/ml/models/h/model", "/opt/ml/models/h/model/sub", "/opt/ml/models/h-1_x.y/model/a.b"] {
        assert_eq!(check_url(url), Ok(()), "{url}");
    }
    let expected = "expected a path of the form /opt/ml/models/<hash>/model[/<subdir>]";
    for url in [
        "",
        "/",
        "/tmp",
        "/opt/ml/models",
        "/opt/ml/models/",
        "/opt/ml/models/h",
        "/opt/ml/models/h/models",
        "/opt/ml/models/h/model/",
        "/opt/ml/models//model",
        "/opt/ml/models/../model",
        "/opt/ml/models/h/model/..",
        "/opt/ml/models/h/model/.",
        "/opt/ml/models/h/model/a/b",
        "/opt/ml/models/h/model/../../../../etc",
        "/opt/ml/models/h/model\0",
        "opt/ml/models/h/model",
        "s3://bucket/opt/ml/models/h/model",
        "/dev",
    ] {
        let text = format!("Invalid \"url\" '{url}': {expected}");
        assert_eq!(check_url(url), Err(Status::invalid(text)), "{url}");
    }
    for (url, system) in [("/dev/shm/x", "/dev/"), ("/proc/self/root", "/proc/"), ("/sys/fs", "/sys/")] {
        let text = format!("Invalid \"url\" '{url}': models cannot be loaded from {system}");
        assert_eq!(check_url(url), Err(Status::invalid(text)), "{url}");
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let root = std::env::temp_dir().join(format!("nereid-hosted-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("model")).unwrap();
        Scratch(root)
    }

    fn url(&self) -> String {
        self.0.join("model").to_str().unwrap().to_owned()
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join("model").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_directory_of_a_model_is_found() {
    let scratch = Scratch::new("found");
    let url = scratch.url();
    let text = format!("'{url}' holds neither a config.pbtxt nor the directory of a model");
    assert_eq!(place_of(&url), Err(Status::invalid(text)));
    let inside = |directory: &str| Ok(Place { repository: url.clone(), directory: directory.to_owned() });
    scratch.file(".cache/x", "");
    assert_eq!(place_of(&url), inside(".cache"), "if there is no other");
    scratch.file("b/config.pbtxt", "backend: \"identity\"");
    assert_eq!(place_of(&url), inside("b"));
    scratch.file("a/1/x", "");
    assert_eq!(place_of(&url), inside("a"), "the first of several");
    scratch.file("c/config.pbtxt", "name: \"c\"\nplatform :\t \"ensemble\"\n");
    assert_eq!(place_of(&url), inside("c"), "the ensemble of several");
    scratch.file("config.pbtxt", "");
    let above = scratch.0.to_str().unwrap().to_owned();
    assert_eq!(place_of(&url), Ok(Place { repository: above, directory: "model".to_owned() }));
    let text = "failed to register '/nowhere/at/all', repository not found";
    assert_eq!(place_of("/nowhere/at/all"), Err(Status::invalid(text)));
}

#[test]
fn statuses_of_loads_that_fail() {
    for (status, expected) in [
        (Status::already_exists("x"), 409),
        (Status::internal("it is Out of memory now"), 507),
        (Status::internal("x"), 400),
        (Status::unavailable("x"), 400),
        (Status::not_found("x"), 400),
    ] {
        assert_eq!(load_status(&status), expected, "{status}");
    }
}

/// contract/http.md section 8: up to 350 s.
#[test]
fn a_model_that_stays_is_waited_for_so_long() {
    let model = SageMakerModel { name: "m".to_owned(), repository: "/r".to_owned(), load: 1 };
    let start = Instant::now();
    let wait = Wait::new("hash", model, start, Box::new(|_| {}));
    let late = Status::unavailable("model 'm' is not unloaded after 350 s");
    for (after_ms, said) in [(0, None), (349_999, None), (350_000, Some(&late)), (900_000, Some(&late))] {
        assert_eq!(wait.lateness(start + Duration::from_millis(after_ms)).as_ref(), said, "after {after_ms} ms");
    }
}
