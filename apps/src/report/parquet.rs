//! The table of flows in Parquet.

use super::csv::{COLUMNS, Row};
use crate::columnar::{Column, ROWS_PER_GROUP, Table};
use parquet::errors::Result;
use std::io::Write;
use weft_cc::Span;
use weft_testbed::sim::{FlowRecord, RunConfig};

/// Writes `flows` with the columns of [`super::csv`]; what has not happened is null.
pub(crate) fn write(flows: &[FlowRecord], fabric: Option<&RunConfig>, out: impl Write + Send) -> Result<()> {
    let kinds = [
        Column::long(),
        Column::int(),
        Column::int(),
        Column::long(),
        Column::optional(),
        Column::optional(),
        Column::optional(),
        Column::long(),
        Column::optional(),
        Column::optional(),
    ];
    let columns = COLUMNS.into_iter().map(str::to_owned).zip(kinds).collect();
    let mut table = Table::new(out, columns, ROWS_PER_GROUP)?;
    let us = |span: Option<Span>| span.map(Span::as_us_f64);
    for flow in flows {
        let row = Row::of(flow, fabric);
        table.long(flow.id);
        table.int(flow.src);
        table.int(flow.dst);
        table.long(flow.bytes);
        table.optional(us(row.start));
        table.optional(us(row.end));
        table.optional(us(row.fct));
        table.long(flow.retransmitted);
        table.optional(us(row.ideal));
        table.optional(row.slowdown);
        table.end()?;
    }
    table.finish()
}
