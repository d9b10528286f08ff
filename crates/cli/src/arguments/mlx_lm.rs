//! The command line of mlx-lm 0.32.2, as far as Cairn's differs from it: underscores in names,
//! several values after one flag, and flags and commands that Cairn does not have. A flag that
//! cannot change the result is accepted; any other is refused with a sentence.

use std::ffi::OsString;

use anyhow::Result;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::Arguments;
use crate::output::Usage;

/// How Cairn takes a flag that it does not have.
#[derive(Clone, Copy)]
enum Verdict {
    /// It cannot change the result here.
    Accepted,
    /// The reason, as a part of a sentence.
    Refused(&'static str),
}
use Verdict::{Accepted, Refused};

/// A flag of mlx-lm that Cairn does not have.
struct ForeignFlag {
    /// The name without hyphens.
    name: &'static str,
    /// The commands that take it, by Cairn's names.
    commands: &'static [&'static str],
    takes_value: bool,
    verdict: Verdict,
}

/// The commands that load a model.
const LOADING_COMMANDS: &[&str] = &[
    "generate",
    "batch",
    "chat",
    "cache-prompt",
    "score",
    "classify",
    "convert",
    "bench",
    "perplexity",
    "serve",
];

const FLAGS: &[ForeignFlag] = &[
    // Nothing that comes with a model is executed.
    ForeignFlag {
        name: "trust-remote-code",
        commands: LOADING_COMMANDS,
        takes_value: false,
        verdict: Accepted,
    },
    // There are no default templates any more, in mlx-lm either.
    ForeignFlag {
        name: "use-default-chat-template",
        commands: &["serve"],
        takes_value: false,
        verdict: Accepted,
    },
    // The end of a sequence matters to answers only, and this command writes none.
    ForeignFlag {
        name: "eos-token",
        commands: &["cache-prompt"],
        takes_value: true,
        verdict: Accepted,
    },
    // Prompt caches are limited by their bytes alone, and a request never depends on them.
    ForeignFlag {
        name: "prompt-cache-size",
        commands: &["serve"],
        takes_value: true,
        verdict: Accepted,
    },
    ForeignFlag {
        name: "adapter-path",
        commands: LOADING_COMMANDS,
        takes_value: true,
        verdict: Refused(
            "Cairn does not load adapters yet; give the folder that mlx_lm.fuse writes as model",
        ),
    },
    ForeignFlag {
        name: "pipeline",
        commands: &["chat", "bench", "serve"],
        takes_value: false,
        verdict: Refused("Cairn computes on one machine only"),
    },
    ForeignFlag {
        name: "quantize-activations",
        commands: &["generate", "bench"],
        takes_value: false,
        verdict: Refused("Cairn computes with activations as they are"),
    },
    ForeignFlag {
        name: "upload-repo",
        commands: &["convert"],
        takes_value: true,
        verdict: Refused(
            "Cairn uploads nothing; `hf upload OWNER/NAME FOLDER` uploads the converted folder",
        ),
    },
    ForeignFlag {
        name: "chat-template",
        commands: &["serve"],
        takes_value: true,
        verdict: Refused(
            "each model has its own template, which chat_template.jinja in its folder replaces",
        ),
    },
];

/// The flag with a short name, `-qa`, and the id of that name.
const QUANTIZE_ACTIVATIONS: &str = "quantize-activations";
const SHORT_ID: &str = "mlx-lm-qa";

/// The commands of mlx-lm that Cairn does not have, each with what to use instead.
const COMMANDS: &[(&str, &str)] = &[
    ("lora", "Cairn does not train; use mlx_lm.lora, then mlx_lm.fuse for a model to import"),
    ("fuse", "Cairn does not load adapters yet; use mlx_lm.fuse, and import what it writes"),
    ("evaluate", "lm-eval evaluates a model over the API that `cairn serve` serves"),
    ("awq", "use `cairn convert -q`; Cairn runs what mlx_lm.awq writes"),
    ("dwq", "use `cairn convert -q`; Cairn runs what mlx_lm.dwq writes"),
    ("gptq", "use `cairn convert -q`; Cairn runs what mlx_lm.gptq writes"),
    (
        "dynamic_quant",
        "use `cairn convert -q --quant-predicate`; Cairn runs what mlx_lm.dynamic_quant writes",
    ),
    ("manage", "use `cairn models list` and `cairn models delete NAME`"),
    ("share", "Cairn sends no models to other machines; copy the folder, and import it there"),
    ("upload", "Cairn uploads nothing; use `hf upload OWNER/NAME FOLDER`"),
];

