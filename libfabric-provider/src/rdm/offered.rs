//! Memory of an application for a call that may refuse it and drop it: it is back then.

use std::sync::{Arc, Mutex};

use weft::OwnedBytes;

use super::backlog::Space;
use crate::abi::AppRoom;
use crate::error::{FiError, lock};

/// Where the room is when it was dropped.
#[derive(Debug, Default)]
pub(super) struct Place(Mutex<Option<Room>>);

pub(super) struct Room(AppRoom);

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Room({} bytes)", self.0.as_ref().len())
    }
}

struct Offered {
    room: Option<AppRoom>,
    place: Arc<Place>,
}

impl AsRef<[u8]> for Offered {
    fn as_ref(&self) -> &[u8] {
        self.room.as_ref().map_or(&[], |room| room.as_ref())
    }
}

impl AsMut<[u8]> for Offered {
    fn as_mut(&mut self) -> &mut [u8] {
        self.room.as_mut().map_or(&mut [], |room| room.as_mut())
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if let (Some(room), Ok(mut place)) = (self.room.take(), lock(&self.place.0)) {
            *place = Some(Room(room));
        }
    }
}

/// What the room of a receive is made of again.
#[derive(Debug)]
pub(super) enum Back {
    One(Arc<Place>),
    Several(usize),
}

impl Space {
    /// All of it for a receive of one message, and what gives it back if the receive is refused.
    ///
    /// # Errors
    /// As of [`Space::whole`].
    pub(super) fn offered(self) -> Result<(OwnedBytes, Back), FiError> {
        Ok(match self {
            Space::One(room) => {
                let place = Arc::new(Place::default());
                let back = Back::One(place.clone());
                (OwnedBytes::new(Offered { room: Some(room), place }), back)
            }
            several @ Space::Several(_) => {
                let len = several.len();
                (several.whole()?, Back::Several(len))
            }
        })
    }
}

impl Back {
    /// The space once what was offered has been dropped; before, there is none of it.
    pub(super) fn take(self) -> Option<Space> {
        match self {
            Back::One(place) => lock(&place.0).ok()?.take().map(|Room(room)| Space::One(room)),
            Back::Several(len) => Some(Space::Several(len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_offered_is_back_when_it_was_dropped_and_not_before() {
        let mut bytes = [1u8, 2, 3];
        // SAFETY: `bytes` outlives it, and nobody else uses them meanwhile.
        let room = unsafe { AppRoom::new(bytes.as_mut_ptr().cast(), bytes.len()) };
        let (mut offered, back) = Space::One(room).offered().unwrap();
        offered.as_mut_slice()[1] = 9;
        assert_eq!(offered.as_slice(), [1, 9, 3]);
        let Back::One(place) = &back else { panic!("it is one piece") };
        assert!(Back::One(place.clone()).take().is_none());
        drop(offered);
        let Some(Space::One(room)) = back.take() else { panic!("it is not back") };
        assert_eq!(room.as_ref(), [1, 9, 3]);
        let (offered, back) = Space::Several(5).offered().unwrap();
        assert_eq!(offered.as_slice().len(), 5);
        assert!(matches!(back.take(), Some(Space::Several(5))));
    }
}
