//! The seat under a model checker, which tries every interleaving of the lane's own thread and of threads that wait.
//!
//! A model has no time, so no lease ends: each outcome must come because somebody was woken for it.

use std::os::fd::AsFd;

use tidewire_io::waker::LaneWaker;

use super::*;
use crate::sync::{Mutex, thread};

/// The part that the threads and the lane of a model share.
struct Desk {
    waker: Arc<LaneWaker>,
    requests: Mutex<Vec<Request>>,
    stops: AtomicBool,
}

#[derive(Default)]
struct Request {
    state: RequestState,
    waiting: Option<(Waker, Option<Task>)>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum RequestState {
    #[default]
    Unasked,
    Asked,
    Sent,
    Answered,
}

/// A lane whose peer answers at once. Without `LOOKS`, it forgets to look for work at the end of a lead.
struct EchoLane<const LOOKS: bool> {
    desk: Arc<Desk>,
    crew: Arc<Crew>,
}

impl Desk {
    fn new(requests: usize) -> Arc<Self> {
        Arc::new(Self {
            waker: Arc::new(LaneWaker::new().unwrap()),
            requests: Mutex::new((0..requests).map(|_| Request::default()).collect()),
            stops: AtomicBool::new(false),
        })
    }

    fn ask(&self, index: usize) {
        self.requests.lock().unwrap()[index].state = RequestState::Asked;
    }

    fn is_answered(&self, index: usize) -> bool {
        self.requests.lock().unwrap()[index].state == RequestState::Answered
    }

    /// Whether the request has its answer. If not, `waker` is woken for it.
    fn poll(&self, index: usize, waker: Option<&Waker>, task: Option<Task>) -> bool {
        let mut requests = self.requests.lock().unwrap();
        let request = &mut requests[index];
        if request.state != RequestState::Answered
            && let Some(waker) = waker
        {
            request.waiting = Some((waker.clone(), task));
        }
        request.state == RequestState::Answered
    }

    fn any(&self, state: RequestState) -> bool {
        let requests = self.requests.lock().unwrap();
        requests.iter().any(|request| request.state == state)
    }

    /// Moves all requests of one state to the next. Wakes who waits for them.
    fn move_all(&self, from: RequestState, to: RequestState) {
        let mut woken = Vec::new();
        for request in &mut *self.requests.lock().unwrap() {
            if request.state == from {
                request.state = to;
                if to == RequestState::Answered {
                    woken.extend(request.waiting.take());
                }
            }
        }
        for (waker, task) in woken {
            drop(task);
            waker.wake();
        }
    }

    fn stop(&self) {
        let requests = self.requests.lock().unwrap();
        self.stops.store(true, Ordering::SeqCst);
        drop(requests);
        self.waker.wake();
    }
}

impl<const LOOKS: bool> EchoLane<LOOKS> {
    fn is_idle(&self) -> bool {
        !self.desk.any(RequestState::Asked)
            && !self.desk.any(RequestState::Sent)
            && !self.crew.must_hand_on()
            && !self.stops()
    }
}

impl<const LOOKS: bool> Turns for EchoLane<LOOKS> {
    fn take_over(&mut self) {
        self.desk.move_all(RequestState::Asked, RequestState::Sent);
    }

    fn step(&mut self, until_ns: Option<u64>) -> Result<(), LaneError> {
        self.desk.waker.before_sleep();
        if until_ns.is_none() && self.is_idle() {
            self.desk.waker.sleep_in_model();
        }
        self.desk.waker.after_sleep();
        self.desk
            .move_all(RequestState::Sent, RequestState::Answered);
        self.take_over();
        Ok(())
    }

    fn stops(&self) -> bool {
        self.desk.stops.load(Ordering::SeqCst)
    }

    fn has_work(&self) -> bool {
        LOOKS && (self.desk.any(RequestState::Asked) || self.stops())
    }

