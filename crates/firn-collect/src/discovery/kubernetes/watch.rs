//! The answers to lists and watches.

use std::fmt;

use firn_model::{Budget, Error, Pool, Result, excerpt};
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::objects::parsed_bytes;
use super::resource::Resource;
use super::stored::{Object, ObjectList, StoredObject};
use crate::discovery::names::check_repeated;
use crate::json::{JsonCounts, from_json, json_error};

/// The rest of a page of a list.
#[derive(Debug, Default)]
pub struct PageEnd {
    /// The token of the next page; empty at the end of the list.
    pub next: String,
    /// The version of the list, from which it is watched.
    pub version: String,
}

/// A line of a watch.
#[derive(Debug)]
pub enum WatchEvent {
    /// An object was added or changed.
    Set(StoredObject),
    /// An object was removed.
    Removed(StoredObject),
    /// Only the version advances.
    Bookmark,
    /// The version is too old: list again.
    Gone,
    /// Another kind, which has no meaning for targets.
    Other,
}

// A server that knows no pages sends more objects than were requested.
const PAGE_OBJECTS_MAX: usize = 200_000;

impl Resource {
    fn read(self, text: &str) -> Result<Object> {
        fn read<T: DeserializeOwned>(text: &str) -> Result<Box<T>> {
            from_json(text.as_bytes()).map(Box::new).map_err(json_error)
        }
        Ok(match self {
            Resource::Pods => Object::Pod(read(text)?),
            Resource::Nodes => Object::Node(read(text)?),
            Resource::Services => Object::Service(read(text)?),
            Resource::Endpoints => Object::Endpoints(read(text)?),
            Resource::EndpointSlices => Object::EndpointSlice(read(text)?),
            Resource::Ingresses => Object::Ingress(read(text)?),
            Resource::Namespaces | Resource::ReplicaSets | Resource::Jobs => {
                Object::Named(read(text)?)
            }
        })
    }

    /// The object of `text` with its version.
    fn object(self, text: &str, budget: &Budget) -> Result<(StoredObject, String)> {
        let _held = budget.reserve(Pool::Requests, parsed_bytes(text) as u64)?;
        let mut object = self.read(text)?;
        let metadata = object.metadata_mut();
        let version = std::mem::take(&mut metadata.resource_version);
        check_repeated("the version of an object", &version)?;
        if metadata.name.is_empty() {
            return Err(Error::invalid("an object of the answer has no name"));
        }
        Ok((StoredObject::new(object, budget)?, version))
    }
}

#[derive(Deserialize)]
struct Page<'p> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(borrow)]
    items: RawItems<'p>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// The texts of the objects of a page: bounded, because each takes more memory than its text has.
struct RawItems<'p>(Vec<&'p RawValue>);

impl<'de: 'p, 'p> Deserialize<'de> for RawItems<'p> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawItems<'p>, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = RawItems<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {PAGE_OBJECTS_MAX} objects")
            }

            fn visit_unit<E>(self) -> Result<RawItems<'de>, E> {
                Ok(RawItems(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawItems<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() >= PAGE_OBJECTS_MAX {
                        return Err(serde::de::Error::invalid_length(items.len(), &self));
                    }
                    items.push(item);
                }
                Ok(RawItems(items))
            }
        }
        deserializer.deserialize_any(Items)
    }
}

impl ObjectList {
    /// Adds the objects of a page, the body of an answer to [`super::WatchSpec::list_path`].
    ///
    /// # Errors
    /// `Invalid` for a body that is no list of objects, `Busy` without memory.
    pub fn add_page(
        &mut self,
        resource: Resource,
        body: &[u8],
        budget: &Budget,
    ) -> Result<PageEnd> {
        let commas = body.iter().filter(|byte| **byte == b',').count();
        let items_bytes = (commas.min(PAGE_OBJECTS_MAX) as u64).saturating_mul(ITEM_BYTES);
        let error_bytes = JsonCounts::of(body).error_bytes() as u64;
        let _held = budget.reserve(Pool::Requests, items_bytes.saturating_add(error_bytes))?;
        let page: Page<'_> = from_json(body).map_err(json_error)?;
        for item in &page.items.0 {
            let (object, _) = resource.object(item.get(), budget)?;
            self.insert(object);
        }
        let next = page.metadata.next.unwrap_or_default();
        if !next.is_empty() && page.items.0.is_empty() {
            return Err(Error::invalid("a page of the list is empty and not the last one"));
        }
        let version = page.metadata.resource_version;
        check_repeated("the token of the next page", &next)?;
        check_repeated("the version of the list", &version)?;
        Ok(PageEnd { next, version })
    }
}

// A pointer to the text of an object, in a list that is copied to twice its length.
const ITEM_BYTES: u64 = 3 * size_of::<&RawValue>() as u64;

#[derive(Deserialize)]
struct Event<'e> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'e RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bookmark {
    metadata: PageMetadata,
}

/// A refusal of the API.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
}

impl WatchEvent {
    /// Reads a line of an answer to [`super::WatchSpec::watch_path`]. Also returns the version of
    /// the object, which may be empty.
    ///
    /// # Errors
    /// `Invalid` for a line that is no event, `Unavailable` for an error of the server, `Busy`
    /// without memory.
    pub fn parse(resource: Resource, line: &[u8], budget: &Budget) -> Result<(WatchEvent, String)> {
        // The texts of the line, beside the object.
        let _held = budget.reserve(Pool::Requests, line.len() as u64)?;
        let event: Event<'_> = from_json(line).map_err(json_error)?;
        let text = event.object.get();
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" | "DELETED" => {
                let (object, version) = resource.object(text, budget)?;
                let event = match event.kind.as_str() {
                    "DELETED" => WatchEvent::Removed(object),
                    _ => WatchEvent::Set(object),
                };
                Ok((event, version))
            }
            "BOOKMARK" => {
                let bookmark: Bookmark = from_json(text.as_bytes()).map_err(json_error)?;
                let version = bookmark.metadata.resource_version;
                check_repeated("the version of a bookmark", &version)?;
                Ok((WatchEvent::Bookmark, version))
            }
            "ERROR" => {
                let status: Status = from_json(text.as_bytes()).map_err(json_error)?;
                match status.code {
                    410 => Ok((WatchEvent::Gone, String::new())),
                    code => {
                        let message = excerpt(&status.message);
                        Err(Error::unavailable(format!("the watch failed: {code} {message}")))
                    }
                }
            }
            _ => Ok((WatchEvent::Other, String::new())),
        }
    }
}

/// The reason of an answer with a status other than 200: that of the API if the body has one.
pub fn refusal(status: &str, body: &[u8]) -> String {
    let reason = from_json::<Status>(body).unwrap_or_default();
    match reason.message.as_str() {
        "" => format!("server returned HTTP status {status}"),
        message => format!("server returned HTTP status {status}: {}", excerpt(message)),
    }
}
