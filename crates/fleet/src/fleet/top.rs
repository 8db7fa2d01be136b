//! `thalweg fleet top`: where the time of many hosts goes.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Selection;
use crate::merged;
use crate::output::OutputArgs;
use crate::session::Session;

/// Functions by their own time, over all selected profiles
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[arg(long, value_name = "STORE")]
    from: String,

    #[command(flatten)]
    selection: Selection,

    /// How many functions
    #[arg(short = 'n', long, default_value_t = 20)]
    limit: u32,

    #[command(flatten)]
    output: OutputArgs,

    /// All of it as one profile instead: contexts of all hosts by their paths
    #[arg(long = "as", value_name = "FILE", conflicts_with_all = ["output", "format", "limit"])]
    profile: Option<PathBuf>,

    /// Say how much of the store was read
    #[arg(long)]
    cost: bool,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let session = Session::open(&args.from).await?;
    match &args.profile {
        Some(path) => merged::from_selection(&session, &args.selection, path).await?,
        None => {
            let sql = sql(&args.selection, args.limit);
            let schema = session.ask(&sql).await?.schema().as_arrow().clone();
            let rows = session.rows(&sql).await?;
            if rows.iter().all(|batch| batch.num_rows() == 0) {
                tell!("no profile in {} is selected", args.from);
            }
            args.output.write(&schema.into(), &rows)?;
        }
    }
    if args.cost {
        let (reads, bytes) = session.reads();
        tell!("read: {bytes} bytes in {reads} reads");
    }
    Ok(ExitCode::SUCCESS)
}

/// Figures first become one row per context: names are looked up for as few as possible.
pub fn sql(selection: &Selection, limit: u32) -> String {
    format!(
        "with f as (select tree, node, sum(calls) as calls, bool_or(calls_at_least) as at_least, sum(self_ns) as own, \
         sum(self_error_ns) as error, sum(below_ns) as below, sum(waiting_ns) as waiting \
         from figures where {} group by tree, node) \
         select c.function, c.module, sum(f.calls) as calls, bool_or(f.at_least) as calls_at_least, \
         sum(f.own) as self_ns, sum(f.error) as self_error_ns, \
         round(100.0 * sum(f.own) / sum(sum(f.own)) over (), 2) as self_percent, \
         sum(case when c.outermost then f.own + f.below else 0 end) as total_ns, sum(f.waiting) as waiting_ns \
         from f join (select * from contexts where {}) c on f.tree = c.tree and f.node = c.node \
         group by c.function, c.module order by self_ns desc nulls last, calls desc, c.function limit {limit}",
        selection.of_rows(),
        selection.of_contexts(),
    )
}