/// Flags that take several values at once, as mlx-lm's `nargs="+"`. No command with one of them
/// takes an argument without a flag, so a value that follows the first can be nothing else.
const SEVERAL_VALUES: &[&str] =
    &["--extra-eos-token", "--image", "--allowed-origin", "--allowed-origins"];

/// Parses a command line, whose first element is the program's name.
pub fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Arguments> {
    let line = with_repeated_flags(line);
    let matches = command().try_get_matches_from(line)?;
    refuse(&matches)?;
    Ok(Arguments::from_arg_matches(&matches)?)
}

/// Cairn's command line with what mlx-lm's has besides.
fn command() -> Command {
    let mut command = Arguments::command();
    for flag in FLAGS {
        for &name in flag.commands {
            command = command.mut_subcommand(name, |command| command.args(flag.args()));
        }
    }
    let missing = COMMANDS.iter().map(|(name, _)| {
        let rest = Arg::new("rest").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
        Command::new(*name).hide(true).disable_help_flag(true).arg(rest)
    });
    with_underscores(command).subcommands(missing)
}

/// Adds each name with underscores in place of hyphens, for the command and those below it.
fn with_underscores(command: Command) -> Command {
    let underscored = |name: &str| name.contains('-').then(|| name.replace('-', "_"));
    let command = command.mut_args(|arg| {
        let names = arg.get_all_aliases().unwrap_or_default();
        let names: Vec<String> =
            names.into_iter().chain(arg.get_long()).filter_map(underscored).collect();
        arg.aliases(names)
    });
    let alias = underscored(command.get_name());
    command.aliases(alias).mut_subcommands(with_underscores)
}

impl ForeignFlag {
    fn id(&self) -> String {
        format!("mlx-lm-{}", self.name)
    }

    fn args(&self) -> Vec<Arg> {
        let action = if self.takes_value { ArgAction::Append } else { ArgAction::SetTrue };
        let long = Arg::new(self.id()).long(self.name).action(action).hide(true);
        if self.name != QUANTIZE_ACTIVATIONS {
            return vec![long];
        }
        // To clap `-qa` is `-q` with the value `a`.
        let short = Arg::new(SHORT_ID).short('q').action(ArgAction::Append).value_parser(["a"]);
        vec![long, short.hide(true).hide_possible_values(true)]
    }

    /// Whether the command line has it.
    fn is_given(&self, matches: &ArgMatches) -> bool {
        let has = |id: &str| {
            // clap panics if a command is asked for another command's flag.
            matches.try_contains_id(id).is_ok()
                && matches.value_source(id) == Some(ValueSource::CommandLine)
        };
        has(&self.id()) || (self.name == QUANTIZE_ACTIVATIONS && has(SHORT_ID))
    }
}

/// Fails if the line names a command or a flag that Cairn cannot replace.
fn refuse(matches: &ArgMatches) -> Result<(), Usage> {
    let Some((command, matches)) = matches.subcommand() else { return Ok(()) };
    if let Some((_, why)) = COMMANDS.iter().find(|(name, _)| *name == command) {
        return Err(Usage(format!("there is no `cairn {command}`: {why}")));
    }
    for flag in FLAGS.iter().filter(|flag| flag.is_given(matches)) {
        if let Refused(why) = flag.verdict {
            return Err(Usage(format!("cannot use --{}: {why}", flag.name)));
        }
    }
    Ok(())
}

