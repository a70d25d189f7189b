//! `steerage top`: a running instance, live in a terminal. What it shows it gets by the instance's control socket; it runs no
//! path of its own, and an instance does not notice who watches it.

mod events;
mod keys;
mod model;
mod remote;
mod snapshot;
mod strip;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::TopArgs;
use crate::command;
use crate::control;
use crate::error::Error;

use keys::{Action, Ui};
use model::Model;
use remote::{Asked, Remote, Told};
use view::Colours;

/// How long a key, an answer or a signal waits at most until it is seen.
const LOOK: Duration = Duration::from_millis(50);

/// How wide a table is that goes to no terminal.
const WIDTH: usize = 80;

/// Watches until somebody quits, or prints one table.
pub(crate) fn run(args: &TopArgs) -> Result<(), Error> {
    let remote = Remote::new(control::socket_of(args.to.to.as_deref())?);
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if args.once || !is_terminal || std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return once(remote, args.interval);
    }
    let failed = |error| Error::System { operation: "use the terminal", error };
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|error| Error::System { operation: "listen for signals", error })?;
    }
    let colours =
        if std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty()) { Colours::No } else { Colours::Yes };
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let watched = watch(&mut terminal, remote, args.interval, colours, &ended);
    // Whatever happened: a terminal that stays as it is now is of no use to anybody.
    ratatui::restore();
    watched.map_err(failed)
}

/// One table, of what happened in one interval.
fn once(mut remote: Remote, interval: Duration) -> Result<(), Error> {
    let mut model = Model::default();
    for nth in 0..2 {
        if nth > 0 {
            std::thread::sleep(interval);
        }
        let (snapshot, buckets) = remote.look(0).map_err(Error::Watched)?;
        model.take(snapshot);
        model.take_buckets(0, buckets);
    }
    command::print(view::text(&model, &Ui::default(), WIDTH).as_bytes())
}

/// Draws, and does what keys say, until one says to quit.
fn watch(
    terminal: &mut DefaultTerminal,
    remote: Remote,
    interval: Duration,
    colours: Colours,
    ended: &AtomicBool,
) -> io::Result<()> {
    let (mut model, mut ui) = (Model::default(), Ui::default());
    let remote = remote.on_a_thread()?;
    let mut due = Some(Instant::now());
    loop {
        // One question at a time: an instance that does not answer is not asked again and again.
        if due.is_some_and(|due| due <= Instant::now()) {
            remote.ask(Asked::Look { queue: ui.queue });
            due = None;
        }
        while let Some(told) = remote.told() {
            if !matches!(told, Told::Set(_)) {
                due = Some(Instant::now() + interval);
            }
            learn(&mut model, &mut ui, told);
        }
        terminal.draw(|frame| view::draw(frame, &model, &ui, colours))?;
        if !event::poll(LOOK)? {
            if ended.load(Ordering::Relaxed) {
                return Ok(());
            }
            continue;
        }
        if let Event::Key(key) = event::read()? {
            match ui.key(key, model.now.queues.len(), model.now.cpus.len()) {
                Action::Quit => return Ok(()),
                Action::SetMask(list) => remote.ask(Asked::SetMask { queue: ui.queue, list }),
                Action::Nothing => {}
            }
        }
    }
}

fn learn(model: &mut Model, ui: &mut Ui, told: Told) {
    match told {
        Told::Seen { snapshot, queue, buckets } => {
            model.take(*snapshot);
            model.take_buckets(queue, buckets);
            ui.queue = ui.queue.min(model.now.queues.len().saturating_sub(1));
        }
        Told::Gone(why) => model.lose(why),
        Told::Set(Ok(list)) => ui.said = Some(format!("in force: {}", events::mask(list.trim()))),
        Told::Set(Err(why)) => ui.said = Some(why),
    }
}
