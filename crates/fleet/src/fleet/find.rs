//! `thalweg fleet find`: who calls whom, in which services, releases and hosts.

use std::process::ExitCode;

use anyhow::Context;

use super::{Selection, quoted};
use crate::output::OutputArgs;
use crate::session::Session;
use crate::udf::Chain;

/// Calls that were made on a way: 'F -> G' at once, 'F ->> G' with others between
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Whole names of functions
    path: String,

    #[arg(long, value_name = "STORE")]
    from: String,

    #[command(flatten)]
    selection: Selection,

    #[command(flatten)]
    output: OutputArgs,

    /// Say how much of the store was read
    #[arg(long)]
    cost: bool,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let chain = Chain::parse(&args.path)
        .context("a path is 'F', 'F -> G' (at once) or 'F ->> G' (anywhere below)")?;
    let session = Session::open(&args.from).await?;
    let sql = format!(
        "with c as (select distinct tree, node, path from contexts where function = {} and {} and path_ends(path, {})) \
         select service, release, count(distinct host) as hosts, count(distinct profile) as profiles, \
         count(distinct c.path) as contexts, sum(calls) as calls, bool_or(calls_at_least) as calls_at_least, \
         sum(self_ns) as self_ns, sum(self_error_ns) as self_error_ns, min(time) as first, max(time) as last \
         from (select * from figures where {}) f join c on f.tree = c.tree and f.node = c.node \
         group by service, release order by calls desc, service, release",
        quoted(chain.last()),
        args.selection.of_contexts(),
        quoted(&args.path),
        args.selection.of_rows(),
    );
    let schema = session.ask(&sql).await?.schema().as_arrow().clone();
    let rows = session.rows(&sql).await?;
    if rows.iter().all(|batch| batch.num_rows() == 0) {
        tell!("no profile that is selected has {}", args.path);
    }
    args.output.write(&schema.into(), &rows)?;
    if args.cost {
        let (reads, bytes) = session.reads();
        tell!("read: {bytes} bytes in {reads} reads");
    }
    Ok(ExitCode::SUCCESS)
}
