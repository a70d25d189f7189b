//! `steerage completions` generates shell completions. In bash, zsh and fish, `steerage complete`
//! adds values for which clap has no list.

use clap_complete::Shell;

use super::complete::Values;
use crate::args::{self, CompletionsArgs};
use crate::error::Error;
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::stdout;

/// The completion function for bash reads the values line by line, because `compgen -W` would
/// execute a `$(...)` in a name.
const BASH: &str = r#"
_steerage_values() {
    _steerage "$@"
    local cur=${COMP_WORDS[COMP_CWORD]} value quoted
    [[ $cur == -* ]] && return
    while IFS= read -r value; do
        printf -v quoted %q "$value"
        [[ $value == "$cur"* ]] && COMPREPLY+=("$quoted")
    done < <(steerage complete "${COMP_WORDS[@]:0:COMP_CWORD}" 2>/dev/null)
}
complete -F _steerage_values -o bashdefault -o default steerage
"#;

/// The completion function for zsh replaces the function `_steerage` of clap_complete, because zsh
/// loads the file with the name `_steerage`.
const ZSH: &str = r#"
_steerage() {
    local ret=1
    local -a values
    if [[ $PREFIX != -* ]]; then
        values=("${(@f)$(steerage complete "${(@)words[1,CURRENT-1]}" 2>/dev/null)}")
        values=("${(@)values:#}")
        (( $#values )) && compadd -a values && ret=0
    fi
    _steerage_options "$@" && ret=0
    return ret
}
"#;

const FISH_VALUES: &str = "'(steerage complete (commandline -opc) 2>/dev/null)'";

pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Error> {
    sandbox::enter(Needs::of(SandboxProfile::Completions), &args.sandbox)?;
    stdout::print(script(args.shell))
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::program(), "steerage", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + BASH,
        Shell::Zsh => with_values_of_zsh(&script),
        Shell::Fish => script + &values_of_fish(),
        _ => script,
    }
}

fn with_values_of_zsh(script: &str) -> String {
    const FUNCTION: &str = "\n_steerage() {\n";
    const START: &str = "\nif [ \"$funcstack[1]\" = \"_steerage\" ]; then\n";
    let script = script.replacen(FUNCTION, "\n_steerage_options() {\n", 1);
    let (functions, start) = script.rsplit_once(START).unwrap_or((&script, ""));
    format!("{functions}{ZSH}{START}{start}")
}

/// Returns one line for the arguments of all commands, and one line for each option. After an
/// option, fish offers only the values in the option's line.
fn values_of_fish() -> String {
    let mut lines = format!("complete -c steerage -n \"not __fish_steerage_needs_command\" -a {FISH_VALUES}\n");
    let program = args::program();
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let options = command.get_arguments().filter(|arg| Values::of(command, arg).is_some());
        for long in options.filter_map(clap::Arg::get_long) {
            let name = command.get_name();
            let using = format!("__fish_steerage_using_subcommand {name}");
            lines += &format!("complete -c steerage -n \"{using}\" -l {long} -r -a {FISH_VALUES}\n");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_calls_the_command_that_has_the_values() {
        for (shell, call) in [
            (Shell::Bash, "steerage complete \"${COMP_WORDS[@]:0:COMP_CWORD}\""),
            (Shell::Zsh, "steerage complete \"${(@)words[1,CURRENT-1]}\""),
            (Shell::Fish, "steerage complete (commandline -opc)"),
        ] {
            assert!(script(shell).contains(call), "{shell}");
        }
    }

    #[test]
    fn zsh_calls_our_function_and_ours_calls_the_generated_one() {
        let zsh = script(Shell::Zsh);
        for once in ["\n_steerage() {\n", "\n_steerage_options() {\n", "\n    _steerage_options \"$@\"", "funcstack[1]"]
        {
            assert_eq!(zsh.matches(once).count(), 1, "{once}");
        }
        assert!(zsh.starts_with("#compdef steerage\n") && zsh.ends_with("\nfi\n"), "{zsh}");
        assert!(zsh.find("\n_steerage_options() {") < zsh.find("\n_steerage() {"));
    }

    #[test]
    fn fish_knows_which_options_have_values() {
        let lines = values_of_fish();
        let options: Vec<&str> = lines.lines().skip(1).map(|line| line.split("subcommand ").nth(1).unwrap()).collect();
        for option in ["top\" -l to ", "get\" -l to ", "set\" -l to ", "fanout\" -l to "] {
            assert!(options.iter().any(|line| line.starts_with(option)), "{option}: {lines}");
        }
        // The completion lines for fish call two functions of clap_complete.
        let fish = script(Shell::Fish);
        for function in ["__fish_steerage_needs_command", "__fish_steerage_using_subcommand"] {
            assert!(fish.contains(&format!("function {function}\n")), "{function}");
        }
    }
}
