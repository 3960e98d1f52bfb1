//! Those who wait in turn for one resource, in front of what the tables say of its holders. Time stands still here: what
//! changes by itself is looked at elsewhere.

use super::clock::Clock;
use super::locks::{AcquireOp, LockAnswer, LockCall, LockResource, LockView};
use super::{Fencing, Reason, Settings, Token, us};

/// A resource and its queue, the first first.
#[derive(Clone, Debug)]
pub struct Queue {
    resource: LockResource,
    line: Vec<AcquireOp>,
    fencing: i64,
}

/// What comes of one call at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// None where the call waits.
    pub answer: Option<LockAnswer>,
    /// The calls that waited until now, with their answers, in turn.
    pub ended: Vec<(Token, LockAnswer)>,
}

impl Queue {
    pub fn new() -> Self {
        Self {
            resource: LockResource::new(Settings {
                memory_us: us(600_000),
                max_retention_us: us(600_000),
            }),
            line: Vec::new(),
            fencing: 0,
        }
    }

    pub fn length(&self) -> usize {
        self.line.len()
    }

    /// Those who wait, in turn.
    pub fn waiting(&self) -> Vec<Token> {
        self.line.iter().map(|op| op.token).collect()
    }

    pub fn view(&mut self) -> Option<LockView> {
        match self.ask(&LockCall::Get) {
            LockAnswer::Info(view) => view,
            other => panic!("{other:?}"),
        }
    }

    /// An acquisition that waits in turn where it is refused.
    pub fn wait(&mut self, op: &AcquireOp) -> Step {
        let answer = self.attempt(op);
        if !matches!(answer, LockAnswer::Held { .. }) {
            return self.answered(op.token, answer);
        }
        let mut ended = Vec::new();
        if let Some(place) = self.place(op.token) {
            // The later call has the place, with what it asks for.
            ended.push((op.token, answer));
            self.line[place] = op.clone();
        } else {
            self.line.push(op.clone());
        }
        ended.extend(self.let_in());
        Step {
            answer: None,
            ended,
        }
    }

    /// Any other call; an acquisition does not wait.
    pub fn call(&mut self, call: &LockCall) -> Step {
        match call {
            LockCall::Acquire(op) => {
                let answer = self.attempt(op);
                self.answered(op.token, answer)
            }
            LockCall::Release(token) => {
                let answer = self.ask(call);
                let mut ended = Vec::new();
                if let Some(place) = self.place(*token) {
                    self.line.remove(place);
                    ended.push((*token, LockAnswer::Lost(Reason::Released)));
                }
                self.step(answer, ended)
            }
            _ => {
                let answer = self.ask(call);
                self.step(answer, Vec::new())
            }
        }
    }

    /// The caller of one that waits goes away.
    pub fn leave(&mut self, token: Token) -> Vec<(Token, LockAnswer)> {
        let place = self.place(token).expect("it waits");
        self.line.remove(place);
        self.let_in()
    }

    fn place(&self, token: Token) -> Option<usize> {
        self.line.iter().position(|op| op.token == token)
    }

    fn attempt(&mut self, op: &AcquireOp) -> LockAnswer {
        let call = LockCall::Acquire(op.clone());
        let table = self.resource.clone().apply(&call, &mut now());
        let new = matches!(
            table,
            LockAnswer::Held { .. }
                | LockAnswer::Acquired {
                    already_held: false,
                    ..
                }
        );
        // A holder and a spent token are told so, whoever waits.
        if new {
            let place = self.place(op.token);
            if place.is_some_and(|place| self.line[place].mode != op.mode) {
                return LockAnswer::Invalid("mode");
            }
            if place != Some(0) && !self.line.is_empty() {
                return self.held();
            }
        }
        self.ask(&call)
    }

    fn answered(&mut self, token: Token, answer: LockAnswer) -> Step {
        let mut ended = Vec::new();
        let granted = matches!(
            answer,
            LockAnswer::Acquired {
                already_held: false,
                ..
            }
        );
        if let Some(place) = self.place(token).filter(|_| granted) {
            // This call used the place up: the one that waited is told that the lock is held.
            self.line.remove(place);
            ended.push((token, self.held()));
        }
        self.step(answer, ended)
    }

    fn step(&mut self, answer: LockAnswer, mut ended: Vec<(Token, LockAnswer)>) -> Step {
        ended.extend(self.let_in());
        Step {
            answer: Some(answer),
            ended,
        }
    }

    /// Lets in whoever can have the lock, in turn.
    fn let_in(&mut self) -> Vec<(Token, LockAnswer)> {
        let mut ended = Vec::new();
        while let Some(first) = self.line.first().cloned() {
            let token = first.token;
            let answer = self.ask(&LockCall::Acquire(first));
            if matches!(answer, LockAnswer::Held { .. }) {
                break;
            }
            ended.push((token, answer));
            self.line.remove(0);
        }
        ended
    }

    fn held(&mut self) -> LockAnswer {
        LockAnswer::Held {
            holders: self.view().map_or(Vec::new(), |view| view.holders),
            free_at: now().now(),
        }
    }

    fn ask(&mut self, call: &LockCall) -> LockAnswer {
        let answer = self.resource.apply(call, &mut now());
        if let LockAnswer::Acquired {
            fencing: Fencing::New,
            ..
        } = answer
        {
            self.fencing += 1;
            self.resource.note_fencing(self.fencing);
        }
        answer
    }
}

fn now() -> Clock {
    Clock::exact(0)
}
