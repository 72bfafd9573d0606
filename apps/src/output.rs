//! Files of results. A file appears under its name only when it is complete, so that a run that ends early never
//! destroys the results of an earlier one, nor leaves half a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that is being written: beside its place, until [`OutputFile::commit`] moves it there. Dropped before, it
/// leaves nothing.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: File,
    /// Its path now, and its path when complete; none for a device or a pipe, which is written to directly.
    moves: Option<(PathBuf, PathBuf)>,
}

impl OutputFile {
    /// Begins the file that `path` is to name.
    ///
    /// # Errors
    /// The file cannot be made there, or must not be written to.
    pub(crate) fn create(path: &Path) -> io::Result<OutputFile> {
        let earlier = match fs::metadata(path) {
            Ok(found) if !found.is_file() || path.starts_with("/dev") => {
                return Ok(OutputFile { file: File::create(path)?, moves: None });
            }
            // A user without permission to write to a file must not replace it either.
            Ok(found) => OpenOptions::new().append(true).open(path).map(|_| Some(found.permissions()))?,
            Err(_) => None,
        };
        // A symbolic link goes on leading where it does.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let (file, beside) = create_beside(&place)?;
        let output = OutputFile { file, moves: Some((beside, place)) };
        if let Some(permissions) = earlier {
            output.file.set_permissions(permissions)?;
        }
        Ok(output)
    }

    /// Another handle to the same file, for a writer that takes ownership of its handle.
    pub(crate) fn writer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Completes the file, which replaces the earlier file of its name.
    ///
    /// # Errors
    /// The file cannot be renamed. Its contents stay under the temporary name, which the error states.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        let Some((beside, place)) = self.moves.take() else { return Ok(()) };
        if fs::rename(&beside, &place).is_ok() {
            return Ok(());
        }
        // A file that is mounted by itself, as containers do, can be written to but not replaced.
        match fs::copy(&beside, &place) {
            Ok(_) => fs::remove_file(&beside),
            Err(error) => {
                let text = format!("{error}; what was to be written there is in {}", beside.display());
                Err(io::Error::new(error.kind(), text))
            }
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some((beside, _)) = &self.moves {
            // If this fails, the file stays.
            let _ = fs::remove_file(beside);
        }
    }
}

/// Names that are tried for a file beside its place.
const NAMES: u32 = 100;

/// Makes `dir/.name.PID.part`, or `dir/.name.PID.N.part` if there is something of that name: a file that an earlier process
/// has left, or one that somebody has put there, perhaps a link to another file, which must not be written to.
fn create_beside(place: &Path) -> io::Result<(File, PathBuf)> {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let process = std::process::id();
    let mut n = 0;
    loop {
        let part =
            if n == 0 { format!(".{name}.{process}.part") } else { format!(".{name}.{process}.{n}.part") };
        let beside = place.with_file_name(part);
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => return Ok((file, beside)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n + 1 < NAMES => n += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn earlier_contents_stay_until_the_file_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k.json");
        let link = directory.path().join("link.json");
        fs::write(&path, "earlier").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();

        let mut abandoned = OutputFile::create(&path).unwrap();
        abandoned.write_all(b"half").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
        drop(abandoned);
        assert_eq!(names(directory.path()), ["k.json", "link.json"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");

        let mut whole = OutputFile::create(&link).unwrap();
        whole.write_all(b"later").unwrap();
        whole.commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "later");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(directory.path()), ["k.json", "link.json"]);
    }

    #[test]
    fn a_file_that_cannot_take_its_place_is_kept_and_the_error_says_where() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k.json");
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"a long run").unwrap();
        fs::create_dir(&path).unwrap();
        let error = file.commit().unwrap_err().to_string();
        let (_, kept) = error.rsplit_once(" is in ").unwrap();
        assert_eq!(fs::read_to_string(kept).unwrap(), "a long run");
    }

    #[test]
    fn a_file_that_has_the_temporary_name_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k.json");
        let victim = directory.path().join("victim");
        let part = directory.path().join(format!(".k.json.{}.part", std::process::id()));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &part).unwrap();

        let mut first = OutputFile::create(&path).unwrap();
        let second = OutputFile::create(&path).unwrap();
        first.write_all(b"results").unwrap();
        drop(second);
        first.commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "results");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_link(&part).unwrap(), victim);
        assert_eq!(names(directory.path()).len(), 3);
    }

    #[test]
    fn devices_are_written_to_directly() {
        let mut null = OutputFile::create(Path::new("/dev/null")).unwrap();
        null.write_all(b"nothing").unwrap();
        null.commit().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().len() == 0);
        assert!(OutputFile::create(Path::new("/no/such/directory/file")).is_err());
    }
}
