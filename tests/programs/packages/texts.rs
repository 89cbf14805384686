//! Completions and manual pages, by the shells and the formatter that read them.

use std::process::Command;

use super::output;
use nereid_test_support::repository::Repository;
use nereid_test_support::skip::skip;

fn nereid(words: &[&str]) -> String {
    output(Command::new(env!("CARGO_BIN_EXE_nereid")).args(words))
}

fn has(program: &str) -> bool {
    let starts = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !starts {
        skip(&format!("no {program}"));
    }
    starts
}

/// What bash offers for the last of the words.
fn in_bash(script: &str, words: &[&str]) -> Vec<String> {
    let last = words.len() - 1;
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let ask = format!(
        "{script}\nCOMP_WORDS=({}) COMP_CWORD={last}\n_nereid\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" ")
    );
    output(Command::new("bash").args(["--norc", "-c", &ask])).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_subcommands_options_and_values() {
    if !has("bash") {
        return;
    }
    let script = nereid(&["completion", "bash"]);
    let offered = |words: &[&str]| in_bash(&script, words);
    assert_eq!(offered(&["nereid", "qu"]), ["quickstart"]);
    assert_eq!(offered(&["nereid", "--http-por"]), ["--http-port="]);
    assert_eq!(offered(&["nereid", "serve", "--io-eng"]), ["--io-engine="]);
    // bash makes three words of --io-engine=e.
    assert_eq!(offered(&["nereid", "serve", "--io-engine", "=", "e"]), ["epoll"]);
    assert_eq!(offered(&["nereid", "serve", "--io-engine", "="]), ["auto", "io_uring", "epoll"]);
    assert_eq!(offered(&["nereid", "serve", "--log-info", "t"]), ["true"]);
    assert_eq!(offered(&["nereid", "check", "--deep", "--form"]), ["--format="]);
    assert_eq!(offered(&["nereid", "check", "--http-por"]), ["--http-port="]);
    assert_eq!(offered(&["nereid", "runtime", "install", "onn"]), ["onnxruntime"]);
    assert_eq!(offered(&["nereid", "perf", "--concurrency-ra"]), ["--concurrency-range="]);
    assert_eq!(offered(&["nereid", "man", "pe"]), ["perf"]);
    assert_eq!(offered(&["nereid", "he"]), ["help"]);
    assert_eq!(offered(&["nereid", "help", "ru"]), ["runtime"]);
    assert_eq!(offered(&["nereid", "perf", "com"]), ["compare"]);
    assert_eq!(offered(&["nereid", "perf", "compare", "--fail"]), ["--fail-over="]);
    // Files, for options whose values are not known.
    let has_file = |words: &[&str]| offered(words).iter().any(|offer| offer == "/etc/passwd");
    assert!(has_file(&["nereid", "serve", "--model-repository", "=", "/etc/passw"]));
    assert!(has_file(&["nereid", "perf", "-m", "/etc/passw"]));
    assert!(has_file(&["nereid", "perf", "compare", "/etc/passw"]));
    assert_eq!(offered(&["nereid", "quikstart", "--nonsen"]), [""]);
}

#[test]
fn zsh_and_fish_take_their_scripts() {
    let zsh = nereid(&["completion", "zsh"]);
    if has("zsh") {
        // Tables and functions as the completion system loads them; options are asked for by name, as a menu would.
        let check = "autoload -U compinit && compinit -D -u -C; f() { eval \"$SCRIPT\" }; \
                     _arguments() { print -rl -- \"$@\" | grep -e '--io-engine' -e '--id=' }; \
                     words=(nereid serve --i) CURRENT=3; f";
        let said = output(Command::new("zsh").args(["-f", "-c", check]).env("SCRIPT", &zsh));
        let expected = "*--io-engine=[I/O engine that drives sockets]:auto|io_uring|epoll:(auto io_uring epoll)";
        assert!(said.lines().any(|line| line == expected), "{said}");
        assert!(said.contains("*--id=[Name of this server in its metadata]:string:_files"), "{said}");
    }
    let fish = nereid(&["completion", "fish"]);
    if has("fish") {
        // The script is longer than one argument of a program may be.
        let folder = Repository::new();
        folder.file("nereid.fish", &fish);
        let file = folder.path().join("nereid.fish");
        let ask = |line: &str| {
            let script = format!("source {}\ncomplete -C '{line}'", file.display());
            output(Command::new("fish").args(["--no-config", "-c", &script]))
        };
        assert!(ask("nereid quickst").starts_with("quickstart\t"), "{}", ask("nereid quickst"));
        assert!(ask("nereid --io-eng").starts_with("--io-engine"), "{}", ask("nereid --io-eng"));
        assert!(ask("nereid --io-engine=ep").starts_with("--io-engine=epoll"));
        assert!(ask("nereid perf --concurrency-ra").starts_with("--concurrency-range"));
        assert!(ask("nereid help perf").starts_with("perf"), "{}", ask("nereid help perf"));
    }
}

#[test]
fn manual_pages_are_formatted_without_a_warning() {
    if !has("man") {
        return;
    }
    let folder = nereid_test_support::paths::temporary().join(format!("pages-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let names = nereid(&["man", "--list"]);
    assert!(names.lines().count() > 8 && names.starts_with("nereid\nnereid-serve\n"), "{names}");
    for name in names.lines() {
        let path = folder.join(format!("{name}.1"));
        std::fs::write(&path, nereid(&["man", name])).expect("a page");
        let mut man = Command::new("man");
        man.args(["--warnings", "--local-file"]).arg(&path).env("MANPAGER", "cat").env("MANWIDTH", "140");
        let formatted = man.env("LC_ALL", "C.UTF-8").env("MANROFFSEQ", "").output().expect("man");
        let errors = String::from_utf8_lossy(&formatted.stderr);
        assert!(formatted.status.success() && errors.is_empty(), "{name}: {errors}");
        let text = String::from_utf8_lossy(&formatted.stdout);
        assert!(text.contains(&format!("{}(1)", name.to_uppercase())), "{text}");
        let option = match name {
            "nereid" => "quickstart  serve example models",
            "nereid-serve" => "--http-port <integer>",
            "nereid-perf" => "--concurrency-range <",
            "nereid-check" => "--timeout-secs=<n>   With --deep: the longest time for one model.",
            _ => "nereid",
        };
        assert!(text.contains(option), "{option:?} is not in {text}");
    }
    std::fs::remove_dir_all(folder).expect("the folder is there");
}

#[test]
fn a_wrong_word_is_named() {
    for (words, error) in [
        (&["completion"][..], "error: missing <shell>: bash, zsh or fish\n`nereid help completion` "),
        (&["completion", "tcsh"], "error: there are no completions for 'tcsh'\n`nereid help completion` "),
        (
            &["man", "x"],
            "error: 'x' has no manual page; `nereid man --list` prints those there are\n`nereid help man` ",
        ),
        (&["man", "a", "b"], "error: more than one page\n`nereid help man` "),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nereid")).args(words).output().expect("nereid");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.starts_with(error), "{words:?}: {said}");
    }
    // The reader of a long text may go before its end.
    let script = r#"for words in 'completion bash' 'man serve' help --version 'runtime list' 'check --help'; do
        "$0" $words >/dev/full; "$0" $words | true
    done"#;
    let output = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_nereid")]).output().expect("sh");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
