//! The requirements on every table of things that can be chosen by name. The tests of each table call these checks.

use std::collections::HashSet;

use weft_cc::table::{ListSettings, Part, Refused, Row, find};

/// Checks the names and texts of all rows, and that each name is found.
pub(crate) fn check_rows<P: ListSettings>(table: &'static [Row<P>]) {
    let mut names = HashSet::new();
    for row in table {
        assert!(names.insert(row.name), "{} is there twice", row.name);
        assert!(
            !row.name.contains(['(', ')', ',', '=', ' ']),
            "{}: the grammar of names needs these",
            row.name
        );
        assert!(!row.about.is_empty() && !row.source.is_empty(), "{}", row.name);
        assert_eq!(find(table, "thing", row.name).expect("a name in the table").name, row.name);
        let settings = row.part.settings();
        let keys: HashSet<&str> = settings.iter().map(|setting| setting.key).collect();
        assert_eq!(keys.len(), settings.len(), "{}: a setting is there twice", row.name);
    }
    let error = find(table, "thing", "no such name").err().expect("no row has this name");
    let known: Vec<&str> = table.iter().map(|row| row.name).collect();
    assert_eq!(error.to_string(), format!("unknown thing 'no such name'; there are: {}", known.join(", ")));
}

/// Checks the settings of one part: each default is a value that the setting takes and changes nothing when
/// it is set, and what is not a value is refused.
pub(crate) fn check_settings<I, O>(part: Part<I, O>) {
    let builder = part();
    for setting in builder.settings() {
        let key = setting.key;
        assert!(!setting.about.is_empty() && !setting.expected.is_empty(), "{key}");
        assert_eq!(
            setting.default.is_none(),
            !setting.otherwise.is_empty(),
            "{key}: one of the two is listed"
        );
        if let Some(default) = setting.default {
            let same = builder.with(key, &default).unwrap_or_else(|why| panic!("{key}={default}: {why:?}"));
            assert_eq!(format!("{same:?}"), format!("{builder:?}"), "{key}={default} changes something");
        }
        let examples = ["0.5", "2", "9us", "9µs", "64KiB", "64k", "true"];
        assert!(examples.iter().any(|value| builder.with(key, value).is_ok()), "{key} takes no example");
        for nonsense in ["", "NaN", "-1", "inf", "x"] {
            let expected = setting.expected.clone();
            assert_eq!(
                builder.with(key, nonsense).err(),
                Some(Refused::BadValue { expected }),
                "{key}={nonsense}"
            );
        }
    }
    assert_eq!(builder.with("no such key", "1").err(), Some(Refused::NoSuchKey));
}
