//! The calls on their way to a notifier: a program in the machine of a client to which the server
//! has no other way. It asks for each call by a request, which also has the result of the last one.

use super::event_call::{EventCall, EventCallError, EventCaller};
use folio::Errno;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a request waits for a call. The requester cannot be killed meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The place of a request among those of a notifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskStep {
    First,
    Next,
    /// It gets no call.
    Last,
}

/// A request of a notifier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotifierAsk {
    /// A random number of the notifier.
    pub(crate) notifier: u64,
    pub(crate) step: AskStep,
    /// The last call that it has received; 0 if there was none.
    pub(crate) call: u64,
    pub(crate) result: Result<(), EventCallError>,
}

/// A call for a notifier, with its number, and as bytes.
pub(crate) type NumberedCall = (u64, Vec<u8>);

/// The calls of one client: at most one is on its way, and at most one request waits for it.
#[derive(Default)]
pub(crate) struct NotifierCalls {
    state: Mutex<NotifierState>,
    changed: Condvar,
}

/// The part of a server, of type `S`, that serves a notifier. Nothing runs, and no event is asked
/// for, before the first one has come.
pub(crate) struct NotifierService<S> {
    pub(crate) server: Weak<S>,
    pub(crate) calls: Arc<NotifierCalls>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

#[cfg(feature = "virtiofs")]
impl<S> NotifierService<S> {
    pub(crate) fn new(server: &Arc<S>) -> Self {
        Self {
            server: Arc::downgrade(server),
            calls: Arc::default(),
            threads: Mutex::default(),
        }
    }
}

#[derive(Default)]
struct NotifierState {
    /// The notifier that gets the calls: the last one that has come.
    notifier: Option<u64>,
    /// The number of the last request. An earlier one waits no longer.
    last_ask: u64,
    last_call: u64,
    progress: CallProgress,
    is_closed: bool,
}

/// The progress of the last call.
#[derive(Default)]
enum CallProgress {
    #[default]
    None,
    Waiting(Vec<u8>),
    /// The notifier makes it.
    Received,
    Returned(Result<(), EventCallError>),
}

impl AskStep {
    /// Returns the step as a number.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Next => 0,
            Self::First => 1,
            Self::Last => 2,
        }
    }

    /// Returns the step of a number.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        [Self::Next, Self::First, Self::Last]
            .into_iter()
            .find(|step| step.number() == number)
    }
}

impl NotifierState {
    /// Gives up a call that a notifier has received: it may not return.
    fn give_up_received(&mut self) {
        if matches!(self.progress, CallProgress::Received) {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        let lost = EventCallError::Unreachable(Errno::NOTCONN);
        self.progress = CallProgress::Returned(Err(lost));
    }
}

impl NotifierCalls {
    /// Notes the result of the last call, and waits for the next one for a limited time. The first
    /// request of a notifier waits for none.
    ///
    /// # Errors
    /// EBUSY if another notifier has come since.
    pub(crate) fn ask(&self, ask: NotifierAsk) -> Result<Option<NumberedCall>, Errno> {
        let mut state = self.state.lock();
        state.last_ask += 1;
        let number = state.last_ask;
        if state.notifier != Some(ask.notifier) {
            if ask.step != AskStep::First {
                return Err(Errno::BUSY);
            }
            state.notifier = Some(ask.notifier);
            state.give_up_received();
            self.changed.notify_all();
            return Ok(None);
        }
        if ask.call == state.last_call && matches!(state.progress, CallProgress::Received) {
            state.progress = CallProgress::Returned(ask.result);
        }
        self.changed.notify_all();
        if ask.step == AskStep::Last {
            state.notifier = None;
            return Ok(None);
        }
        let waits = |state: &mut NotifierState| {
            state.last_ask == number
                && !state.is_closed
                && !matches!(state.progress, CallProgress::Waiting(_))
        };
        let _ = self.changed.wait_while_for(&mut state, waits, WAIT_MAX);
        if state.notifier != Some(ask.notifier) {
            return Err(Errno::BUSY);
        }
        match std::mem::replace(&mut state.progress, CallProgress::Received) {
            CallProgress::Waiting(bytes) if state.last_ask == number => {
                Ok(Some((state.last_call, bytes)))
            }
            progress => {
                state.progress = progress;
                Ok(None)
            }
        }
    }

    /// Ends the wait of a request.
    pub(crate) fn end_wait(&self) {
        self.state.lock().last_ask += 1;
        self.changed.notify_all();
    }

    /// Notes that the client has ended, and with it its notifier. The call in progress is not for
    /// the next client.
    pub(crate) fn detach(&self) {
        let mut state = self.state.lock();
        state.notifier = None;
        if matches!(
            state.progress,
            CallProgress::Waiting(_) | CallProgress::Received
        ) {
            state.give_up();
        }
        drop(state);
        self.end_wait();
    }