    fn end(self, outcome: Result<(), LaneError>) -> Result<(), LaneError> {
        outcome
    }
}

/// A lane that offers its seat while it sleeps. Without `CALLS`, a visit forgets to call the lane's own thread.
struct VisitedLane<const CALLS: bool>(EchoLane<true>, Visits);

/// Counts the visits.
type Visits = Arc<std::sync::atomic::AtomicUsize>;

impl<const CALLS: bool> Turns for VisitedLane<CALLS> {
    fn take_over(&mut self) {
        self.0.take_over();
    }

    fn step(&mut self, until_ns: Option<u64>) -> Result<(), LaneError> {
        self.0.step(until_ns)
    }

    fn may_offer(&self) -> bool {
        true
    }

    fn step_or_offer(&mut self) -> Result<Option<Offer>, LaneError> {
        self.0.desk.waker.before_sleep();
        if self.0.is_idle() {
            let readiness = self.0.desk.waker.as_fd().try_clone_to_owned().unwrap();
            return Ok(Some(Offer::new(Arc::new(readiness), None)));
        }
        self.end_offer()?;
        Ok(None)
    }

    fn end_offer(&mut self) -> Result<(), LaneError> {
        self.0.desk.waker.after_sleep();
        let desk = &self.0.desk;
        desk.move_all(RequestState::Sent, RequestState::Answered);
        self.take_over();
        Ok(())
    }

    fn attend(&mut self, errands: &mut dyn Iterator<Item = Errand>) -> bool {
        errands.for_each(drop);
        self.1.fetch_add(1, Ordering::Relaxed);
        self.take_over();
        CALLS && !self.0.is_idle()
    }

    fn stops(&self) -> bool {
        self.0.stops()
    }

    fn has_work(&self) -> bool {
        self.0.has_work()
    }

    fn end(self, outcome: Result<(), LaneError>) -> Result<(), LaneError> {
        outcome
    }
}

struct Model {
    desk: Arc<Desk>,
    seat: Arc<dyn Lead>,
    tasks: Arc<Tasks>,
    own: loom::thread::JoinHandle<Result<(), LaneError>>,
}

impl Model {
    /// Starts a lane for this many requests.
    fn start<const LOOKS: bool>(requests: usize) -> Self {
        Self::of(requests, |lane: EchoLane<LOOKS>| lane)
    }

    fn of<const LOOKS: bool, L: Turns + 'static>(
        requests: usize,
        make: impl FnOnce(EchoLane<LOOKS>) -> L,
    ) -> Self {
        let desk = Desk::new(requests);
        let tasks = Arc::<Tasks>::default();
        let crew = Crew::new(&desk.waker, Arc::clone(&tasks));
        let lane = EchoLane::<LOOKS> {
            desk: Arc::clone(&desk),
            crew: Arc::clone(&crew),
        };
        let seat = Seat::new(make(lane), crew);
        let own = loom::thread::spawn({
            let seat = Arc::clone(&seat);
            move || seat.run()
        });
        Self {
            desk,
            seat,
            tasks,
            own,
        }
    }

    /// Starts a thread that makes these requests one after another, and waits for each.
    fn ask(&self, requests: std::ops::Range<usize>) -> loom::thread::JoinHandle<()> {
        let (desk, seat) = (Arc::clone(&self.desk), Arc::clone(&self.seat));
        loom::thread::spawn(move || ask_and_wait(&desk, &seat, requests))
    }

