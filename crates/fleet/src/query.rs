//! `thalweg query`: SQL to a store.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::merged;
use crate::output::OutputArgs;
use crate::session::Session;

/// Ask a store in SQL
///
/// Tables: figures, contexts, calls, blocks, profiles (docs/store.md). A store is only read.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The question
    pub sql: String,

    /// A directory, s3://, gs:// or az://
    #[arg(long, value_name = "STORE")]
    pub from: String,

    #[command(flatten)]
    pub output: OutputArgs,

    /// The answer as a profile: it must have the column path, and of calls, self_ns, waiting_ns and others those that are summed
    #[arg(long = "as", value_name = "FILE", conflicts_with_all = ["output", "format"])]
    pub profile: Option<PathBuf>,

    /// Say how much of the store was read
    #[arg(long)]
    pub cost: bool,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let session = Session::open(&args.from).await?;
    let asked = session.ask(&args.sql).await?;
    let schema = std::sync::Arc::new(asked.schema().as_arrow().clone());
    let rows = session.collect(asked).await?;
    match &args.profile {
        Some(path) => merged::from_answer(&session, &rows, path).await?,
        None => args.output.write(&schema, &rows)?,
    }
    if args.cost {
        let (reads, bytes) = session.reads();
        tell!("read: {bytes} bytes in {reads} reads");
    }
    Ok(ExitCode::SUCCESS)
}