/// Writes the flag again before each further value: `--image a b` becomes `--image a --image b`.
fn with_repeated_flags(line: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let is_flag = |element: &OsString| element.as_encoded_bytes().starts_with(b"-");
    let mut line = line.into_iter().peekable();
    let mut repeated = Vec::new();
    while let Some(element) = line.next() {
        let flag = SEVERAL_VALUES.iter().any(|flag| element == *flag).then(|| element.clone());
        repeated.push(element);
        let Some(flag) = flag else { continue };
        // A text may begin with a hyphen, which only the first value can do unambiguously.
        let Some(first) = line.next() else { continue };
        let may_have_more = !is_flag(&first);
        repeated.push(first);
        while may_have_more && let Some(value) = line.next_if(|next| !is_flag(next)) {
            repeated.extend([flag.clone(), value]);
        }
    }
    repeated
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::super::{Command, Generate};
    use super::*;

    fn parse(line: &[&str]) -> Result<Command, String> {
        let line = ["cairn"].iter().chain(line).map(OsString::from);
        super::parse(line).map(|arguments| arguments.command).map_err(|error| error.to_string())
    }

    fn generate(flags: &[&str]) -> Generate {
        match parse(&[&["generate", "--model", "m", "--prompt", "x"], flags].concat()) {
            Ok(Command::Generate(generate)) => *generate,
            other => panic!("{:?}", other.err()),
        }
    }

    /// The flags that a command requires.
    fn required(command: &str) -> &'static [&'static str] {
        match command {
            "generate" => &["--model", "m", "--prompt", "x"],
            "batch" | "classify" => &["--model", "m", "--input", "f"],
            "cache-prompt" => &["--model", "m", "--prompt", "x", "--prompt-cache-file", "f"],
            "score" => &["--model", "m", "--tokens", "1"],
            "convert" => &["--hf-path", "m"],
            "serve" => &[],
            _ => &["--model", "m"],
        }
    }

    #[test]
    fn accepts_or_refuses_each_flag_by_table() {
        for flag in FLAGS {
            for &command in flag.commands {
                let long = format!("--{}", flag.name);
                let value: &[&str] = if flag.takes_value { &["value"] } else { &[] };
                let line = [&[command], required(command), &[long.as_str()], value].concat();
                match (flag.verdict, parse(&line)) {
                    (Accepted, Ok(_)) => {}
                    (Refused(why), Err(message)) => {
                        assert_eq!(message, format!("cannot use {long}: {why}"), "{line:?}");
                    }
                    (_, found) => panic!("{line:?}: {:?}", found.err()),
                }
            }
        }
    }

    #[test]
    fn refuses_short_name_of_quantized_activations() {
        for command in ["generate", "bench"] {
            let message = parse(&[&[command], required(command), &["-qa"]].concat()).err().unwrap();
            assert!(message.starts_with("cannot use --quantize-activations"), "{message}");
        }
    }

    #[test]
    fn names_replacement_of_each_missing_command() {
        for (command, why) in COMMANDS {
            let message = parse(&[command, "--model", "m", "-x", "--help"]).err().unwrap();
            assert_eq!(message, format!("there is no `cairn {command}`: {why}"));
        }
    }

    #[test]
    fn takes_names_of_commands_with_underscores() {
        let cache = ["--model", "m", "--prompt", "x", "--prompt_cache_file", "f"];
        assert!(matches!(
            parse(&[&["cache_prompt"], &cache[..]].concat()),
            Ok(Command::CachePrompt(_))
        ));
        assert!(matches!(parse(&["benchmark", "--model", "m"]), Ok(Command::Bench(_))));
        assert!(matches!(parse(&["server"]), Ok(Command::Serve(_))));
        assert!(parse(&["models", "compare_state", "m"]).is_ok());
        assert_eq!(generate(&["--max_tokens", "7"]).max_tokens, 7);
    }

    #[test]
    fn takes_several_values_after_one_flag() {
        let images = |flags: &[&str]| {
            let images = generate(flags).image.into_iter();
            images.map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(images(&["--image", "a", "b", "--seed", "1"]), ["a", "b"]);
        assert_eq!(images(&["--image", "a", "--image", "b", "c"]), ["a", "b", "c"]);
        assert_eq!(images(&["--image=a", "--image", "b"]), ["a", "b"]);
        let tokens = |flags: &[&str]| generate(flags).stops.extra_eos_token;
        assert_eq!(tokens(&["--extra-eos-token", "a", "b"]), ["a", "b"]);
        let hyphens = ["--extra-eos-token", "-x", "--extra-eos-token", "b", "c"];
        assert_eq!(tokens(&hyphens), ["-x", "b", "c"]);
        // A text that looks like such a flag stays a text.
        assert_eq!(generate(&["--stop", "--image", "--seed", "1"]).stops.stop, ["--image"]);
    }
}
