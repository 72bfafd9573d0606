//! Functions of libfabric's tables that are not there: they answer so, whatever they are given.

use std::ffi::c_int;

use crate::sys;

/// A type of functions that a table refers to.
pub(crate) trait Refused: Sized {
    /// The function that answers -FI_ENOSYS.
    const NO: Option<Self>;
}

macro_rules! refused {
    ($($argument:ident)*) => {
        refused!(@ isize $($argument)*);
        refused!(@ c_int $($argument)*);
    };
    (@ $answer:ident $($argument:ident)*) => {
        impl<$($argument),*> Refused for unsafe extern "C" fn($($argument),*) -> $answer {
            const NO: Option<Self> = {
                unsafe extern "C" fn no<$($argument),*>($(_: $argument),*) -> $answer {
                    -(sys::FI_ENOSYS as $answer)
                }
                Some(no::<$($argument),*>)
            };
        }
    };
}

refused!(A);
refused!(A B);
refused!(A B C);
refused!(A B C D);
refused!(A B C D E);
refused!(A B C D E F);
refused!(A B C D E F G);
refused!(A B C D E F G H);
refused!(A B C D E F G H I);
refused!(A B C D E F G H I J);
refused!(A B C D E F G H I J K);
refused!(A B C D E F G H I J K L);
refused!(A B C D E F G H I J K L M);
refused!(A B C D E F G H I J K L M N);
refused!(A B C D E F G H I J K L M N O);
refused!(A B C D E F G H I J K L M N O P);
