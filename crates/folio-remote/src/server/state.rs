//! The state that all threads of a server share: its sessions and its worker pool.

use super::effects::Effect;
use super::limits::Limits;
use super::session::{CLIENT_GOODBYE, Session};
use folio::{Errno, Error, Result};
use folio_net::{Job, Stopper, WorkerPool};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between checks for sessions whose senders have lost their stream.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Sends a message to the operator.
pub(super) type Report = Box<dyn Fn(&str) + Send + Sync>;

/// The state of one server.
pub(super) struct ServerState {
    pub(super) limits: Limits,
    pub(super) stopper: Stopper,
    pub(super) pool: WorkerPool<Job>,
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Notified when a session has lost its stream or has ended.
    session_changed: Condvar,
    /// Sessions whose clients want events.
    sessions_with_events: AtomicUsize,
    report: Report,
}

impl ServerState {
    pub(super) fn new(
        limits: Limits,
        stopper: Stopper,
        pool: WorkerPool<Job>,
        report: Report,
    ) -> Self {
        Self {
            limits,
            stopper,
            pool,
            sessions: Mutex::default(),
            session_changed: Condvar::new(),
            sessions_with_events: AtomicUsize::new(0),
            report,
        }
    }

    /// Sends a message to the operator.
    pub(super) fn report(&self, message: &str) {
        (self.report)(message);
    }

    /// Returns all sessions.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().clone()
    }

    /// Adds a session.
    ///
    /// # Errors
    /// EBUSY if there are as many as allowed, or if the server is stopping.
    pub(super) fn add_session(&self, session: &Arc<Session>) -> Result<()> {
        let mut sessions = self.sessions.lock();
        if sessions.len() >= self.limits.clients || self.stopper.is_stopping() {
            return Err(Error::new(
                Errno::BUSY,
                "the share has as many clients as allowed (--max-clients)",
            ));
        }
        if session.sends_events {
            self.sessions_with_events.fetch_add(1, Ordering::Relaxed);
        }
        sessions.push(session.clone());
        Ok(())
    }

    /// Reports a change by one session's client to all other sessions.
    pub(super) fn notify_other_sessions(&self, session: &Arc<Session>, effect: Effect<'_>) {
        for other in self.sessions() {
            if !Arc::ptr_eq(&other, session) {
                other.report_change(effect);
            }
        }
    }

    /// Returns whether a client other than that of `session` has asked for events.
    pub(super) fn needs_events_of(&self, session: &Session) -> bool {
        let count = self.sessions_with_events.load(Ordering::Relaxed);
        count > usize::from(session.sends_events)
    }

    /// Ends a session, and reports `reason` to the client and, unless the client itself has ended
    /// it, to the operator.
    pub(super) fn end_session(&self, session: &Arc<Session>, reason: &str) {
        // First: no client resumes it from here on.
        let is_removed = {
            let mut sessions = self.sessions.lock();
            let count = sessions.len();
            sessions.retain(|other| !Arc::ptr_eq(other, session));
            sessions.len() < count
        };
        if is_removed && session.sends_events {
            self.sessions_with_events.fetch_sub(1, Ordering::Relaxed);
        }
        if !session.has_ended() && reason != CLIENT_GOODBYE && !self.stopper.is_stopping() {
            self.report(&format!("{}: {reason}", session.peer));
        }
        session.end(reason);
        self.session_changed.notify_all();
    }

    /// Handles the end of a session's stream: the session waits for another one.
    pub(super) fn lose_stream(&self, session: &Arc<Session>, generation: u64) {
        if session.link.lose(generation) {
            session.start_grace();
            if self.limits.grace.is_zero() {
                self.end_session(session, "the connection is lost");
            }
            self.session_changed.notify_all();
        }
    }

    /// Wakes [`ServerState::end_expired_sessions`] to see that the server is stopping.
    pub(super) fn wake(&self) {
        // Under the lock, so that a thread that has not seen the stop yet is waiting.
        let _sessions = self.sessions.lock();
        self.session_changed.notify_all();
    }

    /// Waits until a session changes, at most `timeout`.
    pub(super) fn wait_for_change(&self, timeout: Duration) {
        self.session_changed
            .wait_for(&mut self.sessions.lock(), timeout);
    }

    /// Ends sessions whose clients stay away longer than the grace, until the server stops.
    pub(super) fn end_expired_sessions(&self) {
        let mut sessions = self.sessions.lock();
        while !self.stopper.is_stopping() {
            self.session_changed.wait_for(&mut sessions, CHECK_INTERVAL);
            let now = Instant::now();
            sessions
                .iter()
                .filter(|session| !session.link.is_attached())
                .for_each(|session| session.start_grace());
            let is_expired =
                |session: &&Arc<Session>| session.expires_at().is_some_and(|at| at <= now);
            let expired: Vec<_> = sessions.iter().filter(is_expired).cloned().collect();
            if !expired.is_empty() {
                MutexGuard::unlocked(&mut sessions, || {
                    for session in &expired {
                        self.end_session(session, "the client has stayed away for too long");
                    }
                });
            }
        }
    }
}
