//! Which applications the worker looks at in a turn: those that have had something to do lately, and a part of the others.
//!
//! A look at an application that has given no command reads two or three cache lines, of which the application may write one.
//! A server with many applications that do nothing would spend most of its time on that.
//!
//! An application that has had its turn and has more to do has a *backlog*. Those with a backlog take turns in a *round*, which may
//! take several turns of the worker's loop; all others have theirs at once. So one that has a command now and then does not wait for
//! those that always have some. (fq_codel serves new flows before old ones for the same reason, RFC 8290.)

/// After so many looks in a row that have found nothing to do an application is quiet: in a millisecond if nothing else happens, so that
/// those which exchange messages all the time stay awake. Not only commands count: one that is reported something may have an answer.
const PATIENCE: u16 = if cfg!(test) { 32 } else { 8192 };

/// Each quiet application is looked at in one of so many turns, an even part of them in each.
pub(super) const PERIOD: u32 = 16;

/// So many quiet applications are looked at in each turn: then none waits for its turn without need.
const FEW: u32 = if cfg!(test) { 2 } else { 8 };

/// The applications of some places, by the number of their place.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// A bit for each place whose application is looked at in each turn, and for each whose application is quiet.
    awake: Vec<u64>,
    quiet: Vec<u64>,
    /// A bit for each place whose application has a backlog, which is awake, and for each that has had its turn in the round in this turn
    /// of the worker.
    backlogged: Vec<u64>,
    served: Vec<u64>,
    /// How many are quiet.
    count: u32,
    /// The looks in a row at each that have found nothing.
    in_vain: Vec<u16>,
    turn: u32,
    /// The places of which the quiet ones are looked at in this turn, in each word.
    due: u64,
    /// Whether the next turn looks at all.
    all: bool,
    round: Round,
}

/// Where the round is.
#[derive(Debug, Default)]
struct Round {
    /// How many words have begun.
    begun: usize,
    /// What is left of the last one.
    left: Places,
}

impl Attention {
    /// For so many places, of which none is taken.
    pub(super) fn new(places: usize) -> Attention {
        let words = vec![0; places.div_ceil(64)];
        Attention {
            awake: words.clone(),
            quiet: words.clone(),
            backlogged: words.clone(),
            served: words.clone(),
            in_vain: vec![0; places],
            // It is over.
            round: Round { begun: words.len(), ..Round::default() },
            ..Attention::default()
        }
    }

    /// An application has come to a place, and is awake.
    pub(super) fn begin(&mut self, place: usize) {
        self.awake[place / 64] |= bit(place);
        self.in_vain[place] = 0;
    }

    /// The application at a place is gone.
    pub(super) fn end(&mut self, place: usize) {
        self.wake(place);
        self.set_backlog(place, false);
        self.awake[place / 64] &= !bit(place);
    }

    /// The application at a place has something to do: it is looked at in each turn for a while.
    #[inline]
    pub(super) fn wake(&mut self, place: usize) {
        self.in_vain[place] = 0;
        let (word, bit) = (place / 64, bit(place));
        if self.quiet[word] & bit != 0 {
            self.quiet[word] &= !bit;
            self.awake[word] |= bit;
            self.count -= 1;
        }
    }

    /// The next turn looks at all applications.
    pub(super) fn look_at_all(&mut self) {
        self.all = true;
    }

    /// A turn begins.
    pub(super) fn begin_turn(&mut self) {
        /// The first of each so many places.
        const FIRST: u64 = u64::MAX / ((1 << PERIOD) - 1);
        self.turn = self.turn.wrapping_add(1);
        let all = std::mem::take(&mut self.all) || self.count <= FEW;
        self.due = if all { u64::MAX } else { FIRST << (self.turn % PERIOD) };
    }

    /// How many words there are, of 64 places each.
    pub(super) fn words(&self) -> usize {
        self.awake.len()
    }

    /// The places of a word whose applications are looked at in this turn, apart from those that have a backlog, or had one and have had
    /// their turn. Called once in a turn.
    #[inline]
    pub(super) fn due(&mut self, word: usize) -> Places {
        let all = self.awake[word] | self.quiet[word] & self.due;
        let others = self.backlogged[word] | std::mem::take(&mut self.served[word]);
        Places { word, bits: all & !others }
    }

