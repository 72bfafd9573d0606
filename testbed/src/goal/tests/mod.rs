//! Tests of the text form, of generated programs and of their execution.

mod checks;
mod generated;
mod refusals;
mod round_trip;
