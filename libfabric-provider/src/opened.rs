//! The fabrics and domains that are open: hints may name them, and `fi_getinfo` names those that suit (fi_fabric(3), fi_domain(3)).

use std::sync::Mutex;

use crate::error::{FiError, lock};

static ALL: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// An object that is open, by the address of its descriptor.
struct Opened {
    fid: usize,
    what: What,
}

enum What {
    Fabric,
    /// Its name, if it was opened with one.
    Domain(Option<String>),
}

fn add(fid: usize, what: What) -> Result<(), FiError> {
    lock(&ALL)?.push(Opened { fid, what });
    Ok(())
}

pub(crate) fn add_fabric(fid: usize) -> Result<(), FiError> {
    add(fid, What::Fabric)
}

pub(crate) fn add_domain(fid: usize, name: Option<&str>) -> Result<(), FiError> {
    add(fid, What::Domain(name.map(str::to_owned)))
}

/// It is about to be closed.
pub(crate) fn remove(fid: usize) -> Result<(), FiError> {
    lock(&ALL)?.retain(|opened| opened.fid != fid);
    Ok(())
}

pub(crate) fn is_fabric(fid: usize) -> Result<bool, FiError> {
    Ok(lock(&ALL)?.iter().any(|opened| opened.fid == fid && matches!(opened.what, What::Fabric)))
}

/// The name of a domain; `None` if there is no such one.
pub(crate) fn name_of_domain(fid: usize) -> Result<Option<Option<String>>, FiError> {
    let name = |opened: &Opened| match &opened.what {
        What::Domain(name) if opened.fid == fid => Some(name.clone()),
        _ => None,
    };
    Ok(lock(&ALL)?.iter().find_map(name))
}

/// The fabric that was opened first.
pub(crate) fn first_fabric() -> Result<Option<usize>, FiError> {
    let all = lock(&ALL)?;
    Ok(all.iter().find(|opened| matches!(opened.what, What::Fabric)).map(|opened| opened.fid))
}

/// The domain that was first opened with this name.
pub(crate) fn first_domain(name: &str) -> Result<Option<usize>, FiError> {
    let is_it = |opened: &&Opened| match &opened.what {
        What::Domain(own) => own.as_deref() == Some(name),
        What::Fabric => false,
    };
    Ok(lock(&ALL)?.iter().find(is_it).map(|opened| opened.fid))
}