    /// Whether each application with a backlog has had its turn in this round.
    #[inline]
    pub(super) fn is_round_over(&self) -> bool {
        self.round.begun == self.words() && self.round.left.bits == 0
    }

    /// A round begins.
    pub(super) fn begin_round(&mut self) {
        self.round = Round::default();
    }

    /// The place of the application with a backlog that is next in this round, and those of some that come after it. After `None` the
    /// round is over. An application that gets a backlog after its word has begun comes in the next round.
    #[inline]
    pub(super) fn next_backlogged(&mut self) -> Option<(usize, Places)> {
        loop {
            let Round { begun, left } = &mut self.round;
            // Some may have ended since their word has begun.
            left.bits &= self.backlogged.get(left.word).copied().unwrap_or(0);
            if let Some(place) = left.next() {
                return Some((place, *left));
            }
            *left = Places { word: *begun, bits: *self.backlogged.get(*begun)? };
            *begun += 1;
        }
    }

    /// The application at `place`, which [came last](Attention::next_backlogged), has its turn later: it is the next one.
    pub(super) fn put_back(&mut self, place: usize) {
        self.round.left.bits |= bit(place);
    }

    /// The application at a place, which has a backlog, has its turn in the round: it is looked at no more in this turn of the worker.
    pub(super) fn serve(&mut self, place: usize) {
        self.set_backlog(place, false);
        self.served[place / 64] |= bit(place);
    }

    /// Whether the application at a place has a backlog.
    pub(super) fn has_backlog(&self, place: usize) -> bool {
        self.backlogged[place / 64] & bit(place) != 0
    }

    /// Whether the application at a place, which has had its turn, has more to do.
    #[inline]
    pub(super) fn set_backlog(&mut self, place: usize, has_some: bool) {
        let (word, place) = (&mut self.backlogged[place / 64], place % 64);
        *word = *word & !(1 << place) | u64::from(has_some) << place;
    }

    /// The places of a word whose applications are awake.
    #[inline]
    pub(super) fn awake(&self, word: usize) -> Places {
        Places { word, bits: self.awake[word] }
    }

    /// The worker has looked at the application at a place, and `found` whether there was something to do.
    #[inline]
    pub(super) fn looked(&mut self, place: usize, found: bool) {
        if found {
            return self.wake(place);
        }
        let (word, bit) = (place / 64, bit(place));
        if self.awake[word] & bit == 0 {
            return;
        }
        self.in_vain[place] += 1;
        if self.in_vain[place] == PATIENCE {
            self.awake[word] &= !bit;
            self.quiet[word] |= bit;
            self.count += 1;
        }
    }
}

/// Some places of a word, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    word: usize,
    bits: u64,
}

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.bits == 0 {
            return None;
        }
        let first = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        Some(self.word * 64 + first)
    }
}

