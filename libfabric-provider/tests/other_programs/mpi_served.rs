//! MPI programs whose ranks share two processes of `weft serve` over memif: each rank exchanges messages with one of its own server,
//! and with two of the other.

use crate::common::fabric::QUESTIONS;
use crate::common::mpi::{
    Library, Served, exchange, exchange_of, one_sided, open_mpi_returns_an_error, outlive,
};

fn exchanges(library: Library) {
    let Some(served) = Served::over_memif() else { return };
    let done = exchange(library, &[&served.in_turn]);
    assert!(!done || served.came() == [2, 2], "ranks were elsewhere");
}

#[test]
fn mpich_exchanges_and_reduces_through_servers_over_memif() {
    exchanges(Library::Mpich);
}

#[test]
fn open_mpi_exchanges_and_reduces_through_servers_over_memif() {
    exchanges(Library::OpenMpi);
}

#[test]
fn two_and_eight_ranks_of_both_libraries_exchange_and_reduce_through_servers() {
    let Some(served) = Served::over_memif() else { return };
    let mut came = 0;
    for library in [Library::Mpich, Library::OpenMpi] {
        for ranks in [2, 8] {
            if exchange_of(ranks, library, &[&served.in_turn]) {
                came += ranks / 2;
                assert_eq!(served.came(), [came; 2], "ranks were elsewhere");
            }
        }
    }
}

#[test]
fn ranks_of_mpich_access_windows_of_each_other_through_servers() {
    let Some(served) = Served::over_memif() else { return };
    let done = one_sided(Library::Mpich, &[&served.in_turn]);
    assert!(!done || served.came() == [2, 2], "ranks were elsewhere");
}

/// The last rank kills itself in the middle of an all-to-all: the others end in time with an error that `is_error` knows, and the
/// servers serve the next job, for which there is room only if the places and the memory of all ranks of the first one are free again.
fn outlives(library: Library, is_error: fn(&str) -> bool) {
    let Some(served) = Served::for_one_job() else { return };
    if !outlive(library, &[&served.in_turn], QUESTIONS, is_error) {
        return;
    }
    assert_eq!(served.came(), [2, 2], "ranks were elsewhere");
    assert!(exchange(library, &[&served.in_turn]));
    assert_eq!(served.came(), [4, 4], "the next job was elsewhere");
}

#[test]
fn the_others_of_a_job_of_mpich_get_errors_when_a_rank_is_killed() {
    // MPICH ends a rank whose network reports an error.
    outlives(Library::Mpich, |said| {
        said.contains("MPIDI_OFI_handle_cq_error") && said.contains("Connection refused")
    });
}

#[test]
fn the_others_of_a_job_of_open_mpi_get_errors_when_a_rank_is_killed() {
    outlives(Library::OpenMpi, open_mpi_returns_an_error);
}
