//! `weft goal`: writes the GOAL program of a collective operation.

use crate::output::OutputFile;
use crate::{Failure, units};
use clap::Args;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use weft_cc::Span;
use weft_testbed::goal::{Collective, CollectiveError, Pattern, Program};

#[derive(Debug, Args)]
pub(crate) struct GoalArgs {
    /// The messages: ring, tree (binomial) and recursive-doubling are all-reduces; all-to-all sends from every rank to every
    /// other one.
    #[arg(value_name = "ring|tree|recursive-doubling|all-to-all", value_parser = pattern)]
    pattern: Pattern,
    /// Number of ranks; a power of two for recursive-doubling.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    ranks: u32,
    /// Bytes of the vector that is reduced, or of each message of all-to-all.
    #[arg(long, value_name = "BYTES", value_parser = size, allow_negative_numbers = true)]
    size: u32,
    /// How often the operation is repeated. A rank begins an iteration when it has received all of the one before, and
    /// has computed.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// How long each rank computes between two iterations, in whole nanoseconds [default: 0].
    #[arg(long, value_name = "TIME", value_parser = nanoseconds, allow_negative_numbers = true)]
    compute: Option<u64>,
    /// The file to write; with - standard output.
    #[arg(short, long, value_name = "FILE|-")]
    output: PathBuf,
}

fn pattern(text: &str) -> Result<Pattern, CollectiveError> {
    text.parse()
}

fn size(text: &str) -> Result<u32, units::ValueError> {
    let too_large = |_| units::ValueError::expected("at most 4294967295 bytes, the longest message");
    units::bytes(text).and_then(|bytes| u32::try_from(bytes).map_err(too_large))
}

fn nanoseconds(text: &str) -> Result<u64, units::ValueError> {
    let ps = units::span(text).map(Span::as_ps)?;
    match ps.is_multiple_of(1000) {
        true => Ok(ps / 1000),
        false => Err(units::ValueError::expected("whole nanoseconds, such as 5us")),
    }
}

/// Writes the program that `args` describe.
pub(crate) fn goal(args: &GoalArgs) -> Result<(), Failure> {
    let collective = Collective {
        pattern: args.pattern,
        ranks: args.ranks,
        bytes: args.size,
        iterations: args.iterations,
        compute: args.compute.unwrap_or(0),
    };
    let program = collective.program().map_err(|error| {
        let option = match error {
            CollectiveError::Ranks(_) | CollectiveError::NoPowerOfTwo(_) => "--ranks: ",
            CollectiveError::NoIterations => "--iterations: ",
            CollectiveError::Compute(_) => "--compute: ",
            CollectiveError::TooLarge | CollectiveError::Unknown(_) => "",
        };
        Failure::Usage(format!("{option}{error}"))
    })?;
    let written = match args.output.as_os_str() == "-" {
        true => write(&program, io::stdout().lock()).or_else(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(error),
        }),
        false => OutputFile::create(&args.output).and_then(|mut file| {
            write(&program, &mut file)?;
            file.commit()
        }),
    };
    written.map_err(|error| Failure::Run(format!("{}: {error}", args.output.display())))
}

fn write(program: &Program, out: impl Write) -> io::Result<()> {
    let mut text = Text { out: BufWriter::new(out), error: None };
    let written = program.write_goal(&mut text);
    let Text { mut out, error } = text;
    match (error, written) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(io::Error::other(error)),
        (None, Ok(())) => out.flush(),
    }
}

/// Text on its way to a file.
struct Text<W: Write> {
    out: BufWriter<W>,
    error: Option<io::Error>,
}

impl<W: Write> fmt::Write for Text<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.out.write_all(text.as_bytes()).map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}
