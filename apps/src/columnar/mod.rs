//! Tables in Parquet files: columns with names and types, written and read some rows at a time.

mod read;
mod write;

pub(crate) use read::{Reader, is_parquet};
pub(crate) use write::{ROWS_PER_GROUP, Table};

use parquet::data_type::ByteArray;
use std::ops::Range;

/// Successive values of a column.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Column {
    /// 32 bits without a sign, which Parquet stores in those of an i32.
    Int(Vec<i32>),
    /// 64 bits; byte counts stay far below the sign.
    Long(Vec<i64>),
    Double(Vec<f64>),
    /// Numbers that some rows do not have.
    Optional(Vec<Option<f64>>),
    Text(Vec<ByteArray>),
}

/// Columns with their names, in order.
pub(crate) type Columns = Vec<(String, Column)>;

impl Column {
    pub(crate) fn int() -> Column {
        Column::Int(Vec::new())
    }

    pub(crate) fn long() -> Column {
        Column::Long(Vec::new())
    }

    pub(crate) fn double() -> Column {
        Column::Double(Vec::new())
    }

    pub(crate) fn optional() -> Column {
        Column::Optional(Vec::new())
    }

    pub(crate) fn text() -> Column {
        Column::Text(Vec::new())
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Column::Int(values) => values.len(),
            Column::Long(values) => values.len(),
            Column::Double(values) => values.len(),
            Column::Optional(values) => values.len(),
            Column::Text(values) => values.len(),
        }
    }

    /// A column of the same type without values.
    pub(crate) fn empty(&self) -> Column {
        match self {
            Column::Int(_) => Column::int(),
            Column::Long(_) => Column::long(),
            Column::Double(_) => Column::double(),
            Column::Optional(_) => Column::optional(),
            Column::Text(_) => Column::text(),
        }
    }

    /// The values in `rows`.
    pub(crate) fn slice(&self, rows: Range<usize>) -> Column {
        let mut part = self.empty();
        part.extend(self, rows);
        part
    }

    fn clear(&mut self) {
        match self {
            Column::Int(values) => values.clear(),
            Column::Long(values) => values.clear(),
            Column::Double(values) => values.clear(),
            Column::Optional(values) => values.clear(),
            Column::Text(values) => values.clear(),
        }
    }

    /// Appends the values of `other` in `rows`. False if the columns have different types.
    fn extend(&mut self, other: &Column, rows: Range<usize>) -> bool {
        match (self, other) {
            (Column::Int(values), Column::Int(more)) => values.extend_from_slice(&more[rows]),
            (Column::Long(values), Column::Long(more)) => values.extend_from_slice(&more[rows]),
            (Column::Double(values), Column::Double(more)) => values.extend_from_slice(&more[rows]),
            (Column::Optional(values), Column::Optional(more)) => values.extend_from_slice(&more[rows]),
            (Column::Text(values), Column::Text(more)) => values.extend_from_slice(&more[rows]),
            _ => return false,
        }
        true
    }

    /// Appends `count` copies of the only value of `other`. False if the columns have different types, or `other` has
    /// no value.
    fn repeat(&mut self, other: &Column, count: usize) -> bool {
        fn copies<T: Clone>(values: &mut Vec<T>, more: &[T], count: usize) -> bool {
            let Some(value) = more.first() else { return false };
            values.resize(values.len() + count, value.clone());
            true
        }
        match (self, other) {
            (Column::Int(values), Column::Int(more)) => copies(values, more, count),
            (Column::Long(values), Column::Long(more)) => copies(values, more, count),
            (Column::Double(values), Column::Double(more)) => copies(values, more, count),
            (Column::Optional(values), Column::Optional(more)) => copies(values, more, count),
            (Column::Text(values), Column::Text(more)) => copies(values, more, count),
            _ => false,
        }
    }

    /// The values as numbers; those that are absent, and text, are not a number.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        match self {
            // Numbers of ports and flows have no sign.
            Column::Int(values) => values.iter().map(|value| f64::from(value.cast_unsigned())).collect(),
            Column::Long(values) => values.iter().map(|value| *value as f64).collect(),
            Column::Double(values) => values.clone(),
            Column::Optional(values) => values.iter().map(|value| value.unwrap_or(f64::NAN)).collect(),
            Column::Text(values) => vec![f64::NAN; values.len()],
        }
    }

    /// The values as people write them.
    pub(crate) fn words(&self) -> Vec<String> {
        match self {
            Column::Text(values) => {
                values.iter().map(|value| String::from_utf8_lossy(value.data()).into_owned()).collect()
            }
            numbers => numbers.numbers().iter().map(f64::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn text(words: &[&str]) -> Column {
        Column::Text(words.iter().map(|word| ByteArray::from(*word)).collect())
    }

    /// All types, some rows.
    fn columns() -> Columns {
        let named = |(name, column): (&str, Column)| (name.to_owned(), column);
        [
            ("a", Column::Int(vec![1, -1, 3])),
            ("b", Column::Long(vec![-5, 1 << 40, 0])),
            ("c", Column::Double(vec![0.1, -2.5, 1e300])),
            ("d", Column::Optional(vec![None, Some(0.25), None])),
            ("e", text(&["x", "", "µs"])),
        ]
        .map(named)
        .into()
    }

    #[test]
    fn all_types_are_read_as_they_were_written_in_groups_of_equal_length() {
        let path = std::env::temp_dir().join(format!("weft-columnar-{}.parquet", std::process::id()));
        let rows = columns();
        let constant = vec![text(&["nscc"])];
        let head = [vec![("cc".to_owned(), Column::text())], rows.clone()].concat();
        let metadata = [("weft.sweep", "0123".to_owned())];
        let mut table = Table::with_metadata(File::create(&path).unwrap(), head, &metadata, 4).unwrap();
        let values: Vec<Column> = rows.iter().map(|(_, column)| column.clone()).collect();
        for _ in 0..3 {
            table.append(&constant, &values).unwrap();
        }
        assert!(table.append(&[], &values).is_err(), "a column is missing");
        table.finish().unwrap();

        let reader = Reader::open(&path).unwrap();
        assert_eq!(reader.metadata("weft.sweep"), Some("0123"));
        assert_eq!(reader.metadata("weft"), None);
        assert_eq!(reader.groups(), [4, 4, 1]);
        let names: Vec<&str> = reader.columns().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cc", "a", "b", "c", "d", "e"]);
        let mut all: Vec<Column> = reader.columns().iter().map(|(_, column)| column.clone()).collect();
        let places: Vec<usize> = (0..6).collect();
        reader
            .read(&places, |batch| {
                all.iter_mut().zip(batch).for_each(|(all, more)| assert!(all.extend(more, 0..more.len())));
                Ok(())
            })
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(all[0], text(&["nscc"; 9]));
        for (read, (_, written)) in all[1..].iter().zip(&rows) {
            let mut expected = written.empty();
            (0..3).for_each(|_| assert!(expected.extend(written, 0..3)));
            assert_eq!(read, &expected);
        }
        assert_eq!(all[1].numbers()[1], f64::from(u32::MAX));
        assert_eq!(all[5].words()[2], "µs");
    }
}
