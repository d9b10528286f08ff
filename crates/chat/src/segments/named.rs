//! A call whose name stands before its arguments.

use super::call::{Arguments, Fed, Surroundings, header_overflow, is_name};
use super::events::Events;
use super::family::IdForm;
use super::markers::{Markers, Scan};

/// A name, perhaps an id, a separator, and the arguments as JSON.
#[derive(Debug, Clone)]
pub(super) struct NamedCall {
    separator: &'static str,
    id: IdForm,
    header: String,
    /// The end of the header, or a marker that shows that it is none.
    ends: Markers,
    arguments: Option<Arguments>,
}

impl NamedCall {
    /// A call in whose header none of `markers` can stand, except its own.
    pub(super) fn new<'a>(
        separator: &'static str,
        id: IdForm,
        markers: impl Iterator<Item = &'a str>,
    ) -> NamedCall {
        let is_part = |marker: &&str| {
            *marker == separator || matches!(id, IdForm::After(before) if before == *marker)
        };
        let others = markers.filter(|marker| !is_part(marker));
        let ends = Markers::new(["{"].into_iter().chain(others));
        NamedCall { separator, id, header: String::new(), ends, arguments: None }
    }

    pub(super) fn feed(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Fed {
        if self.arguments.is_some() {
            return self.feed_arguments(text, 0, events);
        }
        let (end, is_end) = match self.ends.scan(text, around.is_last) {
            Scan::Found { at, index, .. } => (at, Some(index == 0)),
            Scan::Hold { at } => (at, None),
            Scan::Nothing => (text.len(), None),
        };
        if let Some(end) = header_overflow(self.header.len(), text, end) {
            return Fed::malformed(end);
        }
        self.header.push_str(&text[..end]);
        if is_end == Some(false) {
            return Fed::malformed(end);
        }
        if is_end.is_none() {
            return Fed::more(end);
        }
        let Some((name, id)) = self.name() else { return Fed::malformed(end) };
        events.start_call(name, id);
        self.arguments = Some(Arguments::new());
        self.feed_arguments(text, end, events)
    }

    fn name(&self) -> Option<(String, Option<String>)> {
        let header = self.header.trim();
        let header = header.strip_suffix(self.separator.trim()).unwrap_or(header).trim();
        let (name, id) = match self.id {
            IdForm::None => (header, None),
            IdForm::After(marker) => match header.split_once(marker) {
                Some((name, id)) => (name, Some(id)),
                None => (header, None),
            },
            IdForm::Whole => {
                let name = header.strip_prefix("functions.").unwrap_or(header);
                let name = match name.rsplit_once(':') {
                    Some((name, index)) if index.parse::<u32>().is_ok() => name,
                    _ => name,
                };
                (name, (name != header).then_some(header))
            }
        };
        let (name, id) = (name.trim(), id.map(str::trim));
        let is_sound = is_name(name) && id.is_none_or(is_name);
        is_sound.then(|| (name.to_owned(), id.map(str::to_owned)))
    }

    fn feed_arguments(&mut self, text: &str, from: usize, events: &mut Events) -> Fed {
        let Some(arguments) = &mut self.arguments else { return Fed::malformed(from) };
        let fed = arguments.feed(&text[from..], events);
        Fed { used: from + fed.used, ..fed }
    }
}
