//! weft: userspace transport for lossy Ethernet fabrics.
pub use weft_stack as stack;
