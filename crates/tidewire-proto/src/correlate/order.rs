//! No ids: first in, first out.
//!
//! The queue holds a place for every answer that is still owed. A request given up leaves its place behind, to
//! be used up by its late answer; one that was never sent leaves a hole, which no answer uses up.

use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Order<T> {
    places: VecDeque<Place<T>>,
    /// Number of the first place, counted over the life of the connection.
    first: u64,
    waiting: usize,
    holes: usize,
}

#[derive(Debug)]
enum Place<T> {
    Waiting(T),
    GivenUp,
    Hole,
}

impl<T> Order<T> {
    pub(super) fn new() -> Self {
        Self {
            places: VecDeque::new(),
            first: 0,
            waiting: 0,
            holes: 0,
        }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let number = self.first + self.places.len() as u64;
        self.places.push_back(Place::Waiting(value));
        self.waiting += 1;
        (number % IDS) as u32 + 1
    }

    /// The oldest request whose answer is owed, unless it was given up.
    pub(super) fn answer(&mut self) -> Option<T> {
        self.drop_holes();
        let place = self.places.pop_front()?;
        self.first += 1;
        match place {
            Place::Waiting(value) => {
                self.waiting -= 1;
                Some(value)
            }
            Place::GivenUp | Place::Hole => None,
        }
    }

    pub(super) fn give_up(&mut self, id: u32) -> Option<T> {
        self.replace(id, Place::GivenUp)
    }

    pub(super) fn take(&mut self, id: u32) -> Option<T> {
        let value = self.replace(id, Place::Hole)?;
        self.holes += 1;
        self.drop_holes();
        Some(value)
    }

    pub(super) fn find_mut(&mut self, id: u32) -> Option<&mut T> {
        match self.place_mut(id)? {
            Place::Waiting(value) => Some(value),
            Place::GivenUp | Place::Hole => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (self.first..)
            .zip(&self.places)
            .filter_map(|(number, place)| match place {
                Place::Waiting(value) => Some(((number % IDS) as u32 + 1, value)),
                Place::GivenUp | Place::Hole => None,
            })
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.first += self.places.len() as u64;
        self.waiting = 0;
        self.holes = 0;
        self.places.drain(..).filter_map(|place| match place {
            Place::Waiting(value) => Some(value),
            Place::GivenUp | Place::Hole => None,
        })
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn owed(&self) -> usize {
        self.places.len() - self.holes
    }

    fn place_mut(&mut self, id: u32) -> Option<&mut Place<T>> {
        let number = u64::from(id.checked_sub(1)?);
        let index = (number + IDS - self.first % IDS) % IDS;
        self.places.get_mut(usize::try_from(index).ok()?)
    }

    /// Puts `with` in place of a waiting request.
    fn replace(&mut self, id: u32, with: Place<T>) -> Option<T> {
        let place = self.place_mut(id)?;
        if !matches!(place, Place::Waiting(_)) {
            return None;
        }
        match std::mem::replace(place, with) {
            Place::Waiting(value) => {
                self.waiting -= 1;
                Some(value)
            }
            Place::GivenUp | Place::Hole => None,
        }
    }

    /// Forgets the holes at both ends; one in the middle goes when it gets there.
    fn drop_holes(&mut self) {
        while let Some(Place::Hole) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
            self.holes -= 1;
        }
        // What comes last has not been sent yet, so its number may be given to the next request.
        while let Some(Place::Hole) = self.places.back() {
            self.places.pop_back();
            self.holes -= 1;
        }
    }
}

/// Ids go from 1 to this and start again.
const IDS: u64 = u32::MAX as u64;