    /// Fails the call in progress, and all later ones.
    #[cfg(feature = "virtiofs")]
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl EventCaller for NotifierCalls {
    /// Waits for a notifier if there is none.
    fn make(&self, call: &EventCall) -> Result<(), EventCallError> {
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        let mut state = self.state.lock();
        state.last_call += 1;
        state.progress = CallProgress::Waiting(bytes);
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| {
            !state.is_closed && !matches!(state.progress, CallProgress::Returned(_))
        });
        match std::mem::take(&mut state.progress) {
            CallProgress::Returned(result) => result,
            _ => Err(EventCallError::Unreachable(Errno::NOTCONN)),
        }
    }

    fn release(&self) {}
}

#[cfg(all(test, feature = "virtiofs"))]
mod tests {
    use super::super::event_call::{EventCallKind, outside_name};
    use super::*;

    fn call() -> EventCall {
        EventCall {
            kind: EventCallKind::Open,
            outside_name: outside_name(5),
            names: Vec::new(),
        }
    }

    fn ask(notifier: u64, call: u64) -> NotifierAsk {
        NotifierAsk {
            notifier,
            step: if call == 0 {
                AskStep::First
            } else {
                AskStep::Next
            },
            call,
            result: Err(EventCallError::Failed(Errno::STALE)),
        }
    }

    /// Waits for a call as the notifier 7.
    fn receive(calls: &NotifierCalls) -> NumberedCall {
        loop {
            if let Some(received) = calls.ask(ask(7, 0)).unwrap() {
                return received;
            }
        }
    }

    #[test]
    fn call_returns_the_result_of_the_next_request() {
        let calls = &NotifierCalls::default();
        std::thread::scope(|scope| {
            let made = scope.spawn(|| calls.make(&call()));
            assert_eq!(calls.ask(ask(7, 0)), Ok(None));
            let (number, bytes) = receive(calls);
            assert_eq!(EventCall::decode(&bytes), Some(call()));
            let waiting = scope.spawn(move || calls.ask(ask(7, number)));
            let failed = Err(EventCallError::Failed(Errno::STALE));
            assert_eq!(made.join().unwrap(), failed);
            assert_eq!(waiting.join().unwrap(), Ok(None));
        });
    }

    #[test]
    fn last_request_has_the_result_and_no_call() {
        let calls = &NotifierCalls::default();
        std::thread::scope(|scope| {
            assert_eq!(calls.ask(ask(7, 0)), Ok(None));
            let made = scope.spawn(|| calls.make(&call()));
            let (number, _) = receive(calls);
            let last = NotifierAsk {
                step: AskStep::Last,
                ..ask(7, number)
            };
            assert_eq!(calls.ask(last), Ok(None));
            let failed = Err(EventCallError::Failed(Errno::STALE));
            assert_eq!(made.join().unwrap(), failed);
            assert_eq!(calls.ask(ask(7, number)), Err(Errno::BUSY));
        });
    }

    #[test]
    fn new_notifier_replaces_the_last_one() {
        let calls = &NotifierCalls::default();
        std::thread::scope(|scope| {
            assert_eq!(calls.ask(ask(7, 0)), Ok(None));
            let made = scope.spawn(|| calls.make(&call()));
            let (number, _) = receive(calls);
            assert_eq!(calls.ask(ask(8, 0)), Ok(None));
            let lost = Err(EventCallError::Unreachable(Errno::NOTCONN));
            assert_eq!(made.join().unwrap(), lost);
            assert_eq!(calls.ask(ask(7, number)), Err(Errno::BUSY));
            // A second request of one notifier ends the first.
            let waiting = scope.spawn(|| calls.ask(ask(8, 0)));
            calls.end_wait();
            assert_eq!(waiting.join().unwrap(), Ok(None));
            let made = scope.spawn(|| calls.make(&call()));
            calls.close();
            assert_eq!(made.join().unwrap(), lost);
        });
    }

    #[test]
    fn detach_gives_up_a_call_not_received_yet() {
        let calls = &NotifierCalls::default();
        std::thread::scope(|scope| {
            let made = scope.spawn(|| calls.make(&call()));
            while !matches!(calls.state.lock().progress, CallProgress::Waiting(_)) {
                std::thread::yield_now();
            }
            calls.detach();
            let lost = Err(EventCallError::Unreachable(Errno::NOTCONN));
            assert_eq!(made.join().unwrap(), lost);
            // The next client gets none.
            assert_eq!(calls.ask(ask(8, 0)), Ok(None));
            assert!(matches!(calls.state.lock().progress, CallProgress::None));
        });
    }
}
