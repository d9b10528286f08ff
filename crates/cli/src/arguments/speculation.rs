//! The flags of speculative decoding.

use anyhow::{Result, bail};
use cairn_app::ForcedSpeculation;
use cairn_engine::Speculation;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::flags::at_least_one;

/// How tokens are proposed that the model checks several at once. The answer is the same.
#[derive(Args)]
pub struct SpeculationFlags {
    /// What proposes tokens, of which the model checks several in one pass: nothing (off); what
    /// followed the same tokens earlier (lookup); a draft model (draft); the model's own head that
    /// predicts further tokens (mtp); or, of what is looked up and the draft model or the head,
    /// whatever pays (auto). serve: for a model without a head mtp is nothing
    /// [default: draft with --draft-model, else auto; serve: each model's setting]
    #[arg(long, value_name = "off|auto|lookup|draft|mtp", value_parser = speculation_kinds())]
    pub speculate: Option<SpeculationKind>,
    /// Draft model: a smaller model with the same vocabulary
    #[arg(long, value_name = "MODEL")]
    pub draft_model: Option<String>,
    /// Number of tokens that --speculate draft proposes at a time [default: 3]
    #[arg(
        long,
        requires = "draft_model",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    pub num_draft_tokens: Option<u32>,
    /// Number of tokens that --speculate lookup proposes at a time [default: 5]
    #[arg(
        long,
        requires = "speculate",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    pub prompt_lookup_num_tokens: Option<u32>,
    /// Number of tokens that --speculate mtp proposes at a time [default: 1]
    #[arg(
        long,
        requires = "speculate",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    pub num_mtp_tokens: Option<u32>,
}

/// What `--speculate` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeculationKind {
    Off,
    Auto,
    Lookup,
    Draft,
    Mtp,
}

fn speculation_kinds() -> impl TypedValueParser<Value = SpeculationKind> {
    let kinds = PossibleValuesParser::new(["off", "auto", "lookup", "draft", "mtp"]);
    kinds.map(|kind| match kind.as_str() {
        "auto" => SpeculationKind::Auto,
        "lookup" => SpeculationKind::Lookup,
        "draft" => SpeculationKind::Draft,
        "mtp" => SpeculationKind::Mtp,
        _ => SpeculationKind::Off,
    })
}

impl SpeculationFlags {
    /// What is asked for; none where no flag says anything.
    pub fn asked(&self) -> Result<Option<ForcedSpeculation>> {
        let is_asked = self.speculate.is_some() || self.draft_model.is_some();
        is_asked.then(|| self.chosen()).transpose()
    }

    /// What proposes for a model with all that the flags name.
    pub fn speculation(&self) -> Result<Speculation> {
        Ok(self.chosen()?.speculation(true, true))
    }

    /// What is asked for. Fails on flags that contradict each other or would do nothing.
    fn chosen(&self) -> Result<ForcedSpeculation> {
        if self.prompt_lookup_num_tokens.is_some()
            && self.speculate != Some(SpeculationKind::Lookup)
        {
            bail!("--prompt-lookup-num-tokens goes with --speculate lookup only: leave it out")
        }
        if self.num_mtp_tokens.is_some() && self.speculate != Some(SpeculationKind::Mtp) {
            bail!("--num-mtp-tokens goes with --speculate mtp only: leave it out")
        }
        match (self.speculate, self.draft_model.clone()) {
            (None | Some(SpeculationKind::Draft), Some(model)) => Ok(ForcedSpeculation::Draft {
                model,
                num_tokens: self.num_draft_tokens.unwrap_or(3) as usize,
            }),
            (Some(SpeculationKind::Draft), None) => {
                bail!("--speculate draft needs a model to draft with: name one with --draft-model")
            }
            (Some(SpeculationKind::Auto), Some(_)) if self.num_draft_tokens.is_some() => {
                bail!("--num-draft-tokens goes with --speculate draft only: leave it out")
            }
            (None | Some(SpeculationKind::Auto), draft_model) => {
                Ok(ForcedSpeculation::Auto { draft_model })
            }
            (Some(_), Some(_)) => bail!(
                "--draft-model goes with --speculate draft or auto: leave one of the two flags out"
            ),
            (Some(SpeculationKind::Off), None) => Ok(ForcedSpeculation::Off),
            (Some(SpeculationKind::Lookup), None) => Ok(ForcedSpeculation::Lookup {
                num_tokens: self.prompt_lookup_num_tokens.unwrap_or(5) as usize,
            }),
            (Some(SpeculationKind::Mtp), None) => {
                Ok(ForcedSpeculation::Mtp { num_tokens: self.num_mtp_tokens.unwrap_or(1) as usize })
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: SpeculationFlags,
    }

    fn check(line: &[&str], expected: Result<Speculation, &str>) {
        let flags = Line::try_parse_from(["cairn"].iter().chain(line)).unwrap().flags;
        match (flags.speculation(), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{line:?}"),
            (Err(error), Err(named)) => {
                assert!(error.to_string().contains(named), "{line:?}: {error}");
            }
            (found, _) => panic!("{line:?}: {found:?}"),
        }
    }

    #[test]
    fn a_draft_model_drafts_and_contradictions_are_refused() {
        check(&[], Ok(Speculation::Auto));
        check(&["--draft-model", "m"], Ok(Speculation::Draft { num_tokens: 3 }));
        let more = ["--speculate", "draft", "--draft-model", "m", "--num-draft-tokens", "5"];
        check(&more, Ok(Speculation::Draft { num_tokens: 5 }));
        check(&["--speculate", "auto"], Ok(Speculation::Auto));
        check(&["--speculate", "off"], Ok(Speculation::Off));
        check(&["--speculate", "lookup"], Ok(Speculation::Lookup { num_tokens: 5 }));
        check(&["--speculate", "mtp"], Ok(Speculation::Mtp { num_tokens: 1 }));
        let deeper = ["--speculate", "mtp", "--num-mtp-tokens", "3"];
        check(&deeper, Ok(Speculation::Mtp { num_tokens: 3 }));
        check(&["--speculate", "mtp", "--draft-model", "m"], Err("leave one"));
        check(&["--speculate", "draft"], Err("--draft-model"));
        check(&["--speculate", "auto", "--draft-model", "m"], Ok(Speculation::Auto));
        let three = ["--speculate", "auto", "--draft-model", "m", "--num-draft-tokens", "3"];
        check(&three, Err("--num-draft-tokens"));
        check(&["--speculate", "off", "--draft-model", "m"], Err("leave one"));
    }

    #[test]
    fn numbers_of_what_does_not_propose_are_refused() {
        for kind in ["off", "auto", "lookup", "draft", "mtp"] {
            for (flag, of) in
                [("--prompt-lookup-num-tokens", "lookup"), ("--num-mtp-tokens", "mtp")]
            {
                let draft: &[&str] = if kind == "draft" { &["--draft-model", "m"] } else { &[] };
                let line = [&["--speculate", kind, flag, "2"], draft].concat();
                match (kind == of, of) {
                    (false, _) => check(&line, Err(flag)),
                    (true, "lookup") => check(&line, Ok(Speculation::Lookup { num_tokens: 2 })),
                    (true, _) => check(&line, Ok(Speculation::Mtp { num_tokens: 2 })),
                }
            }
        }
    }
}
