//! Reading tables, some thousand rows at a time, so that a long file takes little memory.

use super::{Column, Columns};
use crate::Failure;
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{DataType, DoubleType};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Rows read at a time.
const ROWS: usize = 1 << 13;

/// Whether the file `path` begins as Parquet files do.
pub(crate) fn is_parquet(path: &Path) -> std::result::Result<bool, Failure> {
    let mut first = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut first));
    read.map(|_| first == b"PAR1").map_err(|e| Failure::at(path, &e))
}

/// A Parquet file whose columns are those of [`Column`].
pub(crate) struct Reader {
    path: PathBuf,
    file: SerializedFileReader<File>,
    columns: Columns,
}

impl Reader {
    /// # Errors
    /// The file cannot be read, is no Parquet file, or has columns of other types.
    pub(crate) fn open(path: &Path) -> std::result::Result<Reader, Failure> {
        let file = File::open(path).map_err(|e| Failure::at(path, &e))?;
        let file = SerializedFileReader::new(file).map_err(|e| refused(path, &e))?;
        let schema = file.metadata().file_metadata().schema_descr_ptr();
        let columns = schema.columns().iter().map(|column| {
            let kind = match (column.physical_type(), column.max_def_level(), column.max_rep_level()) {
                (Type::INT32, 0, 0) => Column::int(),
                (Type::INT64, 0, 0) => Column::long(),
                (Type::DOUBLE, 0, 0) => Column::double(),
                (Type::DOUBLE, 1, 0) => Column::optional(),
                (Type::BYTE_ARRAY, 0, 0) => Column::text(),
                (other, ..) => {
                    let what =
                        format!("column {} is of type {other}; expected a table of weft", column.name());
                    return Err(refused(path, &what));
                }
            };
            Ok((column.name().to_owned(), kind))
        });
        let columns = columns.collect::<std::result::Result<_, _>>()?;
        Ok(Reader { path: path.to_owned(), file, columns })
    }

    /// The columns in order, without values.
    pub(crate) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The place of the column `name`.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|(column, _)| column == name)
    }

    /// The word about the file whose key is `key`.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        let pairs = self.file.metadata().file_metadata().key_value_metadata()?;
        pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
    }

    /// The number of rows of each group.
    #[cfg(test)]
    pub(crate) fn groups(&self) -> Vec<i64> {
        self.file.metadata().row_groups().iter().map(|group| group.num_rows()).collect()
    }

    /// Passes on the values of the columns at `places`, some rows at a time.
    ///
    /// # Errors
    /// The file is damaged, or `each` fails.
    pub(crate) fn read(
        &self,
        places: &[usize],
        mut each: impl FnMut(&[Column]) -> std::result::Result<(), Failure>,
    ) -> std::result::Result<(), Failure> {
        let failed = |error: ParquetError| refused(&self.path, &error);
        for group in 0..self.file.num_row_groups() {
            let group = self.file.get_row_group(group).map_err(failed)?;
            let readers = places.iter().map(|place| group.get_column_reader(*place));
            let mut readers = readers.collect::<Result<Vec<_>>>().map_err(failed)?;
            let mut left = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
            while left > 0 {
                let count = left.min(ROWS);
                left -= count;
                let batch = readers.iter_mut().zip(places);
                let batch = batch.map(|(reader, place)| values(reader, &self.columns[*place].1, count));
                each(&batch.collect::<Result<Vec<_>>>().map_err(failed)?)?;
            }
        }
        Ok(())
    }

    /// The error `what` about the file.
    pub(crate) fn refuse(&self, what: impl std::fmt::Display) -> Failure {
        refused(&self.path, what)
    }
}

fn refused(path: &Path, what: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("{}: {what}", path.display()))
}

/// The next `count` values of a column of the type `kind`.
fn values(reader: &mut ColumnReader, kind: &Column, count: usize) -> Result<Column> {
    match (reader, kind) {
        (ColumnReader::Int32ColumnReader(reader), _) => required(reader, count).map(Column::Int),
        (ColumnReader::Int64ColumnReader(reader), _) => required(reader, count).map(Column::Long),
        (ColumnReader::DoubleColumnReader(reader), Column::Optional(_)) => {
            optional(reader, count).map(Column::Optional)
        }
        (ColumnReader::DoubleColumnReader(reader), _) => required(reader, count).map(Column::Double),
        (ColumnReader::ByteArrayColumnReader(reader), _) => required(reader, count).map(Column::Text),
        _ => Err(ParquetError::General("a column of another type than declared".to_owned())),
    }
}

fn required<T: DataType>(reader: &mut ColumnReaderImpl<T>, count: usize) -> Result<Vec<T::T>> {
    let mut values = Vec::with_capacity(count);
    reader.read_records(count, None, None, &mut values)?;
    complete(values, count)
}

fn optional(reader: &mut ColumnReaderImpl<DoubleType>, count: usize) -> Result<Vec<Option<f64>>> {
    let (mut there, mut levels) = (Vec::new(), Vec::with_capacity(count));
    reader.read_records(count, Some(&mut levels), None, &mut there)?;
    let mut there = there.into_iter();
    complete(levels.iter().map(|level| if *level > 0 { there.next() } else { None }).collect(), count)
}

fn complete<T>(values: Vec<T>, count: usize) -> Result<Vec<T>> {
    match values.len() {
        read if read == count => Ok(values),
        read => Err(ParquetError::General(format!("a column has {read} values; expected {count}"))),
    }
}