#[inline]
fn bit(place: usize) -> u64 {
    1 << (place % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places that a turn looks at, in which there is nothing to do.
    fn turn(attention: &mut Attention) -> Vec<usize> {
        attention.begin_turn();
        let mut looked = Vec::new();
        for word in 0..attention.words() {
            for place in attention.due(word) {
                attention.looked(place, false);
                looked.push(place);
            }
        }
        looked
    }

    fn awake(attention: &Attention) -> Vec<usize> {
        (0..attention.words()).flat_map(|word| attention.awake(word)).collect()
    }

    fn quiet(places: &[usize]) -> Attention {
        let mut attention = Attention::new(130);
        places.iter().for_each(|&place| attention.begin(place));
        for _ in 0..PATIENCE {
            assert_eq!(turn(&mut attention), places, "they are awake");
        }
        attention
    }

    /// The places that a round looks at.
    fn round(attention: &mut Attention) -> Vec<usize> {
        attention.begin_round();
        let places = core::iter::from_fn(|| attention.next_backlogged()).map(|(place, _)| place).collect();
        assert!(attention.is_round_over() && attention.next_backlogged().is_none());
        places
    }

    #[test]
    fn a_round_looks_once_at_each_application_with_a_backlog() {
        let places = [0, 5, 63, 64, 70, 127, 128, 129];
        let mut attention = Attention::new(130);
        assert!(attention.is_round_over());
        places.iter().chain(&[1, 65]).for_each(|&place| attention.begin(place));
        places.iter().for_each(|&place| attention.set_backlog(place, true));
        (0..3).for_each(|_| assert_eq!(round(&mut attention), places));
        assert_eq!(round(&mut Attention::new(0)), []);
    }

    #[test]
    fn an_application_with_a_backlog_is_looked_at_in_its_round_and_others_in_each_turn() {
        let mut attention = Attention::new(130);
        (0..3).for_each(|place| attention.begin(place));
        attention.set_backlog(1, true);
        assert_eq!((turn(&mut attention), round(&mut attention)), (vec![0, 2], vec![1]));
        assert!(attention.has_backlog(1) && !attention.has_backlog(2));
        // One that is put back is the next one, unless its application is gone meanwhile.
        attention.set_backlog(2, true);
        attention.begin_round();
        assert_eq!(attention.next_backlogged().map(|(place, _)| place), Some(1));
        attention.put_back(1);
        assert!(!attention.is_round_over());
        assert_eq!(attention.next_backlogged().map(|(place, _)| place), Some(1));
        attention.end(2);
        attention.begin(2);
        attention.set_backlog(0, true);
        assert_eq!(attention.next_backlogged(), None, "one is gone, and one comes in the next round");
        attention.serve(1);
        assert_eq!((turn(&mut attention), round(&mut attention)), (vec![2], vec![0]));
        assert_eq!(turn(&mut attention), [1, 2]);
    }

    #[test]
    fn a_few_quiet_applications_are_looked_at_in_each_turn() {
        let mut attention = quiet(&[1, 129]);
        assert_eq!(attention.count, 2);
        assert_eq!(awake(&attention), []);
        assert!((0..20).all(|_| turn(&mut attention) == [1, 129]));
    }

    #[test]
    fn of_many_quiet_applications_each_is_looked_at_once_in_a_period() {
        let places: Vec<usize> = (0..130).filter(|place| place % 5 != 3).collect();
        let mut attention = quiet(&places);
        for _ in 0..3 {
            let mut all = Vec::new();
            for _ in 0..PERIOD {
                let some = turn(&mut attention);
                assert!(some.is_sorted() && some.len() <= places.len() / PERIOD as usize + 4, "{some:?}");
                all.extend(some);
            }
            all.sort_unstable();
            assert_eq!(all, places);
        }
    }

    #[test]
    fn an_application_that_has_something_to_do_is_looked_at_in_each_turn_until_it_is_quiet_again() {
        let places: Vec<usize> = (0..100).collect();
        let mut attention = quiet(&places);
        attention.wake(70);
        assert_eq!(awake(&attention), [70]);
        for _ in 0..PATIENCE - 1 {
            assert!(turn(&mut attention).contains(&70));
        }
        attention.looked(70, true);
        for _ in 0..PATIENCE {
            assert!(turn(&mut attention).contains(&70));
        }
        let all = (0..PERIOD).map(|_| turn(&mut attention).iter().filter(|place| **place == 70).count());
        assert_eq!(all.sum::<usize>(), 1);
    }

    #[test]
    fn a_turn_looks_at_all_when_that_is_asked_for() {
        let places: Vec<usize> = (0..100).collect();
        let mut attention = quiet(&places);
        attention.look_at_all();
        assert_eq!(turn(&mut attention), places);
        assert!(turn(&mut attention).len() < 20);
    }

    #[test]
    fn an_application_that_is_gone_is_not_looked_at_and_the_next_one_in_its_place_is_awake() {
        let places: Vec<usize> = (0..100).collect();
        let mut attention = quiet(&places);
        attention.end(7);
        assert_eq!(attention.count, 99);
        assert!((0..PERIOD).all(|_| !turn(&mut attention).contains(&7)));
        attention.begin(7);
        assert!((0..PATIENCE).all(|_| turn(&mut attention).contains(&7)));
        attention.end(7);
        (0..100).filter(|place| *place != 7).for_each(|place| attention.end(place));
        assert_eq!((attention.count, turn(&mut attention)), (0, vec![]));
    }
}
