//! The words of the codec `json`, and the faults of its lines, which the errors of decoders contain.

mod fault;
mod words;

pub use fault::JsonFault;
pub(crate) use fault::{FieldName, LineFault};
pub(crate) use words::Type;
pub use words::{JsonField, JsonKind};
