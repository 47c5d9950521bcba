//! The slow tier describes itself: its own manifest names its tables and index segments, so that
//! history opens on an empty machine (`restore`) and elsewhere for reading (`follow`).
//!
//! The object `manifest` is a whole state. It is put on the condition that the previous version is
//! still there. It names its writer: the *mark* of a data folder, the *number* of a process, and an
//! *epoch* that every claim increments. A folder remembers the numbers of its own processes, so
//! that an abandoned copy notices newer writes of the original. A writer that finds another
//! folder's manifest, or a younger one, is *fenced*: it changes nothing on the slow tier and
//! refuses writes, which would never be uploaded.
//!
//! Objects are put before the manifest that names them. An object is deleted only after manifests
//! without it have been in place for the grace time: a later writer and an occasional replica need
//! only the objects that their manifest names. Objects left by killed uploads are found by one
//! listing after the claim, which is repeated later if it fails; nothing else is ever listed.
//!
//! Reading order: `requests` (counts), `description` (decodes the manifest), `segments` (index
//! segments on both tiers), `state`, `claim`, `publish`, `restore`, `follow`.

pub(crate) mod claim;
pub(crate) mod description;
pub(crate) mod follow;
pub(crate) mod publish;
pub(crate) mod requests;
pub(crate) mod restore;
pub(crate) mod segments;
pub(crate) mod state;