    /// Ends the lane.
    fn end(self) {
        self.desk.stop();
        let outcome = self.own.join().unwrap();
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

fn ask_and_wait(desk: &Desk, seat: &Arc<dyn Lead>, requests: std::ops::Range<usize>) {
    for index in requests {
        desk.ask(index);
        desk.waker.wake_poller();
        seat.wait(None, &mut |waker| desk.poll(index, waker, None));
        assert!(desk.is_answered(index));
    }
}

/// Runs every interleaving with at most this many preemptions.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(preemptions);
    checker.max_branches = 10_000;
    checker.check(model);
}

#[test]
fn a_thread_gets_its_answers_without_a_lease() {
    check(2, || {
        let model = Model::start::<true>(2);
        ask_and_wait(&model.desk, &model.seat, 0..2);
        model.end();
    });
}

#[test]
fn two_threads_get_their_answers_without_a_lease() {
    check(1, || {
        let model = Model::start::<true>(2);
        let other = model.ask(1..2);
        ask_and_wait(&model.desk, &model.seat, 0..1);
        other.join().unwrap();
        model.end();
    });
}

/// A task asks while a thread leads, and is woken although that thread leaves.
#[test]
fn a_task_gets_its_answer_without_a_lease() {
    check(1, || {
        let model = Model::start::<true>(2);
        let leader = model.ask(0..1);
        model.desk.ask(1);
        model.desk.waker.wake_poller();
        let task = Task::begin(&model.tasks);
        if !model.desk.poll(1, Some(&this_thread()), Some(task)) {
            model.desk.waker.wake_resting();
            while !model.desk.is_answered(1) {
                thread::park();
            }
        }
        leader.join().unwrap();
        model.end();
    });
}

/// Runs a thread that leads and leaves while another one sends what nobody waits for.
fn a_message_is_taken<const LOOKS: bool>(preemptions: usize) {
    check(preemptions, || {
        let model = Model::start::<LOOKS>(2);
        let leader = model.ask(0..1);
        model.desk.ask(1);
        model.desk.waker.wake();
        // This thread does not lead.
        while !model.desk.poll(1, Some(&this_thread()), None) {
            thread::park();
        }
        leader.join().unwrap();
        model.end();
    });
}

#[test]
fn a_message_that_nobody_waits_for_is_taken_without_a_lease() {
    a_message_is_taken::<true>(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn negative_control_a_leader_that_leaves_without_a_look_leaves_a_message() {
    a_message_is_taken::<false>(2);
}

/// Regression: a call between the rest and the free seat found the seat taken, and then nobody led.
#[test]
fn a_call_while_the_leader_leaves_is_answered() {
    check(2, || {
        let model = Model::start::<true>(1);
        let caller = loom::thread::spawn({
            let desk = Arc::clone(&model.desk);
            move || {
                desk.ask(0);
                desk.waker.wake();
            }
        });
        // A lead without a turn.
        model.seat.lead(None, &mut || true);
        while !model.desk.poll(0, Some(&this_thread()), None) {
            thread::park();
        }
        caller.join().unwrap();
        model.end();
    });
}

/// Two threads write to a lane that offers its seat, and visit it or else call it.
fn a_visit_leaves_no_work<const CALLS: bool>(preemptions: usize) {
    check(preemptions, || {
        let visits = Visits::default();
        let model = Model::of(2, |lane| VisitedLane::<CALLS>(lane, Arc::clone(&visits)));
        let write = move |desk: &Desk, seat: &Arc<dyn Lead>, index| {
            desk.ask(index);
            let before = visits.load(Ordering::Relaxed);
            seat.attend(Errand::in_model(Arc::downgrade(seat)));
            if visits.load(Ordering::Relaxed) == before {
                // The errand became a signal.
                desk.waker.wake();
            }
            while !desk.poll(index, Some(&this_thread()), None) {
                thread::park();
            }
        };
        let other = loom::thread::spawn({
            let (desk, seat) = (Arc::clone(&model.desk), Arc::clone(&model.seat));
            let write = write.clone();
            move || write(&desk, &seat, 1)
        });
        write(&model.desk, &model.seat, 0);
        other.join().unwrap();
        model.end();
    });
}

#[test]
fn no_visit_leaves_work_without_a_thread() {
    a_visit_leaves_no_work::<true>(2);
}

#[test]
#[should_panic(expected = "deadlock")]
fn negative_control_a_visit_that_calls_nobody_leaves_work() {
    a_visit_leaves_no_work::<false>(2);
}
