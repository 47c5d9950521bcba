//! XML documents of AWS as trees.

use firn_model::{Budget, Error, Pool, Reservation, Result};
use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;

/// An element with its text and its children, without attributes.
#[derive(Debug, Default)]
pub(super) struct Element {
    name: String,
    text: String,
    children: Vec<Element>,
}

// Elements inside each other. Answers have about nine.
const DEPTH_MAX: usize = 32;
// The memory of an element: in a list that has doubled and is copied, with two texts.
const ELEMENT_BYTES: usize = 3 * size_of::<Element>() + 64;

impl Element {
    /// Reads a document. Returns the memory that it takes.
    ///
    /// # Errors
    /// `Invalid` for a text that is no XML, `Busy` without memory.
    pub(super) fn parse(body: &[u8], budget: &Budget) -> Result<(Element, Reservation)> {
        let wrong = |what: &str| Error::invalid(format!("xml: {what}"));
        let text = std::str::from_utf8(body).map_err(|_| wrong("it is not UTF-8"))?;
        let elements = text.bytes().filter(|byte| *byte == b'<').count();
        // Texts that grow have up to twice their length.
        let texts_bytes = text.len().saturating_mul(2);
        let bytes = elements.saturating_mul(ELEMENT_BYTES).saturating_add(texts_bytes);
        let held = budget.reserve(Pool::Requests, bytes as u64)?;
        let mut reader = Reader::from_str(text);
        // `<a/>` is `<a></a>`.
        reader.config_mut().expand_empty_elements = true;
        let mut open = vec![Element::default()];
        loop {
            let event = reader.read_event().map_err(|error| wrong(&error.to_string()))?;
            let text = match event {
                Event::Start(start) => {
                    if open.len() >= DEPTH_MAX {
                        return Err(wrong("too many elements inside each other"));
                    }
                    let name = String::from_utf8_lossy(start.local_name().as_ref()).into_owned();
                    open.push(Element { name, ..Element::default() });
                    continue;
                }
                Event::End(_) => {
                    let (Some(element), Some(parent)) = (open.pop(), open.last_mut()) else {
                        return Err(wrong("an end without a start"));
                    };
                    parent.children.push(element);
                    continue;
                }
                Event::Text(text) => text.decode().map_err(|error| wrong(&error.to_string()))?,
                Event::CData(text) => text.decode().map_err(|error| wrong(&error.to_string()))?,
                Event::GeneralRef(reference) => {
                    let c = reference.resolve_char_ref();
                    let c = c.map_err(|error| wrong(&error.to_string()))?.map(String::from);
                    let name = reference.decode().map_err(|error| wrong(&error.to_string()))?;
                    let known = resolve_predefined_entity(&name).map(str::to_owned);
                    c.or(known).ok_or_else(|| wrong("an unknown entity"))?.into()
                }
                Event::Eof => break,
                Event::Empty(_)
                | Event::Comment(_)
                | Event::Decl(_)
                | Event::PI(_)
                | Event::DocType(_) => continue,
            };
            if let Some(element) = open.last_mut() {
                element.text.push_str(&text);
            }
        }
        let mut document = open.pop().filter(|_| open.is_empty()).unwrap_or_default();
        match document.children.pop() {
            Some(root) => Ok((root, held)),
            None => Err(wrong("no whole document")),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The child at a path of names.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Element> {
        path.iter().try_fold(self, |element, name| {
            element.children.iter().find(|child| child.name == **name)
        })
    }

    /// The text at a path of names; `None` if it is empty.
    pub(super) fn text(&self, path: &[&str]) -> Option<&str> {
        let text = self.at(path).map(|element| element.text.trim());
        text.filter(|text| !text.is_empty())
    }

    /// The items of the list at `name`.
    pub(super) fn items(&self, name: &str) -> impl Iterator<Item = &Element> {
        let list = self.at(&[name]);
        list.into_iter().flat_map(|list| &list.children).filter(|child| child.name == "item")
    }
}
