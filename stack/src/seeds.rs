//! The seeds of fuzz targets that are made by encoders: `fuzz/corpus/<target>`.

use std::path::Path;
use std::{env, fs};

/// Checks that the seeds of a fuzz target are these, and that its property holds for each. With `WEFT_BLESS` set it writes them
/// instead.
pub(crate) fn check(target: &str, seeds: &[(&str, Vec<u8>)], property: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    if env::var_os("WEFT_BLESS").is_some() {
        fs::create_dir_all(&directory).expect("a directory");
        for (name, bytes) in seeds {
            fs::write(directory.join(name), bytes).expect("a file");
        }
    }
    for (name, bytes) in seeds {
        let path = directory.join(name);
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(found == *bytes, "{} differs: WEFT_BLESS=1 writes it", path.display());
        property(bytes);
    }
    let files = fs::read_dir(&directory).expect("the directory").count();
    assert_eq!(files, seeds.len(), "files in {}", directory.display());
}
