//! `thalweg fleet trend`: a function's history.

use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;

use super::{Selection, quoted};
use crate::output::OutputArgs;
use crate::session::Session;

/// A function's share of the time and its calls, hour by hour or day by day, release by release
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Its whole name
    function: String,

    #[arg(long, value_name = "STORE")]
    from: String,

    #[command(flatten)]
    selection: Selection,

    /// What a row is
    #[arg(long, value_enum, default_value = "hour")]
    by: By,

    #[command(flatten)]
    output: OutputArgs,

    /// Say how much of the store was read
    #[arg(long)]
    cost: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Hour,
    Day,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let session = Session::open(&args.from).await?;
    let function = quoted(&args.function);
    let of_contexts = args.selection.of_contexts();
    let known = session
        .rows(&format!(
            "select 1 from contexts where function = {function} and {of_contexts} limit 1"
        ))
        .await?;
    if known.iter().all(|batch| batch.num_rows() == 0) {
        bail!(
            "no profile in {} has the function {}",
            args.from,
            args.function
        );
    }
    let unit = match args.by {
        By::Hour => "hour",
        By::Day => "day",
    };
    let sql = format!(
        "with c as (select distinct tree, node, outermost from contexts where function = {function} and {of_contexts}) \
         select date_trunc('{unit}', f.time) as {unit}, f.release, count(distinct f.host) as hosts, \
         count(distinct f.profile) as profiles, sum(case when c.tree is not null then f.calls else 0 end) as calls, \
         bool_or(c.tree is not null and f.calls_at_least) as calls_at_least, \
         sum(case when c.tree is not null then f.self_ns end) as self_ns, \
         sum(case when c.tree is not null then f.self_error_ns end) as self_error_ns, \
         round(100.0 * coalesce(sum(case when c.tree is not null then f.self_ns end), 0) / nullif(sum(f.self_ns), 0), 4) as self_percent, \
         sum(case when c.outermost then f.self_ns + f.below_ns end) as total_ns \
         from figures f left join c on f.tree = c.tree and f.node = c.node where {} \
         group by 1, 2 order by 1, 2",
        args.selection.of_rows(),
    );
    let schema = session.ask(&sql).await?.schema().as_arrow().clone();
    args.output
        .write(&schema.into(), &session.rows(&sql).await?)?;
    if args.cost {
        let (reads, bytes) = session.reads();
        tell!("read: {bytes} bytes in {reads} reads");
    }
    Ok(ExitCode::SUCCESS)
}
