//! Properties of what the command reads that others have written. Tests and fuzz targets share them.

pub use crate::perf::properties::any_bytes_are_a_control_message_or_an_error;
pub use crate::sweep::properties::any_text_is_a_sweep_or_refused_by_line;
pub use crate::testbed::properties::{any_bytes_are_answered_with_one_line, any_text_is_a_reply_or_an_error};
