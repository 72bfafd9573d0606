//! A table that is written to a Parquet file, a group of rows at a time.

use super::{Column, Columns};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::io::Write;
use std::sync::Arc;

/// Rows held in memory before they are written: some megabytes.
pub(crate) const ROWS_PER_GROUP: usize = 1 << 16;

impl Column {
    fn declaration(&self, name: &str) -> String {
        match self {
            Column::Int(_) => format!("REQUIRED INT32 {name} (UINT_32);"),
            Column::Long(_) => format!("REQUIRED INT64 {name};"),
            Column::Double(_) => format!("REQUIRED DOUBLE {name};"),
            Column::Optional(_) => format!("OPTIONAL DOUBLE {name};"),
            Column::Text(_) => format!("REQUIRED BYTE_ARRAY {name} (UTF8);"),
        }
    }

    /// Writes the values as the next column of `group`, and forgets them.
    fn write<W: Write + Send>(&mut self, group: &mut SerializedRowGroupWriter<'_, W>) -> Result<()> {
        let next = group.next_column()?;
        let mut writer =
            next.ok_or_else(|| ParquetError::General("more columns than declared".to_owned()))?;
        match self {
            Column::Int(values) => writer.typed::<Int32Type>().write_batch(values, None, None)?,
            Column::Long(values) => writer.typed::<Int64Type>().write_batch(values, None, None)?,
            Column::Double(values) => writer.typed::<DoubleType>().write_batch(values, None, None)?,
            Column::Optional(values) => {
                let there: Vec<f64> = values.iter().flatten().copied().collect();
                let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
                writer.typed::<DoubleType>().write_batch(&there, Some(&levels), None)?
            }
            Column::Text(values) => writer.typed::<ByteArrayType>().write_batch(values, None, None)?,
        };
        self.clear();
        writer.close()
    }
}

/// A table that is being written: row by row, each value by value in the order of the columns, or many rows at once.
pub(crate) struct Table<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    columns: Vec<Column>,
    /// The column that gets the next value.
    at: usize,
    /// Rows not written yet.
    rows: usize,
    /// Rows in a group.
    group: usize,
}

impl<W: Write + Send> Table<W> {
    /// An empty table with the given columns, written to `out` in groups of `group` rows.
    pub(crate) fn new(out: W, columns: Columns, group: usize) -> Result<Table<W>> {
        Table::with_metadata(out, columns, &[], group)
    }

    /// The same with words about the file, each with its key.
    pub(crate) fn with_metadata(
        out: W,
        columns: Columns,
        metadata: &[(&str, String)],
        group: usize,
    ) -> Result<Table<W>> {
        let fields: String = columns.iter().map(|(name, column)| column.declaration(name)).collect();
        let schema = Arc::new(parse_message_type(&format!("message rows {{ {fields} }}"))?);
        let pair = |(key, value): &(&str, String)| KeyValue::new((*key).to_owned(), value.clone());
        // Snappy is what every reader of Parquet has.
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("weft ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata((!metadata.is_empty()).then(|| metadata.iter().map(pair).collect()))
            .build();
        let writer = SerializedFileWriter::new(out, schema, Arc::new(properties))?;
        let columns = columns.into_iter().map(|(_, column)| column.empty()).collect();
        Ok(Table { writer, columns, at: 0, rows: 0, group })
    }

    pub(crate) fn int(&mut self, value: u32) {
        let Column::Int(values) = self.next() else { unreachable!("the columns' order is that of the row") };
        values.push(value.cast_signed());
    }

    pub(crate) fn long(&mut self, value: u64) {
        let Column::Long(values) = self.next() else { unreachable!("the columns' order is that of the row") };
        values.push(value.cast_signed());
    }

    pub(crate) fn double(&mut self, value: f64) {
        let Column::Double(values) = self.next() else {
            unreachable!("the columns' order is that of the row")
        };
        values.push(value);
    }

    pub(crate) fn optional(&mut self, value: Option<f64>) {
        let Column::Optional(values) = self.next() else {
            unreachable!("the columns' order is that of the row")
        };
        values.push(value);
    }

    pub(crate) fn text(&mut self, value: ByteArray) {
        let Column::Text(values) = self.next() else { unreachable!("the columns' order is that of the row") };
        values.push(value);
    }

    fn next(&mut self) -> &mut Column {
        self.at += 1;
        &mut self.columns[self.at - 1]
    }

    /// Ends a row. Writes the group that it fills, if it fills one.
    pub(crate) fn end(&mut self) -> Result<()> {
        debug_assert_eq!(self.at, self.columns.len());
        self.at = 0;
        self.add_rows(1)
    }

    /// Appends rows: the first columns have the only value of each of `constants`, the others the values of `batch`.
    /// The groups are those that the same rows one by one would make.
    pub(crate) fn append(&mut self, constants: &[Column], batch: &[Column]) -> Result<()> {
        let rows = batch.first().map_or(0, Column::len);
        let fits = constants.len() + batch.len() == self.columns.len()
            && batch.iter().all(|column| column.len() == rows);
        let unfit = || ParquetError::General("rows of other columns than the table's".to_owned());
        if !fits {
            return Err(unfit());
        }
        let mut from = 0;
        while from < rows {
            let to = rows.min(from + self.group - self.rows);
            let (first, rest) = self.columns.split_at_mut(constants.len());
            let repeated = first.iter_mut().zip(constants).all(|(column, c)| column.repeat(c, to - from));
            let extended = rest.iter_mut().zip(batch).all(|(column, more)| column.extend(more, from..to));
            if !repeated || !extended {
                return Err(unfit());
            }
            self.add_rows(to - from)?;
            from = to;
        }
        Ok(())
    }

    /// Counts `more` rows, which the group has room for, and writes it if it is full.
    fn add_rows(&mut self, more: usize) -> Result<()> {
        self.rows += more;
        if self.rows == self.group { self.write_group() } else { Ok(()) }
    }

    fn write_group(&mut self) -> Result<()> {
        self.rows = 0;
        let mut group = self.writer.next_row_group()?;
        self.columns.iter_mut().try_for_each(|column| column.write(&mut group))?;
        group.close().map(drop)
    }

    /// Rows that are held in memory.
    #[cfg(test)]
    pub(crate) fn buffered(&self) -> usize {
        self.rows
    }

    /// Writes what is left and the table of contents.
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.rows > 0 {
            self.write_group()?;
        }
        self.writer.close().map(drop)
    }
}
