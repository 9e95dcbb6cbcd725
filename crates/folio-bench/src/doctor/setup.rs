//! A set-up: a command on a place, with the fault that it has.

use super::place::Place;

/// A command whose fault is known.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) name: &'static str,
    pub(super) place: Place,
    /// Programs that must be installed.
    pub(super) needs: &'static [&'static str],
    /// Script of the shell that makes the files of the command, in an empty folder.
    pub(super) prepare: String,
    /// The command, as a script of the shell; for [`Subject::Path`] the path.
    pub(super) command: String,
    pub(super) subject: Subject,
    /// Causes of which each is right as the first finding; none if the command is healthy.
    pub(super) causes: &'static [&'static str],
    pub(super) cure: Cure,
}

/// What `folio doctor` examines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Command,
    Path,
}

/// What removes the fault, so that the saving can be measured.
#[derive(Debug, Clone)]
pub(super) enum Cure {
    /// The one that `folio doctor --try` applies, if it can.
    Tried,
    /// Another command that does the same.
    Command(String),
}

impl Setup {
    /// Returns a set-up without needs and cure.
    pub(super) fn new(
        place: Place,
        name: &'static str,
        prepare: impl Into<String>,
        command: impl Into<String>,
    ) -> Self {
        Self {
            name,
            place,
            needs: &[],
            prepare: prepare.into(),
            command: command.into(),
            subject: Subject::Command,
            causes: &[],
            cure: Cure::Tried,
        }
    }

    /// Adds the causes of its fault.
    pub(super) fn with_causes(self, causes: &'static [&'static str]) -> Self {
        Self { causes, ..self }
    }

    /// Adds a cure.
    pub(super) fn cured(self, cure: Cure) -> Self {
        Self { cure, ..self }
    }

    /// Adds programs that it needs.
    pub(super) fn needs(self, needs: &'static [&'static str]) -> Self {
        Self { needs, ..self }
    }

    /// Makes its command the path to examine.
    pub(super) fn of_path(self) -> Self {
        let subject = Subject::Path;
        Self { subject, ..self }
    }

    /// Returns its name and place.
    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.name, self.place.name())
    }
}
