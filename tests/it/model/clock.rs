//! Time as the oracle knows it: a span within which the service made up its mind.
//!
//! A test reads the server's clock before and after a call, so it knows between which two instants
//! the call took effect and no more. A stored time is such a span as well. Where "is it past its
//! end?" has one answer anywhere in both spans, [`Clock::reached`] gives it. Where it has two,
//! [`explore`] runs the step once for each, and the caller keeps what agrees with what was seen.
//! Nothing is ever judged by a tolerance that a slow machine could exceed.

/// A point in time, known to lie between two others. Microseconds on the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub earliest: i64,
    pub latest: i64,
}

impl Moment {
    pub fn exact(us: i64) -> Self {
        Self::between(us, us)
    }

    pub fn between(earliest: i64, latest: i64) -> Self {
        assert!(earliest <= latest, "the server's clock went back");
        Self { earliest, latest }
    }

    pub fn plus(self, us: i64) -> Self {
        Self::between(self.earliest + us, self.latest + us)
    }

    pub fn later_of(self, other: Self) -> Self {
        Self::between(
            self.earliest.max(other.earliest),
            self.latest.max(other.latest),
        )
    }

    pub fn sooner_of(self, other: Self) -> Self {
        Self::between(
            self.earliest.min(other.earliest),
            self.latest.min(other.latest),
        )
    }
}

/// The clock that one step reads. Within a step it gives one consistent story: what was found to be
/// past narrows what "now" can still be.
#[derive(Debug)]
pub struct Clock {
    now: Moment,
    told: Vec<(Moment, bool)>,
    script: Vec<bool>,
    choices: Vec<bool>,
}

impl Clock {
    pub fn exact(us: i64) -> Self {
        Self::following(Moment::exact(us), Vec::new())
    }

    fn following(now: Moment, script: Vec<bool>) -> Self {
        Self {
            now,
            told: Vec::new(),
            script,
            choices: Vec::new(),
        }
    }

    pub fn now(&self) -> Moment {
        self.now
    }

    /// Whether `end` has come. A lease is live before its end and over from the end on.
    pub fn reached(&mut self, end: Moment) -> bool {
        if self.surely_reached(end) {
            return true;
        }
        if self.now.latest < end.earliest {
            return false;
        }
        if let Some((_, answer)) = self.told.iter().find(|(asked, _)| *asked == end) {
            return *answer;
        }
        let answer = self
            .script
            .get(self.choices.len())
            .copied()
            .unwrap_or(false);
        self.choices.push(answer);
        self.told.push((end, answer));
        if answer {
            self.now.earliest = self.now.earliest.max(end.earliest);
        } else {
            self.now.latest = self.now.latest.min(end.latest - 1);
        }
        answer
    }

    /// For what may be dropped without anybody noticing.
    pub fn surely_reached(&self, end: Moment) -> bool {
        self.now.earliest >= end.latest
    }
}

/// One way in which a step can have gone.
#[derive(Debug)]
pub struct Branch<S, A> {
    pub state: S,
    pub answer: A,
    pub now: Moment,
}

/// Every way in which `step` can have gone within `window`.
pub fn explore<S: Clone, A>(
    state: &S,
    window: Moment,
    step: impl Fn(&mut S, &mut Clock) -> A,
) -> Vec<Branch<S, A>> {
    let mut branches = Vec::new();
    let mut script = Vec::new();
    loop {
        let mut clock = Clock::following(window, script);
        let mut next = state.clone();
        let answer = step(&mut next, &mut clock);
        branches.push(Branch {
            state: next,
            answer,
            now: clock.now,
        });
        // The choices are the path to a leaf of a binary tree; this is the path to the next leaf.
        let Some(turn) = clock.choices.iter().rposition(|taken| !taken) else {
            return branches;
        };
        script = clock.choices;
        script.truncate(turn);
        script.push(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stories(window: Moment, ends: &[Moment]) -> Vec<Vec<bool>> {
        let branches = explore(&(), window, |(), clock| {
            ends.iter().map(|end| clock.reached(*end)).collect()
        });
        branches.into_iter().map(|branch| branch.answer).collect()
    }

    #[test]
    fn an_end_is_reached_at_its_very_instant() {
        assert_eq!(stories(Moment::exact(5), &[Moment::exact(5)]), [vec![true]]);
        assert_eq!(
            stories(Moment::exact(4), &[Moment::exact(5)]),
            [vec![false]]
        );
    }

    #[test]
    fn an_end_within_the_window_makes_two_stories() {
        let told = stories(Moment::between(4, 6), &[Moment::exact(5)]);
        assert_eq!(told, [vec![false], vec![true]]);
    }

    #[test]
    fn no_story_reaches_a_later_end_before_a_sooner_one() {
        let told = stories(
            Moment::between(0, 9),
            &[Moment::exact(6), Moment::exact(3), Moment::exact(6)],
        );
        assert_eq!(
            told,
            [
                vec![false, false, false],
                vec![false, true, false],
                vec![true, true, true],
            ]
        );
    }
}
