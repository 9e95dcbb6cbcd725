//! `-v`: the log of all layers, as lines on standard error.
//!
//! `-v` is level info: what is opened, mounted, recovered, closed. `-vv` is level debug: each step,
//! and the I/O of the host. FOLIO_LOG sets levels by module instead, such as `folio::block=debug`.
//! Without either only warnings and errors are printed; other events cost one atomic load.

use crate::output::color::{self, FAILURE, HEADING, WARNING, paint};
use crate::output::printable;
use anstyle::Style;
use indicatif::MultiProgress;
use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::time::Instant;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Sets levels by module, if `-v` logs too much or too little.
const VARIABLE: &str = "FOLIO_LOG";

/// Starts the log; an error is about FOLIO_LOG.
pub(crate) fn start(
    command: &'static str,
    verbose: u8,
    quiet: bool,
    screen: &MultiProgress,
) -> Result<(), String> {
    let requested = std::env::var(VARIABLE)
        .ok()
        .filter(|text| !text.trim().is_empty());
    let filter = match (requested, verbose) {
        (Some(text), _) => Targets::from_str(&text).map_err(|error| {
            format!("invalid {VARIABLE} {text:?}: {error} (e.g. info, or folio::block=debug)")
        })?,
        // The targets of the program and its libraries start with this word.
        (None, 0) if quiet => Targets::new().with_target("folio", LevelFilter::ERROR),
        (None, count) => Targets::new().with_target("folio", level(count)),
    };
    let has_times = verbose > 0 || std::env::var_os(VARIABLE).is_some();
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Lines {
            start: has_times.then(Instant::now),
            command,
            has_colors: color::on_stderr(),
        })
        .with_writer(Screen(screen.clone()));
    // In a process with several sessions, the log of the first one continues.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init();
    Ok(())
}

fn level(verbose: u8) -> LevelFilter {
    match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Standard error, printed around a visible progress bar.
#[derive(Clone)]
struct Screen(MultiProgress);

impl Write for Screen {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0
            .suspend(|| io::stderr().write_all(line))
            .map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Screen {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Formats `folio: [0.012] disk.img: event key=value`; without times, with the command's name.
struct Lines {
    start: Option<Instant>,
    command: &'static str,
    has_colors: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let style = match *event.metadata().level() {
            Level::ERROR => FAILURE,
            Level::WARN => WARNING,
            Level::INFO => HEADING,
            _ => Style::new(),
        };
        let lead = match self.start {
            Some(start) => format!("folio: [{:.3}]", start.elapsed().as_secs_f64()),
            None => format!("folio: {}:", self.command),
        };
        write!(writer, "{} ", paint(self.has_colors, style, lead))?;
        for span in context
            .event_scope()
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            write!(writer, "{}", span.name())?;
            if let Some(fields) = span
                .extensions()
                .get::<FormattedFields<N>>()
                .filter(|f| !f.is_empty())
            {
                write!(writer, " {}", printable(fields))?;
            }
            writer.write_str(": ")?;
        }
        let mut line = String::new();
        context
            .field_format()
            .format_fields(Writer::new(&mut line), event)?;
        writeln!(writer, "{}", printable(&line))
    }
}

/// Returns the kernel's I/O counters of this process, from /proc/self/io.
pub(crate) fn host_calls() -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    let number = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|number| number.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Some(format!(
        "reads: {} calls, {} bytes, {} from disks; writes: {} calls, {} bytes, {} to disks",
        number("syscr"),
        number("rchar"),
        number("read_bytes"),
        number("syscw"),
        number("wchar"),
        number("write_bytes"),
    ))
}
