//! A table written to a Parquet file, column by column, a group of rows at a time.

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::io::Write;
use std::sync::Arc;

/// The values of a column that are not written yet.
pub(super) enum Column {
    /// 32 bits without a sign, which Parquet stores in those of an i32.
    Int(Vec<i32>),
    /// 64 bits; byte counts stay far below the sign.
    Long(Vec<i64>),
    Double(Vec<f64>),
    Text(Vec<ByteArray>),
}

impl Column {
    fn declaration(&self, name: &str) -> String {
        match self {
            Column::Int(_) => format!("REQUIRED INT32 {name} (UINT_32);"),
            Column::Long(_) => format!("REQUIRED INT64 {name};"),
            Column::Double(_) => format!("REQUIRED DOUBLE {name};"),
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
            Column::Text(values) => writer.typed::<ByteArrayType>().write_batch(values, None, None)?,
        };
        match self {
            Column::Int(values) => values.clear(),
            Column::Long(values) => values.clear(),
            Column::Double(values) => values.clear(),
            Column::Text(values) => values.clear(),
        }
        writer.close()
    }
}

/// A table. A row is given value by value, in the order of the columns, and then ended.
pub(super) struct Table<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    columns: Vec<Column>,
    /// The column that gets the next value.
    at: usize,
    /// Rows not written yet.
    pub(super) rows: usize,
    /// Rows in a group.
    group: usize,
}

impl<W: Write + Send> Table<W> {
    /// An empty table with the given columns, written to `out` in groups of `group` rows.
    pub(super) fn new(out: W, columns: Vec<(&'static str, Column)>, group: usize) -> Result<Table<W>> {
        let fields: String = columns.iter().map(|(name, column)| column.declaration(name)).collect();
        let schema = Arc::new(parse_message_type(&format!("message samples {{ {fields} }}"))?);
        // Snappy is what every reader of Parquet has.
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("weft ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = SerializedFileWriter::new(out, schema, Arc::new(properties))?;
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        Ok(Table { writer, columns, at: 0, rows: 0, group })
    }

    pub(super) fn int(&mut self, value: u32) {
        let Column::Int(values) = self.next() else { unreachable!("the columns' order is that of the row") };
        values.push(value.cast_signed());
    }

    pub(super) fn long(&mut self, value: u64) {
        let Column::Long(values) = self.next() else { unreachable!("the columns' order is that of the row") };
        values.push(value.cast_signed());
    }

    pub(super) fn double(&mut self, value: f64) {
        let Column::Double(values) = self.next() else {
            unreachable!("the columns' order is that of the row")
        };
        values.push(value);
    }

    pub(super) fn text(&mut self, value: ByteArray) {
        let Column::Text(values) = self.next() else { unreachable!("the columns' order is that of the row") };
        values.push(value);
    }

    fn next(&mut self) -> &mut Column {
        self.at += 1;
        &mut self.columns[self.at - 1]
    }

    /// Ends a row. Writes the group that it fills, if it fills one.
    pub(super) fn end(&mut self) -> Result<()> {
        debug_assert_eq!(self.at, self.columns.len());
        self.at = 0;
        self.rows += 1;
        if self.rows == self.group { self.write_group() } else { Ok(()) }
    }

    fn write_group(&mut self) -> Result<()> {
        self.rows = 0;
        let mut group = self.writer.next_row_group()?;
        self.columns.iter_mut().try_for_each(|column| column.write(&mut group))?;
        group.close().map(drop)
    }

    /// Writes what is left and the table of contents.
    pub(super) fn finish(mut self) -> Result<()> {
        if self.rows > 0 {
            self.write_group()?;
        }
        self.writer.close().map(drop)
    }
}
