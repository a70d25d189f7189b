//! `steerage completions`: generates shell completions from the definition of the command line. For
//! bash, also those of values that clap does not know.

use clap_complete::Shell;

use crate::args::{self, CompletionsArgs};
use crate::error::Error;
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::{guide, stdout};

/// Offers interfaces, the paths of the run in force, and the pages of the guide.
const BASH_VALUES: &str = r#"
_steerage_values() {
    _steerage "$@"
    local cur=${COMP_WORDS[COMP_CWORD]} values
    [[ $cur == -* || $COMP_CWORD -lt 2 ]] && return
    case ${COMP_WORDS[1]} in
        get | set) values=$(steerage get 2>/dev/null) ;;
        help) values="PAGES" ;;
        count | meter | explain | parallel | fanout | forward | send | tune | doctor)
            values=$(command ls /sys/class/net 2>/dev/null) ;;
    esac
    COMPREPLY+=($(compgen -W "$values" -- "$cur"))
}
complete -F _steerage_values -o bashdefault -o default steerage
"#;

pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Error> {
    sandbox::enter(Needs::of(SandboxProfile::Completions), &args.sandbox)?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::program(), "steerage", &mut script);
    if args.shell == Shell::Bash {
        let pages: Vec<&str> = guide::titles().map(|(name, _)| name).collect();
        script.extend_from_slice(BASH_VALUES.replace("PAGES", &pages.join(" ")).as_bytes());
    }
    stdout::print(&script)
}
