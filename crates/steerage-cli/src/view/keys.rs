use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// The maximum length of a mask in characters. Only a mask that lists hundreds of single CPUs would
/// exceed the maximum.
const MASK_CHARS_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SortBy {
    #[default]
    Cpu,
    Rate,
    Busy,
    Backlog,
    Drops,
}

impl SortBy {
    pub(crate) const ALL: [Self; 5] = [Self::Cpu, Self::Rate, Self::Busy, Self::Backlog, Self::Drops];

    pub(crate) fn column(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Rate => "rate",
            Self::Busy => "busy",
            Self::Backlog => "backlog",
            Self::Drops => "drops/s",
        }
    }

    fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }
}

/// The value by which flows are sorted. The flow with the largest value comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlowsBy {
    #[default]
    Rate,
    Packets,
    Bytes,
    Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Watch,
    Help,
    /// The user is typing a mask for the selected queue.
    Mask(String),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ui {
    pub(crate) mode: Mode,
    pub(crate) sort: SortBy,
    pub(crate) flows_by: FlowsBy,
    /// If true, the section with the flows is the first on the screen, and is shortened last.
    pub(crate) flows_first: bool,
    /// The selected queue, whose buckets the screen shows and whose mask the user can change.
    pub(crate) queue: usize,
    pub(crate) first_cpu: usize,
    /// The text that describes the result of the user's last request.
    pub(crate) said: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    Quit,
    SetMask(String),
}

const PAGE: usize = 8;

impl Ui {
    /// Handles a key. `queues` and `cpus` are the numbers of queues and CPUs.
    pub(crate) fn key(&mut self, key: KeyEvent, queues: usize, cpus: usize) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        self.said = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if matches!(key.code, KeyCode::Char('c' | 'd')) { Action::Quit } else { Action::Nothing };
        }
        match &mut self.mode {
            Mode::Watch => return self.watching(key.code, queues, cpus),
            Mode::Help => self.mode = Mode::Watch,
            Mode::Mask(text) => match key.code {
                KeyCode::Enter => {
                    let text = std::mem::take(text);
                    self.mode = Mode::Watch;
                    return Action::SetMask(text);
                }
                KeyCode::Esc => self.mode = Mode::Watch,
                KeyCode::Backspace => drop(text.pop()),
                KeyCode::Char(c) if c.is_ascii_graphic() && text.len() < MASK_CHARS_MAX => text.push(c),
                _ => {}
            },
        }
        Action::Nothing
    }

    fn watching(&mut self, key: KeyCode, queues: usize, cpus: usize) -> Action {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('h' | '?') => self.mode = Mode::Help,
            KeyCode::Char('m') if queues > 0 => self.mode = Mode::Mask(String::new()),
            KeyCode::Down | KeyCode::Char('j') => self.queue = (self.queue + 1).min(queues.saturating_sub(1)),
            KeyCode::Up | KeyCode::Char('k') => self.queue = self.queue.saturating_sub(1),
            KeyCode::PageDown => self.first_cpu = (self.first_cpu + PAGE).min(cpus.saturating_sub(1)),
            KeyCode::PageUp => self.first_cpu = self.first_cpu.saturating_sub(PAGE),
            KeyCode::Char(key) => drop(self.sorts(key)),
            _ => {}
        }
        Action::Nothing
    }

    /// Changes the sort order. Returns false if `key` selects no sort order.
    pub(crate) fn sorts(&mut self, key: char) -> bool {
        match key {
            's' => self.sort = self.sort.next(),
            'r' => self.flows_by = FlowsBy::Rate,
            'p' => self.flows_by = FlowsBy::Packets,
            'b' => self.flows_by = FlowsBy::Bytes,
            'd' => self.flows_by = FlowsBy::Duration,
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(ui: &mut Ui, keys: &str) -> Action {
        let code = |c| match c {
            '\n' => KeyCode::Enter,
            '\x08' => KeyCode::Backspace,
            '\x1b' => KeyCode::Esc,
            c => KeyCode::Char(c),
        };
        keys.chars().map(|c| ui.key(code(c).into(), 2, 20)).last().unwrap()
    }

    #[test]
    fn a_mask_is_typed_and_set() {
        let mut ui = Ui::default();
        assert_eq!(press(&mut ui, "m0-3x\x08,8"), Action::Nothing);
        assert_eq!(ui.mode, Mode::Mask("0-3,8".into()));
        assert_eq!(press(&mut ui, "\n"), Action::SetMask("0-3,8".into()));
        assert_eq!(ui.mode, Mode::Watch);
        // While the user types a mask, `q` is a character of the mask, and Esc only cancels the
        // mask.
        assert_eq!(press(&mut ui, "mq\x1b"), Action::Nothing);
        assert_eq!(press(&mut ui, "q"), Action::Quit);
    }

    #[test]
    fn choices_stay_within_what_there_is() {
        let mut ui = Ui::default();
        press(&mut ui, "kjjjj");
        assert_eq!(ui.queue, 1);
        press(&mut ui, "sssss");
        assert_eq!(ui.sort, SortBy::Cpu);
        for _ in 0..9 {
            ui.key(KeyCode::PageDown.into(), 2, 20);
        }
        assert_eq!(ui.first_cpu, 19);
        press(&mut ui, "?");
        assert_eq!(ui.mode, Mode::Help);
        press(&mut ui, "q");
        assert_eq!(ui.mode, Mode::Watch);
    }
}
