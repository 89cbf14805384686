//! The completions of bash.

use std::fmt::Write as _;

use crate::cli::subcommands::ALL;

/// What comes before the tables. bash splits words at equals signs, so a value has its option two words before it.
const BEGIN: &str = r#"# Completions of nereid for bash; `nereid completion bash` prints them.
_nereid() {
    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]}
    local name=serve options='' letters='' words='' files='' choices=''
    if [[ $word == = ]]; then
        word=''
    elif [[ $option == = ]]; then
        option=${COMP_WORDS[COMP_CWORD-2]}
    fi
    COMPREPLY=()
"#;

/// What comes behind them: values of an option, options, or the words and files that are left.
const END: &str = r#"    if [[ " $options " == *" $option= "* || " $letters " == *" $option "* ]]; then
        if [[ -n $choices ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
            return
        fi
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
        [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace 2>/dev/null
        return
    elif [[ -n $words && ( -z $files || $COMP_CWORD -eq 2 ) ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
        return
    fi
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -F _nereid nereid
"#;

pub fn script() -> String {
    let mut text = BEGIN.to_owned();
    let names: Vec<&str> = ALL.iter().map(|one| one.name).collect();
    let _ = writeln!(text, "    if ((COMP_CWORD == 1)) && [[ $word != -* ]]; then");
    let _ = writeln!(text, "        mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$word\")", names.join(" "));
    let _ = writeln!(text, "        return\n    fi");
    let _ = writeln!(text, "    case ${{COMP_WORDS[1]}} in\n    {}) name=${{COMP_WORDS[1]}} ;;", names.join(" | "));
    text.push_str("    esac\n    case $name in\n");
    let mut choices = String::new();
    for one in &ALL {
        let (mut options, mut letters) = (Vec::new(), Vec::new());
        for option in one.options() {
            let assigns = if option.value.is_some() { "=" } else { "" };
            options.push(format!("--{}{assigns}", option.name));
            letters.extend(option.letter.filter(|_| option.value.is_some()).map(|letter| format!("-{letter}")));
            let values = option.choices();
            if !values.is_empty() {
                let _ = writeln!(choices, "    '{} --{}') choices='{}' ;;", one.name, option.name, values.join(" "));
            }
        }
        let (options, letters, words) = (options.join(" "), letters.join(" "), (one.words)().join(" "));
        let _ = writeln!(text, "    {})\n        options='{options}'", one.name);
        let files = if one.takes_files() { " files=1" } else { "" };
        let _ = writeln!(text, "        letters='{letters}' words='{words}'{files}\n        ;;");
    }
    let _ = write!(text, "    esac\n    case \"$name $option\" in\n{choices}    esac\n{END}");
    text
}
