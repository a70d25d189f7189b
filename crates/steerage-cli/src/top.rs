//! `steerage top` shows a running instance live in a terminal or in a browser. `top` reads from the
//! instance's control socket, and does not disturb the handling of packets.

mod page;
mod remote;

use std::io::{self, IsTerminal, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::event::{self, Event};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui_crossterm::crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use steerage_control::instances;
use steerage_guard::capabilities::Needed;

use crate::args::TopArgs;
use crate::error::{Error, SearchError};
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::signals::ended_by_signal;
use crate::view::{self, Action, Colours, Model, Ui};
use crate::web::Web;
use crate::{stdout, terminal};
use remote::{Query, Remote, Reply};

/// The maximum delay before `top` notices a key, a reply or a signal.
const POLL_TIME: Duration = Duration::from_millis(50);

/// The width in characters if there is no terminal and COLUMNS is not set.
const WIDTH: usize = 80;

pub(crate) fn run(args: &TopArgs) -> Result<(), Error> {
    let mut remote = Remote::new(instances::socket_of(args.to.to.as_deref())?);
    // An error is ignored, because the instance may accept a later connection.
    let _ = remote.connect();
    let web = Web::prepare(&args.web)?;
    let needs = Needs::of(SandboxProfile::Top).uses_terminal().serves_clients(args.web.web.is_some());
    // Root may watch another user's instance, and needs write access to that instance's socket in
    // order to connect again.
    let socket = remote.path().to_owned();
    let needed = Needed::default().written_files(&socket);
    if args.web.web.is_some() {
        let ended = ended_by_signal()?;
        let _kept = sandbox::enter_keeping(needs, &needed, &args.to.sandbox)?;
        return page::serve(remote, &web, args.interval, &ended);
    }
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if args.json || args.once || !is_terminal || std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        let width = terminal::width().unwrap_or(WIDTH);
        let _kept = sandbox::enter_keeping(needs, &needed, &args.to.sandbox)?;
        return if args.json { reports(remote, args) } else { once(remote, args.interval, width) };
    }
    let failed = |error| Error::System { operation: "use the terminal", error };
    let ended = ended_by_signal()?;
    let colours =
        if std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty()) { Colours::No } else { Colours::Yes };
    let mut terminal = take_terminal().map_err(failed)?;
    let watched = sandbox::enter_keeping(needs, &needed, &args.to.sandbox)
        .and_then(|_kept| watch(&mut terminal, remote, args.interval, colours, &ended).map_err(failed));
    // The terminal is restored even after an error.
    restore_terminal();
    watched
}

type Screen = Terminal<CrosstermBackend<Stdout>>;

/// Prepares the terminal for drawing, until [`restore_terminal`] is called, or until a panic.
fn take_terminal() -> io::Result<Screen> {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore_terminal();
        report(panic);
    }));
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Terminal::new(CrosstermBackend::new(io::stdout()))
}

fn restore_terminal() {
    // If the terminal is closed, there is nothing to restore.
    let _ = disable_raw_mode().and_then(|()| execute!(io::stdout(), LeaveAlternateScreen));
}

fn once(mut remote: Remote, interval: Duration, width: usize) -> Result<(), Error> {
    let mut model = Model::default();
    for nth in 0..2 {
        if nth > 0 {
            std::thread::sleep(interval);
        }
        let (seen, buckets) = remote.read(0).map_err(SearchError::Report)?;
        model.take(seen);
        model.take_buckets(0, buckets);
    }
    let lines = view::lines(&model, &Ui::default(), width, None);
    stdout::print(lines.join("\n") + "\n")
}

/// Prints the report as a line of JSON, either once, or in every interval until a signal arrives or
/// the run ends.
fn reports(mut remote: Remote, args: &TopArgs) -> Result<(), Error> {
    let mut report = remote.report().map_err(SearchError::Report)?;
    while stdout::print_while_read(format!("{report}\n"))? && !args.once {
        std::thread::sleep(args.interval);
        // If the report cannot be read, the run has ended.
        let Ok(next) = remote.report() else { break };
        report = next;
    }
    Ok(())
}

fn watch(
    terminal: &mut Screen,
    remote: Remote,
    interval: Duration,
    colours: Colours,
    ended: &AtomicBool,
) -> io::Result<()> {
    let (mut model, mut ui) = (Model::default(), Ui::default());
    let (queries, replies) = remote.on_a_thread()?;
    // `send` cannot fail: the thread ends only when `queries` is dropped.
    let send = |query| drop(queries.send(query));
    let mut due = Some(Instant::now());
    loop {
        // Only one query is pending at a time.
        if due.is_some_and(|due| due <= Instant::now()) {
            send(Query::Read { queue: ui.queue });
            due = None;
        }
        while let Ok(reply) = replies.try_recv() {
            if !matches!(reply, Reply::Set(_)) {
                due = Some(Instant::now() + interval);
            }
            learn(&mut model, &mut ui, reply);
        }
        terminal.draw(|frame| view::draw(frame, &model, &ui, colours))?;
        if !event::poll(POLL_TIME)? {
            if ended.load(Ordering::Relaxed) {
                return Ok(());
            }
            continue;
        }
        if let Event::Key(key) = event::read()? {
            match ui.key(key, model.now().queues.len(), model.now().cpus.len()) {
                Action::Quit => return Ok(()),
                Action::SetMask(list) => send(Query::SetMask { queue: ui.queue, list }),
                Action::Nothing => {}
            }
        }
    }
}

fn learn(model: &mut Model, ui: &mut Ui, reply: Reply) {
    match reply {
        Reply::Seen { seen, queue, buckets } => {
            model.take(*seen);
            model.take_buckets(queue, buckets);
            ui.queue = ui.queue.min(model.now().queues.len().saturating_sub(1));
        }
        Reply::Gone(why) => model.lose(why),
        Reply::Set(Ok(list)) => ui.said = Some(format!("in force: {}", view::or_none(list.trim()))),
        Reply::Set(Err(why)) => ui.said = Some(why),
    }
}
